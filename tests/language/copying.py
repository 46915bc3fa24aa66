"""Copies: both forms, edges, swizzles, zfill, transposition, padding, asynchronous ones with futures."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import cdiv, dma, foreach, local, parallel, shared, tma, wait

f32, f16, s32 = np.float32, np.float16, np.int32


@construct(
    given={"a": random("f16", 40, 70), "out": unwritten("f16", 40, 70)},
    expect=lambda a, out: {"out": a},
    co="""
    __co__ void there_and_back(global f16 [M, N] a, global f16 [M, N] out) {
      parallel {i, j} by [cdiv(M, 16), cdiv(N, 32)] : block {
        shared f16 [16, 32] s;
        dma.copy a.subspan(16, 32).at(i, j) => s;
        dma.copy s => out.subspan(16, 32).at(i, j);
      }
    }
    """,
)
def there_and_back(a: tm.Global["f16", "M", "N"], out: tm.Global["f16", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 16), cdiv(N, 32), level="block"):
        s = shared("f16", 16, 32)
        dma.copy(a.subspan(16, 32).at(i, j), s)
        dma.copy(s, out.subspan(16, 32).at(i, j))


@construct(
    given={"a": random("f32", 33, 19), "out": unwritten("f32", 33, 19)},
    expect=lambda a, out: {"out": a * f32(3)},
    co="""
    __co__ void new_buffers(global f32 [M, N] a, global f32 [M, N] out) {
      parallel {i, j} by [cdiv(M, 8), cdiv(N, 8)] : block {
        f = dma.copy a.subspan(8, 8).at(i, j) => shared;
        parallel {x, y} by [8, 8] : thread
          f.data.at(x, y) = f.data.at(x, y) * 3.0f;
        dma.copy f.data => out.subspan(8, 8).at(i, j);
      }
    }
    """,
)
def new_buffers(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 8), cdiv(N, 8), level="block"):
        f = dma.copy(a.subspan(8, 8).at(i, j), to="shared")
        for x, y in parallel(8, 8, level="thread"):
            f.data[x, y] = f.data[x, y] * 3.0
        dma.copy(f.data, out.subspan(8, 8).at(i, j))


@construct(
    given={"a": random("f16", 64, 64), "out": unwritten("f16", 64, 64)},
    expect=lambda a, out: {"out": a + a},
    co="""
    __co__ void swizzled(global f16 [M, N] a, global f16 [M, N] out) {
      parallel i by cdiv(M, 32) : block {
        f = dma.copy.swiz<128> a.subspan(32, 64).at(i, 0) => shared;
        parallel w by 4 : group, {x, y} by [8, 4] : thread
          foreach k in 16
            f.data.chunkat(w, k).at(x, y) = f.data.chunkat(w, k).at(x, y) * 2.0f;
        dma.copy f.data => out.subspan(32, 64).at(i, 0);
      }
    }
    """,
)
def swizzled(a: tm.Global["f16", "M", "N"], out: tm.Global["f16", "M", "N"]):
    for i in parallel(cdiv(a.shape[0], 32), level="block"):
        f = dma.copy(a.subspan(32, 64).at(i, 0), to="shared", swizzle=128)
        for w in parallel(4, level="group"):
            for x, y in parallel(8, 4, level="thread"):
                for k in foreach(16):
                    f.data.chunkat(w, k)[x, y] = f.data.chunkat(w, k)[x, y] * 2.0
        dma.copy(f.data, out.subspan(32, 64).at(i, 0))


@construct(
    given={"a": random("f16", 21, 37), "out": unwritten("f16", 37, 21)},
    expect=lambda a, out: {"out": a.T + f16(0)},
    co="""
    __co__ void transposing(global f16 [M, N] a, global f16 [N, M] out) {
      parallel {i, j} by [cdiv(M, 16), cdiv(N, 16)] : block {
        f = dma.transp<1, 0> a.subspan(16, 16).at(i, j) => shared;
        dma.copy f.data => out.subspan(16, 16).at(j, i);
      }
    }
    """,
)
def transposing(a: tm.Global["f16", "M", "N"], out: tm.Global["f16", "N", "M"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 16), cdiv(N, 16), level="block"):
        f = dma.copy(a.subspan(16, 16).at(i, j), to="shared", transp=(1, 0))
        dma.copy(f.data, out.subspan(16, 16).at(j, i))


def padded_by_hand(a, value):
    out = np.full((2 * 4 - 1 + 3, 5 + 2), value, a.dtype)
    out[1:8:2, 0:5] = a
    return out


@construct(
    given={"a": random("f32", 4, 5), "out": unwritten("f32", 10, 7)},
    expect=lambda a, out: {"out": padded_by_hand(a, 7.0)},
    co="""
    __co__ void padded(global f32 [4, 5] a, global f32 [10, 7] out) {
      parallel b by 1 : block {
        f = dma.pad<{1, 0}, {2, 2}, {1, 0}, 7.0f> a => shared;
        dma.copy f.data => out;
      }
    }
    """,
)
def padded(a: tm.Global["f32", 4, 5], out: tm.Global["f32", 10, 7]):
    for b in parallel(1, level="block"):
        f = dma.copy(a, to="shared", pad=((1, 2, 1), (0, 2, 0)), pad_value=7.0)
        dma.copy(f.data, out)


@construct(
    given={"a": random("f32", 13, 9), "out": unwritten("f32", 16, 16)},
    expect=lambda a, out: {"out": np.pad(a, ((0, 3), (0, 7)))},
    co="""
    __co__ void zero_filled(global f32 [M, N] a, global f32 [16, 16] out) {
      parallel b by 1 : block {
        shared f32 [16, 16] s {5.0f};
        dma.copy.zfill a.view(M, N).from(0, 0) => s;
        dma.copy s => out;
      }
    }
    """,
)
def zero_filled(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", 16, 16]):
    M, N = a.shape
    for b in parallel(1, level="block"):
        s = shared("f32", 16, 16, init=5.0)
        dma.copy(a.view(M, N).from_(0, 0), s, zfill=True)
        dma.copy(s, out)


@construct(
    given={"a": small("s32", 10, 9), "out": unwritten("s32", 10, 9)},
    expect=lambda a, out: {"out": a},
    co="""
    __co__ void remainder_copies(global s32 [M, N] a, global s32 [M, N] out) {
      parallel {i, j} by [cdiv(M, 4), cdiv(N, 4)] : block {
        shared s32 [4, 4] s;
        dma.copy a.modspan(4, 4).at(i, j) => s;
        dma.copy s => out.subspan(4, 4).at(i, j);
      }
    }
    """,
)
def remainder_copies(a: tm.Global["s32", "M", "N"], out: tm.Global["s32", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 4), cdiv(N, 4), level="block"):
        s = shared("s32", 4, 4)
        dma.copy(a.modspan(4, 4).at(i, j), s)
        dma.copy(s, out.subspan(4, 4).at(i, j))


@construct(
    given={"a": random("f32", 6, 64), "out": unwritten("f32", 64)},
    expect=lambda a, out: {"out": np.add.accumulate(a, axis=0, dtype=f32)[-1]},
    co="""
    __co__ void double_buffered(global f32 [K, 64] a, global f32 [64] out) {
      parallel b by 1 : block {
        shared f32 [1, 64] s[2];
        shared f32 [64] total {0.0f};
        dma.copy a.subspan(1, 64).at(0, 0) => s[0];
        foreach k in K {
          if (k + 1 < K) {
            dma.copy a.subspan(1, 64).at(k + 1, 0) => s[(k + 1) % 2];
          }
          parallel t by 64 : thread
            total.at(t) = total.at(t) + s[k % 2].at(0, t);
        }
        parallel t by 64 : thread
          out.at(t) = total.at(t);
      }
    }
    """,
)
def double_buffered(a: tm.Global["f32", "K", 64], out: tm.Global["f32", 64]):
    (K, _) = a.shape
    for b in parallel(1, level="block"):
        s = shared("f32", 1, 64, copies=2)
        total = shared("f32", 64, init=0.0)
        dma.copy(a.subspan(1, 64).at(0, 0), s[0])
        for k in foreach(K):
            with tm.if_(k + 1 < K):
                dma.copy(a.subspan(1, 64).at(k + 1, 0), s[(k + 1) % 2])
            for t in parallel(64, level="thread"):
                total[t] = total[t] + s[k % 2][0, t]
        for t in parallel(64, level="thread"):
            out[t] = total[t]


@construct(
    given={"a": random("f32", 40, 33), "out": unwritten("f32", 40, 33)},
    expect=lambda a, out: {"out": a},
    co="""
    __co__ void futures(global f32 [M, N] a, global f32 [M, N] out) {
      parallel {i, j} by [cdiv(M, 8), cdiv(N, 8)] : block {
        f = dma.copy.async a.subspan(8, 8).at(i, j) => shared;
        wait f;
        dma.copy f.data => out.subspan(8, 8).at(i, j);
      }
    }
    """,
)
def futures(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 8), cdiv(N, 8), level="block"):
        f = dma.copy(a.subspan(8, 8).at(i, j), to="shared", async_=True)
        wait(f)
        dma.copy(f.data, out.subspan(8, 8).at(i, j))


@construct(
    given={"a": random("f32", 64, 8), "out": unwritten("f32", 64)},
    expect=lambda a, out: {"out": np.add.accumulate(a, axis=1, dtype=f32)[:, -1]},
    co="""
    __co__ void local_copies(global f32 [64, 8] a, global f32 [64] out) {
      parallel b by 2 : block, t by 32 : thread {
        local f32 [1, 8] mine;
        dma.copy a.subspan(1, 8).at(b # t, 0) => mine;
        f32 total = mine.at(0, 0);
        foreach k(1:) in 8
          total = total + mine.at(0, k);
        out.at(b # t) = total;
      }
    }
    """.replace("foreach k(1:) in 8", "foreach k in 7").replace("mine.at(0, k);", "mine.at(0, k + 1);"),
)
def local_copies(a: tm.Global["f32", 64, 8], out: tm.Global["f32", 64]):
    for b in parallel(2, level="block"):
        for t in parallel(32, level="thread"):
            mine = local("f32", 1, 8)
            dma.copy(a.subspan(1, 8).at(b * 32 + t, 0), mine)
            total = tm.var(mine[0, 0])
            for k in foreach(7):
                total += mine[0, k + 1]
            out[b * 32 + t] = total


@construct(
    given={"a": random("bf16", 5, 6, 7), "out": unwritten("bf16", 5, 6, 7)},
    expect=lambda a, out: {"out": a},
    co="""
    __co__ void three_axes(global bf16 [A, B, C] a, global bf16 [A, B, C] out) {
      parallel {i, j} by [cdiv(A, 2), cdiv(C, 4)] : block {
        f = dma.copy a.subspan(2, 6, 4).at(i, 0, j) => shared;
        dma.copy f.data => out.subspan(2, 6, 4).at(i, 0, j);
      }
    }
    """,
)
def three_axes(a: tm.Global["bf16", "A", "B", "C"], out: tm.Global["bf16", "A", "B", "C"]):
    A, B, C = a.shape
    for i, j in parallel(cdiv(A, 2), cdiv(C, 4), level="block"):
        f = dma.copy(a.subspan(2, 6, 4).at(i, 0, j), to="shared")
        dma.copy(f.data, out.subspan(2, 6, 4).at(i, 0, j))


@construct(
    given={"a": random("f32", 12, 8)[::-1, ::2].T, "out": unwritten("f32", 4, 12)},
    expect=lambda a, out: {"out": a + f32(0)},
    co="""
    __co__ void any_strides(global f32 [M, N] a, global f32 [M, N] out) {
      parallel b by cdiv(N, 4) : block {
        f = dma.copy a.subspan(4, 4).at(0, b) => shared;
        dma.copy f.data => out.subspan(4, 4).at(0, b);
      }
    }
    """,
)
def any_strides(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", "M", "N"]):
    for b in parallel(cdiv(a.shape[1], 4), level="block"):
        f = dma.copy(a.subspan(4, 4).at(0, b), to="shared")
        dma.copy(f.data, out.subspan(4, 4).at(0, b))


@construct(
    given={"a": random("f16", 3, 40), "out": unwritten("f16", 3, 40), "n": 23},
    expect=lambda a, out, n: {"out": np.where(np.arange(40) < 23, a, f16(0))},
    co="""
    __co__ void run_time_extents(global f16 [M, 40] a, global f16 [M, 40] out, int n) {
      parallel b by M : block {
        shared f16 [1, 40] s;
        dma.copy a.view(1, n).from(b, 0) => s;
        dma.copy s => out.view(1, 40).from(b, 0);
      }
    }
    """,
)
def run_time_extents(a: tm.Global["f16", "M", 40], out: tm.Global["f16", "M", 40], n: tm.Int):
    for b in parallel(a.shape[0], level="block"):
        s = shared("f16", 1, 40)
        dma.copy(a.view(1, n).from_(b, 0), s)
        dma.copy(s, out.view(1, 40).from_(b, 0))


CUBES, HEADS = small("f32", 6, 16, 64), small("f16", 3, 2, 20, 64)


@construct(
    given={"x": CUBES, "y": unwritten("f32", 6, 16, 64), "q": HEADS, "o": np.zeros_like(HEADS)},
    expect=lambda x, y, q, o: {"y": x, "o": np.where(np.arange(20)[:, None] < 16, q, f16(0))},
    archs=("sm_90a",),
    co="""
    __co__ void tensor_tiles(global f32 [6, 16, 64] x, global f32 [6, 16, 64] y,
                             global f16 [B, H, S, 64] q, global f16 [B, H, S, 64] o) {
      parallel p by 1 : block {
        f = tma.copy.async x => shared;
        wait f;
        tma.copy f.data => y;
      }
      parallel {b, h} by [cdiv(B, 2), H] : block {
        shared f16 [2, 3, 16, 64] s;
        tma.copy.swiz<128> q.subspan(2, 1, 16, 64).at(b, h, 0, 0) => s.subspan(2, 1, 16, 64).at(0, 1, 0, 0);
        tma.copy.swiz<128> s.subspan(2, 1, 16, 64).at(0, 1, 0, 0) => o.subspan(2, 1, 16, 64).at(b, h, 0, 0);
      }
    }
    """,
)
def tensor_tiles(
    x: tm.Global["f32", 6, 16, 64],
    y: tm.Global["f32", 6, 16, 64],
    q: tm.Global["f16", "B", "H", "S", 64],
    o: tm.Global["f16", "B", "H", "S", 64],
):
    """Tiles with several axes: a box over axes that have no gap in the buffer, else one for each part."""
    B, H, _, _ = q.shape
    for _p in parallel(1, level="block"):
        f = tma.copy(x, to="shared", async_=True)
        wait(f)
        tma.copy(f.data, y)
    for b, h in parallel(cdiv(B, 2), H, level="block"):
        s = shared("f16", 2, 3, 16, 64)
        part = s.subspan(2, 1, 16, 64).at(0, 1, 0, 0)
        tma.copy(q.subspan(2, 1, 16, 64).at(b, h, 0, 0), part, swizzle=128)
        tma.copy(part, o.subspan(2, 1, 16, 64).at(b, h, 0, 0), swizzle=128)
