"""Layer normalisation: each row with mean 0 and variance 1, times gamma plus beta; the twin of layer_norm.co.

A block holds a row in shared memory. The variance is the mean of squared distances from the mean, in a second
pass: the mean of squares minus the square of the mean would cancel.
"""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, if_, parallel, shared, var


@tm.kernel
def layer_norm(
    x: tm.Global["f16", "M", "N"],
    gamma: tm.Global["f16", "N"],
    beta: tm.Global["f16", "N"],
    y: tm.Global["f16", "M", "N"],
    epsilon: tm.Float,
    *,
    HALVINGS=8,
):
    M, N = x.shape
    threads = 1 << HALVINGS
    for row in parallel(M, level="block"):
        row_s = dma.copy(x.subspan(1, N).at(row, 0).sqz(), to="shared").data
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            sum = var(0.0, "f32")
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    sum += row_s[i].astype("f32")
            part[t] = sum
            for h in foreach(HALVINGS, unroll=True):
                width = threads >> (h + 1)
                with if_(t < width):
                    part[t] = part[t] + part[t + width]
            mean = part[0] / N

            sum.set(0.0)
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    distance = row_s[i].astype("f32") - mean
                    sum += distance * distance
            part[t] = sum
            for h in foreach(HALVINGS, unroll=True):
                width = threads >> (h + 1)
                with if_(t < width):
                    part[t] = part[t] + part[t + width]

            scale = tm.math.rsqrt(part[0] / N + epsilon)
            for step in foreach(cdiv(N, threads)):
                i = compose(step, t)
                with if_(i < N):
                    normal = (row_s[i].astype("f32") - mean) * scale
                    y[row, i] = normal * gamma[i].astype("f32") + beta[i].astype("f32")
