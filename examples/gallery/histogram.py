"""How often each byte occurs; the twin of histogram.co.

Each block counts its part of x in shared memory, and adds its counts to the result at the end.
"""

import tilemma as tm
from tilemma import atomic, cdiv, dma, foreach, if_, parallel, shared


@tm.kernel
def histogram(x: tm.Global["u8", "N"], count: tm.Global["s32", 256], *, TILE=4096, GRID=528):
    (N,) = x.shape
    for cta in parallel(1, level="block"):
        for t in parallel(256, level="thread"):
            count[t] = 0
    for cta in parallel(GRID, level="block"):
        mine = shared("s32", 256, init=0)
        x_s = shared("u8", TILE)
        for t in parallel(256, level="thread"):
            for n in foreach(cdiv(N, TILE), start=cta, step=GRID):
                dma.copy(x.subspan(TILE).at(n), x_s)
                for i in foreach(TILE // 256):
                    with if_(n * TILE + i * 256 + t < N):
                        atomic.add(mine[x_s[i * 256 + t]], 1)
            atomic.add(count[t], mine[t])
