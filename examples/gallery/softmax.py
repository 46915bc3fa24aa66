"""The softmax of each row; the twin of softmax.co.

A block holds a row in shared memory, so that the row is read once. The threads stride over it three times: for the
largest element, for the sum of the exponentials, and for the result. `part` combines the numbers of the threads.
"""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, if_, parallel, shared, var


@tm.kernel
def softmax(x: tm.Global["f16", "M", "N"], y: tm.Global["f16", "M", "N"], *, HALVINGS=8):
    M, N = x.shape
    threads = 1 << HALVINGS
    for row in parallel(M, level="block"):
        row_s = dma.copy(x.subspan(1, N).at(row, 0).sqz(), to="shared").data
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            largest = var(-float("inf"), "f32")
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    largest.set(tm.math.max(largest, row_s[i].astype("f32")))
            part[t] = largest
            for h in foreach(HALVINGS, unroll=True):
                width = threads >> (h + 1)
                with if_(t < width):
                    part[t] = tm.math.max(part[t], part[t + width])
            largest.set(part[0])

            total = var(0.0, "f32")
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    total += tm.math.exp(row_s[i].astype("f32") - largest)
            part[t] = total
            for h in foreach(HALVINGS, unroll=True):
                width = threads >> (h + 1)
                with if_(t < width):
                    part[t] = part[t] + part[t + width]

            scale = 1.0 / part[0]
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    y[row, i] = tm.math.exp(row_s[i].astype("f32") - largest) * scale
