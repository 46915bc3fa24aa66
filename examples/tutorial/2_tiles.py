"""Tiles of both operands in shared memory, read by all threads of a block, the twin of 2_tiles.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, parallel, var


@tm.kernel
def tiles(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE=16,
    TILE_K=64,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        for i, j in parallel(TILE, TILE, level="thread"):
            sum = var(0.0, "f32")
            for k in foreach(cdiv(K, TILE_K)):
                a = dma.copy(lhs.subspan(TILE, TILE_K).at(m, k), to="shared")
                b = dma.copy(rhs.subspan(TILE, TILE_K).at(n, k), to="shared")
                for kk in foreach(TILE_K):
                    sum += a.data[i, kk].astype("f32") * b.data[j, kk].astype("f32")
            output.subspan(TILE, TILE).at(m, n)[i, j] = sum
