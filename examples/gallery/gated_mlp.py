"""The first half of a gated MLP, silu(x @ gate.T) * (x @ up.T); the twin of gated_mlp.co.

Two products share the tile of x. Their accumulators meet in registers: nothing but the result is written.
"""

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def gated_mlp(
    x: tm.Global["f16", "M", "K"],
    gate: tm.Global["f16", "N", "K"],
    up: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
    *,
    TILE_M=128,
    TILE_N=128,
    TILE_K=64,
    WARP_M=64,
):
    (M, K), N = x.shape, gate.shape[0]
    for m, n in parallel(cdiv(M, TILE_M), cdiv(N, TILE_N), level="block"):
        x_s = shared("f16", TILE_M, TILE_K)
        gate_s, up_s = shared("f16", TILE_N, TILE_K), shared("f16", TILE_N, TILE_K)
        gated = mma.fill(0.0, "f32")
        raised = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(x.subspan(TILE_M, TILE_K).at(m, k), x_s)
            dma.copy(gate.subspan(TILE_N, TILE_K).at(n, k), gate_s)
            dma.copy(up.subspan(TILE_N, TILE_K).at(n, k), up_s)
            for wg in parallel(TILE_M // WARP_M, level="group-4"):
                rows = mma.load(x_s.subspan(WARP_M, TILE_K).at(wg, 0))
                mma.row.row(gated, rows, mma.load(gate_s))
                mma.row.row(raised, rows, mma.load(up_s))
        for wg in parallel(TILE_M // WARP_M, level="group-4"):
            gated.set(tm.math.silu(gated) * raised)
            mma.store(gated, y.subspan(WARP_M, TILE_N).at(tm.compose(m, wg), n))
