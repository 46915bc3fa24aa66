"""Two alternating buffers: the next tile is loaded while the current one is multiplied. Blocks go in groups of
RASTER tile rows: those that run at a time share what they read. The twin of examples/co/double_buffer.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, select, shared, swap, wait


@tm.kernel
def double_buffer(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=256,
    TILE_K=64,
    WARP_M=64,
    WARP_N=64,
    WARP_K=16,
    RASTER=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    WARPS_M, WARPS_N = TILE_M // WARP_M, TILE_N // WARP_N
    tiles_m, tiles_n = cdiv(M, TILE_M), cdiv(N, TILE_N)
    for t in parallel(tiles_m * tiles_n, level="block"):
        first = t // (RASTER * tiles_n) * RASTER
        rows = select(first + RASTER > tiles_m, tiles_m % RASTER, RASTER)
        block_m, block_n = first + t % (RASTER * tiles_n) % rows, t % (RASTER * tiles_n) // rows
        mc = mma.fill(0.0, "f32")
        lhs0 = dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, 0), to="shared", async_=True)
        rhs0 = dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, 0), to="shared", async_=True)
        for k in foreach(cdiv(K, TILE_K), start=1):
            lhs1 = dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, k), to="shared", async_=True)
            rhs1 = dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, k), to="shared", async_=True)
            wait(lhs0, rhs0)
            for p, q in parallel(WARPS_M, WARPS_N, level="group"):
                for i in foreach(TILE_K // WARP_K):
                    ma = mma.load(lhs0.data.subspan(WARP_M, WARP_K).at(p, i))
                    mb = mma.load(rhs0.data.subspan(WARP_N, WARP_K).at(q, i))
                    mma.row.row(mc, ma, mb)
            swap(lhs0, lhs1)
            swap(rhs0, rhs1)
        wait(lhs0, rhs0)
        for p, q in parallel(WARPS_M, WARPS_N, level="group"):
            for i in foreach(TILE_K // WARP_K):
                ma = mma.load(lhs0.data.subspan(WARP_M, WARP_K).at(p, i))
                mb = mma.load(rhs0.data.subspan(WARP_N, WARP_K).at(q, i))
                mma.row.row(mc, ma, mb)
        output_s = shared("f16", TILE_M, TILE_N)
        for p, q in parallel(WARPS_M, WARPS_N, level="group"):
            mma.store(mc, output_s.subspan(WARP_M, WARP_N).at(p, q))
        dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
