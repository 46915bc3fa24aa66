"""Plain kernels as users write them: odd tiles, several loops and products, conditions, tiles read after loops."""

from __future__ import annotations

import tilemma as tm
from tilemma import apply, cdiv, compose, dma, else_, foreach, if_, mma, parallel, select, shared, var, while_


@tm.kernel
def odd_tiles(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 48), cdiv(N, 24), level="block"):
        s, t = shared("f16", 48, 48), shared("f16", 24, 48)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 48)):
            dma.copy(a.subspan(48, 48).at(i, k), s)
            dma.copy(b.subspan(24, 48).at(j, k), t)
            for w in parallel(3, level="group"):
                mma.row.row(acc, s.subspan(16, 48).at(w, 0), t)
        for w in parallel(3, level="group"):
            mma.store(acc, y.subspan(16, 24).at(compose(i, w), j))


@tm.kernel
def last_tile(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    y: tm.Global["f32", "M", "N"],
    z: tm.Global["f32", "M", 64],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))
        for q in parallel(128, level="thread"):
            for e in foreach(32):
                r, c = (e * 128 + q) // 64, (e * 128 + q) % 64
                with if_((j == 0) & (i * 64 + r < M)):
                    z[i * 64 + r, c] = s[r, c].astype("f32") + 1.0


