"""A product for each item of a batch, the twin of examples/co/batched.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def batched(
    left: tm.Global["f16", "B", "M", "K"],
    right: tm.Global["f16", "B", "N", "K"],
    output: tm.Global["f16", "B", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    TILE_K=64,
):
    (B, M, K), N = left.shape, right.shape[1]
    for batch, m, n in parallel(B, cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        left_s = shared("f16", TILE_M, TILE_K)
        right_s = shared("f16", TILE_N, TILE_K)
        for wg in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, TILE_K)):
                dma.copy(left.subspan(1, TILE_M, TILE_K).at(batch, m, k).sqz(), left_s)
                dma.copy(right.subspan(1, TILE_N, TILE_K).at(batch, n, k).sqz(), right_s)
                mma.row.row(mc, left_s, right_s)
            mma.store(mc, output.subspan(1, TILE_M, TILE_N).at(batch, m, n).sqz())
