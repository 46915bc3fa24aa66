"""The solution x of a @ x = b for a lower triangular a; the twin of triangular_solve.co.

A block solves for a few columns, from the top. Of each tile of rows it subtracts what the rows above contribute, a
product, and then solves the triangle on the diagonal, PART rows at a time: each thread has a column of them in
registers, from which it subtracts the rows of the tile that are known.
"""

import tilemma as tm
from tilemma import cdiv, dma, foreach, local, mma, parallel, shared, var


@tm.kernel
def triangular_solve(
    a: tm.Global["f32", "N", "N"],
    b: tm.Global["f32", "N", "R"],
    x: tm.Global["f32", "N", "R"],
    *,
    TILE=64,
    COLUMNS=64,
    DEPTH=32,
    GROUPS=2,
    PART=16,
):
    N, R = b.shape
    for c in parallel(cdiv(R, COLUMNS), level="block"):
        a_s, above_s = shared("f32", TILE, DEPTH), shared("f32", DEPTH, COLUMNS)
        triangle_s, x_s = shared("f32", TILE, TILE), shared("f32", TILE, COLUMNS)
        for i in foreach(cdiv(N, TILE)):
            for wg in parallel(GROUPS, level="group-4"):
                above = mma.fill(0.0, "f32")
                for j in foreach(i * (TILE // DEPTH)):
                    dma.copy(a.subspan(TILE, DEPTH).at(i, j), a_s)
                    dma.copy(x.subspan(DEPTH, COLUMNS).at(j, c), above_s)
                    ma = mma.load(a_s.subspan(TILE // GROUPS, DEPTH).at(wg, 0))
                    mma.row.col(above, ma, mma.load(above_s))
                mma.store(above, x_s.subspan(TILE // GROUPS, COLUMNS).at(wg, 0))
            dma.copy(a.subspan(TILE, TILE).at(i, i), triangle_s)
            for t in parallel(COLUMNS, level="thread"):
                for part in foreach(TILE // PART):
                    first = part * PART
                    rest = local("f32", PART)
                    for r in foreach(PART, unroll=PART):
                        rest[r] = b[i * TILE + first + r, c * COLUMNS + t] - x_s[first + r, t]
                    for k in foreach(first, unroll=4):
                        known = var(x_s[k, t])
                        for r in foreach(PART, unroll=PART):
                            rest[r] = tm.math.fma(-triangle_s[first + r, k], known, rest[r])
                    for r in foreach(PART, unroll=PART):
                        for k in foreach(r, unroll=PART):
                            rest[r] = tm.math.fma(-triangle_s[first + r, first + k], rest[k], rest[r])
                        rest[r] = rest[r] / triangle_s[first + r, first + r]
                        x_s[first + r, t] = rest[r]
            dma.copy(x_s, x.subspan(TILE, COLUMNS).at(i, c))
