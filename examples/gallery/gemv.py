"""A matrix times a vector: a warp for each row; the twin of gemv.co.

The block copies tiles of its rows and of x; beyond the edges they are zero, so that no element is a special case.
The lanes of a warp stride over its row, and at the end add up their sums by exchange.
"""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, if_, parallel, shared, var


@tm.kernel
def gemv(
    a: tm.Global["f16", "M", "K"],
    x: tm.Global["f16", "K"],
    y: tm.Global["f32", "M"],
    *,
    WARPS=8,
    TILE_K=1024,
):
    M, K = a.shape
    for cta in parallel(cdiv(M, WARPS), level="block"):
        a_s = shared("f16", WARPS, TILE_K)
        x_s = shared("f16", TILE_K)
        for w in parallel(WARPS, level="group"):
            for t in parallel(32, level="thread"):
                total = var(0.0, "f32")
                for k in foreach(cdiv(K, TILE_K)):
                    dma.copy(a.subspan(WARPS, TILE_K).at(cta, k), a_s)
                    dma.copy(x.subspan(TILE_K).at(k), x_s)
                    for step in foreach(TILE_K // 32, unroll=8):
                        i = compose(step, t)
                        total += a_s[w, i].astype("f32") * x_s[i].astype("f32")
                for h in foreach(5, unroll=True):
                    total += tm.lane.shfl_xor(total, 16 >> h)
                with if_((t == 0) & (compose(cta, w) < M)):
                    y[compose(cta, w)] = total
