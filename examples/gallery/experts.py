"""A mixture of experts: a product for each group of rows, scaled by a number for each row; the twin of
experts.co.

The tokens x are sorted by expert: those of expert e are the rows first[e] to first[e + 1] - 1, and are
multiplied by w[e].T. `tiles` has the expert and the first row of each tile of TILE_M rows: the groups may
have any number of rows, and no block is idle.
"""

import tilemma as tm
from tilemma import apply, assert_, cdiv, dma, foreach, if_, mma, parallel, shared, var


@tm.kernel
def experts(
    x: tm.Global["f16", "T", "K"],
    w: tm.Global["f16", "E", "N", "K"],
    first: tm.Global["s32", "BOUNDS"],
    tiles: tm.Global["s32", "TILES", 2],
    gate: tm.Global["f32", "T"],
    output: tm.Global["f16", "T", "N"],
    *,
    TILE_M=128,
    TILE_N=256,
    TILE_K=64,
    WARP_M=64,
):
    K, (E, N, _), BOUNDS, TILES = x.shape[1], w.shape, first.shape[0], tiles.shape[0]
    assert_(BOUNDS == E + 1, "first has the number of tokens behind the last expert")
    for tile, n in parallel(TILES, cdiv(N, TILE_N), level="block"):
        x_s = shared("f16", TILE_M, TILE_K)
        w_s = shared("f16", TILE_N, TILE_K)
        e, row = var(tiles[tile, 0]), var(tiles[tile, 1])
        left = var(first[e + 1] - row)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(x.view(TILE_M, TILE_K).from_(row, k * TILE_K), x_s)
            dma.copy(w.subspan(1, TILE_N, TILE_K).at(e, n, k).sqz(), w_s)
            for wg in parallel(TILE_M // WARP_M, level="group-4"):
                mma.row.row(mc, x_s.subspan(WARP_M, TILE_K).at(wg, 0), w_s)
        for wg in parallel(TILE_M // WARP_M, level="group-4"):
            for i, j in apply(mc):
                with if_(left > wg * WARP_M + i):
                    mc[i, j] = mc[i, j] * gate[row + wg * WARP_M + i]
            mma.store(
                mc, output.view(WARP_M, TILE_N).from_(row + wg * WARP_M, n * TILE_N), rows=left - wg * WARP_M
            )
