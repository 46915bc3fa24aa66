"""Contraction: fills, loads, contracts, accumulator types, arrays of register tiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from construct import construct, small, unwritten

import tilemma as tm
from tilemma import cdiv, dma, foreach, full, mma, parallel, shared

f32, f16 = np.float32, np.float16
bf16 = ml_dtypes.bfloat16


def product(a, b, contract="row.row"):
    """In float64; operands of small integers make every accumulator exact."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    first, second = contract.split(".")
    return (a if first == "row" else a.T) @ (b.T if second == "row" else b)


def warp_kernel(contract: str, first: str, second: str, dtype: str, acc: str) -> str:
    return f"""
    __co__ void {contract.replace(".", "_")}_{dtype}(global {dtype} [{first}] a, global {dtype} [{second}] b,
                                                     global f32 [32, 48] c) {{
      parallel p by 1 : block {{
        parallel {{x, y}} by [2, 3] : group {{
          mc = mma.fill{acc} 0.0f;
          foreach k in 2 {{
            ma = mma.load a.{"chunkat(x, k)" if contract.startswith("row") else "chunkat(k, x)"};
            mb = mma.load b.{"chunkat(y, k)" if contract.endswith("row") else "chunkat(k, y)"};
            mma.{contract} mc, ma, mb;
          }}
          mma.store mc, c.chunkat(x, y);
        }}
      }}
    }}
    """


def over_contracts(contract: str, dtype: str, acc: str):
    first = "32, 32" if contract.startswith("row") else "32, 32"
    second = "48, 32" if contract.endswith("row") else "32, 48"
    shape = tuple(int(x) for x in second.split(", "))
    return construct(
        given={"a": small(dtype, 32, 32), "b": small(dtype, *shape, seed=1), "c": unwritten("f32", 32, 48)},
        expect=lambda a, b, c: {"c": product(a, b, contract).astype(f32)},
        co=warp_kernel(contract, first, second, dtype, acc),
    )


