"""The spellings that differ from Python's: shapes, tuples, precedence, steps, ranges, parameters, macros, dialects."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import bound, foreach, parallel, select, shared, sync, ubound, var

f32, f16, s32 = np.float32, np.float16, np.int32


@construct(
    given={"a": random("f32", 6, 10), "out": unwritten("s32", 24)},
    expect=lambda a, out: {"out": np.array(
        [6, 4, 3, 5, 6, 4, 9, 6, 10, 1, 4, 2, 60, 24, 3, 5, 7, 9, 2, 4, 2, 4, 7, 11], s32)},
    co="""
    __co__ void shapes_and_tuples(global f32 [M, N] a, global s32 [24] out) {
      s : [M, 4];
      halved : s [(0) / 2, (1) + 1];
      longer : [s, 9];
      mdspan<2> whole : a.span;
      t = {1, 2, 3};
      ituple<2> u = t {(0), 4};
      ituple<4> joined = {t, 7};
      scaled : s / {3, 1};
      sums = t + {2, 3, 4};
      parallel p by 1 : block {
        out.at(0) = s(0);  out.at(1) = s(1);
        out.at(2) = halved(0);  out.at(3) = halved(1);
        out.at(4) = longer(0);  out.at(5) = longer(1);  out.at(6) = longer(2);
        out.at(7) = whole(0);  out.at(8) = a.span(1);
        out.at(9) = u(0);  out.at(10) = u(1);
        out.at(11) = scaled(0);
        out.at(12) = |a.span|;  out.at(13) = |s|;
        out.at(14) = sums(0);  out.at(15) = sums(1);  out.at(16) = sums(2);
        out.at(17) = t(0) + t(1) * t(2) + 2;
        out.at(18) = |f16|;  out.at(19) = |f32|;
        out.at(20) = t(1);  out.at(21) = scaled(1);
        out.at(22) = joined(3);  out.at(23) = #p + a.span(1);
      }
    }
    """,
)  # fmt: skip
def shapes_and_tuples(a: tm.Global["f32", "M", "N"], out: tm.Global["s32", 24]):
    M, N = a.shape
    s, t = (M, 4), (1, 2, 3)
    half, longer = (s[0] // 2, s[1] + 1), (*s, 9)
    for p in parallel(1, level="block"):
        rows = [*s, *half, *longer, M, N, t[0], 4, s[0] // 3, a.size, s[0] * s[1], 3, 5, 7, t[0] + t[1] * t[2] + 2]
        rows += [2, 4, t[1], s[1], 7, ubound(p) + N]
        for i, e in enumerate(rows):
            out[i] = e


@construct(
    given={"a": small("s32", 4, 6), "out": unwritten("s32", 4, 6), "last": unwritten("s32", 2)},
    expect=lambda a, out, last: {"out": a * 2, "last": np.array([23, 24], s32)},
    co="""
    __co__ void tuples_of_indices(global s32 [M, N] a, global s32 [M, N] out, global s32 [2] last) {
      parallel b by 1 : block {
        with at = {i, j} in [a.span] {
          foreach at {
            out.at(at) = a.at(at) + a.at(i, j);
          }
          last.at(0) = i(-1) # j(-1);
          last.at(1) = #(i # j);
        }
      }
    }
    """,
)
def tuples_of_indices(a: tm.Global["s32", "M", "N"], out: tm.Global["s32", "M", "N"], last: tm.Global["s32", 2]):
    for b in parallel(1, level="block"):
        for i, j in foreach(*a.shape):
            out[i, j] = a[i, j] + a[i, j]
        i, j = bound(a.shape[0]), bound(a.shape[1])
        last[0] = tm.compose(i.last, j.last)
        last[1] = ubound(tm.compose(i, j))


@construct(
    given={"out": np.zeros((3, 10), s32)},
    expect=lambda out: {"out": np.array([
        [10 * x + y if x < 2 and y in (1, 3) else 0 for x in range(2) for y in range(5)],
        [c if 1 <= c < 7 else 0 for c in range(10)],
        [4, 3, 6, 8, 2, 2, 0, 0, 0, 0]], s32)},
    co="""
    __co__ void several_indices(global s32 [3, 10] out) {
      parallel by 1 : block {
        with x in 2, y in 5 {
          foreach x, y(1:-1:2)
            out.at(0, x # y) = x * 10 + y;
        }
        with a in 8 {
          foreach c = a(1:-1)
            out.at(1, c) = c;
          out.at(2, 0) = #(a #- 4);
          out.at(2, 1) = #(a #/ 2 #- 1);
          out.at(2, 2) = #a - 2;
          out.at(2, 3) = #(a #/ 2 #+ 4);
          out.at(2, 4) = #(a #% 3);
          out.at(2, 5) = #(a #* 2 #- 14);
        }
      }
    }
    """,
)  # fmt: skip
def several_indices(out: tm.Global["s32", 3, 10]):
    for p in parallel(1, level="block"):
        y = bound(5)
        for x in foreach(2):
            for y in foreach(5, start=1, stop=4, step=2):
                out[0, tm.compose(x, y)] = x * 10 + y
        for c in foreach(8, start=1, stop=7):
            out[1, c] = c
        for i, e in enumerate([4, 3, 6, 8, 2, 2]):
            out[2, i] = e


@construct(
    given={"out": unwritten("s32", 3, 4, 2)},
    expect=lambda out: {"out": np.indices((3, 4, 2)).sum(axis=0).astype(s32) + 10},
    co="""
    __co__ void spelled_levels(global s32 [3, 4, 2] out) {
      [[launch_bounds(_, 1)]] [[maxnreg(64)]]
      parallel t = {x, y} by [3, 4] : block
        parallel by 1 : group
          parallel k by 2 : thread
            out.at(t, k) = x + y + k + 10;
    }
    """,
)
def spelled_levels(out: tm.Global["s32", 3, 4, 2]):
    for x, y in parallel(3, 4, level="block", min_blocks=1, max_registers=64):
        for _ in parallel(1, level="group"):
            for k in parallel(2, level="thread"):
                out[x, y, k] = x + y + k + 10


@construct(
    given={"out": unwritten("s32", 2, 2, 3, 4)},
    expect=lambda out: {"out": np.arange(48, dtype=s32).reshape(2, 2, 3, 4)},
    archs=("sm_90a",),
    co="""
    __co__ void clusters(global s32 [2, 2, 3, 4] out) {
      parallel c by 2 : cluster-grid, b by 2 : block, w by 3 : group, t by 4 : thread
        out.at(c, b, w, t) = c # b # w # t;
    }
    """,
)
def clusters(out: tm.Global["s32", 2, 2, 3, 4]):
    for c in parallel(2, level="cluster"):
        for b in parallel(2, level="block"):
            for w in parallel(3, level="group"):
                for t in parallel(4, level="thread"):
                    out[c, b, w, t] = tm.compose(tm.compose(tm.compose(c, b), w), t)


PRECEDENCE = np.array([[5, 3, -7, 12], [2, 6, 3, -1]], s32)


def precedence_results(a, b, out):
    rows = [
        (a & 3) * 2, a * (b & 6), a << (2 | 1), a + (b ^ 1), -(a & b), (a + b) << 1, a - b - 1, a - (b - 1),
        (a < b) == (b > 0), (a == b) | ((a < b) & (b > 1)), np.where(a > b, a, np.where(a == b, 0, b)),
        a * 2 + np.where(b > 2, 1, 0), (~a) & b, -a, (a >> 1) + 0, (a == 5), a * (1 * 4 + 2), ((a | b) & 7) ^ 1,
    ]  # fmt: skip
    return {"out": np.stack([np.asarray(r).astype(s32) for r in rows])}


@construct(
    given={"a": PRECEDENCE[0], "b": PRECEDENCE[1], "out": unwritten("s32", 18, 4)},
    expect=precedence_results,
    co="""
    __co__ void precedence(global s32 [N] a, global s32 [N] b, global s32 [18, N] out) {
      parallel i by N : block {
        int x = a.at(i);
        int y = b.at(i);
        out.at(0, i) = x & 3 * 2;
        out.at(1, i) = x * y & 6;
        out.at(2, i) = x << 2 | 1;
        out.at(3, i) = x + y ^ 1;
        out.at(4, i) = -x & y;
        out.at(5, i) = x + y << 1;
        out.at(6, i) = x - y - 1;
        out.at(7, i) = x - (y - 1);
        out.at(8, i) = x < y == y > 0 ? 1 : 0;
        out.at(9, i) = x == y || x < y && y > 1 ? 1 : 0;
        out.at(10, i) = x > y ? x : x == y ? 0 : y;
        out.at(11, i) = x * 2 + (y > 2 ? 1 : 0);
        out.at(12, i) = ~x & y;
        out.at(13, i) = -x;
        out.at(14, i) = x >> 1;
        out.at(15, i) = !(x - 5) ? 1 : 0;
        with p in 2, q in 4 { out.at(16, i) = x * (#(p # q) - 2); }
        out.at(17, i) = x | y & 7 ^ 1;
      }
    }
    """,
)
def precedence(a: tm.Global["s32", "N"], b: tm.Global["s32", "N"], out: tm.Global["s32", 18, "N"]):
    """Bit operations bind tighter than `*`, and `#` tighter still."""
    for i in parallel(a.shape[0], level="block"):
        x, y = a[i], b[i]
        rows = [
            (x & 3) * 2, x * (y & 6), x << 3, x + (y ^ 1), -(x & y), (x + y) << 1, x - y - 1, x - (y - 1),
            select((x < y) == (y > 0), 1, 0), select((x == y) | ((x < y) & (y > 1)), 1, 0),
            select(x > y, x, select(x == y, 0, y)), x * 2 + select(y > 2, 1, 0), ~x & y, -x, x >> 1,
            select(x == 5, 1, 0), x * 6, ((x | y) & 7) ^ 1,
        ]  # fmt: skip
        for row, e in enumerate(rows):
            out[row, i] = e


@construct(
    given={"out": unwritten("s32", 9), "counts": np.zeros(2, s32)},
    expect=lambda out, counts: {
        "out": np.array([4, 5, 5, 5, 3, 12, 6, 2, 2], s32),
        "counts": np.array([3, -1], s32),
    },
    co="""
    __co__ void steps(global s32 [9] out, global s32 [2] counts) {
      parallel p by 1 : block {
        mutable int i = 4;
        out.at(0) = i++;
        out.at(1) = i;
        out.at(2) = i--;
        i++;
        out.at(3) = i;
        --i; --i;
        out.at(4) = i;
        i *= 4;
        out.at(5) = i;
        i /= 2;
        out.at(6) = i;
        i %= 4;
        out.at(7) = i;
        mutable j = 1;
        ++j;
        out.at(8) = j;
        counts.at(0) += 2;
        counts.at(0)++;
        counts.at(1)--;
      }
    }
    """,
)
def steps(out: tm.Global["s32", 9], counts: tm.Global["s32", 2]):
    for p in parallel(1, level="block"):
        for i, e in enumerate([4, 5, 5, 5, 3, 12, 6, 2, 2]):
            out[i] = e
        counts[0] += 2
        counts[0] += 1
        counts[1] -= 1


@construct(
    given={"a": random("f32", 5, 4), "b": random("f32", 7, 3), "c": unwritten("f32", 5, 7), "n": 2},
    expect=lambda a, b, c, n: {"c": (a[:, :3] @ b.T * f32(n)).astype(f32)},
    tolerance=1e-6,
    co="""
    __co__ void kinds_of_parameters(f32 [?, 4] a, global f32 [??, 3] b, f32 mdspan<2> & c, int n) {
      parallel {i, j} by [a.span(0), c.span(1)] : block {
        f32 sum = 0.0f;
        foreach k in 3
          sum += a.at(i, k) * b.at(j, k);
        c.at(i, j) = sum * n;
      }
    }
    """,
)
def kinds_of_parameters(
    a: tm.Global["f32", None, 4], b: tm.Global["f32", None, 3], c: tm.Global["f32", None, None], n: tm.Int
):
    """Dimensions without a name are each their own."""
    for i, j in parallel(a.shape[0], c.shape[1], level="block"):
        total = var(0.0, "f32")
        for k in foreach(3):
            total += a[i, k] * b[j, k]
        c[i, j] = total * n


@construct(
    given={"x": small("s32", 12), "y": unwritten("s32", 12)},
    expect=lambda x, y: {"y": x * 12 + 5},
    N=12,
    co="""
    #define SCALE(x, by) ((x) * (by))
    #define TWICE(x) SCALE(x, 2)
    #ifndef N
    #define N 4
    #endif
    #define UNUSED 1
    #undef UNUSED
    #if N > 8 && defined(SCALE)
    #define SHIFT 5
    #elif N > 4
    #define SHIFT 6
    #else
    #error N is too small
    #endif
    __co__ void macros(global s32 [N] x, global s32 [N] y) {
    #ifdef UNUSED
      this is not read
    #endif
      parallel i by N : block
        y.at(i) = TWICE(SCALE(x.at(i), 3 + 3)) + SHIFT;
    }
    """,
)
def macros(x: tm.Global["s32", "N"], y: tm.Global["s32", "N"], *, N=12):
    for i in parallel(N, level="block"):
        y[i] = x[i] * 6 * 2 + 5


@construct(
    given={"a": random("f32", 64), "out": unwritten("f32", 64)},
    expect=lambda a, out: {"out": a.reshape(2, 32)[:, ::-1].reshape(-1)},
    co="""
    __co__ void kinds_of_sync(global f32 [64] a, global f32 [64] out) {
      parallel b by 1 : block {
        shared f32 [64] s;
        shared f32 [64] r;
        parallel w by 2 : group, t by 32 : thread {
          s.at(w # t) = a.at(w # t);
          sync.barrier : group;
          r.at(w # t) = s.at(w * 32 + 31 - t);
          sync.fence : block;
          sync.shared;
          out.at(w # t) = r.at(w # t);
        }
      }
    }
    """,
)
def kinds_of_sync(a: tm.Global["f32", 64], out: tm.Global["f32", 64]):
    for b in parallel(1, level="block"):
        s, r = shared("f32", 64), shared("f32", 64)
        for w in parallel(2, level="group"):
            for t in parallel(32, level="thread"):
                i = tm.compose(w, t)
                s[i] = a[i]
                sync.barrier("group")
                r[i] = s[w * 32 + 31 - t]
                sync.fence("block")
                sync.barrier("block")
                out[i] = r[i]


@construct(
    given={"a": small("s32", 9), "out": unwritten("s32", 9)},
    expect=lambda a, out: {"out": a + 1},
    co="""
    __co__ void launch_options(global s32 [N] a, global s32 [N] out) {
      parallel.async i by N : block<cooperative> {
        mutable x = a.at(i);
        local s32 [2] l {1};
        x += l.at(1);
        out.at(i) = x;
      }
    }
    """,
)
def launch_options(a: tm.Global["s32", "N"], out: tm.Global["s32", "N"]):
    for i in parallel(a.shape[0], level="block", async_=True, cooperative=True):
        x = var(a[i])
        l = tm.local("s32", 2, init=1)
        x += l[1]
        out[i] = x


@construct(
    given={"a": random("f32", 8), "out": unwritten("f32", 6, 8), "c": unwritten("s32", 8)},
    expect=lambda a, out, c: {
        "out": np.stack([np.where(a > 0, a, 2 * a), a, np.full(8, np.inf), np.where(a < np.inf, 1, 0), a[::-1], a + 1])
        .astype(f32),
        "c": ((np.arange(8) + 3) // 4 * 4 + np.arange(8) // 4 * 4).astype(s32)},
    co="""
    __co__ void choices(global f32 [8] a, global f32 [6, 8] out, global s32 [8] c) {
      parallel p by 1 : block {
        print!("blocks: ", #p);
        println!(a.span);
        other = a.span_as([2, 4]);
        bool always = true;
        bool never = false;
        foreach i in 8 : vectorize(i, 4) {
          out.at(0, i) = select(a.at(i) > 0.0f, a.at(i), a.at(i) * 2.0f);
          out.at(1, i) = select(|a.span| == 8, a, other).at(i);
          out.at(2, i) = inf;
          out.at(3, i) = a.at(i) < inf && always && !never ? 1 : 0;
          out.at(4, i) = a.at(7 - i);
          c.at(i) = __alignup(i, 4) + __aligndown(i, 4);
        }
        [[unroll]] foreach {i} in [8]
          out.at(5, i) = a.at(i) + 1;
      }
    }
    """,
)  # fmt: skip
def choices(a: tm.Global["f32", 8], out: tm.Global["f32", 6, 8], c: tm.Global["s32", 8]):
    for p in parallel(1, level="block"):
        for i in foreach(8):
            rows = [select(a[i] > 0, a[i], a[i] * 2), a[i], float("inf"), 1.0, a[7 - i], a[i] + 1]
            for row, e in enumerate(rows):
                out[row, i] = e
            c[i] = tm.math.alignup(i, 4) + tm.math.aligndown(i, 4)
