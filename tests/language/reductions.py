"""Vectors of a register tile's rows: reductions, element work beside tiles, and operands computed in registers."""

from __future__ import annotations

import numpy as np
from construct import construct, small, unwritten
from contraction import product

import tilemma as tm
from tilemma import apply, dma, if_, mma, parallel

f32, f16 = np.float32, np.float16


@construct(
    given={"x": small("f32", 64, 24), "c": unwritten("f32", 64, 24), "r": unwritten("f32", 64, 3),
           "v": small("f32", 64), "u": unwritten("f32", 50)},
    expect=lambda x, c, r, v, u: {
        "v": v + 1, "u": np.where(np.arange(50) < 40, v[:50] + 1, u).astype(f32),
        "c": ((x - x.max(axis=1, keepdims=True)) * x.sum(axis=1, keepdims=True)).astype(f32),
        "r": np.stack([x.max(axis=1) * 2 + 1, x.sum(axis=1), x.max(axis=1)], axis=1).astype(f32),
    },
    co="""
    __co__ void rows_of_a_tile(global f32 [64, 24] x, global f32 [64, 24] c, global f32 [64, 3] r,
                                global f32 [64] v, global f32 [50] u) {
      parallel p by 1 : block, g by 2 : group {
        frag f32[32, 24] t {0.0};
        frag f32[32] largest {-inf};
        frag f32[32] total, same;
        mma.load x.chunkat(g, _), t;
        reduce_max(largest, t, 1);
        reduce_sum(total, t, 1);
        all_reduce_sum(total);
        copy(same, largest);
        apply {i, j} in t.span {
          t.at(i, j) = (t.at(i, j) - same.at(i)) * total.at(i);
          largest.at(i) = largest.at(i) * 2.0f;
        }
        largest = largest + 1.0f;
        apply {i} in total.span {
          r.at(g * 32 + i, 0) = largest.at(i);
          r.at(g * 32 + i, 1) = total.at(i);
          if (same.at(i) > 0.0f) r.at(g * 32 + i, 2) = same.at(i); else r.at(g * 32 + i, 2) = same.at(i);
        }
        mma.store t, c.chunkat(g, _);
        frag f16[32] next;
        mma.load v.chunkat(g), next;
        next = next + 1.0f;
        mma.store next, v.chunkat(g);
        mma.store.mask next, u.view(32).from(32 * g), 40 - 32 * g;
      }
    }
    """,
)  # fmt: skip
def rows_of_a_tile(
    x: tm.Global["f32", 64, 24], c: tm.Global["f32", 64, 24], r: tm.Global["f32", 64, 3], v: tm.Global["f32", 64],
    u: tm.Global["f32", 50],
):  # fmt: skip
    """Reductions of rows; a vector beside a tile; an atomic order of statements on rows and on elements."""
    for p in parallel(1, level="block"):
        for g in parallel(2, level="group"):
            t = mma.frag("f32", 32, 24, init=0.0)
            largest = mma.frag("f32", 32, init=-float("inf"))
            total, same = mma.frag("f32", 32), mma.frag("f32", 32)
            mma.load(x.chunkat(g, tm.full), t)
            mma.reduce_max(largest, t)
            mma.reduce_sum(total, t)
            same.set(largest)
            for i, j in apply(t):
                t[i, j] = (t[i, j] - same[i]) * total[i]
                largest[i] = largest[i] * 2.0
            largest.set(largest + 1.0)
            for i in apply(total):
                r[g * 32 + i, 0] = largest[i]
                r[g * 32 + i, 1] = total[i]
                with if_(same[i] > 0.0):
                    r[g * 32 + i, 2] = same[i]
                with tm.else_():
                    r[g * 32 + i, 2] = same[i]
            mma.store(t, c.chunkat(g, tm.full))
            half = mma.frag("f16", 32)
            mma.load(v.chunkat(g), half)
            half.set(half + 1.0)
            mma.store(half, v.chunkat(g))
            mma.store(half, u.view(32).from_(32 * g), rows=40 - 32 * g)


