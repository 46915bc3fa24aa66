"""A product with a matrix of the 2:4 pattern, of which half is stored; the twin of sparse.co.

Of each four neighbours in a row of lhs two are 0. `values` has the others, `meta` their positions:
`tm.sparse.compress` makes both.
"""

import tilemma as tm
from tilemma import assert_, cdiv, compose, dma, foreach, mma, parallel, shared


@tm.kernel
def sparse(
    values: tm.Global["f16", "M", "HALF"],
    meta: tm.Global["u16", "M", "WORDS"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=256,
    TILE_K=64,
    WARP_M=64,
):
    (M, HALF), WORDS, (N, K) = values.shape, meta.shape[1], rhs.shape
    assert_((K == 2 * HALF) & (K == 16 * WORDS), "two of four elements, and a word for sixteen")
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        values_s = shared("f16", TILE_M, TILE_K // 2)
        rhs_s = shared("f16", TILE_N, TILE_K)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(values.subspan(TILE_M, TILE_K // 2).at(m, k), values_s)
            dma.copy(rhs.subspan(TILE_N, TILE_K).at(n, k), rhs_s)
            for wg in parallel(TILE_M // WARP_M, level="group-4"):
                ma = mma.load(values_s.subspan(WARP_M, TILE_K // 2).at(wg, 0))
                mb = mma.load(rhs_s)
                me = mma.load(meta.subspan(WARP_M, TILE_K // 16).at(compose(m, wg), k))
                mma.row.row.sp(mc, ma, mb, me)
        for wg in parallel(TILE_M // WARP_M, level="group-4"):
            mma.store(mc, output.subspan(WARP_M, TILE_N).at(compose(m, wg), n))