@tm.kernel
def two_sources(
    a: tm.Global["bf16", "M", "K"],
    b: tm.Global["bf16", "N", "K"],
    c: tm.Global["bf16", "M", "K"],
    y: tm.Global["f32", "M", "N"],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("bf16", 64, 64), shared("bf16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            with if_(k % 2 == 0):
                dma.copy(a.subspan(64, 64).at(i, k), s)
            with else_():
                dma.copy(c.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def early_exit(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    limit: tm.Global["s32", 4],
    y: tm.Global["f32", "M", "N"],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        k = var(0)
        with while_(lambda: (k < cdiv(K, 64)) & (k < limit[j % 4])):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
            k += 1
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def in_place(x: tm.Global["f16", "M", 128], w: tm.Global["f16", 128, 128]):
    M = x.shape[0]
    for i in parallel(cdiv(M, 64), level="block"):
        s, t = shared("f16", 64, 32), shared("f16", 128, 32)
        acc = mma.fill(0.0, "f32")
        for k in foreach(4):
            dma.copy(x.subspan(64, 32).at(i, k), s)
            dma.copy(w.subspan(128, 32).at(0, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, x.subspan(64, 128).at(i, 0))


@tm.kernel
def feeds_itself(x: tm.Global["f16", "L", 64], w: tm.Global["f16", 64, 64]):
    L = x.shape[0]
    for i in parallel(1, level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        dma.copy(w, t)
        for k in foreach(L // 64 - 1):
            dma.copy(x.subspan(64, 64).at(k, 0), s)
            acc = mma.fill(0.0, "f32")
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
            for g in parallel(1, level="group-4"):
                mma.store(acc, x.subspan(64, 64).at(k + 1, 0))


@tm.kernel
def dequant_groups(
    x: tm.Global["bf16", "M", "K"],
    q: tm.Global["u8", "N", "K"],
    sc: tm.Global["f32", "L", "N"],
    y: tm.Global["bf16", "M", "N"],
):
    (M, K), N = x.shape, q.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 96), level="block"):
        xs, qs, ws = shared("bf16", 64, 64), shared("u8", 96, 64), shared("bf16", 96, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(64, 64).at(i, k), xs)
            dma.copy(q.subspan(96, 64).at(j, k), qs)
            for t in parallel(128, level="thread"):
                for e in foreach(48):
                    r, c = (e * 128 + t) // 64, (e * 128 + t) % 64
                    scale = sc[k // 2, tm.math.min(j * 96 + r, N - 1)]
                    ws[r, c] = (qs[r, c].astype("f32") - 2.0) * scale
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, xs, ws)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 96).at(i, j))


@tm.kernel
def block_scales(
    a: tm.Global["f8_e4m3", "M", "K"],
    b: tm.Global["f8_e4m3", "N", "K"],
    sa: tm.Global["f32", "L", "M"],
    sb: tm.Global["f32", "L", "N"],
    y: tm.Global["f32", "M", "N"],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f8_e4m3", 64, 128), shared("f8_e4m3", 64, 128)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(64, 128).at(i, k), s)
            dma.copy(b.subspan(64, 128).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row.scale(acc, s, t, sa.subspan(1, 64).at(k, i), sb.subspan(1, 64).at(k, j))
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def gated(
    x: tm.Global["bf16", "M", "K"],
    u: tm.Global["bf16", "N", "K"],
    v: tm.Global["bf16", "N", "K"],
    bias: tm.Global["f32", "N"],
    res: tm.Global["bf16", "M", "N"],
    y: tm.Global["bf16", "M", "N"],
):
    (M, K), N = x.shape, u.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 64), level="block"):
        xs, us, vs = shared("bf16", 128, 64), shared("bf16", 64, 64), shared("bf16", 64, 64)
        p, q = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(x.subspan(128, 64).at(i, k), xs)
            dma.copy(u.subspan(64, 64).at(j, k), us)
            dma.copy(v.subspan(64, 64).at(j, k), vs)
            for g in parallel(2, level="group-4"):
                mma.row.row(p, xs.subspan(64, 64).at(g, 0), us)
                mma.row.row(q, xs.subspan(64, 64).at(g, 0), vs)
        for g in parallel(2, level="group-4"):
            for r, c in apply(p):
                row, col = tm.math.min((i * 2 + g) * 64 + r, M - 1), tm.math.min(j * 64 + c, N - 1)
                p[r, c] = tm.math.max(p[r, c], 0.0) * q[r, c] + bias[col] + res[row, col].astype("f32")
            mma.store(p, y.subspan(64, 64).at(compose(i, g), j))


@tm.kernel
def conv_rows(
    x: tm.Global["f16", "T", 64],
    w: tm.Global["f16", "R", "F", 64],
    keep: tm.Global["s32", "R"],
    y: tm.Global["f16", "P", "F"],
):
    (R, F, _), P = w.shape, y.shape[0]
    for i, j in parallel(cdiv(P, 64), cdiv(F, 64), level="block"):
        xs, ws = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for r in foreach(R):
            with if_(keep[r] != 0):
                dma.copy(x.view(64, 64).from_(i * 64 + r, 0), xs)
                dma.copy(w.subspan(1, 64, 64).at(r, j, 0).sqz(), ws)
                for g in parallel(1, level="group-4"):
                    mma.row.row(acc, xs, ws)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def tf32(a: tm.Global["f32", "M", "K"], b: tm.Global["f32", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 128), level="block"):
        s, t = shared("f32", 64, 32), shared("f32", 128, 32)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(a.subspan(64, 32).at(i, k), s)
            dma.copy(b.subspan(128, 32).at(j, k), t)
            for g in parallel(1, level="group-4"):
                ma = mma.load(s, dtype="tf32")
                mb = mma.load(t, dtype="tf32")
                mma.row.row(acc, ma, mb)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 128).at(i, j))


@tm.kernel
def int_rows(
    a: tm.Global["s8", "M", "K"],
    b: tm.Global["s8", "N", "K"],
    sa: tm.Global["f32", "M"],
    y: tm.Global["f16", "M", "N"],
):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("s8", 64, 128), shared("s8", 64, 128)
        acc = mma.fill(0, "s32")
        out = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 128)):
            dma.copy(a.subspan(64, 128).at(i, k), s)
            dma.copy(b.subspan(64, 128).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            for r, c in apply(acc):
                out[r, c] = acc[r, c].astype("f32") * sa[tm.math.min(i * 64 + r, M - 1)]
            mma.store(out, y.subspan(64, 64).at(i, j))


@tm.kernel
def three(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", 64, "K"],
    c: tm.Global["f16", "N", 64],
    d: tm.Global["f16", "N", "L"],
    e: tm.Global["f16", "M", "L"],
    y: tm.Global["f32", "M", "N"],
):
    (M, K), (N, L) = a.shape, d.shape
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t, h, u = shared("f16", 64, 64), shared("f16", 64, 64), shared("f16", 64, 64), shared("f16", 64, 64)
        mid, acc = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(0, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(mid, s, t)
        for g in parallel(1, level="group-4"):
            for r, q in apply(mid):
                mid[r, q] = tm.math.max(mid[r, q], 0.0)
            mma.store(mid, h)
        dma.copy(c.subspan(64, 64).at(j, 0), u)
        for g in parallel(1, level="group-4"):
            mma.row.row(acc, h, u)
        for l in foreach(cdiv(L, 64)):
            dma.copy(e.subspan(64, 64).at(i, l), s)
            dma.copy(d.subspan(64, 64).at(j, l), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def pairs(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t, u, v = [shared("f16", 64, 32) for _ in range(4)]
        p, q = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 32).at(i, 2 * k), s)
            dma.copy(b.subspan(64, 32).at(j, 2 * k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(p, s, t)
            dma.copy(a.subspan(64, 32).at(i, 2 * k + 1), u)
            dma.copy(b.subspan(64, 32).at(j, 2 * k + 1), v)
            for g in parallel(1, level="group-4"):
                mma.row.row(q, u, v)
        for g in parallel(1, level="group-4"):
            for r, c in apply(p):
                p[r, c] = p[r, c] - q[r, c]
            mma.store(p, y.subspan(64, 64).at(i, j))


@tm.kernel
def causal(
    q: tm.Global["f16", "M", 64],
    k: tm.Global["f16", "M", 64],
    v: tm.Global["f16", "M", 64],
    o: tm.Global["f32", "M", 64],
):
    M = q.shape[0]
    for i in parallel(cdiv(M, 64), level="block"):
        qs, ks, vs, ps = [shared("f16", 64, 64) for _ in range(4)]
        dma.copy(q.subspan(64, 64).at(i, 0), qs)
        acc = mma.fill(0.0, "f32")
        for n in foreach(i + 1):
            dma.copy(k.subspan(64, 64).at(n, 0), ks)
            s = mma.fill(0.0, "f32")
            for g in parallel(1, level="group-4"):
                mma.row.row(s, qs, ks)
                for r, c in apply(s):
                    s[r, c] = select((n * 64 + c) > (i * 64 + r), 0.0, s[r, c] * 0.5)
                mma.store(s, ps)
            dma.copy(v.subspan(64, 64).at(n, 0), vs)
            for g in parallel(1, level="group-4"):
                mma.row.col(acc, ps, vs)
        for g in parallel(1, level="group-4"):
            mma.store(acc, o.subspan(64, 64).at(i, 0))


@tm.kernel
def first_and_last(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64), start=1):
            dma.copy(a.subspan(64, 64).at(i, k), s)
            dma.copy(b.subspan(64, 64).at(j, k - 1), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
                with if_(k == cdiv(K, 64) - 1):
                    for r, c in apply(acc):
                        acc[r, c] = acc[r, c] * 2.0
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def unnamed_tiles(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 32), level="block"):
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            s = dma.copy(a.subspan(32, 32).at(i, k), to="shared")
            t = dma.copy(b.subspan(32, 32).at(j, k), to="shared")
            for w in parallel(2, level="group"):
                mma.row.row(acc, s.data.subspan(16, 32).at(w, 0), t.data)
        for w in parallel(2, level="group"):
            mma.store(acc, y.subspan(16, 32).at(compose(i, w), j))


@tm.kernel
def own_slots(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
        acc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 64)):
            dma.copy(a.subspan(64, 64).at(i, k), s[k % 2])
            dma.copy(b.subspan(64, 64).at(j, k), t[k % 2])
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s[k % 2], t[k % 2])
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def gather(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    order: tm.Global["s32", "L"],
    y: tm.Global["f32", "M", "N"],
):
    (M, K), N, L = a.shape, b.shape[0], order.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 32), shared("f16", 64, 32)
        acc = mma.fill(0.0, "f32")
        for l in foreach(L):
            k = var(order[l])
            with if_(k >= 0):
                dma.copy(a.subspan(64, 32).at(i, k), s)
                dma.copy(b.subspan(64, 32).at(j, l), t)
                for g in parallel(1, level="group-4"):
                    mma.row.row(acc, s, t)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))


@tm.kernel
def kept_tile(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], y: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        s, t = shared("f16", 64, 64), shared("f16", 64, 64)
        acc = mma.fill(0.0, "f32")
        dma.copy(a.subspan(64, 64).at(i, 0), s)
        for k in foreach(cdiv(K, 64)):
            dma.copy(b.subspan(64, 64).at(j, k), t)
            for g in parallel(1, level="group-4"):
                mma.row.row(acc, s, t)
            dma.copy(a.subspan(64, 64).at(i, k), s)
        for g in parallel(1, level="group-4"):
            mma.store(acc, y.subspan(64, 64).at(i, j))
