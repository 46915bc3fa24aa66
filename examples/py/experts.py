"""A mixture of experts, the twin of examples/co/experts.co."""

import tilemma as tm
from tilemma import apply, assert_, cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def experts(
    x: tm.Global["f16", "T", "K"],
    w: tm.Global["f16", "E", "N", "K"],
    first: tm.Global["s32", "BOUNDS"],
    gate: tm.Global["f32", "T"],
    output: tm.Global["f16", "T", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    TILE_K=64,
):
    K, (E, N, _), BOUNDS = x.shape[1], w.shape, first.shape[0]
    assert_(BOUNDS == E + 1, "first has the number of tokens behind the last expert")
    for e, n in parallel(E, cdiv(N, TILE_N), level="block"):
        x_s = shared("f16", TILE_M, TILE_K)
        w_s = shared("f16", TILE_N, TILE_K)
        begin = tm.var(first[e])
        end = tm.var(first[e + 1])
        for wg in parallel(1, level="group-4"):
            for m in foreach(cdiv(end - begin, TILE_M)):
                row = begin + m * TILE_M
                mc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, TILE_K)):
                    dma.copy(x.view(TILE_M, TILE_K).from_(row, k * TILE_K), x_s)
                    dma.copy(w.subspan(1, TILE_N, TILE_K).at(e, n, k).sqz(), w_s)
                    mma.row.row(mc, x_s, w_s)
                for i, j in apply(mc):
                    mc[i, j] = mc[i, j] * gate[row + i]
                mma.store(mc, output.view(TILE_M, TILE_N).from_(row, n * TILE_N), rows=end - row)
