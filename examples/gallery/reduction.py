"""The sum of all elements, in a fixed order; the twin of reduction.co.

Two launches. In the first one each block sums every BLOCKS-th tile of x; in the second one a block sums the
sums of the blocks. Tiles are zero beyond the end of x. Unlike atomics, this adds in the same order in each
run.
"""

import tilemma as tm
from tilemma import cdiv, compose, dma, foreach, if_, parallel, shared, var


def tree(part, t, halvings):
    """Sum ``part`` into its first element: each step adds the upper half to the lower one."""
    for h in foreach(halvings, unroll=True):
        width = 1 << halvings >> (h + 1)
        with if_(t < width):
            part[t] = part[t] + part[t + width]


@tm.kernel
def reduction(
    x: tm.Global["f32", "N"],
    sums: tm.Global["f32", "BLOCKS"],
    output: tm.Global["f32", 1],
    *,
    HALVINGS=8,
    TILE=4096,
):
    (N,), (BLOCKS,) = x.shape, sums.shape
    threads = 1 << HALVINGS
    for cta in parallel(BLOCKS, level="block"):
        x_s = shared("f32", TILE)
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            sum = var(0.0, "f32")
            for n in foreach(cdiv(N, TILE * BLOCKS)):
                dma.copy(x.subspan(TILE).at(n * BLOCKS + cta), x_s)
                for step in foreach(TILE // threads, unroll=True):
                    sum += x_s[compose(step, t)]
            part[t] = sum
            tree(part, t, HALVINGS)
            with if_(t == 0):
                sums[cta] = part[0]
    for cta in parallel(1, level="block"):
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            sum = var(0.0, "f32")
            for step in foreach(cdiv(BLOCKS, threads)):
                i = compose(step, t)
                with if_(i < BLOCKS):
                    sum += sums[i]
            part[t] = sum
            tree(part, t, HALVINGS)
            with if_(t == 0):
                output[0] = part[0]
