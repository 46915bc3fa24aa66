"""TMA loads run STAGES - 1 tiles ahead of the warpgroups that multiply, the twin of
examples/co/tma_pipeline.co."""

import tilemma as tm
from tilemma import cdiv, event, foreach, if_, mma, parallel, shared, tma, trigger, wait


@tm.kernel
def tma_pipeline(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=128,
    TILE_K=64,
    WARP_M=64,
    STAGES=3,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        full = event(STAGES)
        lhs_s = shared("f16", TILE_M, TILE_K, copies=STAGES)
        rhs_s = shared("f16", TILE_N, TILE_K, copies=STAGES)
        output_s = shared("f16", TILE_M, TILE_N)
        for i in foreach(STAGES - 1):
            with if_(i < cdiv(K, TILE_K)):
                tma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, i), lhs_s[i], async_=full[i])
                tma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, i), rhs_s[i], async_=full[i])
                trigger(full[i])
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            wait(full[k % STAGES])
            ahead = k + STAGES - 1
            with if_(ahead < cdiv(K, TILE_K)):
                slot = ahead % STAGES
                tma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, ahead), lhs_s[slot], async_=full[slot])
                tma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, ahead), rhs_s[slot], async_=full[slot])
                trigger(full[slot])
            for p in parallel(TILE_M // WARP_M, level="group-4"):
                ma = mma.load(lhs_s[k % STAGES].subspan(WARP_M, TILE_K).at(p, 0))
                mb = mma.load(rhs_s[k % STAGES])
                mma.row.row(mc, ma, mb)
        for p in parallel(TILE_M // WARP_M, level="group-4"):
            mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(p, 0))
        tma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
