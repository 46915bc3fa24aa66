"""Plain kernels as users write them: several products, operands that are converted, scaled or transposed."""

from __future__ import annotations

import tilemma as tm
from tilemma import apply, cdiv, compose, dma, foreach, mma, parallel, select, shared


@tm.kernel
def mlp(
    x: tm.Global["bf16", "M", "K"],
    w1: tm.Global["bf16", "H", "K"],
    b1: tm.Global["f32", "H"],
    w2: tm.Global["bf16", "N", "H"],
    res: tm.Global["bf16", "M", "N"],
    y: tm.Global["bf16", "M", "N"],
):
    """Two layers in one kernel: relu(x w1' + b1) w2' + res, the hidden tile stays in shared memory."""
    (M, K), H, N = x.shape, w1.shape[0], w2.shape[0]
    for i in parallel(cdiv(M, 64), level="block"):
        xs, ws, hs, vs = (
            shared("bf16", 64, 64),
            shared("bf16", 64, 64),
            shared("bf16", 64, 64),
            shared("bf16", 128, 64),
        )
        out = mma.fill(0.0, "f32")
        for h in foreach(cdiv(H, 64)):
            mid = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(x.subspan(64, 64).at(i, k), xs)
                dma.copy(w1.subspan(64, 64).at(h, k), ws)
                for g in parallel(1, level="group-4"):
                    mma.row.row(mid, xs, ws)
            for g in parallel(1, level="group-4"):
                for r, c in apply(mid):
                    mid[r, c] = tm.math.relu(mid[r, c] + b1[tm.math.min(h * 64 + c, H - 1)])
                mma.store(mid, hs)
            dma.copy(w2.subspan(128, 64).at(0, h), vs)
            for g in parallel(1, level="group-4"):
                mma.row.row(out, hs, vs)
        for g in parallel(1, level="group-4"):
            for r, c in apply(out):
                row, col = tm.math.min(i * 64 + r, M - 1), tm.math.min(c, N - 1)
                out[r, c] = out[r, c] + res[row, col].astype("f32")
            mma.store(out, y.subspan(64, 128).at(i, 0))


