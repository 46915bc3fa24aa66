"""One warpgroup copies, one multiplies; events pass the slots of a ring to and fro, the twin of
examples/co/event_pipeline.co."""

import tilemma as tm
from tilemma import cdiv, dma, event, foreach, inthreads, mma, parallel, shared, trigger, wait


@tm.kernel
def event_pipeline(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=128,
    TILE_K=64,
    STAGES=2,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        full = event(STAGES)
        empty = event(STAGES)
        lhs_s = shared("f16", TILE_M, TILE_K, copies=STAGES)
        rhs_s = shared("f16", TILE_N, TILE_K, copies=STAGES)
        output_s = shared("f16", TILE_M, TILE_N)
        for p in parallel(2, level="group-4"):
            with inthreads(p == 0, async_=True):
                for k in foreach(cdiv(K, TILE_K)):
                    wait(empty[k % STAGES])
                    dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, k), lhs_s[k % STAGES])
                    dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, k), rhs_s[k % STAGES])
                    trigger(full[k % STAGES])
            with inthreads(p == 1, async_=True):
                mc = mma.fill(0.0, "f32")
                for i in foreach(STAGES):
                    trigger(empty[i])
                for k in foreach(cdiv(K, TILE_K)):
                    wait(full[k % STAGES])
                    ma = mma.load(lhs_s[k % STAGES])
                    mb = mma.load(rhs_s[k % STAGES])
                    mma.row.row(mc, ma, mb)
                    mma.commit()
                    trigger(empty[k % STAGES])
                mma.store(mc, output_s)
                dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
