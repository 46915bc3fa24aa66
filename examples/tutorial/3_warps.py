"""Each warp multiplies tiles on the tensor cores, the twin of 3_warps.co."""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, mma, parallel


@tm.kernel
def warps(
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
        for p, q in parallel(TILE // WARP, TILE // WARP, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, TILE_K)):
                a = dma.copy(lhs.subspan(TILE, TILE_K).at(m, k), to="shared")
                b = dma.copy(rhs.subspan(TILE, TILE_K).at(n, k), to="shared")
                for kk in foreach(TILE_K // WARP_K):
                    ma = mma.load(a.data.subspan(WARP, WARP_K).at(p, kk))
                    mb = mma.load(b.data.subspan(WARP, WARP_K).at(q, kk))
                    mma.row.row(mc, ma, mb)
            mma.store(mc, output.subspan(WARP, WARP).at(compose(m, p), compose(n, q)))