@over_contracts("row.row", "f16", ".f32")
def row_row_f16(a: tm.Global["f16", 32, 32], b: tm.Global["f16", 48, 32], c: tm.Global["f32", 32, 48]):
    for p in parallel(1, level="block"):
        for x, y in parallel(2, 3, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(2):
                ma, mb = mma.load(a.chunkat(x, k)), mma.load(b.chunkat(y, k))
                mma.row.row(mc, ma, mb)
            mma.store(mc, c.chunkat(x, y))


@over_contracts("row.col", "f16", "")
def row_col_f16(a: tm.Global["f16", 32, 32], b: tm.Global["f16", 32, 48], c: tm.Global["f32", 32, 48]):
    for p in parallel(1, level="block"):
        for x, y in parallel(2, 3, level="group"):
            mc = mma.fill(0.0)
            for k in foreach(2):
                ma, mb = mma.load(a.chunkat(x, k)), mma.load(b.chunkat(k, y))
                mma.row.col(mc, ma, mb)
            mma.store(mc, c.chunkat(x, y))


@over_contracts("col.row", "bf16", ".f32")
def col_row_bf16(a: tm.Global["bf16", 32, 32], b: tm.Global["bf16", 48, 32], c: tm.Global["f32", 32, 48]):
    for p in parallel(1, level="block"):
        for x, y in parallel(2, 3, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(2):
                ma, mb = mma.load(a.chunkat(k, x)), mma.load(b.chunkat(y, k))
                mma.col.row(mc, ma, mb)
            mma.store(mc, c.chunkat(x, y))


@over_contracts("col.col", "bf16", "")
def col_col_bf16(a: tm.Global["bf16", 32, 32], b: tm.Global["bf16", 32, 48], c: tm.Global["f32", 32, 48]):
    for p in parallel(1, level="block"):
        for x, y in parallel(2, 3, level="group"):
            mc = mma.fill(0.0)
            for k in foreach(2):
                ma, mb = mma.load(a.chunkat(k, x)), mma.load(b.chunkat(k, y))
                mma.col.col(mc, ma, mb)
            mma.store(mc, c.chunkat(x, y))


@construct(
    given={"a": small("f16", 70, 50), "b": small("f16", 90, 50, seed=1), "c": unwritten("f16", 70, 90)},
    expect=lambda a, b, c: {"c": product(a, b).astype(f16)},
    co="""
    __co__ void through_shared(global f16 [M, K] a, global f16 [N, K] b, global f16 [M, N] c) {
      parallel {i, j} by [cdiv(M, 32), cdiv(N, 32)] : block {
        shared f16 [32, 32] c_s;
        parallel {x, y} by [2, 2] : group {
          mc = mma.fill.f16 0.0f;
          foreach k in cdiv(K, 32) {
            a_s = dma.copy a.subspan(32, 32).at(i, k) => shared;
            b_s = dma.copy b.subspan(32, 32).at(j, k) => shared;
            foreach kk in 2 {
              ma = mma.load a_s.data.chunkat(x, kk);
              mb = mma.load b_s.data.chunkat(y, kk);
              mma.row.row mc, ma, mb;
            }
          }
          mma.store mc, c_s.subspan(16, 16).at(x, y);
        }
        dma.copy c_s => c.subspan(32, 32).at(i, j);
      }
    }
    """,
)
def through_shared(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f16", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 32), level="block"):
        c_s = shared("f16", 32, 32)
        for x, y in parallel(2, 2, level="group"):
            mc = mma.fill(0.0, "f16")
            for k in foreach(cdiv(K, 32)):
                a_s = dma.copy(a.subspan(32, 32).at(i, k), to="shared")
                b_s = dma.copy(b.subspan(32, 32).at(j, k), to="shared")
                for kk in foreach(2):
                    ma, mb = mma.load(a_s.data.chunkat(x, kk)), mma.load(b_s.data.chunkat(y, kk))
                    mma.row.row(mc, ma, mb)
            mma.store(mc, c_s.subspan(16, 16).at(x, y))
        dma.copy(c_s, c.subspan(32, 32).at(i, j))


@construct(
    given={"a": small("f16", 64, 96), "b": small("f16", 40, 96, seed=1), "c": unwritten("bf16", 64, 40)},
    expect=lambda a, b, c: {"c": product(a, b).astype(bf16)},
    co="""
    __co__ void warpgroup(global f16 [64, K] a, global f16 [40, K] b, global bf16 [64, 40] c) {
      parallel p by 1 : block {
        shared f16 [64, 32] a_s;
        shared f16 [40, 32] b_s;
        mc = mma.fill.f32 0.0f;
        foreach k in cdiv(K, 32) {
          dma.copy a.subspan(64, 32).at(0, k) => a_s;
          dma.copy b.subspan(40, 32).at(0, k) => b_s;
          parallel g by 1 : group-4
            foreach kk in 2 {
              ma = mma.load a_s.chunkat(_, kk);
              mb = mma.load b_s.chunkat(_, kk);
              mma.row.row mc, ma, mb;
            }
        }
        mma.store mc, c.subspan(64, 40).at(0, 0);
      }
    }
    """,
)
def warpgroup(a: tm.Global["f16", 64, "K"], b: tm.Global["f16", 40, "K"], c: tm.Global["bf16", 64, 40]):
    """The accumulator is filled and stored at block scope, where one instance holds it; the store converts."""
    K = a.shape[1]
    for p in parallel(1, level="block"):
        a_s, b_s = shared("f16", 64, 32), shared("f16", 40, 32)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(a.subspan(64, 32).at(0, k), a_s)
            dma.copy(b.subspan(40, 32).at(0, k), b_s)
            for g in parallel(1, level="group-4"):
                for kk in foreach(2):
                    ma, mb = mma.load(a_s.chunkat(full, kk)), mma.load(b_s.chunkat(full, kk))
                    mma.row.row(mc, ma, mb)
        mma.store(mc, c.subspan(64, 40).at(0, 0))


@construct(
    given={"a": small("f16", 16, 16), "b": small("f16", 16, 16, seed=1), "c": small("f32", 16, 16, seed=2)},
    expect=lambda a, b, c: {"c": (c + product(a, b)).astype(f32)},
    co="""
    __co__ void loaded_accumulator(global f16 [16, 16] a, global f16 [16, 16] b, global f32 [16, 16] c) {
      parallel p by 1 : block {
        parallel g by 1 : group {
          mc = mma.load c;
          ma = mma.load a;
          mb = mma.load b;
          mma.row.row mc, ma, mb;
          mma.store mc, c;
        }
      }
    }
    """,
)
def loaded_accumulator(a: tm.Global["f16", 16, 16], b: tm.Global["f16", 16, 16], c: tm.Global["f32", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc, ma, mb = mma.load(c), mma.load(a), mma.load(b)
            mma.row.row(mc, ma, mb)
            mma.store(mc, c)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 16, 16, seed=1), "c": unwritten("f32", 2, 16, 16)},
    expect=lambda a, b, c: {"c": np.stack([product(a[:16], b) + 1, product(a[16:], b) + 3]).astype(f32)},
    co="""
    __co__ void refilled(global f16 [32, 16] a, global f16 [16, 16] b, global f32 [2, 16, 16] c) {
      parallel p by 1 : block {
        parallel g by 1 : group {
          mc = mma.fill.f32 1.0f;
          mb = mma.load b;
          foreach i in 2 {
            ma = mma.load a.chunkat(i, _);
            mma.row.row mc, ma, mb;
            mma.store mc, c.subspan(1, 16, 16).at(i, 0, 0).sqz();
            mma.fill mc, 3.0f;
          }
        }
      }
    }
    """,
)
def refilled(a: tm.Global["f16", 32, 16], b: tm.Global["f16", 16, 16], c: tm.Global["f32", 2, 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(1.0, "f32")
            mb = mma.load(b)
            for i in foreach(2):
                ma = mma.load(a.chunkat(i, full))
                mma.row.row(mc, ma, mb)
                mma.store(mc, c.subspan(1, 16, 16).at(i, 0, 0).sqz())
                mma.fill(mc, 3.0)


@construct(
    given={"a": small("f16", 32, 16), "b": small("f16", 48, 16, seed=1), "c": unwritten("f32", 32, 48)},
    expect=lambda a, b, c: {"c": product(a, b).astype(f32)},
    co="""
    __co__ void accumulator_arrays(global f16 [32, 16] a, global f16 [48, 16] b, global f32 [32, 48] c) {
      parallel p by 1 : block {
        parallel g by 1 : group {
          frag.f32 mc[2][3] {0.0};
          foreach {i, j} in [2, 3] : unroll {
            ma = mma.load a.chunkat(i, _);
            mb = mma.load b.chunkat(j, _);
            mma.row.row mc[i][j], ma, mb;
          }
          foreach {i, j} in [2, 3] : unroll
            mma.store mc[i][j], c.chunkat(i, j);
        }
      }
    }
    """,
)
def accumulator_arrays(a: tm.Global["f16", 32, 16], b: tm.Global["f16", 48, 16], c: tm.Global["f32", 32, 48]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32", copies=(2, 3))
            for i in range(2):
                for j in range(3):
                    ma, mb = mma.load(a.chunk(2, 1).at(i, 0)), mma.load(b.chunk(3, 1).at(j, 0))
                    mma.row.row(mc[i][j], ma, mb)
            for i in range(2):
                for j in range(3):
                    mma.store(mc[i, j], c.chunk(2, 3).at(i, j))


@construct(
    given={"a": small("f16", 64, 16), "b": small("f16", 16, 16, seed=1), "c": unwritten("f32", 64, 16)},
    expect=lambda a, b, c: {"c": product(a, b).astype(f32)},
    co="""
    __co__ void lanes_of_a_group(global f16 [64, 16] a, global f16 [16, 16] b, global f32 [64, 16] c) {
      parallel p by 2 : block {
        parallel w by 2 : group, t by 32 : thread {
          mc = mma.fill.f32 0.0f;
          ma = mma.load a.chunkat(p # w, _);
          mb = mma.load b;
          mma.row.row mc, ma, mb;
          mma.store mc, c.chunkat(p # w, _);
        }
      }
    }
    """,
)
def lanes_of_a_group(a: tm.Global["f16", 64, 16], b: tm.Global["f16", 16, 16], c: tm.Global["f32", 64, 16]):
    """A collective statement in a thread level that covers all lanes acts at the group."""
    for p in parallel(2, level="block"):
        for w in parallel(2, level="group"):
            for t in parallel(32, level="thread"):
                mc = mma.fill(0.0, "f32")
                part = tm.compose(p, w)
                mma.row.row(mc, mma.load(a.chunkat(part, full)), mma.load(b))
                mma.store(mc, c.chunkat(part, full))


@construct(
    given={"a": small("f16", 64, 64), "b": small("f16", 64, 64, seed=1), "c": unwritten("f32", 64, 64)},
    expect=lambda a, b, c: {"c": product(a, b).astype(f32)},
    co="""
    __co__ void direct_operands(global f16 [64, 64] a, global f16 [64, 64] b, global f32 [64, 64] c) {
      parallel p by 1 : block {
        a_s = dma.copy.swiz<128> a => shared;
        b_s = dma.copy.swiz<128> b => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          mma.row.row mc, a_s.data, b_s.data;
          mma.store mc, c;
        }
      }
    }
    """,
)
def direct_operands(a: tm.Global["f16", 64, 64], b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64]):
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared", swizzle=128), dma.copy(b, to="shared", swizzle=128)
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, a_s, b_s)
            mma.store(mc, c)


@construct(
    given={"a": small("f16", 64, 32), "b": small("f16", 16, 32, seed=1), "c": unwritten("f32", 64, 16)},
    expect=lambda a, b, c: {"c": product(a, b).astype(f32)},
    co="""
    __co__ void named_instruction(global f16 [64, 32] a, global f16 [16, 32] b, global f32 [64, 16] c) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        b_s = dma.copy b => shared;
        parallel g by 1 : group-4 {
          mc = mma.fill.f32 0.0f;
          [[atom(SM80_16x8x8_F32F16F16F32_TN)]] [[schedule(k_tiles(1, 0, 3, 2))]] mma.row.row mc, a_s.data, b_s.data;
          mma.store mc, c;
        }
      }
    }
    """,
)
def named_instruction(a: tm.Global["f16", 64, 32], b: tm.Global["f16", 16, 32], c: tm.Global["f32", 64, 16]):
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared"), dma.copy(b, to="shared")
        for g in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, a_s, b_s, atom="SM80_16x8x8_F32F16F16F32_TN", k_tiles=(1, 0, 3, 2))
            mma.store(mc, c)


def both_products(a, b, c, d):
    return {"c": product(a, b).astype(f32), "d": product(b, a).astype(f32)}


@construct(
    given={
        "a": small("f16", 64, 128),
        "b": small("f16", 64, 128, seed=1),
        "c": unwritten("f32", 64, 64),
        "d": unwritten("f32", 64, 64),
    },
    expect=both_products,
    co="""
    __co__ void groups_in_flight(global f16 [64, 128] a, global f16 [64, 128] b, global f32 [64, 64] c,
                                 global f32 [64, 64] d) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        b_s = dma.copy b => shared;
        parallel g by 1 : group-4 {
          m = mma.fill.f32 0.0f;
          n = mma.fill.f32 0.0f;
          foreach k in 2 {
            mma.row.row m, a_s.data.chunkat(_, k), b_s.data.chunkat(_, k);
            mma.commit;
            mma.row.row n, b_s.data.chunkat(_, k), a_s.data.chunkat(_, k);
            mma.commit;
            mma.wait<1>;
          }
          mma.store m, c;
          mma.wait<0>;
          mma.store n, d;
        }
      }
    }
    """,
)
def groups_in_flight(
    a: tm.Global["f16", 64, 128],
    b: tm.Global["f16", 64, 128],
    c: tm.Global["f32", 64, 64],
    d: tm.Global["f32", 64, 64],
):
    """The second product is under way while the first is stored."""
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared"), dma.copy(b, to="shared")
        for g in parallel(1, level="group-4"):
            m, n = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
            for k in foreach(2):
                mma.row.row(m, a_s.chunkat(full, k), b_s.chunkat(full, k))
                mma.commit()
                mma.row.row(n, b_s.chunkat(full, k), a_s.chunkat(full, k))
                mma.commit()
                mma.wait(1)
            mma.store(m, c)
            mma.wait(0)
            mma.store(n, d)


@construct(
    given={
        "a": small("f16", 64, 64),
        "b": small("f16", 64, 64, seed=1),
        "c": unwritten("f32", 64, 64),
        "d": unwritten("f32", 64, 64),
    },
    expect=both_products,
    co="""
    __co__ void futures_in_flight(global f16 [64, 64] a, global f16 [64, 64] b, global f32 [64, 64] c,
                                  global f32 [64, 64] d) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        b_s = dma.copy b => shared;
        parallel g by 1 : group-4 {
          m = mma.fill.f32 0.0f;
          n = mma.fill.f32 0.0f;
          f = mma.row.row.async m, a_s.data, b_s.data;
          h = mma.row.row.async n, b_s.data, a_s.data;
          wait f;
          m = m * 2.0f;
          wait h;
          m = m * 0.5f;
          mma.store m, c;
          mma.store n, d;
        }
      }
    }
    """,
)
def futures_in_flight(
    a: tm.Global["f16", 64, 64],
    b: tm.Global["f16", 64, 64],
    c: tm.Global["f32", 64, 64],
    d: tm.Global["f32", 64, 64],
):
    for p in parallel(1, level="block"):
        a_s, b_s = dma.copy(a, to="shared"), dma.copy(b, to="shared")
        for g in parallel(1, level="group-4"):
            m, n = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
            f = mma.row.row(m, a_s, b_s, async_=True)
            h = mma.row.row(n, b_s, a_s, async_=True)
            tm.wait(f)
            m.set(m * 2.0)
            tm.wait(h)
            m.set(m * 0.5)
            mma.store(m, c)
            mma.store(n, d)


@construct(
    given={
        "a": small("f16", 50, 64),
        "b": small("f16", 40, 64, seed=1),
        "v": small("f16", 40, seed=2),
        "w": small("f32", 50, 1, seed=3),
        "c": unwritten("f32", 50, 40),
        "d": unwritten("f32", 50, 40),
    },
    expect=lambda a, b, v, w, c, d: {
        "c": (product(a, b) + v.astype(f32)).astype(f32),
        "d": (product(a, b) + w).astype(f32),
    },
    co="""
    __co__ void fills_of_rows(global f16 [M, K] a, global f16 [N, K] b, global f16 [N] v, global f32 [M, 1] w,
                              global f32 [M, N] c, global f32 [M, N] d) {
      parallel {i, j} by [cdiv(M, 64), cdiv(N, 64)] : block {
        a_s = dma.copy a.subspan(64, 64).at(i, 0) => shared;
        b_s = dma.copy b.subspan(64, 64).at(j, 0) => shared;
        parallel g by 1 : group-4 {
          m = mma.fill.f32 v.subspan(64).at(j);
          n = mma.fill.f32 0.0f;
          mma.fill n, w.subspan(64, 1).at(i, 0);
          mma.row.row m, a_s.data, b_s.data;
          mma.row.row n, a_s.data, b_s.data;
          mma.store m, c.subspan(64, 64).at(i, j);
          mma.store n, d.subspan(64, 64).at(i, j);
        }
      }
    }
    """,
)
def fills_of_rows(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    v: tm.Global["f16", "N"],
    w: tm.Global["f32", "M", 1],
    c: tm.Global["f32", "M", "N"],
    d: tm.Global["f32", "M", "N"],
):
    """Accumulators that start from a row (a bias) or a column."""
    M, N = c.shape
    for i, j in parallel(cdiv(M, 64), cdiv(N, 64), level="block"):
        a_s = dma.copy(a.subspan(64, 64).at(i, 0), to="shared")
        b_s = dma.copy(b.subspan(64, 64).at(j, 0), to="shared")
        for g in parallel(1, level="group-4"):
            m = mma.fill(v.subspan(64).at(j), "f32")
            n = mma.fill(0.0, "f32")
            mma.fill(n, w.subspan(64, 1).at(i, 0))
            mma.row.row(m, a_s, b_s)
            mma.row.row(n, a_s, b_s)
            mma.store(m, c.subspan(64, 64).at(i, j))
            mma.store(n, d.subspan(64, 64).at(i, j))
