"""Running sums of a vector, y[i] = x[0] + .. + x[i]; the twin of scan.co.

Three launches: the sum of each tile of x, the running sums of these, and the running sums of each tile, which
start at the sum of the tiles before it. A thread adds EACH neighbours by itself; the threads then add up their
sums. EACH is odd: at each step the threads read different banks of shared memory.
"""

import tilemma as tm
from tilemma import cdiv, dma, foreach, if_, parallel, shared, var


def running_sums(part, t, halvings):
    """The running sums of ``part`` in its place: step h adds the element 2^h to the left."""
    for h in foreach(halvings, unroll=True):
        left = var(0.0, "f32")
        with if_(t >= 1 << h):
            left.set(part[t - (1 << h)])
        part[t] = part[t] + left


@tm.kernel
def scan(
    x: tm.Global["f32", "N"],
    sums: tm.Global["f32", "TILES"],
    y: tm.Global["f32", "N"],
    *,
    HALVINGS=8,
    EACH=31,
):
    (N,), (TILES,) = x.shape, sums.shape
    threads = 1 << HALVINGS
    tile = threads * EACH
    tm.assert_(cdiv(N, tile) == TILES, "a sum for each tile")
    for n in parallel(TILES, level="block"):
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            x_s = dma.copy(x.subspan(tile).at(n), to="shared").data
            total = var(0.0, "f32")
            for i in foreach(EACH):
                total += x_s[t * EACH + i]
            part[t] = total
            for h in foreach(HALVINGS, unroll=True):
                width = threads >> (h + 1)
                with if_(t < width):
                    part[t] = part[t] + part[t + width]
            with if_(t == 0):
                sums[n] = part[0]
    for n in parallel(1, level="block"):
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            before = var(0.0, "f32")
            for step in foreach(cdiv(TILES, threads)):
                i = step * threads + t
                part[t] = tm.select(i < TILES, sums[i], 0.0)
                running_sums(part, t, HALVINGS)
                with if_(i < TILES):
                    sums[i] = before + part[t]
                before += part[threads - 1]
    for n in parallel(TILES, level="block"):
        part = shared("f32", threads)
        for t in parallel(threads, level="thread"):
            x_s = dma.copy(x.subspan(tile).at(n), to="shared").data
            total = var(0.0, "f32")
            for i in foreach(EACH):
                total += x_s[t * EACH + i]
                x_s[t * EACH + i] = total
            part[t] = total
            running_sums(part, t, HALVINGS)
            start = tm.select(n > 0, sums[n - 1], 0.0) + part[t] - total
            for i in foreach(EACH):
                x_s[t * EACH + i] = x_s[t * EACH + i] + start
            dma.copy(x_s, y.subspan(tile).at(n))
