"""Pipelines: events in all their forms, bound copies, hints, roles, batches of multiplies, clusters, schedules."""

from __future__ import annotations

import numpy as np
from construct import construct, random, unwritten

import tilemma as tm
from tilemma import (
    cdiv,
    compose,
    dma,
    event,
    foreach,
    full,
    inthreads,
    mma,
    parallel,
    shared,
    swap,
    tma,
    trigger,
    var,
    wait,
)

f16, f32, s32 = np.float16, np.float32, np.int32
HOPPER = ("sm_90a",)


def product(a, b, c):
    return {"c": (a.astype(f32) @ b.astype(f32).T).astype(c.dtype)}


# Ragged: two tiles along M, and a rest in each dimension.
OPERANDS = {"a": random("f16", 72, 200), "b": random("f16", 40, 200, seed=1), "c": unwritten("f32", 72, 40)}


@construct(
    given=OPERANDS,
    expect=product,
    archs=HOPPER,
    tolerance=2e-6,
    co="""
    __co__ void generations(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel i by cdiv(M, 64) : block {
        shared event full[2], empty[2] = ready;
        shared f16 [64, 64] a_s[2];
        shared f16 [64, 64] b_s[2];
        parallel p by 2 : group-4 {
          inthreads.async (p == 0) {
            foreach k in cdiv(K, 64) {
              wait empty.at(k);
              fa = tma.load.async.evict_first.swiz<128> a.subspan(64, 64).at(i, k) => a_s[k % 2];
              fb = tma.load.async.evict_last.promote<256>.swiz<128> b.subspan(64, 64).at(0, k) => b_s[k % 2];
              trigger full.at(k) after fa, fb;
            }
          }
          inthreads.async (p == 1) {
            mc = mma.fill.f32 0.0f;
            foreach k in cdiv(K, 64) {
              wait full.at(k);
              ma = mma.load.swiz<128> a_s[k % 2];
              mb = mma.load.swiz<128> b_s[k % 2];
              mma.row.row mc, ma, mb;
              trigger empty.at(k);
            }
            mma.store mc, c.subspan(64, 64).at(i, 0);
          }
        }
      }
    }
    """,
)
def generations(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """Events by order, free at first; triggers after copies; hints for the cache; swizzles that are asked for."""
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        full, empty = event(2), event(2, ready=True)
        a_s, b_s = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
        for p in parallel(2, level="group-4"):
            with inthreads(p == 0, async_=True):
                for k in foreach(cdiv(K, 64)):
                    wait(empty.at(k))
                    fa = tma.copy(a.subspan(64, 64).at(i, k), a_s[k % 2], async_=True, evict="first", swizzle=128)
                    fb = tma.copy(
                        b.subspan(64, 64).at(0, k), b_s[k % 2], async_=True, evict="last", promote=256, swizzle=128
                    )
                    trigger(full.at(k), after=(fa, fb))
            with inthreads(p == 1, async_=True):
                mc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, 64)):
                    wait(full.at(k))
                    ma = mma.load(a_s[k % 2], swizzle=128)
                    mb = mma.load(b_s[k % 2], swizzle=128)
                    mma.row.row(mc, ma, mb)
                    trigger(empty.at(k))
                mma.store(mc, c.subspan(64, 64).at(i, 0))


