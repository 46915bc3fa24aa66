"""A producer warpgroup feeds CONSUMERS multiplying ones through a ring of STAGES slots, the twin of
examples/co/warp_specialized.co."""

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, shared, tma, trigger, wait


@tm.kernel
def warp_specialized(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    WARP_M=64,
    TILE_N=256,
    TILE_K=64,
    STAGES=4,
    CONSUMERS=2,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    TILE_M = CONSUMERS * WARP_M
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        full = event(STAGES)
        empty = event(STAGES)
        lhs_s = shared("f16", TILE_M, TILE_K, copies=STAGES)
        rhs_s = shared("f16", TILE_N, TILE_K, copies=STAGES)
        output_s = shared("f16", TILE_M, TILE_N)
        for wg in parallel(CONSUMERS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                for k in foreach(cdiv(K, TILE_K)):
                    wait(empty[k % STAGES])
                    tma.copy(
                        lhs.subspan(TILE_M, TILE_K).at(block_m, k), lhs_s[k % STAGES], async_=full[k % STAGES]
                    )
                    tma.copy(
                        rhs.subspan(TILE_N, TILE_K).at(block_n, k), rhs_s[k % STAGES], async_=full[k % STAGES]
                    )
                    trigger(full[k % STAGES])
            with inthreads(wg >= 1, async_=True):
                mc = mma.fill(0.0, "f32")
                for i in foreach(STAGES):
                    trigger(empty[i])
                for k in foreach(cdiv(K, TILE_K)):
                    wait(full[k % STAGES])
                    ma = mma.load(lhs_s[k % STAGES].subspan(WARP_M, TILE_K).at(wg - 1, 0))
                    mb = mma.load(rhs_s[k % STAGES])
                    mma.row.row(mc, ma, mb)
                    mma.commit()
                    trigger(empty[k % STAGES])
                mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0))
                tma.copy(
                    output_s.subspan(WARP_M, TILE_N).at(wg - 1, 0),
                    output.subspan(WARP_M, TILE_N).at(block_m * CONSUMERS + wg - 1, block_n),
                )