@construct(
    given={"a": small("f16", 64, 32), "b": small("f16", 32, 32, seed=1), "v": small("f16", 32, 48, seed=2),
           "c": unwritten("f32", 64, 48)},
    expect=lambda a, b, v, c: {"c": (computed(a, b) @ v.astype(f32)).astype(f32)},
    co="""
    __co__ void computed_operand(global f16 [64, 32] a, global f16 [32, 32] b, global f16 [32, 48] v,
                                 global f32 [64, 48] c) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        b_s = dma.copy b => shared;
        v_s = dma.copy v => shared;
        parallel g by 1 : group-4 {
          frag f16[64, 32] p;
          s = mma.fill.f32 0.0f;
          mma.row.row s, a_s, b_s;
          apply {i, j} in s.span {
            if (j > i) s.at(i, j) = 1.0f;
            p.at(i, j) = __to<f16>(s.at(i, j) + j);
          }
          mc = mma.fill.f32 0.0f;
          apply {i, j} in mc.span { mc.at(i, j) = mc.at(i, j) * 2.0f; }
          mma.row.col mc, p, v_s;
          mma.store mc, c;
        }
      }
    }
    """,
)  # fmt: skip
def computed_operand(
    a: tm.Global["f16", 64, 32], b: tm.Global["f16", 32, 32], v: tm.Global["f16", 32, 48],
    c: tm.Global["f32", 64, 48],
):  # fmt: skip
    """An accumulator, converted, is operand A of the next multiply, without a way through memory."""
    for _ in parallel(1, level="block"):
        a_s, b_s, v_s = dma.copy(a, to="shared"), dma.copy(b, to="shared"), dma.copy(v, to="shared")
        for g in parallel(1, level="group-4"):
            p = mma.frag("f16", 64, 32)
            s = mma.fill(0.0, "f32")
            mma.row.row(s, a_s, b_s)
            for i, j in apply(s):
                with if_(j > i):
                    s[i, j] = 1.0
                p[i, j] = (s[i, j] + j).astype("f16")
            mc = mma.fill(0.0, "f32")
            for i, j in apply(mc):
                mc[i, j] = mc[i, j] * 2.0
            mma.row.col(mc, p, v_s)
            mma.store(mc, c)


def computed(a, b):
    i, j = np.indices((64, 32))
    return (np.where(j > i, 1, product(a, b)) + j).astype(f16).astype(f32)


@construct(
    given={"a": small("bf16", 32, 16), "b": small("bf16", 24, 16, seed=1), "v": small("bf16", 40, 24, seed=2),
           "c": unwritten("f32", 32, 40), "least": unwritten("f32", 32)},
    expect=lambda a, b, v, c, least: shifted(a, b, v),
)  # fmt: skip
def arithmetic_of_rows(
    a: tm.Global["bf16", 32, 16], b: tm.Global["bf16", 24, 16], v: tm.Global["bf16", 40, 24],
    c: tm.Global["f32", 32, 40], least: tm.Global["f32", 32],
):  # fmt: skip
    """Python's spelling of whole-tile arithmetic: reductions give vectors, and ``[:, None]`` makes a column."""
    for _ in parallel(1, level="block"):
        for g in parallel(2, level="group"):
            s = mma.fill(0.0, "f32")
            mma.row.row(s, mma.load(a.chunkat(g, tm.full)), mma.load(b))
            low = s.min(axis=1)
            half = (abs(s).max(axis=1) + low) * 0.0 + tm.math.fabs(low * 1.0)
            for i in apply(low):
                least[g * 16 + i] = low[i]
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, (s - low[:, None] + half[:, None]).astype("bf16"), mma.load(v))
            mma.store(mc, c.chunkat(g, tm.full))


def shifted(a, b, v):
    s = product(a, b)
    low = s.min(axis=1, keepdims=True)
    p = (s - low + abs(low)).astype(a.dtype).astype(f32)
    return {"c": (p @ v.astype(f32).T).astype(f32), "least": low[:, 0].astype(f32)}
