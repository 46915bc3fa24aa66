"""Both dialects where they differ on register tiles and copies.  Their events are in tests/pipelines."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten
from contraction import product

import tilemma as tm
from tilemma import dma, foreach, full, mma, parallel, shared, wait

f32 = np.float32
OPERANDS = {"a": small("f16", 64, 64), "b": small("f16", 32, 64, seed=1), "c": unwritten("f32", 64, 32)}


def both(a, b, c):
    return {"c": product(a, b).astype(f32)}


@construct(
    given=OPERANDS,
    expect=both,
    co="""
    __co__ void loaded_operands(global f16 [64, 64] a, global f16 [32, 64] b, global f32 [64, 32] c) {
      parallel p by 1 : block {
        a_s = dma.copy.swiz<3> a => shared;
        b_s = dma.copy.swizzle<3> b => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          foreach {k} in [4] {
            ma = mma.load.swiz<3> a_s.data.chunkat(_, k);
            mb = mma.load.swiz<128> b_s.data.chunkat(_, k);
            mma.row.row mc, ma, mb;
          }
          mma.commit;
          mma.wait<0>;
          mma.store mc, c;
        }
      }
    }
    """,
)
def loaded_operands(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 32, 64], c: tm.Global["f32", 64, 32]):
    """Swizzles by number, K cut to the instruction by hand, commits and waits written out."""
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared", swizzle=3), dma.copy(b, to="shared", swizzle=3)
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(4):
                ma = mma.load(a_s.data.chunkat(full, k), swizzle=3)
                mb = mma.load(b_s.data.chunkat(full, k), swizzle=128)
                mma.row.row(mc, ma, mb)
            mma.commit()
            mma.wait(0)
            mma.store(mc, c)


@construct(
    given=OPERANDS,
    expect=both,
    co="""
    __co__ void futures_of_multiplies(global f16 [64, 64] a, global f16 [32, 64] b, global f32 [64, 32] c) {
      parallel p by 1 : block {
        a_s = dma.copy.swiz<128> a => shared;
        b_s = dma.copy.swiz<128> b => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          f = mma.row.row.async mc, a_s.data, b_s.data;
          wait f;
          mma.store mc, c;
        }
      }
    }
    """,
)
def futures_of_multiplies(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 32, 64], c: tm.Global["f32", 64, 32]):
    """Whole tiles of shared memory as operands, and a future to wait for."""
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared", swizzle=128), dma.copy(b, to="shared", swizzle=128)
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            f = mma.row.row(mc, a_s, b_s, async_=True)
            wait(f)
            mma.store(mc, c)


@construct(
    given=OPERANDS,
    expect=both,
    co="""
    __co__ void register_a(global f16 [64, 64] a, global f16 [32, 64] b, global f32 [64, 32] c) {
      parallel p by 1 : block {
        shared f16 [64, 64] a_s;
        shared f16 [32, 64] b_s;
        dma.copy a => a_s;
        dma.copy b => b_s;
        parallel g by 1 : group-4 {
          frag.f32 mc {0.0};
          foreach k in 4 {
            ma = mma.load.frag a_s.chunkat(_, k);
            mma.row.row mc, ma, b_s.chunkat(_, k);
          }
          mma.store mc, c;
        }
      }
    }
    """,
)
def register_a(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 32, 64], c: tm.Global["f32", 64, 32]):
    """A as a fragment, B straight from shared memory."""
    for p in parallel(1, level="block"):
        a_s, b_s = shared("f16", 64, 64), shared("f16", 32, 64)
        dma.copy(a, a_s)
        dma.copy(b, b_s)
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(4):
                ma = mma.load(a_s.chunkat(full, k))
                mma.row.row(mc, ma, b_s.chunkat(full, k))
            mma.store(mc, c)


@construct(
    given={"a": random("f32", 13, 9), "out": unwritten("f32", 2, 16, 16)},
    expect=lambda a, out: {"out": np.stack([np.pad(a, ((0, 3), (0, 7)))] * 2)},
    co="""
    __co__ void filling_with_zeros(global f32 [M, N] a, global f32 [2, 16, 16] out) {
      parallel b by 1 : block {
        shared f32 [16, 16] s[2] {5.0f};
        dma.copy a.subspan(16, 16).at(0, 0).zfill => s[0];
        dma.copy.zfill a.subspan(16, 16).at(0, 0) => s[1];
        foreach i in 2
          dma.copy s[i] => out.subspan(1, 16, 16).at(i, 0, 0).sqz();
      }
    }
    """,
)
def filling_with_zeros(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", 2, 16, 16]):
    for b in parallel(1, level="block"):
        s = shared("f32", 16, 16, copies=2, init=5.0)
        for i in range(2):
            dma.copy(a.subspan(16, 16).at(0, 0), s[i], zfill=True)
        for i in foreach(2):
            dma.copy(s[i], out.subspan(1, 16, 16).at(i, 0, 0).sqz())


@construct(
    given={"a": random("f16", 64, 64), "out": unwritten("f16", 64, 64)},
    expect=lambda a, out: {"out": a},
    archs=("sm_90a",),
    co="""
    __co__ void loads_by_tma(global f16 [64, 64] a, global f16 [64, 64] out) {
      parallel b by 2 : block {
        shared f16 [32, 64] s[2];
        tma.load.swiz<128> a.subspan(32, 64).at(b, 0) => s[0];
        tma.copy.swiz<128> s[0] => out.subspan(32, 64).at(b, 0);
      }
    }
    """,
)
def loads_by_tma(a: tm.Global["f16", 64, 64], out: tm.Global["f16", 64, 64]):
    for b in parallel(2, level="block"):
        s = shared("f16", 32, 64, copies=2)
        tm.tma.copy(a.subspan(32, 64).at(b, 0), s[0], swizzle=128)
        tm.tma.copy(s[0], out.subspan(32, 64).at(b, 0), swizzle=128)


@construct(
    given=OPERANDS,
    expect=both,
    co="""
    #define MMA_K 32
    __co__ void predefined_tiles(global f16 [64, 64] a, global f16 [32, 64] b, global f32 [64, 32] c) {
      parallel p by 1 : block, g by 4 : group {
        mc = mma.fill.f32 0.0f;
        foreach k in 64 / MMA_K {
          ma = mma.load a.subspan(MMA_M, MMA_K).at(g, k);
          mb = mma.load b.subspan(_, MMA_K).at(0, k);
          mma.row.row mc, ma, mb;
        }
        mma.store mc, c.subspan(MMA_M, _).at(g, 0);
      }
    }
    """,
)
def predefined_tiles(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 32, 64], c: tm.Global["f32", 64, 32]):
    """At warp scope MMA_M, MMA_N and MMA_K are 16 unless the file defines them."""
    for p in parallel(1, level="block"):
        for g in parallel(4, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(2):
                ma = mma.load(a.subspan(16, 32).at(g, k))
                mb = mma.load(b.subspan(full, 32).at(0, k))
                mma.row.row(mc, ma, mb)
            mma.store(mc, c.subspan(16, full).at(g, 0))


@construct(
    given=OPERANDS,
    expect=both,
    co="""
    __co__ void scheduled(global f16 [64, 64] a, global f16 [32, 64] b, global f32 [64, 32] c) {
      parallel p by 1 : block {
        a_s = dma.copy a.subspan(64, 32).at(0, 0) => shared;
        b_s = dma.copy b.subspan(32, 32).at(0, 0) => shared;
        a_t = dma.copy a.subspan(64, 32).at(0, 1) => shared;
        b_t = dma.copy b.subspan(32, 32).at(0, 1) => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          [[schedule(k_tiles(1, 0))]] mma.row.row mc, a_s.data, b_s.data;
          mma.row.row.order<0, 1> mc, a_t.data, b_t.data;
          mma.store mc, c;
        }
      }
    }
    """,
)
def scheduled(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 32, 64], c: tm.Global["f32", 64, 32]):
    """The order of the instruction's tiles along K."""
    for p in parallel(1, level="block"):
        a_s, b_s = (
            dma.copy(a.subspan(64, 32).at(0, 0), to="shared"),
            dma.copy(b.subspan(32, 32).at(0, 0), to="shared"),
        )
        a_t, b_t = (
            dma.copy(a.subspan(64, 32).at(0, 1), to="shared"),
            dma.copy(b.subspan(32, 32).at(0, 1), to="shared"),
        )
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, a_s, b_s, k_tiles=(1, 0))
            mma.row.row(mc, a_t, b_t, k_tiles=(0, 1))
            mma.store(mc, c)
