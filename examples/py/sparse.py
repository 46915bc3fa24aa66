"""A product of a matrix with the 2:4 pattern, the twin of examples/co/sparse.co."""

import tilemma as tm
from tilemma import assert_, cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def sparse(
    values: tm.Global["f16", "M", "HALF"],
    meta: tm.Global["u16", "M", "WORDS"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    TILE_K=64,
):
    (M, HALF), WORDS, (N, K) = values.shape, meta.shape[1], rhs.shape
    assert_((K == 2 * HALF) & (K == 16 * WORDS), "two of four elements, and a word for sixteen")
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        values_s = shared("f16", TILE_M, TILE_K // 2)
        rhs_s = shared("f16", TILE_N, TILE_K)
        for wg in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, TILE_K)):
                dma.copy(values.subspan(TILE_M, TILE_K // 2).at(m, k), values_s)
                dma.copy(rhs.subspan(TILE_N, TILE_K).at(n, k), rhs_s)
                ma = mma.load(values_s)
                mb = mma.load(rhs_s)
                me = mma.load(meta.subspan(TILE_M, TILE_K // 16).at(m, k))
                mma.row.row.sp(mc, ma, mb, me)
            mma.store(mc, output.subspan(TILE_M, TILE_N).at(m, n))
