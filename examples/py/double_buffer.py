"""Two buffers that take turns: the next tile is on its way while this one is multiplied, the twin of
examples/co/double_buffer.co."""

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, shared, swap, wait


@tm.kernel
def double_buffer(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=128,
    TILE_K=64,
    WARP_M=64,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for block_m, block_n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        mc = mma.fill(0.0, "f32")
        lhs0 = dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, 0), to="shared", async_=True)
        rhs0 = dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, 0), to="shared", async_=True)
        for k in foreach(cdiv(K, TILE_K), start=1):
            lhs1 = dma.copy(lhs.subspan(TILE_M, TILE_K).at(block_m, k), to="shared", async_=True)
            rhs1 = dma.copy(rhs.subspan(TILE_N, TILE_K).at(block_n, k), to="shared", async_=True)
            wait(lhs0, rhs0)
            for p in parallel(TILE_M // WARP_M, level="group-4"):
                mma.row.row(mc, mma.load(lhs0.data.subspan(WARP_M, TILE_K).at(p, 0)), mma.load(rhs0.data))
            swap(lhs0, lhs1)
            swap(rhs0, rhs1)
        wait(lhs0, rhs0)
        for p in parallel(TILE_M // WARP_M, level="group-4"):
            mma.row.row(mc, mma.load(lhs0.data.subspan(WARP_M, TILE_K).at(p, 0)), mma.load(rhs0.data))
        output_s = shared("f16", TILE_M, TILE_N)
        for p in parallel(TILE_M // WARP_M, level="group-4"):
            mma.store(mc, output_s.subspan(WARP_M, TILE_N).at(p, 0))
        dma.copy(output_s, output.subspan(TILE_M, TILE_N).at(block_m, block_n))
