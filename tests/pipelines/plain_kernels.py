"""The kernels of plain_kernels.co in Python."""

from __future__ import annotations

import tilemma as tm
from tilemma import apply, cdiv, compose, dma, foreach, mma, parallel, shared


@tm.kernel
def bias_residual(
    x: tm.Global["bf16", "M", "K"],
    w: tm.Global["bf16", "N", "K"],
    bias: tm.Global["bf16", "N"],
    res: tm.Global["bf16", "M", "N"],
    y: tm.Global["bf16", "M", "N"],
):
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, ws = shared("bf16", 128, 64), shared("bf16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(w.subspan(128, 64).at(j, k), ws)
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            for r, c in apply(acc):
                added = acc[r, c] + bias[j * 128 + c].astype("f32")
                acc[r, c] = added + res[(i * 2 + g) * 64 + r, j * 128 + c].astype("f32")
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def chain(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "L", "K"],
    c: tm.Global["f16", "N", "L"],
    y: tm.Global["f16", "M", "N"],
):
    (M, K), L = a.shape, b.shape[0]
    for i in parallel(cdiv(M, 128), level="block"):
        as_, bs = shared("f16", 128, 64), shared("f16", 64, 64)
        ts, cs = shared("f16", 128, 64), shared("f16", 128, 64)
        out = mma.fill(0.0, "f32")
        for l in foreach(cdiv(L, 64)):  # noqa: E741
            mid = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64)):
                dma.copy(a.subspan(128, 64).at(i, k), as_)
                dma.copy(b.subspan(64, 64).at(l, k), bs)
                for g in parallel(2, level="group-4"):
                    mma.row.row(mid, as_.subspan(64, 64).at(g, 0), bs)
            for g in parallel(2, level="group-4"):
                mma.store(mid, ts.subspan(64, 64).at(g, 0))
            dma.copy(c.subspan(128, 64).at(0, l), cs)
            for g in parallel(2, level="group-4"):
                mma.row.row(out, ts.subspan(64, 64).at(g, 0), cs)
        for g in parallel(2, level="group-4"):
            mma.store(out, y.subspan(64, 128).at(compose(i, g), 0))


