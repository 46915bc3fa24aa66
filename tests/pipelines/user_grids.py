"""Plain kernels as users write them: grids, levels and results of all kinds."""

from __future__ import annotations

import tilemma as tm
from tilemma import apply, atomic, cdiv, compose, dma, foreach, if_, mma, parallel, shared, var, while_


@tm.kernel
def gram(x: tm.Global["bf16", "M", "K"], y: tm.Global["f32", "M", "M"]):
    """X X': both operands are tiles of one array, and blocks above the diagonal do nothing."""
    M, K = x.shape
    for i, j in parallel(cdiv(M, 128), cdiv(M, 128), level="block"):
        s, t = shared("bf16", 128, 64), shared("bf16", 128, 64)
        with if_(j <= i):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(x.subspan(128, 64).at(i, k), s)
                dma.copy(x.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            for g in parallel(2, level="group-4"):
                mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def batched_heads(
    q: tm.Global["f16", "B", "R", "S", 64],
    k: tm.Global["f16", "B", "R", "T", 64],
    p: tm.Global["f32", "B", "R", "S", "T"],
):
    """Scores of several heads: four dimensions, a single step along K."""
    B, R, S, _ = q.shape
    T = k.shape[2]
    for h, i, j in parallel(B * R, cdiv(S, 128), cdiv(T, 128), level="block"):
        qs, ks = shared("f16", 128, 64), shared("f16", 128, 64)
        dma.copy(q.subspan(1, 1, 128, 64).at(h // R, h % R, i, 0).sqz(), qs)
        dma.copy(k.subspan(1, 1, 128, 64).at(h // R, h % R, j, 0).sqz(), ks)
        for g in parallel(2, level="group-4"):
            acc = mma.fill(0.0, "f32")
            mma.row.row(acc, qs.subspan(64, 64).at(g, 0), ks)
            mma.store(acc, p.subspan(1, 1, 64, 128).at(h // R, h % R, compose(i, g), j).sqz())


@tm.kernel
def epilogue_of_all(
    x: tm.Global["f16", "M", "K"],
    w: tm.Global["f16", "N", "K"],
    bias: tm.Global["f16", "N"],
    gate: tm.Global["f16", "M", "N"],
    res: tm.Global["f16", "M", "N"],
    alpha: tm.Float,
    y: tm.Global["f16", "M", "N"],
    pre: tm.Global["f32", "M", "N"],
):
    """A bias, a gate, a residual and a factor; the value before the activation is a second result."""
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, ws = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(w.subspan(128, 64).at(j, k), ws)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            for r, c in apply(acc):
                acc[r, c] = alpha * acc[r, c] + bias[tm.math.min(j * 128 + c, N - 1)].astype("f32")
            mma.store(acc, pre.subspan(64, 128).at(compose(i, g), j))
            for r, c in apply(acc):
                row, col = tm.math.min(compose(i, g) * 64 + r, M - 1), tm.math.min(j * 128 + c, N - 1)
                value = tm.math.relu(acc[r, c]) * gate[row, col].astype("f32")
                acc[r, c] = value + res[row, col].astype("f32")
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def both_ways_out(
    a: tm.Global["bf16", "M", "K"],
    b: tm.Global["bf16", "N", "K"],
    y: tm.Global["bf16", "M", "N"],
    t: tm.Global["bf16", "N", "M"],
):
    """The result and its transpose."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, u = shared("bf16", 128, 64), shared("bf16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), u)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), u)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))
            mma.store(acc, t.subspan(128, 64).at(j, compose(i, g)), transp=True)


@tm.kernel
def own_persistent(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
    *,
    BLOCKS=3,
):
    """Persistent by hand: a `while` over tiles, of which every third is left out."""
    (M, K), N = a.shape, b.shape[0]
    for block in parallel(BLOCKS, level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        tile = var(block)
        with while_(lambda tile=tile: tile < cdiv(M, 128) * cdiv(N, 128)):
            i, j = tile // cdiv(N, 128), tile % cdiv(N, 128)
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(128, 64).at(i, k), s)
                dma.copy(b.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            for g in parallel(2, level="group-4"):
                with if_(tile % 3 != 1):
                    mma.store(acc, y.subspan(64, 128).at(i * 2 + g, j))
            tile += BLOCKS


@tm.kernel
def own_raster(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
    *,
    BAND=2,
):
    """One index for the grid, from which rows and columns are computed in bands."""
    (M, K), N = a.shape, b.shape[0]
    rows, columns = cdiv(M, 128), cdiv(N, 128)
    for tile in parallel(rows * columns, level="block"):
        band, at = tile // (BAND * columns), tile % (BAND * columns)
        high = tm.math.min(rows - band * BAND, BAND)
        i, j = band * BAND + at % high, at // high
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        out = shared("f16", 128, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, out.subspan(64, 128).at(g, 0))
        dma.copy(out, y.subspan(128, 128).at(i, j))


@tm.kernel
def split_k(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    part: tm.Global["f32", "R", "M", "N"],
    y: tm.Global["f32", "M", "N"],
):
    """Parts of K in blocks of their own, and a second launch that adds them."""
    (M, K), N, R = a.shape, b.shape[0], part.shape[0]
    each = cdiv(cdiv(K, 64), R)
    for r, i, j in parallel(R, cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(each):
            dma.copy(a.subspan(128, 64).at(i, r * each + k), s)
            dma.copy(b.subspan(128, 64).at(j, r * each + k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, part.subspan(1, 64, 128).at(r, compose(i, g), j).sqz())
    for i, c in parallel(M, cdiv(N, 128), level="block"):
        for t in parallel(128, level="thread"):
            with if_(compose(c, t) < N):
                total = var(0.0, "f32")
                for r in foreach(R):
                    total += part[r, i, compose(c, t)]
                y[i, compose(c, t)] = total


@tm.kernel
def grouped_rows(
    x: tm.Global["bf16", "M", "K"],
    w: tm.Global["bf16", "E", "N", "K"],
    expert: tm.Global["s32", "R"],
    y: tm.Global["bf16", "M", "N"],
):
    """A matrix of weights for each tile of rows, chosen by an array; negative ones are left out."""
    (M, K), N = x.shape, w.shape[1]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 128), level="block"):
        s, t = shared("bf16", 64, 64), shared("bf16", 128, 64)
        e = expert[i]
        with if_(e >= 0):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(x.subspan(64, 64).at(i, k), s)
                dma.copy(w.subspan(1, 128, 64).at(e, j, k).sqz(), t)
                for g in parallel(1, level="group-4"):
                    mma.row.row(acc, s, t)
            for g in parallel(1, level="group-4"):
                mma.store(acc, y.subspan(64, 128).at(i, j))


@tm.kernel
def gathered_rows(
    x: tm.Global["f16", "M", "K"],
    rows: tm.Global["s32", "S"],
    w: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "S", "N"],
):
    """Rows are gathered one by one."""
    K, S, N = x.shape[1], rows.shape[0], w.shape[0]
    for i, j in parallel(cdiv(S, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            for r in foreach(64):
                row = rows[tm.math.min(i * 64 + r, S - 1)]
                dma.copy(x.subspan(1, 64).at(row, k), s.subspan(1, 64).at(r, 0))
            dma.copy(w.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def normalised(
    x: tm.Global["f16", "M", "K"],
    w: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
    total: tm.Global["f32", "M"],
):
    """The threads sum the rows of A's tiles while the product is computed."""
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        sums = shared("f32", 128, init=0.0)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), s)
            dma.copy(w.subspan(128, 64).at(j, k), t)
            for p in parallel(128, level="thread"):
                row = var(sums[p], "f32")
                for e in foreach(64):
                    row += s[p, e].astype("f32")
                sums[p] = row
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            for r, c in apply(acc):
                acc[r, c] = acc[r, c] - sums[g * 64 + r]
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))
        for p in parallel(128, level="thread"):
            with if_((j == 0) & (i * 128 + p < M)):
                total[i * 128 + p] = sums[p]


@tm.kernel
def atomic_split(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """Parts of K are added by atomics."""
    (M, K), N = a.shape, b.shape[0]
    for r, i, j in parallel(2, cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        each = cdiv(cdiv(K, 64), 2)
        for k in foreach(each):
            dma.copy(a.subspan(128, 64).at(i, r * each + k), s)
            dma.copy(b.subspan(128, 64).at(j, r * each + k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            for e, c in apply(acc):
                with if_(((i * 2 + g) * 64 + e < M) & (j * 128 + c < N)):
                    atomic.add(y[(i * 2 + g) * 64 + e, j * 128 + c], acc[e, c])


@tm.kernel
def two_launches(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "H", "K"],
    c: tm.Global["f16", "N", "H"],
    h: tm.Global["f16", "M", "H"],
    y: tm.Global["f32", "M", "N"],
):
    """The first product goes through global memory to a second launch."""
    (M, K), (N, H) = a.shape, c.shape
    for i, j in parallel(cdiv(M, 128), cdiv(H, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, h.subspan(64, 128).at(compose(i, g), j))
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(H, 64)):
            dma.copy(h.subspan(128, 64).at(i, k), s)
            dma.copy(c.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def residual_in_place(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f16", "M", "N"]):
    """Y is read element by element and overwritten."""
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
            for r, c in apply(acc):
                row, col = tm.math.min((i * 2 + g) * 64 + r, M - 1), tm.math.min(j * 128 + c, N - 1)
                acc[r, c] = acc[r, c] + y[row, col].astype("f32")
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def residual_tile(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    bias: tm.Global["f16", "N"],
    res: tm.Global["f16", "M", "N"],
    y: tm.Global["f16", "M", "N"],
):
    """The residual comes as a tile after the loop, the bias as one before it."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        rs, bs, out = shared("f16", 128, 128), shared("f16", 128), shared("f16", 128, 128)
        dma.copy(bias.subspan(128).at(j), bs)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        dma.copy(res.subspan(128, 128).at(i, j), rs)
        for g in parallel(2, level="group-4"):
            for r, c in apply(acc):
                acc[r, c] = acc[r, c] + bs[c].astype("f32") + rs[g * 64 + r, c].astype("f32")
            mma.store(acc, out.subspan(64, 128).at(g, 0))
        dma.copy(out, y.subspan(128, 128).at(i, j))


@tm.kernel
def queue(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    next: tm.Global["s32", 1],
    y: tm.Global["f32", "M", "N"],
    *,
    BLOCKS=2,
):
    """Blocks take their tiles from a counter."""
    (M, K), N = a.shape, b.shape[0]
    for block in parallel(BLOCKS, level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        tile = var(atomic.add(next[0], 1))
        with while_(lambda tile=tile: tile < cdiv(M, 128) * cdiv(N, 128)):
            i, j = tile // cdiv(N, 128), tile % cdiv(N, 128)
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(128, 64).at(i, k), s)
                dma.copy(b.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
            for g in parallel(2, level="group-4"):
                mma.store(acc, y.subspan(64, 128).at(i * 2 + g, j))
            tile.set(atomic.add(next[0], 1))


@tm.kernel
def rows_of_dims(
    a: tm.Global["f16", "B", "S", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f16", "B", "S", "N"]
):
    """Grid of three dimensions, rows of every batch with clipped tiles."""
    (B, S, K), N = a.shape, b.shape[0]
    for n, i, j in parallel(B, cdiv(S, 64), cdiv(N, 256), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 256, 64)
        for g in parallel(1, level="group-4"):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(1, 64, 64).at(n, i, k).sqz(), s)
                dma.copy(b.subspan(256, 64).at(j, k), t)
                mma.row.row(acc, s, t)
            mma.store(acc, y.subspan(1, 64, 256).at(n, i, j).sqz())


@tm.kernel
def masked_rows(
    a: tm.Global["bf16", "M", "K"], b: tm.Global["bf16", "N", "K"], rows: tm.Int, y: tm.Global["bf16", "M", "N"]
):
    """Only the first rows are stored."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("bf16", 128, 64), shared("bf16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            left = tm.math.clamp(rows - (i * 2 + g) * 64, 0, 64)
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j), rows=left, columns=128)


@tm.kernel
def skinny(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f16", "M", "N"]):
    """Few rows: one warp's tile, the warps divide the columns."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 16), cdiv(N, 64), level="block"):
        s, t = shared("f16", 16, 128), shared("f16", 64, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(16, 128).at(i, k), s)
            dma.copy(b.subspan(64, 128).at(j, k), t)
            for w in parallel(4, level="group"):
                mma.row.row(acc, s, t.subspan(16, 128).at(w, 0))
        for w in parallel(4, level="group"):
            mma.store(acc, y.subspan(16, 16).at(i, compose(j, w)))


@tm.kernel
def k_by_warps(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """The warps divide K, and their sums are added through shared memory."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 32), level="block"):
        s, t = shared("f16", 32, 128), shared("f16", 32, 128)
        parts = shared("f32", 4, 32, 32)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(32, 128).at(i, k), s)
            dma.copy(b.subspan(32, 128).at(j, k), t)
            for w in parallel(4, level="group"):
                mma.row.row(acc, s.subspan(32, 32).at(0, w), t.subspan(32, 32).at(0, w))
        for w in parallel(4, level="group"):
            mma.store(acc, parts.subspan(1, 32, 32).at(w, 0, 0).sqz())
        for p in parallel(128, level="thread"):
            for e in foreach(8):
                r, c = (e * 128 + p) // 32, (e * 128 + p) % 32
                with if_((i * 32 + r < M) & (j * 32 + c < N)):
                    y[i * 32 + r, j * 32 + c] = parts[0, r, c] + parts[1, r, c] + parts[2, r, c] + parts[3, r, c]


@tm.kernel
def three_groups(a: tm.Global["bf16", "M", "K"], b: tm.Global["bf16", "N", "K"], y: tm.Global["bf16", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 192), cdiv(N, 128), level="block"):
        s, t = shared("bf16", 192, 64), shared("bf16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(192, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(3, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(3, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def columns_by_warpgroups(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
):
    """The warpgroups divide the columns, or rows and columns."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 256), level="block"):
        s, t = shared("f16", 128, 32), shared("f16", 256, 32)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(a.subspan(128, 32).at(i, k), s)
            dma.copy(b.subspan(256, 32).at(j, k), t)
            for p, q in parallel(1, 2, level="group-4"):
                mma.row.row(acc, s, t.subspan(128, 32).at(q, 0))
        for p, q in parallel(1, 2, level="group-4"):
            mma.store(acc, y.subspan(128, 128).at(i, j * 2 + q))


@tm.kernel
def no_inner_level(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """A loop inside the level of the warpgroup instead of outside."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        for g in parallel(2, level="group-4"):
            acc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                s = dma.copy(a.subspan(128, 64).at(i, k), to="shared")
                t = dma.copy(b.subspan(128, 64).at(j, k), to="shared")
                mma.row.row(acc, s.data.subspan(64, 64).at(g, 0), t.data)
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def odd_rows(a: tm.Global["f16", "M", "J"], b: tm.Global["f16", "N", "J"], y: tm.Global["f16", "M", "N"]):
    """Rows of an odd number of elements: no copy engine takes them."""
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
