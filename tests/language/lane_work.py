"""One lane's registers: fragments by lanes, their multiply, values of other lanes."""

from __future__ import annotations

import numpy as np
from construct import construct, small, unwritten

import tilemma as tm
from tilemma import (
    cdiv,
    foreach,
    if_,
    lane,
    load_matrix_a,
    load_matrix_b,
    load_matrix_c,
    load_matrix_e,
    local,
    mma,
    parallel,
    shared,
    store_matrix_d,
    var,
)

f32 = np.float32


@construct(
    given={"a": small("bf16", 37, 50), "b": small("bf16", 50, 21, seed=1), "d": unwritten("f32", 37, 21)},
    expect=lambda a, b, d: {"d": (a.astype(f32) @ b.astype(f32)) * 2 + 1},
    co="""
    __co__ void lane_product(global bf16 [M, K] a, global bf16 [K, N] b, global f32 [M, N] d) {
      parallel {i, j} by [cdiv(M, 32), cdiv(N, 8)] : block {
        parallel g by 2 : group {
          parallel t by 32 : thread {
            local f32 [4] x{0.0};
            foreach k in cdiv(K, 16) {
              y = load_matrix_a<16, 8, 16>(a, i * 32 + g * 16, k * 16);
              z = load_matrix_b<16, 8, 16>(b, k * 16, j * 8);
              mma.row.col x, y, z;
            }
            foreach v in 4 {
              x[v] = x[v] * 2.0f;
              x[v] += 1.0f;
            }
            store_matrix_d<16, 8, 16>(d, x, i * 32 + g * 16, j * 8);
          }
        }
      }
    }
    """,
)
def lane_product(a: tm.Global["bf16", "M", "K"], b: tm.Global["bf16", "K", "N"], d: tm.Global["f32", "M", "N"]):
    """Edges of the arrays are ragged: reads outside are zero, writes are dropped."""
    (M, K), N = a.shape, b.shape[1]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 8), level="block"):
        for g in parallel(2, level="group"):
            for t in parallel(32, level="thread"):
                x = local("f32", 4, init=0.0)
                for k in foreach(cdiv(K, 16)):
                    y = load_matrix_a[16, 8, 16](a, i * 32 + g * 16, k * 16)
                    z = load_matrix_b[16, 8, 16](b, k * 16, j * 8)
                    mma.row.col(x, y, z)
                for v in foreach(4):
                    x[v] = x[v] * 2.0
                    x[v] += 1.0
                store_matrix_d[16, 8, 16](d, x, i * 32 + g * 16, j * 8)


@construct(
    given={
        "a": small("f16", 16, 16),
        "e": np.full((16, 2), 0x4444, np.uint16),
        "b": small("f16", 32, 8, seed=1),
        "d": unwritten("f32", 16, 8),
    },
    expect=lambda a, e, b, d: {"d": a.astype(f32) @ b.astype(f32).reshape(8, 4, 8)[:, :2].reshape(16, 8)},
    co="""
    __co__ void sparse_fragments(global f16 [16, 16] a, global u16 [16, 2] e, global f16 [32, 8] b,
                                 global f32 [16, 8] d) {
      parallel p by 1 : block, t by 32 : thread {
        local f32 [4] z{0.0};
        x = load_matrix_a<16, 8, 32>(a, 0, 0);
        w = load_matrix_e<16, 8, 32>(e, 0, 0, atom = SM80_SPARSE_16x8x32_F32F16F16F32_TN);
        y = load_matrix_b<16, 8, 32>(b, 0, 0);
        mma.row.col.sp z, x, y, w;
        store_matrix_d<16, 8, 32>(d, z, 0, 0);
      }
    }
    """,
)
def sparse_fragments(
    a: tm.Global["f16", 16, 16], e: tm.Global["u16", 16, 2], b: tm.Global["f16", 32, 8], d: tm.Global["f32", 16, 8]
):
    """The lanes hold the stored half of A, and words of its metadata."""
    for p in parallel(1, level="block"):
        for t in parallel(32, level="thread"):
            z = local("f32", 4, init=0.0)
            x = load_matrix_a[16, 8, 32](a, 0, 0)
            w = load_matrix_e[16, 8, 32](e, 0, 0, atom="SM80_SPARSE_16x8x32_F32F16F16F32_TN")
            y = load_matrix_b[16, 8, 32](b, 0, 0)
            mma.row.col.sp(z, x, y, w)
            store_matrix_d[16, 8, 32](d, z, 0, 0)