@construct(
    given=OPERANDS,
    expect=product,
    archs=HOPPER,
    tolerance=2e-6,
    co="""
    __co__ void counted_threads(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel i by cdiv(M, 64) : block {
        shared event full[2];
        shared event<128> empty[2];
        shared f16 [64, 64] a_s[2];
        shared f16 [64, 64] b_s[2];
        parallel p by 2 : group-4 {
          inthreads.async (p == 0) {
            foreach k in cdiv(K, 64) {
              wait empty[k % 2];
              tma.copy.async<full[k % 2]> a.subspan(64, 64).at(i, k) => a_s[k % 2];
              tma.copy.async<full[k % 2]> b.subspan(64, 64).at(0, k) => b_s[k % 2];
              trigger full[k % 2];
            }
          }
          inthreads.async (p == 1) {
            foreach s in 2 {
              trigger empty[s];
            }
            mc = mma.fill.f32 0.0f;
            foreach k in cdiv(K, 64) {
              wait full[k % 2];
              mma.row.row mc, a_s[k % 2], b_s[k % 2];
              mma.commit;
              trigger empty[k % 2];
            }
            mma.store mc, c.subspan(64, 64).at(i, 0);
          }
        }
      }
    }
    """,
)
def counted_threads(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """An event that each thread of the consumer completes; operands named where they lie."""
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        full = event(2)
        empty = event(2, threads=128)
        a_s, b_s = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
        for p in parallel(2, level="group-4"):
            with inthreads(p == 0, async_=True):
                for k in foreach(cdiv(K, 64)):
                    wait(empty[k % 2])
                    tma.copy(a.subspan(64, 64).at(i, k), a_s[k % 2], async_=full[k % 2])
                    tma.copy(b.subspan(64, 64).at(0, k), b_s[k % 2], async_=full[k % 2])
                    trigger(full[k % 2])
            with inthreads(p == 1, async_=True):
                for s in foreach(2):
                    trigger(empty[s])
                mc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, 64)):
                    wait(full[k % 2])
                    mma.row.row(mc, a_s[k % 2], b_s[k % 2])
                    mma.commit()
                    trigger(empty[k % 2])
                mma.store(mc, c.subspan(64, 64).at(i, 0))