@tm.kernel
def dequant(x: tm.Global["f16", "M", "K"], w: tm.Global["s8", "N", "K"], y: tm.Global["f16", "M", "N"]):
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, q, ws = shared("f16", 128, 64), shared("s8", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(w.subspan(128, 64).at(j, k), q)
            for t in parallel(256, level="thread"):
                for e in foreach(32):
                    value = q[(e * 256 + t) // 64, (e * 256 + t) % 64]
                    ws[(e * 256 + t) // 64, (e * 256 + t) % 64] = value.astype("f16")
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def two_loops(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    c: tm.Global["f16", "M", "L"],
    d: tm.Global["f16", "N", "L"],
    y: tm.Global["f16", "M", "N"],
):
    (M, K), (N, L) = a.shape, d.shape
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        s, t = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for left, right, depth in ((a, b, K), (c, d, L)):
            for k in foreach(cdiv(depth, 64)):
                dma.copy(left.subspan(128, 64).at(i, k), s)
                dma.copy(right.subspan(128, 64).at(j, k), t)
                for g in parallel(2, level="group-4"):
                    mma.row.row(acc, s.subspan(64, 64).at(g, 0), t)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def turned(
    a: tm.Global["f16", "B", "M", "K"], b: tm.Global["f16", "B", "K", "N"], y: tm.Global["f32", "B", "M", "N"]
):
    (B, M, K), N = a.shape, b.shape[2]
    for n, i, j in parallel(B, cdiv(M, 128), cdiv(N, 128), level="block"):
        as_, bs = shared("f16", 128, 32), shared("f16", 32, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(a.subspan(1, 128, 32).at(n, i, k).sqz(), as_)
            dma.copy(b.subspan(1, 32, 128).at(n, k, j).sqz(), bs)
            for g in parallel(2, level="group-4"):
                mma.row.col(acc, as_.subspan(64, 32).at(g, 0), bs)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(1, 64, 128).at(n, compose(i, g), j).sqz())


@tm.kernel
def ints(a: tm.Global["s8", "M", "K"], b: tm.Global["s8", "N", "K"], y: tm.Global["s32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 256), level="block"):
        as_, bs = shared("s8", 64, 128), shared("s8", 256, 128)
        acc = mma.fill(0, "s32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(64, 128).at(i, k), as_)
            dma.copy(b.subspan(256, 128).at(j, k), bs)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, as_, bs)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 256).at(i, j))


@tm.kernel
def conv1d(x: tm.Global["f16", "T", "C"], w: tm.Global["f16", "R", "F", "C"], y: tm.Global["f16", "P", "F"]):
    (R, F, C), P = w.shape, y.shape[0]
    for i, j in parallel(cdiv(P, 128), cdiv(F, 128), level="block"):
        xs, ws = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for r, c in foreach(R, cdiv(C, 64)):
            dma.copy(x.view(128, 64).from_(i * 128 + r, c * 64), xs)
            dma.copy(w.subspan(1, 128, 64).at(r, j, c).sqz(), ws)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def scaled(
    a: tm.Global["f8_e4m3", "M", "K"],
    b: tm.Global["f8_e4m3", "N", "K"],
    sa: tm.Global["f32", "M", "L"],
    sb: tm.Global["f32", "N", "L"],
    y: tm.Global["f16", "M", "N"],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        as_, bs = shared("f8_e4m3", 128, 128), shared("f8_e4m3", 128, 128)
        total = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(128, 128).at(i, k), as_)
            dma.copy(b.subspan(128, 128).at(j, k), bs)
            for g in parallel(2, level="group-4"):
                part = mma.fill(0.0, "f32")
                mma.row.row(part, as_.subspan(64, 128).at(g, 0), bs)
                for r, c in apply(part):
                    row = tm.math.min(M - 1, (i * 2 + g) * 64 + r)
                    column = tm.math.min(N - 1, j * 128 + c)
                    total[r, c] = total[r, c] + part[r, c] * sa[row, k] * sb[column, k]
        for g in parallel(2, level="group-4"):
            mma.store(total, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def attend(
    q: tm.Global["f16", "M", "K"],
    k: tm.Global["f16", "N", "K"],
    v: tm.Global["f16", "N", "K"],
    o: tm.Global["f16", "M", "K"],
):
    M, N = q.shape[0], k.shape[0]
    for i in parallel(cdiv(M, 64), level="block"):
        qs, ks = shared("f16", 64, 64), shared("f16", 64, 64)
        vs, ps = shared("f16", 64, 64), shared("f16", 64, 64)
        dma.copy(q.subspan(64, 64).at(i, 0), qs)
        acc = mma.fill(0.0, "f32")
        for n in foreach(cdiv(N, 64)):
            dma.copy(k.subspan(64, 64).at(n, 0), ks)
            s = mma.fill(0.0, "f32")
            for w in parallel(4, level="group"):
                mma.row.row(s, qs.subspan(16, 64).at(w, 0), ks)
            for w in parallel(4, level="group"):
                mma.store(s, ps.subspan(16, 64).at(w, 0))
            dma.copy(v.subspan(64, 64).at(n, 0), vs)
            for w in parallel(4, level="group"):
                mma.row.col(acc, ps.subspan(16, 64).at(w, 0), vs)
        for w in parallel(4, level="group"):
            mma.store(acc, o.subspan(16, 64).at(compose(i, w), 0))


@tm.kernel
def relu_first(x: tm.Global["f16", "M", "K"], w: tm.Global["f16", "N", "K"], y: tm.Global["f16", "M", "N"]):
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, ws = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(w.subspan(128, 64).at(j, k), ws)
            for t in parallel(256, level="thread"):
                for e in foreach(32):
                    row, column = (e * 256 + t) // 64, (e * 256 + t) % 64
                    xs[row, column] = tm.math.max(xs[row, column], 0.0)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))


@tm.kernel
def two_out(
    x: tm.Global["f16", "M", "K"],
    w: tm.Global["f16", "N", "K"],
    u: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
    z: tm.Global["f16", "M", "N"],
):
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, ws = shared("f16", 128, 64), shared("f16", 128, 64)
        us, zs = shared("f16", 128, 64), shared("f16", 128, 128)
        a1, a2 = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(w.subspan(128, 64).at(j, k), ws)
            for g in parallel(2, level="group-4"):
                mma.row.row(a1, xs.subspan(64, 64).at(g, 0), ws)
            dma.copy(u.subspan(128, 64).at(j, k), us)
            for g in parallel(2, level="group-4"):
                mma.row.row(a2, xs.subspan(64, 64).at(g, 0), us)
        for g in parallel(2, level="group-4"):
            mma.store(a1, y.subspan(64, 128).at(compose(i, g), j))
            mma.store(a2, zs.subspan(64, 128).at(g, 0))
        dma.copy(zs, z.subspan(128, 128).at(i, j))


@tm.kernel
def reversed(x: tm.Global["f16", "M", "K"], w: tm.Global["f16", "N", "K"], y: tm.Global["f16", "M", "N"]):
    (M, K), N = x.shape, w.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 128), level="block"):
        xs, ws = shared("f16", 128, 64), shared("f16", 128, 64)
        acc = mma.fill(0.0, "f32")
        n = cdiv(K, 64)
        for k in foreach(n):
            back = n - 1 - k
            dma.copy(x.subspan(128, 64).at(i, back), xs)
            dma.copy(w.subspan(128, 64).at(j, back), ws)
            for g in parallel(2, level="group-4"):
                mma.row.row(acc, xs.subspan(64, 64).at(g, 0), ws)
        for g in parallel(2, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(compose(i, g), j))
