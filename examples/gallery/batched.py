"""A product for each item of a batch, left[b] @ right[b].T; the twin of batched.co.

The grid has a dimension more than that of one product. `sqz` drops the dimension of extent 1 from a tile.
"""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, mma, parallel, shared


@tm.kernel
def batched(
    left: tm.Global["f16", "B", "M", "K"],
    right: tm.Global["f16", "B", "N", "K"],
    output: tm.Global["f16", "B", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=256,
    TILE_K=64,
    WARP_M=64,
):
    (B, M, K), N = left.shape, right.shape[1]
    for batch, m, n in parallel(B, cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        left_s = shared("f16", TILE_M, TILE_K)
        right_s = shared("f16", TILE_N, TILE_K)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(left.subspan(1, TILE_M, TILE_K).at(batch, m, k).sqz(), left_s)
            dma.copy(right.subspan(1, TILE_N, TILE_K).at(batch, n, k).sqz(), right_s)
            for wg in parallel(TILE_M // WARP_M, level="group-4"):
                mma.row.row(mc, left_s.subspan(WARP_M, TILE_K).at(wg, 0), right_s)
        for wg in parallel(TILE_M // WARP_M, level="group-4"):
            mma.store(mc, output.subspan(1, WARP_M, TILE_N).at(batch, compose(m, wg), n).sqz())
