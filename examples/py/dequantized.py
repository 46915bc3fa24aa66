"""A product of 8-bit floats with a factor for each tile, the twin of examples/co/dequantized.co."""

import tilemma as tm
from tilemma import assert_, cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def dequantized(
    lhs: tm.Global["e4m3", "M", "K"],
    rhs: tm.Global["e4m3", "N", "K"],
    lhs_scale: tm.Global["f32", "KB", "M"],
    rhs_scale: tm.Global["f32", "KB", "NB"],
    output: tm.Global["bf16", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    BLOCK_K=128,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    KB, NB = rhs_scale.shape
    assert_((cdiv(K, BLOCK_K) == KB) & (cdiv(N, TILE_N) == NB), "a factor for each tile")
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        lhs_s = shared("e4m3", TILE_M, BLOCK_K)
        rhs_s = shared("e4m3", TILE_N, BLOCK_K)
        for wg in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, BLOCK_K)):
                dma.copy(lhs.subspan(TILE_M, BLOCK_K).at(m, k), lhs_s)
                dma.copy(rhs.subspan(TILE_N, BLOCK_K).at(n, k), rhs_s)
                rows = lhs_scale.subspan(1, TILE_M).at(k, m)
                mma.row.row.scale(mc, lhs_s, rhs_s, rows, rhs_scale[k, n])
            mma.store(mc, output.subspan(TILE_M, TILE_N).at(m, n))