@construct(
    given=OPERANDS,
    expect=product,
    archs=HOPPER,
    tolerance=2e-6,
    co="""
    __co__ void batches(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel i by cdiv(M, 64) : block {
        shared event full[2], empty[2] = ready;
        shared f16 [64, 64] a_s[2];
        shared f16 [64, 64] b_s[2];
        parallel p by 2 : group-4 {
          inthreads.async (p == 0) {
            foreach k in cdiv(K, 64) {
              wait empty.at(k);
              tma.copy.async<full.at(k)> a.subspan(64, 64).at(i, k) => a_s[k % 2];
              tma.copy.async<full.at(k)> b.subspan(64, 64).at(0, k) => b_s[k % 2];
            }
          }
          inthreads.async (p == 1) {
            mc = mma.fill.f32 0.0f;
            foreach k in cdiv(K, 64) {
              wait full.at(k);
              mma.row.row mc, a_s[k % 2], b_s[k % 2];
              mma.commit;
              mma.wait<1>;
              if (k > 0) { trigger empty.at(k - 1); }
            }
            mma.wait<0>;
            mma.store mc, c.subspan(64, 64).at(i, 0);
          }
        }
      }
    }
    """,
)
def batches(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """Copies that complete an event by themselves; batches that the program waits for itself."""
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        full, empty = event(2), event(2, ready=True)
        a_s, b_s = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
        for p in parallel(2, level="group-4"):
            with inthreads(p == 0, async_=True):
                for k in foreach(cdiv(K, 64)):
                    wait(empty.at(k))
                    tma.copy(a.subspan(64, 64).at(i, k), a_s[k % 2], async_=full.at(k))
                    tma.copy(b.subspan(64, 64).at(0, k), b_s[k % 2], async_=full.at(k))
            with inthreads(p == 1, async_=True):
                mc = mma.fill(0.0, "f32")
                for k in foreach(cdiv(K, 64)):
                    wait(full.at(k))
                    mma.row.row(mc, a_s[k % 2], b_s[k % 2])
                    mma.commit()
                    mma.wait(1)
                    with tm.if_(k > 0):
                        trigger(empty.at(k - 1))
                mma.wait(0)
                mma.store(mc, c.subspan(64, 64).at(i, 0))


@construct(
    given=OPERANDS,
    expect=product,
    tolerance=2e-6,
    co="""
    __co__ void turns(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel i by cdiv(M, 64) : block {
        mc = mma.fill.f32 0.0f;
        fa = dma.copy.async a.subspan(64, 64).at(i, 0) => shared;
        fb = dma.copy.async b.subspan(64, 64).at(0, 0) => shared;
        ga = dma.any;
        gb = dma.any;
        with k in cdiv(K, 64) {
          foreach k(1:) {
            ga = dma.copy.async a.subspan(64, 64).at(i, k) => shared;
            gb = dma.copy.async b.subspan(64, 64).at(0, k) => shared;
            wait fa, fb;
            parallel p by 1 : group-4 { mma.row.row mc, fa.data, fb.data; }
            rotate(fa, ga);
            swap(fb, gb);
          }
        }
        wait fa, fb;
        parallel p by 1 : group-4 {
          mma.row.row mc, fa.data, fb.data;
          mma.store mc, c.subspan(64, 64).at(i, 0);
        }
      }
    }
    """,
)
def turns(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """Futures that change places, names for copies still to be made, a loop without its first turn."""
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        mc = mma.fill(0.0, "f32")
        fa = dma.copy(a.subspan(64, 64).at(i, 0), to="shared", async_=True)
        fb = dma.copy(b.subspan(64, 64).at(0, 0), to="shared", async_=True)
        ga, gb = dma.any(), dma.any()
        for k in foreach(cdiv(K, 64), start=1):
            ga = dma.copy(a.subspan(64, 64).at(i, k), to="shared", async_=True)
            gb = dma.copy(b.subspan(64, 64).at(0, k), to="shared", async_=True)
            wait(fa, fb)
            for p in parallel(1, level="group-4"):
                mma.row.row(mc, fa.data, fb.data)
            swap(fa, ga)
            swap(fb, gb)
        wait(fa, fb)
        for p in parallel(1, level="group-4"):
            mma.row.row(mc, fa.data, fb.data)
            mma.store(mc, c.subspan(64, 64).at(i, 0))


@construct(
    given=OPERANDS,
    expect=product,
    tolerance=2e-6,
    co="""
    __co__ void turns_of_warps(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel i by cdiv(M, 64) : block {
        with k in cdiv(K, 64) {
          fa = dma.copy.async a.subspan(64, 64).at(i, k) => shared;
          fb = dma.copy.async b.subspan(64, 64).at(0, k) => shared;
          ga = dma.any;
          gb = dma.any;
          parallel p by 4 : group {
            mc = mma.fill.f32 0.0f;
            foreach k(1:) {
              ga = dma.copy.async a.subspan(64, 64).at(i, k) => shared;
              gb = dma.copy.async b.subspan(64, 64).at(0, k) => shared;
              wait fa, fb;
              ma = mma.load fa.data.chunkat(p, _);
              mb = mma.load fb.data;
              mma.row.row mc, ma, mb;
              swap(fa, ga);
              swap(fb, gb);
            }
            wait fa, fb;
            ma = mma.load fa.data.chunkat(p, _);
            mb = mma.load fb.data;
            mma.row.row mc, ma, mb;
            mma.store mc, c.subspan(16, 64).at(i # p, 0);
          }
        }
      }
    }
    """,
)
def turns_of_warps(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """Each warp exchanges the names of the block's copies; one that is behind still reads the former ones."""
    (M, K) = a.shape
    for i in parallel(cdiv(M, 64), level="block"):
        fa = dma.copy(a.subspan(64, 64).at(i, 0), to="shared", async_=True)
        fb = dma.copy(b.subspan(64, 64).at(0, 0), to="shared", async_=True)
        ga, gb = dma.any(), dma.any()
        for p in parallel(4, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, 64), start=1):
                ga = dma.copy(a.subspan(64, 64).at(i, k), to="shared", async_=True)
                gb = dma.copy(b.subspan(64, 64).at(0, k), to="shared", async_=True)
                wait(fa, fb)
                mma.row.row(mc, mma.load(fa.data.chunkat(p, full)), mma.load(fb.data))
                swap(fa, ga)
                swap(fb, gb)
            wait(fa, fb)
            mma.row.row(mc, mma.load(fa.data.chunkat(p, full)), mma.load(fb.data))
            mma.store(mc, c.subspan(16, 64).at(compose(i, p), 0))


@construct(
    given={"a": random("f16", 200, 64), "last": unwritten("f16", 64, 64), "out": unwritten("f16", 200, 64)},
    expect=lambda a, last, out: {"last": np.concatenate([a[192:], np.zeros((56, 64), f16)]), "out": a},
    archs=HOPPER,
    co="""
    __co__ void both_ways(global f16 [M, 64] a, global f16 [64, 64] last, global f16 [M, 64] out) {
      parallel b by 1 : block {
        shared f16 [64, 64] s;
        with k in cdiv(M, 64) {
          foreach k {
            f = tma.copy.async.zfill.swiz<64> a.subspan(64, 64).at(k, 0) => s;
            wait f;
            tma.copy.evict_first s => out.subspan(64, 64).at(k, 0);
          }
          tma.load.zfill.swiz<64> a.subspan(64, 64).at(k(-1), 0) => s;
          tma.copy s => last;
        }
      }
    }
    """,
)
def both_ways(a: tm.Global["f16", "M", 64], last: tm.Global["f16", 64, 64], out: tm.Global["f16", "M", 64]):
    """Loads and stores by TMA, clipped at the edge, and the index of the last turn."""
    M = a.shape[0]
    for b in parallel(1, level="block"):
        s = shared("f16", 64, 64)
        k = tm.bound(cdiv(M, 64))
        for i in foreach(k):
            f = tma.copy(a.subspan(64, 64).at(i, 0), s, async_=True, zfill=True, swizzle=64)
            wait(f)
            tma.copy(s, out.subspan(64, 64).at(i, 0), evict="first")
        tma.copy(a.subspan(64, 64).at(k.last, 0), s, zfill=True, swizzle=64)
        tma.copy(s, last)


@construct(
    given={
        "a": random("f16", 200, 136),
        "b": random("f16", 72, 136, seed=1),
        "order": np.array([[1, 1], [0, 0], [1, 0], [0, 1]], s32),
        "c": unwritten("f16", 200, 72),
    },
    expect=lambda a, b, order, c: product(a, b, c),
    archs=HOPPER,
    tolerance=1e-3,
    co="""
    __co__ void shared_tiles(global f16 [M, K] a, global f16 [N, K] b, global s32 [T, 2] order, global f16 [M, N] c) {
      parallel pair by 1 : cluster-grid {
        parallel rank by 2 : block {
          shared event full[2], empty[2];
          shared f16 [64, 64] a_s[2];
          shared f16 [64, 64] b_s[2];
          shared f16 [64, 64] c_s;
          parallel p by 2 : group-4 {
            inthreads.async (p == 0) {
              mutable int n = 0;
              foreach t in T {
                foreach k in cdiv(K, 64) {
                  wait empty[n];
                  tma.copy.async<full[n]> a.subspan(64, 64).at(order.at(t, 0) * 2 + rank, k) => a_s[n];
                  tma.copy.async<full[n]>.multicast b.subspan(64, 64).at(order.at(t, 1), k) => b_s[n];
                  trigger full[n];
                  n = n == 1 ? 0 : n + 1;
                }
              }
            }
            inthreads.async (p == 1) {
              mutable int n = 0;
              foreach s in 2 {
                trigger.cluster empty[s];
              }
              foreach t in T {
                mc = mma.fill.f32 0.0f;
                foreach k in cdiv(K, 64) {
                  wait full[n];
                  mma.row.row mc, a_s[n], b_s[n];
                  mma.commit;
                  trigger.cluster empty[n];
                  n = n == 1 ? 0 : n + 1;
                }
                mma.store mc, c_s;
                tma.copy c_s => c.subspan(64, 64).at(order.at(t, 0) * 2 + rank, order.at(t, 1));
              }
            }
          }
        }
      }
    }
    """,
)
def shared_tiles(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    order: tm.Global["s32", "T", 2],
    c: tm.Global["f16", "M", "N"],
):
    """A pair of blocks that stay, shares B, and takes its tiles in the order that a tensor says."""
    K, T = a.shape[1], order.shape[0]
    for _pair in parallel(1, level="cluster"):
        for rank in parallel(2, level="block"):
            full, empty = event(2), event(2)
            a_s, b_s = shared("f16", 64, 64, copies=2), shared("f16", 64, 64, copies=2)
            c_s = shared("f16", 64, 64)
            for p in parallel(2, level="group-4"):
                with inthreads(p == 0, async_=True):
                    n = var(0)
                    for t in foreach(T):
                        for k in foreach(cdiv(K, 64)):
                            wait(empty[n])
                            tma.copy(a.subspan(64, 64).at(order[t, 0] * 2 + rank, k), a_s[n], async_=full[n])
                            tma.copy(b.subspan(64, 64).at(order[t, 1], k), b_s[n], async_=full[n], multicast=True)
                            trigger(full[n])
                            n.set(tm.select(n == 1, 0, n + 1))
                with inthreads(p == 1, async_=True):
                    n = var(0)
                    for s in foreach(2):
                        trigger(empty[s], cluster=True)
                    for t in foreach(T):
                        mc = mma.fill(0.0, "f32")
                        for _k in foreach(cdiv(K, 64)):
                            wait(full[n])
                            mma.row.row(mc, a_s[n], b_s[n])
                            mma.commit()
                            trigger(empty[n], cluster=True)
                            n.set(tm.select(n == 1, 0, n + 1))
                        mma.store(mc, c_s)
                        tma.copy(c_s, c.subspan(64, 64).at(order[t, 0] * 2 + rank, order[t, 1]))


@construct(
    given=OPERANDS,
    expect=product,
    tolerance=2e-6,
    co="""
    [[pipeline(cluster=1, order=keep)]]
    __co__ void automatic(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
      parallel {i, j} by [cdiv(M, 32), cdiv(N, 32)] : block {
        mc = mma.fill.f32 0.0f;
        [[pipeline(stages=3, producer=false)]]
        foreach k in cdiv(K, 32) {
          fa = dma.copy a.subspan(32, 32).at(i, k) => shared;
          fb = dma.copy b.subspan(32, 32).at(j, k) => shared;
          parallel w by 2 : group {
            ma = mma.load fa.data.subspan(16, 32).at(w, 0);
            mb = mma.load fb.data;
            mma.row.row mc, ma, mb;
          }
        }
        parallel w by 2 : group
          mma.store mc, c.subspan(32, 32).at(i, j).subspan(16, 32).at(w, 0);
      }
    }
    """,
)
@tm.kernel(pipeline=tm.Pipeline(cluster=1, order="keep"))
def automatic(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    """A synchronous loop that the compiler is asked to pipeline, with settings of the loop and of the kernel."""
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 32), level="block"):
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32), pipeline=tm.Pipeline(stages=3, producer=False)):
            fa = dma.copy(a.subspan(32, 32).at(i, k), to="shared")
            fb = dma.copy(b.subspan(32, 32).at(j, k), to="shared")
            for w in parallel(2, level="group"):
                ma = mma.load(fa.data.subspan(16, 32).at(w, 0))
                mb = mma.load(fb.data)
                mma.row.row(mc, ma, mb)
        for w in parallel(2, level="group"):
            mma.store(mc, c.subspan(32, 32).at(i, j).subspan(16, 32).at(w, 0))
