"""Constructs in rare combinations: several tiles in one `apply`, grids of unknown extents, copies in branches."""

from __future__ import annotations

import numpy as np
from construct import construct, small, unwritten
from contraction import product

import tilemma as tm
from tilemma import apply, cdiv, dma, else_, foreach, full, if_, mma, parallel, select, shared, var

f16, f32 = np.float16, np.float32
HALVES = {"a": small("f16", 16, 16), "b": small("f16", 16, 16, seed=1), "c": unwritten("f16", 16, 16),
          "d": unwritten("f16", 16, 16)}  # fmt: skip


def doubled(a, b, c, d):
    p, (i, j) = product(a, b), np.indices((16, 16))
    return {"c": (p * 2 + i).astype(f16), "d": ((p * 2 + i) * 3 - j).astype(f16)}


@construct(
    given=HALVES,
    expect=doubled,
    co="""
    __co__ void named_values(global f16 [16, 16] a, global f16 [16, 16] b, global f16 [16, 16] c, global f16 [16, 16] d) {
      parallel p by 1 : block, g by 1 : group {
        mc = mma.fill.f16 0.0f;
        frag f16[16, 16] other {0.0f};
        ma = mma.load a; mb = mma.load b;
        mma.row.row mc, ma, mb;
        apply {i, j} in mc.span {
          f32 twice = mc.at(i, j) * 2.0f;
          mc.at(i, j) = twice + i;
        }
        apply {i, j} in mc.span {
          int three = i - i + 3;
          other.at(i, j) = mc.at(i, j) * three - j;
          mc.at(i, j) = mc.at(i, j) * (three - 2);
        }
        mma.store mc, c;
        mma.store other, d;
      }
    }
    """,
)
def named_values(
    a: tm.Global["f16", 16, 16], b: tm.Global["f16", 16, 16], c: tm.Global["f16", 16, 16], d: tm.Global["f16", 16, 16],
):  # fmt: skip
    """Variables that only name a value, in an `apply` that writes one tile, and in one that writes two."""
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, other = mma.fill(0.0, "f16"), mma.frag("f16", 16, 16, init=0.0)
            mma.row.row(mc, mma.load(a), mma.load(b))
            for i, j in apply(mc):
                twice = var(mc[i, j] * 2.0)
                mc[i, j] = twice + i
            for i, j in apply(mc):
                three = var(i - i + 3)
                other[i, j] = mc[i, j] * three - j
                mc[i, j] = mc[i, j] * (three - 2)
            mma.store(mc, c)
            mma.store(other, d)


@construct(
    given=HALVES,
    expect=lambda a, b, c, d: {
        "c": np.where(np.tri(16, k=-1) > 0, product(a, b) + 1, product(a, b) + 2).astype(f16),
        "d": np.where(np.tri(16, k=-1) > 0, product(a, b) + 1, product(a, b) + 2).astype(f16) * f16(2)},
    co="""
    __co__ void changed_values(global f16 [16, 16] a, global f16 [16, 16] b, global f16 [16, 16] c, global f16 [16, 16] d) {
      parallel p by 1 : block, g by 1 : group {
        mc = mma.fill.f16 0.0f;
        frag f16[16, 16] other;
        ma = mma.load a; mb = mma.load b;
        mma.row.row mc, ma, mb;
        apply {i, j} in mc.span {
          f32 x = mc.at(i, j);
          if (j < i) { x += 1.0f; } else { x += 2.0f; }
          mc.at(i, j) = x;
          other.at(i, j) = x * 2.0f;
        }
        mma.store mc, c;
        mma.store other, d;
      }
    }
    """,
)  # fmt: skip
def changed_values(
    a: tm.Global["f16", 16, 16], b: tm.Global["f16", 16, 16], c: tm.Global["f16", 16, 16], d: tm.Global["f16", 16, 16],
):  # fmt: skip
    """A variable that changes connects the statements of two tiles; the registers of the second have no value."""
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, other = mma.fill(0.0, "f16"), mma.frag("f16", 16, 16)
            mma.row.row(mc, mma.load(a), mma.load(b))
            for i, j in apply(mc):
                x = var(mc[i, j], "f32")
                with if_(j < i):
                    x += 1.0
                with else_():
                    x += 2.0
                mc[i, j] = x
                other[i, j] = x * 2.0
            mma.store(mc, c)
            mma.store(other, d)


