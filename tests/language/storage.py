"""Storage: shared, local and returned arrays, arrays of tiles, initialisers, elements, atomics."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import atomic, foreach, local, parallel, shared, var

f32, s32 = np.float32, np.int32


@construct(
    given={"a": random("f32", 8, 16), "out": unwritten("f32", 16, 8)},
    expect=lambda a, out: {"out": a.T + f32(0)},
    co="""
    __co__ void transposed(global f32 [8, 16] a, global f32 [16, 8] out) {
      parallel b by 1 : block {
        shared f32 [8, 16] s;
        parallel {i, j} by [8, 16] : thread
          s.at(i, j) = a.at(i, j);
        parallel {i, j} by [16, 8] : thread
          out.at(i, j) = s.at(j, i);
      }
    }
    """,
)
def transposed(a: tm.Global["f32", 8, 16], out: tm.Global["f32", 16, 8]):
    for b in parallel(1, level="block"):
        s = shared("f32", 8, 16)
        for i, j in parallel(8, 16, level="thread"):
            s[i, j] = a[i, j]
        for i, j in parallel(16, 8, level="thread"):
            out[i, j] = s[j, i]


@construct(
    given={"a": small("s32", 6), "out": unwritten("s32", 3, 6)},
    expect=lambda a, out: {"out": np.stack([a + 7, np.full(6, 2), a * 2 + 7]).astype(s32)},
    co="""
    __co__ void initialised(global s32 [6] a, global s32 [3, 6] out) {
      parallel b by 1 : block {
        shared s32 [6] s {7};
        parallel t by 6 : thread {
          local s32 [4] mine {2};
          s.at(t) = s.at(t) + a.at(t);
          out.at(0, t) = s.at(t);
          out.at(1, t) = mine.at(3);
          foreach i in 4
            mine.at(i) = a.at(t) * i;
          out.at(2, t) = mine.at(2) + 7;
        }
      }
    }
    """,
)
def initialised(a: tm.Global["s32", 6], out: tm.Global["s32", 3, 6]):
    for b in parallel(1, level="block"):
        s = shared("s32", 6, init=7)
        for t in parallel(6, level="thread"):
            mine = local("s32", 4, init=2)
            s[t] = s[t] + a[t]
            out[0, t] = s[t]
            out[1, t] = mine[3]
            for i in foreach(4):
                mine[i] = a[t] * i
            out[2, t] = mine[2] + 7


@construct(
    given={"a": small("s32", 4, 6), "out": unwritten("s32", 4, 6)},
    expect=lambda a, out: {"out": a[::-1] * np.arange(1, 5, dtype=s32)[::-1, None]},
    co="""
    __co__ void tile_arrays(global s32 [4, 6] a, global s32 [4, 6] out) {
      parallel b by 1 : block {
        shared s32 [6] s[2][2];
        parallel t by 6 : thread {
          foreach {i, j} in [2, 2]
            s[i][j].at(t) = a.at(i * 2 + j, t) * (i * 2 + j + 1);
          foreach {i, j} in [2, 2]
            out.at(i * 2 + j, t) = s[1 - i][1 - j].at(t);
        }
      }
    }
    """,
)
def tile_arrays(a: tm.Global["s32", 4, 6], out: tm.Global["s32", 4, 6]):
    for b in parallel(1, level="block"):
        s = shared("s32", 6, copies=(2, 2))
        for t in parallel(6, level="thread"):
            for i, j in foreach(2, 2):
                s[i][j][t] = a[i * 2 + j, t] * (i * 2 + j + 1)
            for i, j in foreach(2, 2):
                out[i * 2 + j, t] = s[1 - i, 1 - j, t]


@construct(
    given={"a": np.arange(100, dtype=s32), "out": np.zeros((9,), s32) + np.array([0, 0, 5, 50, 50, -1, 0, 6, 7], s32),
           "old": unwritten("s32", 100)},
    expect=lambda a, out, old: {
        "out": np.array([4950, -4950, 200, 0, 99, 8, 127, 3, 100], s32), "old": np.arange(100, dtype=s32)},
    co="""
    __co__ void atomics(global s32 [N] a, global s32 [9] out, global s32 [N] old) {
      parallel b by 1 : block {
        shared s32 [1] count {0};
        parallel t by 100 : thread {
          __atomic_add(out.at(0), a.at(t));
          __atomic_sub(out.at(1), a.at(t));
          if (a.at(t) == 0) __atomic_exch(out.at(2), 200);
          __atomic_min(out.at(3), a.at(t));
          __atomic_max(out.at(4), a.at(t));
          __atomic_and(out.at(5), 0b1000);
          __atomic_or(out.at(6), a.at(t));
          __atomic_xor(out.at(7), a.at(t) < 2 ? 3 * a.at(t) + 3 : 0);
          int k = __atomic_add(count.at(0), 1);
          old.at(k) = k;
          __atomic_cas(out.at(8), a.at(t) == 50 ? 7 : 1000, 100);
        }
      }
    }
    """.replace("0b1000", "8"),
)  # fmt: skip
def atomics(a: tm.Global["s32", "N"], out: tm.Global["s32", 9], old: tm.Global["s32", "N"]):
    for b in parallel(1, level="block"):
        count = shared("s32", 1, init=0)
        for t in parallel(100, level="thread"):
            x = a[t]
            atomic.add(out[0], x)
            atomic.sub(out[1], x)
            with tm.if_(x == 0):
                atomic.exch(out[2], 200)
            atomic.min(out[3], x)
            atomic.max(out[4], x)
            atomic.and_(out[5], 8)
            atomic.or_(out[6], x)
            atomic.xor(out[7], tm.select(x < 2, 3 * x + 3, 0))
            k = atomic.add(count[0], 1)
            old[k] = k
            atomic.cas(out[8], tm.select(x == 50, 7, 1000), 100)


@construct(
    given={"a": small("f32", 64), "f": np.zeros(1, f32), "d": np.zeros(1), "u": np.zeros(1, np.uint32),
           "l": np.zeros(1, np.uint64), "h": np.zeros(2, np.float16)},
    expect=lambda a, f, d, u, l, h: {
        "f": a.sum(keepdims=True), "d": a.sum(keepdims=True).astype(np.float64), "u": np.array([128], np.uint32),
        "l": np.array([192], np.uint64), "h": np.array([a.sum(), 0], np.float16)},
    co="""
    __co__ void atomic_types(global f32 [N] a, global f32 [1] f, global f64 [1] d, global u32 [1] u, global u64 [1] l,
                             global f16 [2] h) {
      parallel b by 2 : block, t by 32 : thread {
        __atomic_add(f.at(0), a.at(b # t));
        __atomic_add(d.at(0), a.at(b # t));
        __atomic_add(u.at(0), 2);
        __atomic_add(l.at(0), 3);
        __atomic_add(h.at(0), a.at(b # t));
      }
    }
    """,
)  # fmt: skip
def atomic_types(
    a: tm.Global["f32", "N"], f: tm.Global["f32", 1], d: tm.Global["f64", 1], u: tm.Global["u32", 1],
    l: tm.Global["u64", 1], h: tm.Global["f16", 2],
):  # fmt: skip
    for b in parallel(2, level="block"):
        for t in parallel(32, level="thread"):
            x = a[tm.compose(b, t)]
            atomic.add(f[0], x)
            atomic.add(d[0], x)
            atomic.add(u[0], 2)
            atomic.add(l[0], 3)
            atomic.add(h[0], x)


@construct(
    given={"a": small("s32", 5, 3), "out": unwritten("s32", 2)},
    expect=lambda a, out: {"out": np.array([a.sum(), 15], s32)},
    co="""
    __co__ void element_loops(global s32 [M, N] a, global s32 [2] out) {
      parallel p by 1 : block {
        mutable int total = 0;
        foreach {i, j} in [a.span]
          total += a.at(i, j);
        out.at(0) = total;
        out.at(1) = |a.span|;
      }
    }
    """,
)
def element_loops(a: tm.Global["s32", "M", "N"], out: tm.Global["s32", 2]):
    for p in parallel(1, level="block"):
        total = var(0)
        for i, j in foreach(*a.shape):
            total += a[i, j]
        out[0], out[1] = total, a.size


@construct(
    given={
        "a": random("f32", 3, 4),
        "b": random("f16", 3, 4, seed=1),
        "c": unwritten("f32", 3, 4),
        "d": unwritten("f16", 3, 4),
    },
    expect=lambda a, b, c, d: {"c": a * 2, "d": b.astype(f32).astype(np.float16)},
)
def helpers(
    a: tm.Global["f32", "M", "N"],
    b: tm.Global["f16", "M", "N"],
    c: tm.Global["f32", "M", "N"],
    d: tm.Global["f16", "M", "N"],
):
    """Python functions called by a kernel are traced with it."""
    scale(a, c, 2.0)
    scale(b, d, 1.0)


def scale(src, dst, factor):
    for i, j in parallel(*src.shape, level="block"):
        dst[i, j] = src[i, j] * factor


@construct(
    given={"x": random("bf16", 20), "y": unwritten("bf16", 20)},
    expect=lambda x, y: {"y": (x.astype(f32) + x.astype(f32)).astype(y.dtype)},
    T="bf16",
    co="""
    #ifndef T
    #define T f16
    #endif
    __co__ void generic(global T [N] x, global T [N] y) {
      parallel i by N : block
        y.at(i) = x.at(i) + x.at(i);
    }
    """,
)
def generic(x: tm.Global["T", "N"], y: tm.Global["T", "N"], *, T="f16"):
    for i in parallel(x.shape[0], level="block"):
        y[i] = x[i] + x[i]
