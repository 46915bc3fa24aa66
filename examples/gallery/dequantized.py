"""A product of 8-bit floats with scales, (lhs * lhs_scale) @ (rhs * rhs_scale).T; the twin of dequantized.co.

A factor for each row of lhs and one for each TILE_N rows of rhs, both for each BLOCK_K of K. The products of a
tile are scaled before they are added.
"""

import tilemma as tm
from tilemma import assert_, cdiv, compose, dma, foreach, mma, parallel, shared, var


@tm.kernel
def dequantized(
    lhs: tm.Global["e4m3", "M", "K"],
    rhs: tm.Global["e4m3", "N", "K"],
    lhs_scale: tm.Global["f32", "KB", "M"],
    rhs_scale: tm.Global["f32", "KB", "NB"],
    output: tm.Global["bf16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=128,
    BLOCK_K=128,
    WARP_M=64,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    KB, NB = rhs_scale.shape
    assert_((cdiv(K, BLOCK_K) == KB) & (cdiv(N, TILE_N) == NB), "a factor for each tile")
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        lhs_s = shared("e4m3", TILE_M, BLOCK_K)
        rhs_s = shared("e4m3", TILE_N, BLOCK_K)
        scale_s = shared("f32", 1, TILE_M)
        mc = mma.fill(0.0, "f32")
        following = var(rhs_scale[0, n])
        for k in foreach(cdiv(K, BLOCK_K)):
            dma.copy(lhs.subspan(TILE_M, BLOCK_K).at(m, k), lhs_s)
            dma.copy(rhs.subspan(TILE_N, BLOCK_K).at(n, k), rhs_s)
            dma.copy(lhs_scale.subspan(1, TILE_M).at(k, m), scale_s)
            columns = var(following)
            following.set(rhs_scale[k + 1, n])
            for wg in parallel(TILE_M // WARP_M, level="group-4"):
                rows = scale_s.subspan(1, WARP_M).at(0, wg)
                mma.row.row.scale(mc, lhs_s.subspan(WARP_M, BLOCK_K).at(wg, 0), rhs_s, rows, columns)
        for wg in parallel(TILE_M // WARP_M, level="group-4"):
            mma.store(mc, output.subspan(WARP_M, TILE_N).at(compose(m, wg), n))
