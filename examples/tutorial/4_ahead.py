"""The next tiles are on their way while these are multiplied, the twin of 4_ahead.co."""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, mma, parallel, swap, wait


@tm.kernel
def ahead(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE=128,
    TILE_K=64,
    WARP=64,
    WARP_K=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        mc = mma.fill(0.0, "f32")
        a = dma.copy(lhs.subspan(TILE, TILE_K).at(m, 0), to="shared", async_=True)
        b = dma.copy(rhs.subspan(TILE, TILE_K).at(n, 0), to="shared", async_=True)
        for k in foreach(cdiv(K, TILE_K)):
            next_a = dma.copy(lhs.subspan(TILE, TILE_K).at(m, k + 1), to="shared", async_=True)
            next_b = dma.copy(rhs.subspan(TILE, TILE_K).at(n, k + 1), to="shared", async_=True)
            wait(a, b)
            for p, q in parallel(TILE // WARP, TILE // WARP, level="group"):
                for kk in foreach(TILE_K // WARP_K):
                    ma = mma.load(a.data.subspan(WARP, WARP_K).at(p, kk))
                    mb = mma.load(b.data.subspan(WARP, WARP_K).at(q, kk))
                    mma.row.row(mc, ma, mb)
            swap(a, next_a)
            swap(b, next_b)
        wait(a, b)
        for p, q in parallel(TILE // WARP, TILE // WARP, level="group"):
            mma.store(mc, output.subspan(WARP, WARP).at(compose(m, p), compose(n, q)))
