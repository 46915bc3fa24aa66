"""What happens to register tiles after the multiplies: arithmetic, element work, stores."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten
from contraction import product

import tilemma as tm
from tilemma import apply, dma, foreach, full, mma, parallel, shared

f32, f16 = np.float32, np.float16

ROW, COLUMN = small("f32", 24, seed=5), small("f32", 32, 1, seed=6)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 24, 16, seed=1), "row": ROW, "column": COLUMN,
           "c": unwritten("f32", 32, 24)},
    expect=lambda a, b, row, column, c: {"c": ((product(a, b) * 2 + row) * column - 1).astype(f32)},
    co="""
    __co__ void arithmetic(global f16 [32, 16] a, global f16 [24, 16] b, global f32 [24] row, global f32 [32, 1] column,
                           global f32 [32, 24] c) {
      parallel p by 1 : block, g by 1 : group {
        mc = mma.fill.f32 0.0f;
        ma = mma.load a;
        mb = mma.load b;
        mma.row.row mc, ma, mb;
        mc = mc * 2.0f;
        mc += row;
        mc = mc * column;
        mc -= 1.0f;
        mma.store mc, c;
      }
    }
    """,
)  # fmt: skip
def arithmetic(
    a: tm.Global["f16", 32, 16], b: tm.Global["f16", 24, 16], row: tm.Global["f32", 24],
    column: tm.Global["f32", 32, 1], c: tm.Global["f32", 32, 24],
):  # fmt: skip
    """Arithmetic on whole accumulators, with numbers, a row [N] and a column [M, 1]."""
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a), mma.load(b))
            mc *= 2.0
            mc += row
            mc.set(mc * column)
            mc = mc - 1.0
            mma.store(mc, c)


@construct(
    given={"a": small("f16", 64, 32), "b": small("f16", 48, 32, seed=1), "row": small("f32", 1, 48, seed=3),
           "c": unwritten("f16", 64, 48), "d": unwritten("f32", 64, 48), "alpha": 0.5},
    expect=lambda a, b, row, c, d, alpha: {
        "c": np.maximum(product(a, b) * alpha + row, 0).astype(f16), "d": (product(a, b) * product(a, b)).astype(f32)},
    co="""
    __co__ void epilogue(global f16 [64, 32] a, global f16 [48, 32] b, global f32 [1, 48] row, global f16 [64, 48] c,
                         global f32 [64, 48] d, f32 alpha) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        b_s = dma.copy b => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          frag f32[64, 48] square {0.0f};
          foreach k in 2 {
            ma = mma.load a_s.chunkat(_, k);
            mb = mma.load b_s.chunkat(_, k);
            mma.row.row mc, ma, mb;
          }
          square = mc * mc;
          mc = __max(mc * alpha + row, 0.0f);
          mma.store mc, c;
          mma.store square, d;
        }
      }
    }
    """,
)  # fmt: skip
def epilogue(
    a: tm.Global["f16", 64, 32], b: tm.Global["f16", 48, 32], row: tm.Global["f32", 1, 48],
    c: tm.Global["f16", 64, 48], d: tm.Global["f32", 64, 48], alpha: tm.Float,
):  # fmt: skip
    """New tiles out of arithmetic keep the values of the old ones."""
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared"), dma.copy(b, to="shared")
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(2):
                mma.row.row(mc, mma.load(a_s.chunkat(full, k)), mma.load(b_s.chunkat(full, k)))
            square = mc * mc
            mc.set((mc * alpha + row).map(lambda x: tm.math.max(x, 0.0)))
            mma.store(mc, c)
            mma.store(square, d)


@construct(
    given={
        "a": small("f16", 32, 16),
        "b": small("f16", 24, 16, seed=1),
        "row": ROW,
        "c": unwritten("f32", 32, 24),
    },
    expect=lambda a, b, row, c: {"c": applied(product(a, b), row)},
    co="""
    __co__ void element_work(global f16 [32, 16] a, global f16 [24, 16] b, global f32 [24] row, global f32 [32, 24] c) {
      parallel p by 1 : block {
        parallel g by 1 : group {
          mc = mma.fill.f32 0.0f;
          ma = mma.load a;
          mb = mma.load b;
          mma.row.row mc, ma, mb;
          apply {i, j} in mc.span {
            if (i > j)
              mc.at(i, j) = mc.at(i, j) * 2.0f + row.at(j);
            else
              mc.at(i, j) = i * 100 + j;
          }
          mma.store mc, c;
        }
      }
    }
    """,
)
def element_work(
    a: tm.Global["f16", 32, 16],
    b: tm.Global["f16", 24, 16],
    row: tm.Global["f32", 24],
    c: tm.Global["f32", 32, 24],
):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a), mma.load(b))
            for i, j in apply(mc):
                with tm.if_(i > j):
                    mc[i, j] = mc[i, j] * 2.0 + row[j]
                with tm.else_():
                    mc[i, j] = i * 100 + j
            mma.store(mc, c)


def applied(p, row):
    i, j = np.indices(p.shape)
    return np.where(i > j, p * 2 + row, i * 100 + j).astype(f32)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 24, 16, seed=1), "c": unwritten("f32", 24, 32),
           "d": unwritten("f16", 24, 32)},
    expect=lambda a, b, c, d: {"c": product(a, b).T.astype(f32), "d": product(a, b).T.astype(f16)},
    co="""
    __co__ void transposed_stores(global f16 [32, 16] a, global f16 [24, 16] b, global f32 [24, 32] c,
                                  global f16 [24, 32] d) {
      parallel p by 1 : block {
        shared f16 [24, 32] d_s;
        parallel g by 2 : group {
          mc = mma.fill.f32 0.0f;
          ma = mma.load a.chunkat(g, _);
          mb = mma.load b;
          mma.row.row mc, ma, mb;
          mma.store.transp mc, c.chunkat(_, g);
          mma.store.transp mc, d_s.chunkat(_, g);
        }
        dma.copy d_s => d;
      }
    }
    """,
)  # fmt: skip
def transposed_stores(
    a: tm.Global["f16", 32, 16],
    b: tm.Global["f16", 24, 16],
    c: tm.Global["f32", 24, 32],
    d: tm.Global["f16", 24, 32],
):
    for p in parallel(1, level="block"):
        d_s = shared("f16", 24, 32)
        for g in parallel(2, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a.chunkat(g, full)), mma.load(b))
            mma.store(mc, c.chunkat(full, g), transp=True)
            mma.store(mc, d_s.chunkat(full, g), transp=True)
        dma.copy(d_s, d)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 24, 16, seed=1), "s8_": unwritten("s8", 32, 24),
           "fine": unwritten("f8_e4m3", 32, 24), "f64_": unwritten("f64", 32, 24), "s32_": unwritten("s32", 32, 24)},
    expect=lambda a, b, s8_, fine, f64_, s32_: {
        "s8_": np.clip(product(a, b) * 3, -128, 127).astype(np.int8),
        "fine": (product(a, b) * 3).astype(f32).astype(fine.dtype), "f64_": product(a, b) * 3,
        "s32_": (product(a, b) * 3).astype(np.int32)},
    co="""
    __co__ void converting_stores(global f16 [32, 16] a, global f16 [24, 16] b, global s8 [32, 24] s8_,
                                  global f8_e4m3 [32, 24] fine, global f64 [32, 24] f64_, global s32 [32, 24] s32_) {
      parallel p by 1 : block, g by 1 : group {
        mc = mma.fill.f32 0.0f;
        ma = mma.load a;
        mb = mma.load b;
        mma.row.row mc, ma, mb;
        mc *= 3.0f;
        mma.store mc, s8_;
        mma.store mc, fine;
        mma.store mc, f64_;
        mma.store mc, s32_;
      }
    }
    """,
)  # fmt: skip
def converting_stores(
    a: tm.Global["f16", 32, 16], b: tm.Global["f16", 24, 16], s8_: tm.Global["s8", 32, 24],
    fine: tm.Global["f8_e4m3", 32, 24], f64_: tm.Global["f64", 32, 24], s32_: tm.Global["s32", 32, 24],
):  # fmt: skip
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a), mma.load(b))
            mc *= 3.0
            for out in (s8_, fine, f64_, s32_):
                mma.store(mc, out)


@construct(
    given={
        "a": small("f16", 20, 16),
        "b": small("f16", 13, 16, seed=1),
        "c": unwritten("f32", 20, 13),
        "m": 19,
        "n": 11,
    },
    expect=lambda a, b, c, m, n: {
        "c": np.where(
            np.indices((20, 13))[0] < 19, np.where(np.indices((20, 13))[1] < 11, product(a, b), np.nan), np.nan
        ).astype(f32)
    },
    co="""
    __co__ void masked_stores(global f16 [M, 16] a, global f16 [N, 16] b, global f32 [M, N] c, int m, int n) {
      parallel p by 1 : block {
        parallel g by 1 : group {
          mc = mma.fill.f32 0.0f;
          ma = mma.load a.subspan(32, 16).at(0, 0);
          mb = mma.load b.subspan(16, 16).at(0, 0);
          mma.row.row mc, ma, mb;
          mma.store.mask mc, c.subspan(32, 16).at(0, 0), m, n;
        }
      }
    }
    """,
)
def masked_stores(
    a: tm.Global["f16", "M", 16], b: tm.Global["f16", "N", 16], c: tm.Global["f32", "M", "N"], m: tm.Int, n: tm.Int
):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a.subspan(32, 16).at(0, 0)), mma.load(b.subspan(16, 16).at(0, 0)))
            mma.store(mc, c.subspan(32, 16).at(0, 0), rows=m, columns=n)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 48, 16, seed=1), "row": small("f32", 24, seed=4),
           "c": unwritten("f16", 32, 48)},
    expect=lambda a, b, row, c: {"c": (product(a, b) * 2 + np.tile(row, 2) + product(a[:, :], b)).astype(f16)},
    co="""
    __co__ void arithmetic_on_arrays(global f16 [32, 16] a, global f16 [48, 16] b, global f32 [24] row,
                                     global f16 [32, 48] c) {
      parallel p by 1 : block, g by 1 : group {
        frag.f32 mc[2] {0.0f};
        frag.f16 half_[2] {0.0f};
        foreach j in 2 : unroll {
          ma = mma.load a;
          mb = mma.load b.chunkat(j, _);
          mma.row.row mc[j], ma, mb;
          mma.row.row half_[j], ma, mb;
        }
        foreach j in 2 : unroll {
          mc[j] *= 2.0f;
          mc[j] = mc[j] + row;
          mc[j] = mc[j] + half_[j];
          mma.store mc[j], c.chunkat(_, j);
        }
      }
    }
    """,
)  # fmt: skip
def arithmetic_on_arrays(
    a: tm.Global["f16", 32, 16],
    b: tm.Global["f16", 48, 16],
    row: tm.Global["f32", 24],
    c: tm.Global["f16", 32, 48],
):
    """Tiles of arrays of register tiles, and a sum of tiles of two element types."""
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, half = mma.fill(0.0, "f32", copies=2), mma.fill(0.0, "f16", copies=2)
            for j in range(2):
                ma, mb = mma.load(a), mma.load(b.chunk(2, 1).at(j, 0))
                mma.row.row(mc[j], ma, mb)
                mma.row.row(half[j], ma, mb)
            for j in range(2):
                mc[j] *= 2.0
                mc[j] += row
                mma.store(mc[j] + half[j], c.chunk(1, 2).at(0, j))


@construct(
    given={"x": random("f32", 32, 16), "y": unwritten("f32", 32, 16), "z": unwritten("f16", 32, 16)},
    expect=lambda x, y, z: {"y": x + x, "z": (x * x).astype(f16)},
    co="""
    __co__ void tiles_without_multiplies(global f32 [32, 16] x, global f32 [32, 16] y, global f16 [32, 16] z) {
      parallel p by 1 : block, g by 2 : group {
        frag f32[16, 16] t;
        mma.load x.chunkat(g, _), t;
        frag f32[16, 16] square {0.0f};
        square = t * t;
        t += t;
        mma.store t, y.chunkat(g, _);
        mma.store square, z.chunkat(g, _);
      }
    }
    """,
)
def tiles_without_multiplies(
    x: tm.Global["f32", 32, 16], y: tm.Global["f32", 32, 16], z: tm.Global["f16", 32, 16]
):
    """Register tiles that no multiply uses: loaded, combined, stored."""
    for p in parallel(1, level="block"):
        for g in parallel(2, level="group"):
            t = mma.load(x.chunkat(g, full))
            square = mma.frag("f32", 16, 16, init=0.0)
            square.set(t * t)
            t += t
            mma.store(t, y.chunkat(g, full))
            mma.store(square, z.chunkat(g, full))


@construct(
    given={"x": random("f32", 128, 32), "y": unwritten("f32", 128, 32)},
    expect=lambda x, y: {"y": np.where(np.indices(x.shape)[0] > np.indices(x.shape)[1], x, f32(0))},
    co="""
    __co__ void tiles_of_a_warpgroup(global f32 [128, 32] x, global f32 [128, 32] y) {
      parallel p by 2 : block, g by 1 : group-4 {
        t = mma.load x.chunkat(p, _);
        apply {i, j} in t.span {
          if (p * 64 + i <= j) t.at(i, j) = 0.0f;
        }
        mma.store t, y.chunkat(p, _);
      }
    }
    """,
)
def tiles_of_a_warpgroup(x: tm.Global["f32", 128, 32], y: tm.Global["f32", 128, 32]):
    for p in parallel(2, level="block"):
        for g in parallel(1, level="group-4"):
            t = mma.load(x.chunkat(p, full))
            for i, j in apply(t):
                with tm.if_(p * 64 + i <= j):
                    t[i, j] = 0.0
            mma.store(t, y.chunkat(p, full))
