"""A synchronous kernel with large tiles, which the compiler pipelines; the twin of examples/co/plain.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, full, mma, parallel, shared


@tm.kernel
def plain(
    lhs: tm.Global["T", "M", "K"],
    rhs: tm.Global["T", "N", "K"],
    output: tm.Global["T", "M", "N"],
    *,
    T="f16",
    TILE_M=128,
    TILE_N=256,
    TILE_K=64,
    WARP_M=64,
    WARP_K=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        lhs_load_s = shared(T, TILE_M, TILE_K)
        rhs_load_s = shared(T, TILE_N, TILE_K)
        output_s = shared(T, TILE_M, TILE_N)
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
            mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(p1, 0))
        dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