@construct(
    given={
        "a": small("f16", 32, 16),
        "b": small("f16", 16, 8, seed=1),
        "c": small("f16", 32, 8, seed=2),
        "d": unwritten("f16", 32, 8),
    },
    expect=lambda a, b, c, d: {"d": (a.astype(f32) @ b.astype(f32) + c).astype(np.float16)},
    co="""
    __co__ void lane_named(global f16 [32, 16] a, global f16 [16, 8] b, global f16 [32, 8] c,
                           global f16 [32, 8] d) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;
        parallel t by 64 : thread {
          y = load_matrix_a<16, 8, 16>(a_s.data, t / 32 * 16, 0, atom = SM80_16x8x16_F16F16F16F16_TN);
          z = load_matrix_b<16, 8, 16>(b, 0, 0);
          x = load_matrix_c<16, 8, 16>(c, t / 32 * 16, 0);
          [[atom(SM80_16x8x16_F16F16F16F16_TN)]] mma.row.row x, y, z;
          store_matrix_d<16, 8, 16>(d, x, t / 32 * 16, 0);
        }
      }
    }
    """,
)
def lane_named(
    a: tm.Global["f16", 32, 16], b: tm.Global["f16", 16, 8], c: tm.Global["f16", 32, 8], d: tm.Global["f16", 32, 8]
):
    """A level of two warps without a group; A in shared memory."""
    for p in parallel(1, level="block"):
        a_s = tm.dma.copy(a, to="shared")
        for t in parallel(64, level="thread"):
            y = load_matrix_a[16, 8, 16](a_s, t // 32 * 16, 0, atom="SM80_16x8x16_F16F16F16F16_TN")
            z = load_matrix_b[16, 8, 16](b, 0, 0)
            x = load_matrix_c[16, 8, 16](c, t // 32 * 16, 0)
            mma.row.row(x, y, z, atom="SM80_16x8x16_F16F16F16F16_TN")
            store_matrix_d[16, 8, 16](d, x, t // 32 * 16, 0)


def exchanged(x, h, y, u):
    i = np.arange(64)
    warp, own = i // 32 * 32, i % 32
    rows = [
        x[warp + (own ^ 5)],
        x[np.where(own >= 3, i - 3, i)],
        x[np.where(own < 29, i + 3, i)],
        x[warp + 7],
        x[warp + i * 5 % 32],
        h[warp + (own ^ 1)].astype(f32),
    ]
    votes = [sum(1 << int(n) for n in np.flatnonzero(half > 0)) for half in x.reshape(2, 32)]
    return {"y": np.stack(rows), "u": np.repeat(np.array(votes, np.uint32), 32)}


@construct(
    given={
        "x": small("f32", 64),
        "h": small("f16", 64, seed=1),
        "y": unwritten("f32", 6, 64),
        "u": unwritten("u32", 64),
    },
    expect=exchanged,
    co="""
    __co__ void lane_exchange(global f32 [64] x, global f16 [64] h, global f32 [6, 64] y, global u32 [64] u) {
      parallel p by 1 : block, t by 64 : thread {
        v = x.at(t);
        y.at(0, t) = __shfl_xor(v, 5);
        y.at(1, t) = __shfl_up(v, 3);
        y.at(2, t) = __shfl_down(v, 3);
        y.at(3, t) = __shfl_idx(v, 7);
        y.at(4, t) = __shfl_idx(v, t * 5 % 32);
        y.at(5, t) = __to<f32>(__shfl_xor(h.at(t), 1));
        u.at(t) = __ballot(v > 0.0f);
      }
    }
    """,
)
def lane_exchange(
    x: tm.Global["f32", 64], h: tm.Global["f16", 64], y: tm.Global["f32", 6, 64], u: tm.Global["u32", 64]
):
    for p in parallel(1, level="block"):
        for t in parallel(64, level="thread"):
            v = x[t]
            y[0, t] = lane.shfl_xor(v, 5)
            y[1, t] = lane.shfl_up(v, 3)
            y[2, t] = lane.shfl_down(v, 3)
            y[3, t] = lane.shfl_idx(v, 7)
            y[4, t] = lane.shfl_idx(v, t * 5 % 32)
            y[5, t] = lane.shfl_xor(h[t], 1).astype("f32")
            u[t] = lane.ballot(v > 0.0)


@construct(
    given={"a": small("s32", 4, 100), "d": unwritten("f64", 4)},
    expect=lambda a, d: {"d": a.astype(np.float64).sum(axis=1)},
    co="""
    __co__ void lane_sums(global s32 [M, K] a, global f64 [M] d) {
      parallel i by M : block, t by 32 : thread {
        mutable f64 total = 0.0;
        foreach k in cdiv(K, 32) {
          if (k * 32 + t < K) { total += __to<f64>(a.at(i, k * 32 + t)); }
        }
        foreach s in 5 { total += __shfl_xor(total, 16 >> s); }
        if (t == 0) { d.at(i) = total; }
      }
    }
    """,
)
def lane_sums(a: tm.Global["s32", "M", "K"], d: tm.Global["f64", "M"]):
    """A sum over K that was split over the lanes ends in a butterfly."""
    M, K = a.shape
    for i in parallel(M, level="block"):
        for t in parallel(32, level="thread"):
            total = var(0.0, "f64")
            for k in foreach(cdiv(K, 32)):
                with if_(k * 32 + t < K):
                    total += a[i, k * 32 + t].astype("f64")
            for s in foreach(5):
                total += lane.shfl_xor(total, 16 >> s)
            with if_(t == 0):
                d[i] = total


@construct(
    given={"d": unwritten("s32", 16, 8)},
    expect=lambda d: {"d": np.array([[r % 8 * 4 + c // 2 for c in range(8)] for r in range(16)], np.int32)},
    co="""
    __co__ void lane_owners(global s32 [16, 8] d) {
      parallel p by 1 : block {
        shared s32 [16, 8] s;
        parallel t by 32 : thread {
          local s32 [4] own;
          foreach v in 4 { own[v] = t; }
          store_matrix_d<16, 8, 16>(s, own, 0, 0, atom = SM80_16x8x16_F32F16F16F32_TN);
        }
        dma.copy s => d;
      }
    }
    """,
)
def lane_owners(d: tm.Global["s32", 16, 8]):
    """Who owns each element of C: the lanes stamp their numbers with the instruction's partition."""
    for p in parallel(1, level="block"):
        s = shared("s32", 16, 8)
        for t in parallel(32, level="thread"):
            own = local("s32", 4)
            for v in foreach(4):
                own[v] = t
            store_matrix_d[16, 8, 16](s, own, 0, 0, atom="SM80_16x8x16_F32F16F16F32_TN")
        tm.dma.copy(s, d)
