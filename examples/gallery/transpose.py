"""The transpose of a matrix through shared memory; the twin of transpose.co.

Rows of x are read and rows of y are written as a whole; the tile turns on its way into shared memory.
"""

import tilemma as tm
from tilemma import cdiv, dma, parallel


@tm.kernel
def transpose(x: tm.Global["T", "M", "N"], y: tm.Global["T", "N", "M"], *, T="f32", TILE=32):
    M, N = x.shape
    for i, j in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        for t in parallel(256, level="thread"):
            turned = dma.copy(x.subspan(TILE, TILE).at(i, j), to="shared", transp=(1, 0))
            dma.copy(turned.data, y.subspan(TILE, TILE).at(j, i))
