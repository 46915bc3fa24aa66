"""One warp a tile: the first matmul with tensor cores (`mma.sync`), the twin of examples/co/matmul_wmma.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, shared

MMA_M = MMA_N = MMA_K = 16


@tm.kernel
def matmul_wmma(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=16,
    TILE_N=16,
    TILE_K=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        output_s = shared("f16", TILE_M, TILE_N)
        for warp_m, warp_n in parallel(cdiv(TILE_M, MMA_M), cdiv(TILE_N, MMA_N), level="group"):
            mc = mma.fill(0.0)
            for iv_k in foreach(cdiv(K, TILE_K)):
                lhs_load_s = dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, iv_k), to="shared")
                rhs_load_s = dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, iv_k), to="shared")
                for iv_warp_k in foreach(cdiv(TILE_K, MMA_K)):
                    ma = mma.load(lhs_load_s.chunkat(warp_m, iv_warp_k))
                    mb = mma.load(rhs_load_s.chunkat(warp_n, iv_warp_k))
                    mma.row.row(mc, ma, mb)
            mma.store(mc, output_s.subspan(MMA_M, MMA_N).at(warp_m, warp_n))
        dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
