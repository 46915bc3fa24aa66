"""Control: levels, loops, branches, jumps, several launches."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import (
    bound,
    break_,
    cdiv,
    compose,
    continue_,
    else_,
    foreach,
    if_,
    inthreads,
    parallel,
    shared,
    sync,
    ubound,
    var,
    while_,
)

s32 = np.int32


def grid_of(*shape: int, base: int = 10):
    return sum(i * base ** (len(shape) - 1 - n) for n, i in enumerate(np.indices(shape))).astype(s32)


@construct(
    given={"out": unwritten("s32", 3, 4, 8)},
    expect=lambda out: {"out": grid_of(3, 4, 8)},
    co="""
    __co__ void inferred_levels(global s32 [A, B, 8] out) {
      parallel {i, j} by [A, B], t by 8
        out.at(i, j, t) = i * 100 + j * 10 + t;
    }
    """,
)
def inferred_levels(out: tm.Global["s32", "A", "B", 8]):
    A, B, _ = out.shape
    for i, j in parallel(A, B):
        for t in parallel(8):
            out[i, j, t] = i * 100 + j * 10 + t


@construct(
    given={"out": unwritten("s32", 2, 3, 2, 4)},
    expect=lambda out: {"out": grid_of(2, 3, 2, 4)},
    co="""
    __co__ void nested_levels(global s32 [2, 3, 2, 4] out) {
      parallel b by 2 : block {
        parallel w by 3 : group {
          parallel {x, y} by [2, 4] : thread {
            out.at(b, w, x, y) = b * 1000 + w * 100 + x * 10 + y;
          }
        }
      }
    }
    """,
)
def nested_levels(out: tm.Global["s32", 2, 3, 2, 4]):
    for b in parallel(2, level="block"):
        for w in parallel(3, level="group"):
            for x, y in parallel(2, 4, level="thread"):
                out[b, w, x, y] = b * 1000 + w * 100 + x * 10 + y


@construct(
    given={"out": unwritten("s32", 2, 2, 5)},
    expect=lambda out: {"out": grid_of(2, 2, 5)},
    co="""
    __co__ void warpgroups(global s32 [2, 2, 5] out) {
      parallel b by 2 : block, g by 2 : group-4, t by 5 : thread
        out.at(b, g, t) = b * 100 + g * 10 + t;
    }
    """,
)
def warpgroups(out: tm.Global["s32", 2, 2, 5]):
    for b in parallel(2, level="block"):
        for g in parallel(2, level="group-4"):
            for t in parallel(5, level="thread"):
                out[b, g, t] = b * 100 + g * 10 + t


@construct(
    given={"out": unwritten("s32", 2, 3, 4)},
    expect=lambda out: {"out": grid_of(2, 3, 4)},
    co="""
    __co__ void three_dimensions(global s32 [2, 3, 4] out) {
      parallel {i, j, k} by [2, 3, 4] : block
        out.at(i, j, k) = i * 100 + j * 10 + k;
    }
    """,
)
def three_dimensions(out: tm.Global["s32", 2, 3, 4]):
    for i, j, k in parallel(2, 3, 4, level="block"):
        out[i, j, k] = i * 100 + j * 10 + k


@construct(
    given={"x": random("f32", 9), "y": unwritten("f32", 9), "z": unwritten("f32", 9)},
    expect=lambda x, y, z: {"y": x + x, "z": (x + x) * x},
    co="""
    __co__ void two_launches(global f32 [N] x, global f32 [N] y, global f32 [N] z) {
      parallel i by N : block
        y.at(i) = x.at(i) + x.at(i);
      parallel i by N : block
        z.at(i) = y.at(#i - 1 - i) * x.at(#i - 1 - i);
      parallel i by N : block
        y.at(i) = y.at(i);
    }
    """.replace(
        "z.at(i) = y.at(#i - 1 - i) * x.at(#i - 1 - i)", "z.at(#i - 1 - i) = y.at(#i - 1 - i) * x.at(#i - 1 - i)"
    ),
)
def two_launches(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"], z: tm.Global["f32", "N"]):
    (N,) = x.shape
    for i in parallel(N, level="block"):
        y[i] = x[i] + x[i]
    for i in parallel(N, level="block"):
        k = ubound(i) - 1 - i
        z[k] = y[k] * x[k]


@construct(
    given={"out": unwritten("s32", 5, 7)},
    expect=lambda out: {"out": grid_of(5, 7)},
    co="""
    __co__ void no_parallel(global s32 [M, N] out) {
      foreach {i, j} in [M, N]
        out.at(i, j) = i * 10 + j;
    }
    """,
)
def no_parallel(out: tm.Global["s32", "M", "N"]):
    """A kernel without `parallel` is one instance that does everything."""
    for i, j in foreach(*out.shape):
        out[i, j] = i * 10 + j


@construct(
    given={"out": unwritten("s32", 4, 10), "n": 7},
    expect=lambda out, n: {
        "out": np.array([[k if r else -1 for k, r in enumerate(row)] for row in (
            [2 <= k < 7 for k in range(10)], [1 <= k < 9 and k % 2 == 1 for k in range(10)], [k < 6 for k in range(10)],
            [k >= 3 for k in range(10)])], s32)
    },
    co="""
    __co__ void ranges(global s32 [4, 10] out, int n) {
      parallel p by 1 : block {
        foreach {i, j} in [4, 10]
          out.at(i, j) = -1;
        with k in 7 { foreach k(2:) out.at(0, k) = k; }
        with k in 10 { foreach k(1:-1:2) out.at(1, k) = k; }
        with k in n { foreach k(:-1) out.at(2, k) = k; }
        with k in 10 { foreach k(3:) out.at(3, k) = k; }
      }
    }
    """,
)  # fmt: skip
def ranges(out: tm.Global["s32", 4, 10], n: tm.Int):
    for p in parallel(1, level="block"):
        for i, j in foreach(4, 10):
            out[i, j] = -1
        for k in foreach(7, start=2):
            out[0, k] = k
        for k in foreach(10, start=1, stop=9, step=2):
            out[1, k] = k
        for k in foreach(n, stop=n - 1):
            out[2, k] = k
        k = bound(10)
        for k in foreach(k, start=3):
            out[3, k] = k


@construct(
    given={"out": unwritten("s32", 8)},
    expect=lambda out: {"out": np.arange(8, dtype=s32) * 3},
    co="""
    __co__ void unrolled(global s32 [8] out) {
      parallel p by 1 : block {
        foreach i in 4 : unroll
          out.at(i) = i * 3;
        foreach i in 4 : unroll(2)
          out.at(i + 4) = i * 3 + 12;
      }
    }
    """,
)
def unrolled(out: tm.Global["s32", 8]):
    for p in parallel(1, level="block"):
        for i in foreach(4, unroll=True):
            out[i] = i * 3
        for i in foreach(4, unroll=2):
            out[i + 4] = i * 3 + 12


@construct(
    given={"a": np.array([3, 8, 1, 5, 9, 2, 0, 7], s32), "out": unwritten("s32", 3)},
    expect=lambda a, out: {"out": np.array([4, 9, 10], s32)},
    co="""
    __co__ void jumps(global s32 [N] a, global s32 [3] out) {
      parallel p by 1 : block {
        mutable int first = -1;
        foreach i in N {
          if (a.at(i) > 8) {
            first = i;
            break;
          }
        }
        mutable int odd = 0;
        foreach i in N {
          if (a.at(i) % 2 == 0) continue;
          odd = odd + a.at(i);
          if (odd > 8) break;
        }
        mutable int n = 0;
        while (true) {
          n += 1;
          if (n < 10) continue;
          break;
        }
        out.at(0) = first;
        out.at(1) = odd;
        out.at(2) = n;
      }
    }
    """,
)
def jumps(a: tm.Global["s32", "N"], out: tm.Global["s32", 3]):
    for p in parallel(1, level="block"):
        first, odd, n = var(-1), var(0), var(0)
        for i in foreach(a.shape[0]):
            with if_(a[i] > 8):
                first.set(i)
                break_()
        for i in foreach(a.shape[0]):
            with if_(a[i] % 2 == 0):
                continue_()
            odd += a[i]
            with if_(odd > 8):
                break_()
        with while_(lambda: True):
            n += 1
            with if_(n < 10):
                continue_()
            break_()
        out[0], out[1], out[2] = first, odd, n


@construct(
    given={"a": small("s32", 40), "out": unwritten("s32", 40)},
    expect=lambda a, out: {"out": np.where(a > 0, a * 2, np.where(a == 0, 100, -a)).astype(s32)},
    co="""
    __co__ void branches(global s32 [N] a, global s32 [N] out) {
      parallel b by cdiv(N, 16) : block, t by 16 : thread {
        int i = b # t;
        if (i < N) {
          if (a.at(i) > 0)
            out.at(i) = a.at(i) * 2;
          else if (a.at(i) == 0)
            out.at(i) = 100;
          else
            out.at(i) = -a.at(i);
        }
      }
    }
    """,
)
def branches(a: tm.Global["s32", "N"], out: tm.Global["s32", "N"]):
    (N,) = a.shape
    for b in parallel(cdiv(N, 16), level="block"):
        for t in parallel(16, level="thread"):
            i = compose(b, t)
            with if_(i < N):
                with if_(a[i] > 0):
                    out[i] = a[i] * 2
                with else_():
                    with if_(a[i] == 0):
                        out[i] = 100
                    with else_():
                        out[i] = -a[i]


@construct(
    given={"out": unwritten("s32", 2, 64)},
    expect=lambda out: {"out": np.stack([np.where(np.arange(64) < 20, np.arange(64) * 2, np.arange(64)), np.full(64, 64)])
                        .astype(s32)},
    co="""
    __co__ void admitted(global s32 [2, 64] out) {
      parallel b by 1 : block {
        shared s32 [64] s;
        parallel t by 64 : thread {
          s.at(t) = t;
          inthreads (t < 20) {
            s.at(t) = s.at(t) * 2;
          }
        }
        parallel t by 64 : thread {
          out.at(0, t) = s.at(t);
          out.at(1, t) = #t;
        }
      }
    }
    """,
)  # fmt: skip
def admitted(out: tm.Global["s32", 2, 64]):
    for b in parallel(1, level="block"):
        s = shared("s32", 64)
        for t in parallel(64, level="thread"):
            s[t] = t
            with inthreads(t < 20):
                s[t] = s[t] * 2
        for t in parallel(64, level="thread"):
            out[0, t] = s[t]
            out[1, t] = ubound(t)


@construct(
    given={"a": random("f32", 100), "out": unwritten("f32", 100)},
    expect=lambda a, out: {"out": np.concatenate([a[:64][::-1], a[64:][::-1]])},
    co="""
    __co__ void barriers(global f32 [N] a, global f32 [N] out) {
      parallel b by cdiv(N, 64) : block {
        shared f32 [64] s;
        parallel t by 64 : thread {
          int i = b * 64 + t;
          if (i < N) s.at(t) = a.at(i);
          sync.barrier : block;
          int last = __min(64, N - b * 64) - 1;
          if (i < N) out.at(i) = s.at(last - t);
        }
      }
    }
    """,
)
def barriers(a: tm.Global["f32", "N"], out: tm.Global["f32", "N"]):
    (N,) = a.shape
    for b in parallel(cdiv(N, 64), level="block"):
        s = shared("f32", 64)
        for t in parallel(64, level="thread"):
            i = b * 64 + t
            with if_(i < N):
                s[t] = a[i]
            sync.barrier("block")
            last = tm.math.min(64, N - b * 64) - 1
            with if_(i < N):
                out[i] = s[last - t]


@construct(
    given={"a": random("f32", 96), "out": unwritten("f32", 96)},
    expect=lambda a, out: {"out": a.reshape(3, 32)[:, ::-1].reshape(-1)},
    co="""
    __co__ void warp_barriers(global f32 [N] a, global f32 [N] out) {
      parallel b by 1 : block {
        shared f32 [3, 32] s;
        parallel w by 3 : group, t by 32 : thread {
          s.at(w, t) = a.at(w * 32 + t);
          sync.barrier : group;
          out.at(w * 32 + t) = s.at(w, 31 - t);
        }
      }
    }
    """,
)
def warp_barriers(a: tm.Global["f32", "N"], out: tm.Global["f32", "N"]):
    for b in parallel(1, level="block"):
        s = shared("f32", 3, 32)
        for w in parallel(3, level="group"):
            for t in parallel(32, level="thread"):
                s[w, t] = a[w * 32 + t]
                sync.barrier("group")
                out[w * 32 + t] = s[w, 31 - t]


@construct(
    given={"o": np.arange(-1, 5, dtype=s32).reshape(2, 3)},
    expect=lambda o: {"o": np.full_like(o, 3)},
    co="""
    __co__ void written_after_a_loop(global s32 [M, N] o) {
      parallel {i, j} by [M, N] : block {
        while (o.at(i, j) < 1) {
          o.at(i, j) = 7;
        }
        o.at(i, j) = N;
      }
    }
    """,
)
def written_after_a_loop(o: tm.Global["s32", "M", "N"]):
    """The condition is read once more than the body runs, by all lanes, before one of them writes."""
    M, N = o.shape
    for i, j in parallel(M, N, level="block"):
        with while_(lambda: o[i, j] < 1):
            o[i, j] = 7
        o[i, j] = N


@construct(
    given={"x": small("s32", 5), "y": unwritten("s32", 5)},
    expect=lambda x, y: {"y": np.maximum.accumulate(np.cumsum(2 * x)).clip(0).astype(s32)},
    co="""
    __co__ void limits_of_an_outer_loop(global s32 [N] x, global s32 [N] y) {
      parallel by 1 : block {
        mutable int i = 0;
        mutable int n = 0;
        mutable int before = 0;
        while (i < N) {
          tiles = x.at(i) * 2;
          while (n < before + tiles)
            n += 1;
          before += tiles;
          y.at(i) = n;
          i += 1;
        }
      }
    }
    """,
)
def limits_of_an_outer_loop(x: tm.Global["s32", "N"], y: tm.Global["s32", "N"]):
    """The condition of an inner loop uses a value that the outer one has computed before."""
    for p in parallel(1, level="block"):
        i, n, before = var(0), var(0), var(0)
        with while_(lambda: i < x.shape[0]):
            tiles = x[i] * 2
            with while_(lambda: n < before + tiles):
                n += 1
            before += tiles
            y[i] = n
            i += 1
