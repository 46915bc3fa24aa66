"""Two warpgroups that share a B tile, the twin of examples/co/matmul_wgmma_2group.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, full, mma, parallel, shared


@tm.kernel
def matmul_wgmma_2group(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_K=128,
    WARP_M=64,
    WARP_N=64,
    WARP_K=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, WARP_N), level="block"):
        lhs_load_s = shared("f16", TILE_M, TILE_K)
        rhs_load_s = shared("f16", WARP_N, TILE_K)
        output_s = shared("f16", TILE_M, WARP_N)
        mc = mma.fill(0.0, "f32")
        for iv_k in foreach(cdiv(K, TILE_K)):
            dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, iv_k), lhs_load_s)
            dma.copy(rhs.chunkat(block_n, iv_k), rhs_load_s)
            for p1 in parallel(2, level="group-4"):
                for iv_warp in foreach(cdiv(TILE_K, WARP_K)):
                    ma = mma.load(lhs_load_s.subspan(WARP_M, TILE_K).at(p1, 0).chunkat(full, iv_warp))
                    mb = mma.load(rhs_load_s.chunkat(full, iv_warp))
                    mma.row.row(mc, ma, mb)
        for p1 in parallel(2, level="group-4"):
            mma.store(mc, output_s.subspan(WARP_M, WARP_N).at(p1, 0))
        dma.copy(output_s, output.subspan(TILE_M, WARP_N).at(block_m, block_n))
