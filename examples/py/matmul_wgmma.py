"""One warpgroup a tile (`wgmma` on Hopper), the twin of examples/co/matmul_wgmma.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, full, mma, parallel, shared


@tm.kernel
def matmul_wgmma(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_K=128,
    WARP_M=64,
    WARP_N=64,
    WARP_K=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, WARP_M), cdiv(N, WARP_N), level="block"):
        lhs_load_s = shared("f16", WARP_M, TILE_K)
        rhs_load_s = shared("f16", WARP_N, TILE_K)
        mc = mma.fill(0.0, "f16")
        for iv_k in foreach(cdiv(K, TILE_K)):
            dma.copy(lhs.subspan(WARP_M, TILE_K).at(block_m, iv_k), lhs_load_s)
            dma.copy(rhs.chunkat(block_n, iv_k), rhs_load_s)
            for iv_warp in foreach(cdiv(TILE_K, WARP_K)):
                for p in parallel(1, level="group-4"):
                    ma = mma.load(lhs_load_s.chunkat(full, iv_warp))
                    mb = mma.load(rhs_load_s.chunkat(full, iv_warp))
                    mma.row.row(mc, ma, mb)
        output_s = shared("f16", WARP_M, WARP_N)
        mma.store(mc, output_s)
        dma.copy(output_s, output.subspan(WARP_M, WARP_N).at(block_m, block_n))
