"""The solution x of a @ x = b for a lower triangular a; the twin of triangular_solve.co.

A block solves for a few columns, from the top. Of each tile of rows it subtracts what the rows above contribute, a
product, and then solves the triangle on the diagonal, one row after the other.
"""

import tilemma as tm
from tilemma import cdiv, dma, foreach, if_, mma, parallel, shared, var


@tm.kernel
def triangular_solve(
    a: tm.Global["f32", "N", "N"],
    b: tm.Global["f32", "N", "R"],
    x: tm.Global["f32", "N", "R"],
    *,
    TILE=32,
    COLUMNS=64,
):
    N, R = b.shape
    for c in parallel(cdiv(R, COLUMNS), level="block"):
        a_s, triangle_s = shared("f32", TILE, TILE), shared("f32", TILE, TILE)
        above_s, x_s = shared("f32", TILE, COLUMNS), shared("f32", TILE, COLUMNS)
        b_s = shared("f32", TILE, COLUMNS)
        for i in foreach(cdiv(N, TILE)):
            for wg in parallel(1, level="group-4"):
                above = mma.fill(0.0, "f32")
                for j in foreach(i):
                    dma.copy(a.subspan(TILE, TILE).at(i, j), a_s)
                    dma.copy(x.subspan(TILE, COLUMNS).at(j, c), above_s)
                    mma.row.col(above, mma.load(a_s), mma.load(above_s))
                mma.store(above, x_s)
            dma.copy(a.subspan(TILE, TILE).at(i, i), triangle_s)
            dma.copy(b.subspan(TILE, COLUMNS).at(i, c), b_s)
            for t in parallel(COLUMNS, level="thread"):
                for row in foreach(TILE):
                    with if_(i * TILE + row < N):
                        rest = var(b_s[row, t] - x_s[row, t])
                        for k in foreach(row, unroll=8):
                            rest.set(tm.math.fma(-triangle_s[row, k], x_s[k, t], rest))
                        x_s[row, t] = rest / triangle_s[row, row]
            dma.copy(x_s, x.subspan(TILE, COLUMNS).at(i, c))
