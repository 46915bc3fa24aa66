"""A step of the heat equation on a grid whose border is cold; the twin of stencil.co.

A block copies its tile with one element more on each side. Elements outside the grid are read as 0.
"""

import tilemma as tm
from tilemma import cdiv, dma, if_, parallel, shared


@tm.kernel
def stencil(x: tm.Global["f32", "M", "N"], y: tm.Global["f32", "M", "N"], rate: tm.Float, *, ROWS=8, COLUMNS=64):
    M, N = x.shape
    for i, j in parallel(cdiv(M, ROWS), cdiv(N, COLUMNS), level="block"):
        x_s = shared("f32", ROWS + 2, COLUMNS + 2)
        dma.copy(x.view(ROWS + 2, COLUMNS + 2).from_(i * ROWS - 1, j * COLUMNS - 1), x_s)
        for r, c in parallel(ROWS, COLUMNS, level="thread"):
            around = x_s[r, c + 1] + x_s[r + 2, c + 1] + x_s[r + 1, c] + x_s[r + 1, c + 2]
            here = x_s[r + 1, c + 1]
            with if_((i * ROWS + r < M) & (j * COLUMNS + c < N)):
                y[i * ROWS + r, j * COLUMNS + c] = here + rate * (around - 4.0 * here)