@tm.kernel
def linear_attention(
    q: tm.Global["f16", "B", "S", 64],
    k: tm.Global["f16", "B", "S", 64],
    v: tm.Global["f16", "B", "S", 64],
    o: tm.Global["f32", "B", "S", 64],
    *,
    TILE=128,
):
    """Causal attention with weights relu(q k') instead of a softmax: two products with work between them."""
    B, S, _ = q.shape
    for b, i in parallel(B, cdiv(S, TILE), level="block"):
        qs, ks, vs = shared("f16", TILE, 64), shared("f16", 64, 64), shared("f16", 64, 64)
        ps = shared("f16", TILE, 64)
        dma.copy(q.subspan(1, TILE, 64).at(b, i, 0).sqz(), qs)
        acc = mma.fill(0.0, "f32")
        for n in foreach((i + 1) * (TILE // 64)):
            dma.copy(k.subspan(1, 64, 64).at(b, n, 0).sqz(), ks)
            dma.copy(v.subspan(1, 64, 64).at(b, n, 0).sqz(), vs)
            s = mma.fill(0.0, "f32")
            for g in parallel(TILE // 64, level="group-4"):
                mma.row.row(s, qs.subspan(64, 64).at(g, 0), ks)
                for r, c in apply(s):
                    s[r, c] = select(n * 64 + c > i * TILE + g * 64 + r, 0.0, tm.math.max(s[r, c], 0.0))
                mma.store(s, ps.subspan(64, 64).at(g, 0))
                mma.row.col(acc, ps.subspan(64, 64).at(g, 0), vs)
        for g in parallel(TILE // 64, level="group-4"):
            mma.store(acc, o.subspan(1, 64, 64).at(b, i * (TILE // 64) + g, 0).sqz())


@tm.kernel
def attention_registers(
    q: tm.Global["f16", "S", 64],
    k: tm.Global["f16", "T", 64],
    v: tm.Global["f16", "T", 64],
    o: tm.Global["f32", "S", 64],
):
    """The weights stay in registers as an operand."""
    S, T = q.shape[0], k.shape[0]
    for i in parallel(cdiv(S, 128), level="block"):
        qs, ks, vs = shared("f16", 128, 64), shared("f16", 64, 64), shared("f16", 64, 64)
        dma.copy(q.subspan(128, 64).at(i, 0), qs)
        for g in parallel(2, level="group-4"):
            acc = mma.fill(0.0, "f32")
            p = mma.frag("f16", 64, 64, init=0.0)
            for n in foreach(cdiv(T, 64)):
                dma.copy(k.subspan(64, 64).at(n, 0), ks)
                dma.copy(v.subspan(64, 64).at(n, 0), vs)
                s = mma.fill(0.0, "f32")
                mma.row.row(s, qs.subspan(64, 64).at(g, 0), ks)
                for r, c in apply(s):
                    s[r, c] = tm.math.max(s[r, c], 0.0) * 0.5
                p.set(s)
                mma.row.col(acc, p, vs)
            mma.store(acc, o.subspan(64, 64).at(i * 2 + g, 0))


@tm.kernel
def window_attention(
    q: tm.Global["f16", "S", 64],
    k: tm.Global["f16", "S", 64],
    v: tm.Global["f16", "S", 64],
    o: tm.Global["f32", "S", 64],
    *,
    W=96,
):
    """A sliding window: the loop starts and ends at tiles that the row decides; online maxima."""
    S = q.shape[0]
    for i in parallel(cdiv(S, 128), level="block"):
        qs, ks, vs = shared("f16", 128, 64), shared("f16", 64, 64), shared("f16", 64, 64)
        dma.copy(q.subspan(128, 64).at(i, 0), qs)
        first = tm.math.max(i * 128 - W, 0) // 64
        for g in parallel(2, level="group-4"):
            most = mma.frag("f32", 64, init=-1.0e30)
            new = mma.frag("f32", 64)
            total = mma.frag("f32", 64, init=0.0)
            part = mma.frag("f32", 64)
            acc = mma.frag("f32", 64, 64, init=0.0)
            p = mma.frag("f16", 64, 64, init=0.0)
            for n in foreach(tm.math.min((i + 1) * 2, cdiv(S, 64)), start=first):
                dma.copy(k.subspan(64, 64).at(n, 0), ks)
                dma.copy(v.subspan(64, 64).at(n, 0), vs)
                s = mma.fill(0.0, "f32")
                mma.row.row(s, qs.subspan(64, 64).at(g, 0), ks)
                for r, c in apply(s):
                    row, col = i * 128 + g * 64 + r, n * 64 + c
                    s[r, c] = select((col > row) | (col + W < row) | (col >= S), -1.0e30, s[r, c])
                mma.reduce_max(new, s)
                for r in apply(most):
                    new[r] = tm.math.max(most[r], new[r])
                    part[r] = select(new[r] == most[r], 1.0, 0.0)
                    most[r] = new[r]
                for r, c in apply(s):
                    s[r, c] = select(s[r, c] == new[r], 1.0, 0.0)
                for r, c in apply(acc):
                    acc[r, c] = acc[r, c] * part[r]
                for r in apply(total):
                    total[r] = total[r] * part[r]
                mma.reduce_sum(part, s)
                for r in apply(total):
                    total[r] = total[r] + part[r]
                p.set(s)
                mma.row.col(acc, p, vs)
            mma.store(acc, o.subspan(64, 64).at(i * 2 + g, 0))


@tm.kernel
def w8a16_rows(
    x: tm.Global["f16", "M", "K"],
    q: tm.Global["s8", "N", "K"],
    sc: tm.Global["f16", "N"],
    y: tm.Global["f16", "M", "N"],
):
    """Weights of 8 bits, converted when they are loaded; a scale for each column in the epilogue."""
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 128), level="block"):
        xs, qs = shared("f16", 64, 64), shared("s8", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(64, 64).at(i, k), xs)
            dma.copy(q.subspan(128, 64).at(j, k), qs)
            for w in parallel(4, level="group"):
                mma.row.row(acc, xs.subspan(16, 64).at(w, 0), mma.load(qs, dtype="f16"))
        for w in parallel(4, level="group"):
            for r, c in apply(acc):
                acc[r, c] = acc[r, c] * sc[tm.math.min(j * 128 + c, N - 1)].astype("f32")
            mma.store(acc, y.subspan(16, 128).at(compose(i, w), j))


@tm.kernel
def w8a16_slices(
    x: tm.Global["f16", "M", "K"],
    q: tm.Global["s8", "N", "K"],
    sc: tm.Global["f16", "N"],
    y: tm.Global["f16", "M", "N"],
):
    (M, K), N = x.shape, q.shape[0]
    for j, i in parallel(cdiv(N, 128), cdiv(M, 64), level="block"):
        xs, qs = shared("f16", 64, 64), shared("s8", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(64, 64).at(i, k), xs)
            dma.copy(q.subspan(128, 64).at(j, k), qs)
            for g in parallel(2, level="group-4"):
                for h in foreach(4):
                    mma.row.row(
                        acc, mma.load(qs.subspan(64, 16).at(g, h), dtype="f16"), xs.subspan(64, 16).at(0, h)
                    )
        for g in parallel(2, level="group-4"):
            for r, c in apply(acc):
                acc[r, c] = acc[r, c] * sc[tm.math.min(j * 128 + g * 64 + r, N - 1)].astype("f32")
            mma.store(acc, y.subspan(64, 64).at(i, compose(j, g)), transp=True)


@tm.kernel
def w4_transposed(
    x: tm.Global["f16", "M", "K"],
    q: tm.Global["u4", "N", "K"],
    y: tm.Global["f16", "M", "N"],
):
    """Weights of 4 bits as operand A of the transposed product."""
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        xs, qs = shared("f16", 64, 128), shared("u4", 64, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(x.subspan(64, 128).at(i, k), xs)
            dma.copy(q.subspan(64, 128).at(j, k), qs)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, mma.load(qs, dtype="f16"), xs)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j), transp=True)


@tm.kernel
def w4_slices(x: tm.Global["f16", "M", "K"], q: tm.Global["u4", "N", "K"], y: tm.Global["f16", "M", "N"]):
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        xs, qs = shared("f16", 64, 128), shared("u4", 64, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(x.subspan(64, 128).at(i, k), xs)
            dma.copy(q.subspan(64, 128).at(j, k), qs)
            for g in parallel(1, level="group-4"):
                for h in foreach(2):
                    mma.row.row(
                        acc, mma.load(qs.subspan(64, 64).at(0, h), dtype="f16"), xs.subspan(64, 64).at(0, h)
                    )
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j), transp=True)


@tm.kernel
def u8_zero_points(
    x: tm.Global["f16", "M", "K"],
    q: tm.Global["u8", "N", "K"],
    zero: tm.Global["u8", "N"],
    y: tm.Global["f32", "M", "N"],
):
    """Weights with a zero point for each row, subtracted in shared memory by all threads."""
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, qs, ws = shared("f16", 128, 64), shared("u8", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(q.subspan(128, 64).at(j, k), qs)
            for t in parallel(256, level="thread"):
                z = zero[tm.math.min(j * 128 + t // 2, N - 1)].astype("f16")
                for e in foreach(32, unroll=4):
                    ws[t // 2, t % 2 * 32 + e] = qs[t // 2, t % 2 * 32 + e].astype("f16") - z
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def nibbles(x: tm.Global["f16", "M", "K"], q: tm.Global["u8", "N", "K2"], y: tm.Global["f16", "M", "N"]):
    """Two numbers of four bits in a byte, taken apart by the program."""
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, qs, ws = shared("f16", 128, 64), shared("u8", 128, 32), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(q.subspan(128, 32).at(j, k), qs)
            for t in parallel(256, level="thread"):
                for e in foreach(16):
                    r, c = t // 2, t % 2 * 16 + e
                    ws[r, 2 * c] = ((qs[r, c].astype("s32") & 15) - 8).astype("f16")
                    ws[r, 2 * c + 1] = ((qs[r, c].astype("s32") >> 4) - 8).astype("f16")
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def scale_by_blocks(
    a: tm.Global["f8_e4m3", "M", "K"],
    b: tm.Global["f8_e4m3", "N", "K"],
    sa: tm.Global["f32", "M", "L"],
    sb: tm.Global["f32", "L", "P"],
    y: tm.Global["bf16", "M", "N"],
):
    """Scales for blocks of 128 of K: a row's own, and one of each 128 x 128 block of weights."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f8_e4m3", 128, 128), shared("f8_e4m3", 128, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(128, 128).at(i, k), s)
            dma.copy(b.subspan(128, 128).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 128).at(g, 0), t)
                mma.scale(acc, sa.subspan(64, 1).at(compose(i, g), k), sb[k, j])
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def scale_s8(
    a: tm.Global["s8", "M", "K"],
    b: tm.Global["s8", "N", "K"],
    sa: tm.Global["f32", "L", "M"],
    sb: tm.Global["f32", "L", "N"],
    y: tm.Global["f32", "M", "N"],
):
    """Integers, whose sums of each 128 of K are scaled and added in f32 by the program itself."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("s8", 64, 128), shared("s8", 64, 128)
        for g in parallel(1, level="group-4"):
            total = mma.frag("f32", 64, 64, init=0.0)
            for k in foreach(cdiv(K, 128)):
                dma.copy(a.subspan(64, 128).at(i, k), s)
                dma.copy(b.subspan(64, 128).at(j, k), t)
                part = mma.fill(0, "s32")
                mma.row.row(part, s, t)
                for r, c in apply(total):
                    row, col = tm.math.min(i * 64 + r, M - 1), tm.math.min(j * 64 + c, N - 1)
                    total[r, c] = total[r, c] + part[r, c].astype("f32") * (sa[k, row] * sb[k, col])
            mma.store(total, y.subspan(64, 64).at(i, j))


@tm.kernel
def scaled_operand(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    d: tm.Global["f16", "K"],
    y: tm.Global["f32", "M", "N"],
):
    """A diag(d) B': the tile of A is scaled in place by columns of K."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t, ds = shared("f16", 128, 64), shared("f16", 128, 64), shared("f16", 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            dma.copy(d.subspan(64).at(k), ds)
            for p in parallel(256, level="thread"):
                for e in foreach(32):
                    s[p // 2, p % 2 * 32 + e] = s[p // 2, p % 2 * 32 + e] * ds[p % 2 * 32 + e]
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def doubles(a: tm.Global["f64", "M", "K"], b: tm.Global["f64", "N", "K"], y: tm.Global["f64", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f64", 64, 16), shared("f64", 64, 16)
        acc = mma.fill(0.0, "f64")
        for k in foreach(cdiv(K, 16)):
            dma.copy(a.subspan(64, 16).at(i, k), s)
            dma.copy(b.subspan(64, 16).at(j, k), t)
            for w in parallel(4, level="group"):
                mma.row.row(acc, s.subspan(16, 16).at(w, 0), t)
        for w in parallel(4, level="group"):
            mma.store(acc, y.subspan(16, 64).at(compose(i, w), j))


@tm.kernel
def exact_f32(a: tm.Global["f32", "M", "K"], b: tm.Global["f32", "N", "K"], y: tm.Global["f32", "M", "N"]):
    """f32 on the CUDA cores."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f32", 64, 16), shared("f32", 64, 16)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 16)):
            dma.copy(a.subspan(64, 16).at(i, k), s)
            dma.copy(b.subspan(64, 16).at(j, k), t)
            for w in parallel(4, level="group"):
                mma.row.row(acc, s.subspan(16, 16).at(w, 0), t)
        for w in parallel(4, level="group"):
            mma.store(acc, y.subspan(16, 64).at(compose(i, w), j))


@tm.kernel
def narrow_floats(
    a: tm.Global["f8_e4m3", "M", "K"], b: tm.Global["f8_e5m2", "N", "K"], y: tm.Global["f16", "M", "N"]
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f8_e4m3", 128, 128), shared("f8_e5m2", 128, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(128, 128).at(i, k), s)
            dma.copy(b.subspan(128, 128).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, s.subspan(64, 128).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def a_transposed(
    a: tm.Global["f16", "K", "M"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
):
    """A is stored with M last."""
    (K, M), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 64, 128), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 128).at(k, i), s)
            dma.copy(b.subspan(128, 64).at(j, k), t)
            for g in parallel(2, level="group-4"):
                mma.col.row(acc, s.subspan(64, 64).at(0, g), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def transposing_copy(
    a: tm.Global["f16", "K", "M"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
):
    """The copy itself transposes."""
    (K, M), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 64).at(k, i), s, transp=(1, 0))
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def three_operands(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    d: tm.Global["f16", "N", "K"],
    y: tm.Global["f16", "M", "N"],
    z: tm.Global["f16", "M", "N"],
):
    """Two products that share A, stored apart."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 64), level="block"):
        s, t, u = shared("f16", 128, 64), shared("f16", 64, 64), shared("f16", 64, 64)
        p, q = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(128, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            dma.copy(d.subspan(64, 64).at(j, k), u)
            for g in parallel(2, level="group-4"):
                mma.row.row(p, s.subspan(64, 64).at(g, 0), t)
                mma.row.row(q, s.subspan(64, 64).at(g, 0), -mma.load(u))
        for g in parallel(2, level="group-4"):
            mma.store(p, y.subspan(64, 64).at(compose(i, g), j))
            mma.store(q, z.subspan(64, 64).at(compose(i, g), j))
