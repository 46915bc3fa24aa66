"""Views: chunkat, chunk, subspan with steps and strides, modspan, view.from_, span_as, sqz, edges."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import cdiv, compose, dma, else_, foreach, full, if_, parallel, shared

f32, s32 = np.float32, np.int32


def scaled(a, out):
    return {"out": a * 2}


@construct(
    given={"a": random("f32", 8, 12), "out": unwritten("f32", 8, 12)},
    expect=scaled,
    co="""
    __co__ void chunks(global f32 [8, 12] a, global f32 [8, 12] out) {
      parallel {i, j} by [2, 3] : block {
        parallel {x, y} by [4, 4] : thread
          out.chunkat(i, j).at(x, y) = a.chunkat(i, j).at(x, y) * 2.0f;
      }
    }
    """,
)
def chunks(a: tm.Global["f32", 8, 12], out: tm.Global["f32", 8, 12]):
    for i, j in parallel(2, 3, level="block"):
        for x, y in parallel(4, 4, level="thread"):
            out.chunkat(i, j)[x, y] = a.chunkat(i, j)[x, y] * 2.0


@construct(
    given={"a": random("f32", 8, 12), "out": unwritten("f32", 8, 12)},
    expect=lambda a, out: {"out": np.pad(a[:6], ((2, 0), (0, 0))) + np.pad(a[2:], ((0, 2), (0, 0)))},
    co="""
    __co__ void neighbouring_chunks(global f32 [8, 12] a, global f32 [8, 12] out) {
      parallel p by 1 : block {
        foreach k in 4 {
          before = dma.copy a.chunkat(k - 1, _) => shared;
          foreach {x, y} in [2, 12]
            out.chunkat(k, _).at(x, y) = before.data.at(x, y) + a.chunkat(k + 1, _).at(x, y);
        }
      }
    }
    """,
)
def neighbouring_chunks(a: tm.Global["f32", 8, 12], out: tm.Global["f32", 8, 12]):
    for p in parallel(1, level="block"):
        for k in foreach(4):
            before = dma.copy(a.chunkat(k - 1, full), to="shared")
            for x, y in foreach(2, 12):
                out.chunkat(k, full)[x, y] = before.data[x, y] + a.chunkat(k + 1, full)[x, y]


@construct(
    given={"a": random("f32", 8, 12), "out": unwritten("f32", 8, 12)},
    expect=scaled,
    co="""
    __co__ void counted_chunks(global f32 [8, 12] a, global f32 [8, 12] out) {
      parallel {i, j} by [2, 3] : block {
        q = out.chunk(2, 3).at(i, j);
        row = a.chunkat(i, _);
        parallel {x, y} by [4, 4] : thread
          q.at(x, y) = row.chunk(1, 3).at(0, j).at(x, y) * 2.0f;
      }
    }
    """,
)
def counted_chunks(a: tm.Global["f32", 8, 12], out: tm.Global["f32", 8, 12]):
    for i, j in parallel(2, 3, level="block"):
        q = out.chunk(2, 3).at(i, j)
        row = a.chunkat(i, full)
        for x, y in parallel(4, 4, level="thread"):
            q[x, y] = row.chunk(1, 3).at(0, j)[x, y] * 2.0


@construct(
    given={"a": random("f32", 24, 6), "out": unwritten("f32", 24, 6)},
    expect=scaled,
    co="""
    __co__ void composed_chunks(global f32 [M, 6] a, global f32 [M, 6] out) {
      parallel i by 2 : block, w by 3 : group, {x, y} by [4, 6] : thread
        out.chunkat(i # w, _).at(x, y) = a.chunkat(i # w, _).at(x, y) * 2.0f;
    }
    """,
)
def composed_chunks(a: tm.Global["f32", "M", 6], out: tm.Global["f32", "M", 6]):
    """M must be a multiple of 6: checked at launch."""
    for i in parallel(2, level="block"):
        for w in parallel(3, level="group"):
            for x, y in parallel(4, 6, level="thread"):
                k = compose(i, w)
                out.chunkat(k, full)[x, y] = a.chunkat(k, full)[x, y] * 2.0


@construct(
    given={"a": small("s32", 6, 20), "out": unwritten("s32", 4, 3, 5)},
    expect=lambda a, out: {"out": np.stack([a[i : i + 3, 3 * i : 3 * i + 10 : 2] for i in range(4)])},
    co="""
    __co__ void steps_and_strides(global s32 [6, 20] a, global s32 [4, 3, 5] out) {
      parallel i by 4 : block, {x, y} by [3, 5] : thread
        out.at(i, x, y) = a.subspan(3, 5 : 1, 2).step(1, 3).at(i, i).at(x, y);
    }
    """,
)
def steps_and_strides(a: tm.Global["s32", 6, 20], out: tm.Global["s32", 4, 3, 5]):
    for i in parallel(4, level="block"):
        for x, y in parallel(3, 5, level="thread"):
            out[i, x, y] = a.subspan(3, 5, strides=(1, 2)).step(1, 3).at(i, i)[x, y]


@construct(
    given={"a": small("s32", 10, 9), "out": unwritten("s32", 10, 9)},
    expect=lambda a, out: {"out": a + 1},
    co="""
    __co__ void remainders(global s32 [M, N] a, global s32 [M, N] out) {
      parallel {i, j} by [cdiv(M, 4), cdiv(N, 4)] : block {
        t = a.modspan(4, 4).at(i, j);
        q = out.modspan(4, 4).at(i, j);
        foreach {x, y} in [t.span]
          q.at(x, y) = t.at(x, y) + 1;
      }
    }
    """,
)
def remainders(a: tm.Global["s32", "M", "N"], out: tm.Global["s32", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 4), cdiv(N, 4), level="block"):
        t, q = a.modspan(4, 4).at(i, j), out.modspan(4, 4).at(i, j)
        for x, y in foreach(*t.shape):
            q[x, y] = t[x, y] + 1


@construct(
    given={"a": small("s32", 10, 9), "out": unwritten("s32", 2, 3, 4), "r": 6, "c": 5},
    expect=lambda a, out, r, c: {"out": np.stack([a[6:9, 5:9], a[1:4, 0:8:2]])},
    co="""
    __co__ void windows(global s32 [10, 9] a, global s32 [2, 3, 4] out, int r, int c) {
      parallel {x, y} by [3, 4] : block {
        out.at(0, x, y) = a.view(3, 4).from(r, c).at(x, y);
        out.at(1, x, y) = a.view(3, 4 : 1, 2).from(1, 0).at(x, y);
      }
    }
    """,
)
def windows(a: tm.Global["s32", 10, 9], out: tm.Global["s32", 2, 3, 4], r: tm.Int, c: tm.Int):
    for x, y in parallel(3, 4, level="block"):
        out[0, x, y] = a.view(3, 4).from_(r, c)[x, y]
        out[1, x, y] = a.view(3, 4, strides=(1, 2)).from_(1, 0)[x, y]


@construct(
    given={"a": random("f32", 4, 6), "out": unwritten("f32", 24)},
    expect=lambda a, out: {"out": np.concatenate([a.reshape(24)[:12], a.reshape(2, 12)[1] * 2]).astype(f32)},
    co="""
    __co__ void reshaped(global f32 [4, 6] a, global f32 [24] out) {
      parallel b by 1 : block {
        shared f32 [4, 6] s;
        parallel {x, y} by [4, 6] : thread s.at(x, y) = a.at(x, y);
        flat = s.span_as(24);
        halves = s.span_as([2, 12]);
        parallel t by 12 : thread {
          out.at(t) = flat.at(t);
          out.at(t + 12) = halves.at(1, t) * 2.0f;
        }
      }
    }
    """,
)
def reshaped(a: tm.Global["f32", 4, 6], out: tm.Global["f32", 24]):
    for b in parallel(1, level="block"):
        s = shared("f32", 4, 6)
        for x, y in parallel(4, 6, level="thread"):
            s[x, y] = a[x, y]
        flat, halves = s.span_as(24), s.span_as(2, 12)
        for t in parallel(12, level="thread"):
            out[t] = flat[t]
            out[t + 12] = halves[1, t] * 2.0


@construct(
    given={"a": random("f32", 3, 4, 5), "out": unwritten("f32", 3, 4, 5)},
    expect=lambda a, out: {"out": a + f32(1)},
    co="""
    __co__ void squeezed(global f32 [A, B, C] a, global f32 [A, B, C] out) {
      parallel i by A : block {
        t = a.subspan(1, _, _).at(i, 0, 0).sqz();
        q = out.subspan(1, _, _).at(i, 0, 0).sqz();
        foreach {x, y} in [B, C]
          q.at(x, y) = t.at(x, y) + 1.0f;
      }
    }
    """,
)
def squeezed(a: tm.Global["f32", "A", "B", "C"], out: tm.Global["f32", "A", "B", "C"]):
    A, B, C = a.shape
    for i in parallel(A, level="block"):
        t = a.subspan(1, full, full).at(i, 0, 0).sqz()
        q = out.subspan(1, full, full).at(i, 0, 0).sqz()
        for x, y in foreach(B, C):
            q[x, y] = t[x, y] + 1.0


@construct(
    given={"a": random("f32", 5, 7), "out": unwritten("f32", 8, 8)},
    expect=lambda a, out: {"out": np.pad(a, ((0, 3), (0, 1)))},
    co="""
    __co__ void over_the_edge(global f32 [M, N] a, global f32 [8, 8] out) {
      parallel {i, j} by [2, 2] : block, {x, y} by [4, 4] : thread {
        t = a.subspan(4, 4).at(i, j);
        out.subspan(4, 4).at(i, j).at(x, y) = t.at(x, y);
        if (i == 2) a.subspan(4, 4).at(i, j).at(x, y) = 0.0f;
      }
    }
    """,
)
def over_the_edge(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", 8, 8]):
    """A view of a parameter may reach over its edge: it reads zeros there."""
    for i, j in parallel(2, 2, level="block"):
        for x, y in parallel(4, 4, level="thread"):
            t = a.subspan(4, 4).at(i, j)
            out.subspan(4, 4).at(i, j)[x, y] = t[x, y]
            with if_(i == 2):
                a.subspan(4, 4).at(i, j)[x, y] = 0.0


@construct(
    given={"a": random("f16", 37, 41), "out": unwritten("f16", 37, 41)},
    expect=lambda a, out: {"out": a + a},
    co="""
    __co__ void views_of_views(global f16 [M, N] a, global f16 [M, N] out) {
      parallel {i, j} by [cdiv(M, 16), cdiv(N, 16)] : block {
        shared f16 [16, 16] s;
        dma.copy a.subspan(16, 16).at(i, j) => s;
        parallel w by 4 : group {
          quarter = s.chunkat(w, _);
          parallel {x, y} by [2, 16] : thread {
            half = quarter.subspan(2, 16);
            foreach k in 2
              quarter.subspan(2, 16).at(k, 0).at(x, y) = half.at(k, 0).at(x, y) * 2.0f;
          }
        }
        dma.copy s => out.subspan(16, 16).at(i, j);
      }
    }
    """.replace("            half = quarter.subspan(2, 16);\n", "").replace(
        "half.at(k, 0)", "quarter.subspan(2, 16).at(k, 0)"
    ),
)
def views_of_views(a: tm.Global["f16", "M", "N"], out: tm.Global["f16", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 16), cdiv(N, 16), level="block"):
        s = shared("f16", 16, 16)
        dma.copy(a.subspan(16, 16).at(i, j), s)
        for w in parallel(4, level="group"):
            quarter = s.chunkat(w, full)
            for x, y in parallel(2, 16, level="thread"):
                for k in foreach(2):
                    t = quarter.subspan(2, 16).at(k, 0)
                    t[x, y] = t[x, y] * 2.0
        dma.copy(s, out.subspan(16, 16).at(i, j))


@construct(
    given={"a": random("f16", 16, 64), "out": unwritten("f16", 16, 64), "back": 1},
    expect=lambda a, out, back: {"out": np.pad(a, ((0, 0), (1, 0)))[:, :64]},
    co="""
    __co__ void neighbours(global f16 [M, 64] a, global f16 [M, 64] out, int back) {
      parallel b by cdiv(M, 8) : block {
        f = dma.copy.swiz<128> a.subspan(8, 64).at(b, 0) => shared;
        parallel w by 8 : group, t by 32 : thread {
          foreach h in 2 {
            int column = h # t;
            if (column >= back)
              out.subspan(8, 64).at(b, 0).at(w, column) = f.data.at(w, column - back);
            else
              out.subspan(8, 64).at(b, 0).at(w, column) = 0.0f;
          }
        }
      }
    }
    """,
)
def neighbours(a: tm.Global["f16", "M", 64], out: tm.Global["f16", "M", 64], back: tm.Int):
    """A place in a swizzled tile that no range shows to be inside."""
    for b in parallel(cdiv(a.shape[0], 8), level="block"):
        f = dma.copy(a.subspan(8, 64).at(b, 0), to="shared", swizzle=128)
        for w in parallel(8, level="group"):
            for t in parallel(32, level="thread"):
                for h in foreach(2):
                    column = compose(h, t)
                    o = out.subspan(8, 64).at(b, 0)
                    with if_(column >= back):
                        o[w, column] = f.data[w, column - back]
                    with else_():
                        o[w, column] = 0.0


@construct(
    given={"a": random("f32", 6, 5), "out": unwritten("f32", 10, 3), "back": 1},
    expect=lambda a, out, back: {"out": np.pad(2 * a.reshape(10, 3), ((1, 0), (0, 0)))[:10]},
    co="""
    __co__ void neighbours_of_reshaped(global f32 [6, 5] a, global f32 [10, 3] out, int back) {
      parallel b by 1 : block {
        shared f32 [6, 5] s;
        parallel {i, j} by [6, 5] : thread
          s.at(i, j) = a.at(i, j);
        r = s.span_as([10, 3]);
        g = a.span_as([10, 3]);
        parallel {i, j} by [10, 3] : thread {
          if (i >= back)
            out.at(i, j) = r.at(i - back, j) + g.at(i - back, j);
          else
            out.at(i, j) = 0.0f;
        }
      }
    }
    """,
)
def neighbours_of_reshaped(a: tm.Global["f32", 6, 5], out: tm.Global["f32", 10, 3], back: tm.Int):
    for b in parallel(1, level="block"):
        s = shared("f32", 6, 5)
        for i, j in parallel(6, 5, level="thread"):
            s[i, j] = a[i, j]
        r, g = s.span_as(10, 3), a.span_as(10, 3)
        for i, j in parallel(10, 3, level="thread"):
            with if_(i >= back):
                out[i, j] = r[i - back, j] + g[i - back, j]
            with else_():
                out[i, j] = 0.0
