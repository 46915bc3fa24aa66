"""Plain kernels as users write them: loops of all kinds around a product."""

from __future__ import annotations

import tilemma as tm
from tilemma import (
    apply,
    break_,
    cdiv,
    compose,
    continue_,
    dma,
    else_,
    foreach,
    if_,
    mma,
    parallel,
    select,
    shared,
    var,
)


@tm.kernel
def two_halves(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
    z: tm.Global["f32", "M", "N"],
):
    """Two loops over the halves of K with the same buffers; the sum after the first half is stored as well."""
    (M, K), N = a.shape, b.shape[0]
    steps = cdiv(K, 64)
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(steps // 2):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, z.subspan(64, 128).at(compose(i, g), j))
        for k in foreach(steps, start=steps // 2):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def every_other(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """A loop with a step: the even tiles of K alone."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64), step=2):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def block_sparse(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    mask: tm.Global["s32", "R", "L"],
    y: tm.Global["f32", "M", "N"],
):
    """Tiles of A that the mask leaves out are neither copied nor multiplied."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            with if_(mask[i, k] != 0):
                dma.copy(a.subspan(128, 64).at(i, k), s)
                dma.copy(b.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def skips(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    mask: tm.Global["s32", "R", "L"],
    y: tm.Global["f32", "M", "N"],
):
    """The same by `continue`, and `break` at a negative entry."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            with if_(mask[i, k] < 0):
                break_()
            with if_(mask[i, k] == 0):
                continue_()
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def stops_late(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    most: tm.Int,
    y: tm.Global["f32", "M", "N"],
):
    """Leaves the loop after the multiply, at a count that is a parameter."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            with if_(k + 1 == most):
                break_()
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def last_tile_kept(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    last: tm.Global["f16", "M", 64],
    y: tm.Global["f32", "M", "N"],
):
    """The tile of the last iteration is copied out after the loop."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))
        with if_(j == 0):
            dma.copy(s, last.subspan(128, 64).at(i, 0))


@tm.kernel
def reshaped_tile(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """Views of one tile under another shape and in halves."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 2, 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t.span_as(128, 64))
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t.span_as(128, 64))
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def triangular(
    a: tm.Global["f16", "M", "M"],
    b: tm.Global["f16", "N", "M"],
    y: tm.Global["f32", "M", "N"],
):
    """A is lower triangular: the loop of row i ends behind its own tiles, and the diagonal tile is masked."""
    M, N = a.shape[0], b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(tm.math.min(2 * i + 2, cdiv(M, 64))):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            with if_(k >= 2 * i):
                for w in parallel(256, level="thread"):
                    for e in foreach(32):
                        r, c = w // 2, w % 2 * 32 + e
                        with if_(k * 64 + c > i * 128 + r):
                            s[r, c] = 0.0
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def upper(
    a: tm.Global["bf16", "M", "M"],
    b: tm.Global["bf16", "M", "N"],
    y: tm.Global["bf16", "M", "N"],
):
    """A is upper triangular: the loop starts at the row, and B is read across its rows."""
    M, N = b.shape
    for i, j in parallel(cdiv(M, 64), cdiv(N, 128), level="block"):
        s, t = shared("bf16", 64, 64), shared("bf16", 64, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(M, 64), start=i):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 128).at(k, j), t)
            for g in parallel(1, level="group-4"):
                mma.row.col(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(i, j))


@tm.kernel
def inner_batches(
    a: tm.Global["f16", "B", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "B", "M", "N"],
):
    """A block computes one tile of every batch in turn; B's loop starts anew each time."""
    (B, M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        for n in foreach(B):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(1, 128, 64).at(n, i, k).sqz(), s)
                dma.copy(b.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            for g in parallel(2, level="group-4"):
                mma.store(acc, y.subspan(1, 64, 128).at(n, compose(i, g), j).sqz())


@tm.kernel
def resident_b(
    a: tm.Global["f16", "M", 128],
    b: tm.Global["f16", "N", 128],
    y: tm.Global["f16", "M", "N"],
):
    """B's tile is copied once; the loop runs over the rows of A, and stores in each iteration."""
    M, N = a.shape[0], b.shape[0]
    for j in parallel(cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 128), shared("f16", 128, 128)
        dma.copy(b.subspan(128, 128).at(j, 0), t)
        for i in foreach(cdiv(M, 128)):
            dma.copy(a.subspan(128, 128).at(i, 0), s)
            for g in parallel(2, level="group-4"):
                acc = mma.fill(0.0, "f32")
                mma.row.row(acc, s.subspan(64, 128).at(g, 0), t)
                mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def powers(x: tm.Global["f16", "B", 64, 64], y: tm.Global["f32", "B", 64, 64], n: tm.Int):
    """X^(n+1): the result of one product is the operand of the next."""
    for b in parallel(x.shape[0], level="block"):
        s, p = shared("f16", 64, 64), shared("f16", 64, 64)
        dma.copy(x.subspan(1, 64, 64).at(b, 0, 0).sqz(), s)
        dma.copy(x.subspan(1, 64, 64).at(b, 0, 0).sqz(), p)
        for i in foreach(n):
            for g in parallel(1, level="group-4"):
                acc = mma.fill(0.0, "f32")
                mma.row.col(acc, p, s)
                mma.store(acc, p)
        for g in parallel(1, level="group-4"):
            for r in foreach(64):
                with if_(r >= 0):
                    pass
            out = mma.fill(0.0, "f32")
            mma.load(p, out)
            mma.store(out, y.subspan(1, 64, 64).at(b, 0, 0).sqz())


@tm.kernel
def loop_and_tail(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """Full tiles in a loop, and the rest of K after it with clipped tiles."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(K // 64):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        with if_(K % 64 != 0):
            dma.copy(a.subspan(128, 64).at(i, K // 64), s)
            dma.copy(b.subspan(128, 64).at(j, K // 64), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def first_peeled(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """The first step stands before the loop."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        dma.copy(a.subspan(64, 64).at(i, 0), s)
        dma.copy(b.subspan(64, 64).at(j, 0), t)
        for g in parallel(1, level="group-4"):
            mma.row.row(acc, s, t)
        for k in foreach(cdiv(K, 64), start=1):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def unrolled(
    a: tm.Global["bf16", "M", "K"],
    b: tm.Global["bf16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """The loop is unrolled by four."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("bf16", 64, 32), shared("bf16", 64, 32)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32), unroll=4):
            dma.copy(a.subspan(64, 32).at(i, k), s)
            dma.copy(b.subspan(64, 32).at(j, k), t)
            for w in parallel(4, level="group"):
                mma.row.row(acc, s.subspan(16, 32).at(w, 0), t)
        for w in parallel(4, level="group"):
            mma.store(acc, y.subspan(16, 64).at(compose(i, w), j))


@tm.kernel
def variable_places(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """The place along K is a variable that goes back from the end."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        at = var(cdiv(K, 64) - 1)
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, at), s)
            dma.copy(b.subspan(128, 64).at(j, at), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            at -= 1
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def wide_a(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """A's tile is wider: two tiles of B for each."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 128), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(128, 128).at(i, k), s)
            for h in foreach(2):
                dma.copy(b.subspan(128, 64).at(j, 2 * k + h), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, h), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def reused_a(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """A's tile is copied in even iterations and used in two."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 128), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            with if_(k % 2 == 0):
                dma.copy(a.subspan(128, 128).at(i, k // 2), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, k % 2), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def alternating(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """Two sums by turns in one iteration, with an odd number of tiles."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        even, odd = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                with if_(k % 2 == 0):
                    mma.row.row(even, s, t)
                with else_():
                    mma.row.row(odd, s, t)
        for g in parallel(1, level="group-4"):
            for r, c in apply(even):
                even[r, c] = even[r, c] - odd[r, c]
            mma.store(even, y.subspan(64, 64).at(i, j))


@tm.kernel
def row_maxima(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], most: tm.Global["f32", "M"]):
    """Only the largest element of each row of A B' leaves: a loop over tiles of B around that over K."""
    (M, K), N = a.shape, b.shape[0]
    for i in parallel(cdiv(M, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        for g in parallel(2, level="group-4"):
            best = mma.frag("f32", 64, init=-1.0e30)
            part = mma.frag("f32", 64)
            for j in foreach(cdiv(N, 128)):
                acc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, 64)):
                    dma.copy(a.subspan(128, 64).at(i, k), s)
                    dma.copy(b.subspan(128, 64).at(j, k), t)
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
                for r, c in apply(acc):
                    acc[r, c] = select(j * 128 + c < N, acc[r, c], -1.0e30)
                mma.reduce_max(part, acc)
                for r in apply(best):
                    best[r] = tm.math.max(best[r], part[r])
            for r in apply(best):
                with if_((i * 2 + g) * 64 + r < M):
                    most[(i * 2 + g) * 64 + r] = best[r]


@tm.kernel
def two_tiles_of_b(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f16", "M", "N"]):
    """A block computes two tiles of columns one after the other from the same buffers."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 256), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        for h in foreach(2):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(128, 64).at(i, k), s)
                dma.copy(b.subspan(128, 64).at(j * 2 + h, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            for g in parallel(2, level="group-4"):
                mma.store(acc, y.subspan(64, 128).at(compose(i, g), j * 2 + h))