def corners(x):
    found = np.zeros(x.shape, np.int32)
    for at in np.ndindex(*x.shape):
        found[at] = sum((2 * (n == 0) + (n < 2)) * 4**d for d, n in enumerate(at))
    return {"x": found}


@construct(
    given={"x": unwritten("s32", 3, 2, 3)},
    expect=corners,
    co="""
    __co__ void grid_of_three(global s32 [A, B, C] x) {
      parallel {i, j, k} by [A, B, C] : block {
        s32 sum = 0;
        if (i == 0) { sum += 2; } if (i < 2) { sum += 1; }
        if (j == 0) { sum += 8; } if (j < 2) { sum += 4; }
        if (k == 0) { sum += 32; } if (k < 2) { sum += 16; }
        x.at(i, j, k) = sum;
      }
    }
    """,
)
def grid_of_three(x: tm.Global["s32", "A", "B", "C"]):
    """Each index of a grid of three unknown extents takes its first value."""
    A, B, C = x.shape
    for i, j, k in parallel(A, B, C, level="block"):
        total = var(0)
        for n, index in enumerate((i, j, k)):
            with if_(index == 0):
                total += 2 * 4**n
            with if_(index < 2):
                total += 4**n
        x[i, j, k] = total


@construct(
    given={"x": small("s4", 6, 32), "y": unwritten("s32", 6, 8), "n": 3},
    expect=lambda x, y, n: {"y": np.where(np.arange(6)[:, None] < n, x[:, 8:16], x[:, 16:24]).astype(np.int32)},
)
def chosen_columns(x: tm.Global["s4", 6, 32], y: tm.Global["s32", 6, 8], n: tm.Int):
    """Packed elements whose first column is one of two."""
    for p in parallel(6, level="block"):
        s = dma.copy(x.view(1, 8).from_(p, select(p < n, 8, 16)), to="shared")
        for i in foreach(8):
            y[p, i] = s[0, i]


DEPTH = 160


@construct(
    given={"a": small("f16", 16, DEPTH), "b": small("f16", DEPTH, 24, seed=1), "v": small("f32", 16, 2, seed=2),
           "w": small("f32", 2, 24, seed=3), "c": unwritten("f32", 16, 24)},
    expect=lambda a, b, v, w, c: {
        "c": sum(product(a[:, s], b[s], "row.col") * v[:, q : q + 1] * w[q]
                 for q, s in enumerate((slice(0, 128), slice(128, DEPTH)))).astype(f32)},
)  # fmt: skip
def scales_of_parts(
    a: tm.Global["f16", 16, 160], b: tm.Global["f16", 160, 24], v: tm.Global["f32", 16, 2],
    w: tm.Global["f32", 2, 24], c: tm.Global["f32", 16, 24],
):  # fmt: skip
    """A scale for each part of K, of operands that are stored K x N; more columns than rows."""
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared"), dma.copy(b, to="shared")
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.col.scale(mc, mma.load(a_s), mma.load(b_s), v, w)
            mma.store(mc, c)


@construct(
    given={"a": small("f16", 16, 96), "b": small("f16", 16, 96, seed=1), "c": unwritten("f32", 16, 16), "n": 2},
    expect=lambda a, b, c, n: {"c": (product(a[:, 32:], b[:, 32:])).astype(f32)},
)
def copies_in_branches(
    a: tm.Global["f16", 16, "K"], b: tm.Global["f16", 16, "K"], c: tm.Global["f32", 16, 16], n: tm.Int
):
    """The loop's copies are in one branch inside another."""
    K = a.shape[1]
    for p in parallel(1, level="block"):
        a_s, b_s = shared("f16", 16, 32), shared("f16", 16, 32)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            with if_(k > 0), if_(n > 1):
                dma.copy(a.subspan(16, 32).at(0, k), a_s)
                dma.copy(b.subspan(16, 32).at(0, k), b_s)
                for g in parallel(1, level="group"):
                    for q in foreach(2):
                        mma.row.row(mc, mma.load(a_s.chunkat(full, q)), mma.load(b_s.chunkat(full, q)))
        for g in parallel(1, level="group"):
            mma.store(mc, c)
