"""One warpgroup feeds another through a ring by the tensor copy engine, the twin of 5_warpgroups.co."""

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, shared, tma, trigger, wait


@tm.kernel
def warpgroups(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=128,
    TILE_K=64,
    STAGES=4,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        full, empty = event(STAGES), event(STAGES, ready=True)
        a = shared("f16", TILE_M, TILE_K, copies=STAGES)
        b = shared("f16", TILE_N, TILE_K, copies=STAGES)
        out = shared("f16", TILE_M, TILE_N)
        for wg in parallel(2, level="group-4"):
            with inthreads(wg == 0, async_=True):
                for k in foreach(cdiv(K, TILE_K)):
                    s = k % STAGES
                    wait(empty[s])
                    tma.copy(lhs.subspan(TILE_M, TILE_K).at(m, k), a[s], async_=full[s])
                    tma.copy(rhs.subspan(TILE_N, TILE_K).at(n, k), b[s], async_=full[s])
                    trigger(full[s])
            with inthreads(wg == 1, async_=True):
                mc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, TILE_K)):
                    s = k % STAGES
                    wait(full[s])
                    mma.row.row(mc, a[s], b[s])
                    mma.commit()
                    trigger(empty[s])
                mma.store(mc, out)
                tma.copy(out, output.subspan(TILE_M, TILE_N).at(m, n))
