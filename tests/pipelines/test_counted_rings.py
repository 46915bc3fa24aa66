"""Rings that a program counts by a variable of its own, across tiles: both languages, on reference and machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import (
    cdiv,
    croqtile,
    event,
    foreach,
    if_,
    inthreads,
    mma,
    parallel,
    shared,
    testing,
    tma,
    trigger,
    var,
)
from tilemma import wait as wait_
from tilemma.kernels import Kernel

CO = """
#define S 3
__co__ void ring(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
  parallel blk by 2 : block {
    shared event full[S], empty[S];
    shared f16 [64, 64] a_s[S];
    shared f16 [64, 64] b_s[S];
    parallel wg by 2 : group-4, t by 128 : thread {
      inthreads.async (wg == 0 && t == 0) {
        mutable COUNT n = 0;
        foreach tile in [cdiv(cdiv(M, 64) * cdiv(N, 64), 2)] {
          id = tile * 2 + blk;
          if (id < cdiv(M, 64) * cdiv(N, 64))
            foreach k in [cdiv(K, 64)] {
              wait empty.at(n);
              tma.copy.async<full[n % S]>.swiz<128> a.subspan(64, 64).at(id / cdiv(N, 64), k) => a_s[n % S];
              tma.copy.async<full[n % S]>.swiz<128> b.subspan(64, 64).at(id % cdiv(N, 64), k) => b_s[n % S];
              trigger full[n % S];
              n = n + 1;
            }
        }
      }
      inthreads.async (wg == 1) {
        mutable COUNT n = 0;
        foreach s in [S] trigger empty[s];
        foreach tile in [cdiv(cdiv(M, 64) * cdiv(N, 64), 2)] {
          id = tile * 2 + blk;
          if (id < cdiv(M, 64) * cdiv(N, 64)) {
            mc = mma.fill.f32 0.0f;
            foreach k in [cdiv(K, 64)] {
              wait full.at(n);
              mma.row.row mc, a_s[n % S], b_s[n % S];
              trigger empty.at(n);
              n = n + 1;
            }
            mma.store mc, c.subspan(64, 64).at(id / cdiv(N, 64), id % cdiv(N, 64));
          }
        }
      }
    }
  }
}
"""


@tm.kernel
def ring(
    a: tm.Global["f16", "M", "K"],
    b: tm.Global["f16", "N", "K"],
    c: tm.Global["f32", "M", "N"],
    *,
    S=3,
    COUNT="u32",
):
    (M, K), N = a.shape, b.shape[0]
    tiles = cdiv(M, 64) * cdiv(N, 64)
    for blk in parallel(2, level="block"):
        full, empty = event(S), event(S)
        a_s, b_s = shared("f16", 64, 64, copies=S), shared("f16", 64, 64, copies=S)
        for wg in parallel(2, level="group-4"):
            for t in parallel(128, level="thread"):
                with inthreads((wg == 0) & (t == 0), async_=True):
                    n = var(0, COUNT)
                    for tile in foreach(cdiv(tiles, 2)):
                        at = tile * 2 + blk
                        with if_(at < tiles):
                            for k in foreach(cdiv(K, 64)):
                                wait_(empty.at(n))
                                s = n % S
                                tma.copy(
                                    a.subspan(64, 64).at(at // cdiv(N, 64), k), a_s[s], async_=full[s], swizzle=128
                                )
                                tma.copy(
                                    b.subspan(64, 64).at(at % cdiv(N, 64), k), b_s[s], async_=full[s], swizzle=128
                                )
                                trigger(full[s])
                                n += 1
                with inthreads(wg == 1, async_=True):
                    n = var(0, COUNT)
                    for s in foreach(S):
                        trigger(empty[s])
                    for tile in foreach(cdiv(tiles, 2)):
                        at = tile * 2 + blk
                        with if_(at < tiles):
                            mc = mma.fill(0.0, "f32")
                            for k in foreach(cdiv(K, 64)):
                                wait_(full.at(n))
                                mma.row.row(mc, a_s[n % S], b_s[n % S])
                                trigger(empty.at(n))
                                n += 1
                            mma.store(mc, c.subspan(64, 64).at(at // cdiv(N, 64), at % cdiv(N, 64)))


FIRST_FREE = """
__co__ void turns(global f32 [4, 64] x, global f32 [4, 64] y) {
  parallel p by 1 : block {
    shared f32 [64] s;
    shared event full, empty;
    parallel wg by 2 : group-4, t by 128 : thread {
      inthreads.async (wg == 0 && t == 0) {
        foreach k in 4 {
          if (k > 0) wait empty;
          tma.copy.async<full> x.subspan(1, 64).at(k, 0).sqz() => s;
          trigger full;
        }
      }
      inthreads.async (wg == 1) {
        foreach k in 4 {
          wait full;
          if (t < 64) y.at(k, t) = s.at(t);
          trigger empty;
        }
      }
    }
  }
}
"""


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_a_condition_may_leave_out_the_first_wait(target: str) -> None:
    kernel = Kernel(croqtile.load(FIRST_FREE, "turns.co").sources["turns"])
    x: Any = testing.random_array((4, 64), "f32")
    y = np.zeros_like(x)
    kernel.on(target)(x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("target", ["cpu", "machine"])
@pytest.mark.parametrize(("language", "count"), [("co", "u32"), ("co", "s32"), ("py", "u32")])
def test_a_slot_is_released_once_it_is_read(language: str, count: str, target: str) -> None:
    kernel, constants = ring, {"COUNT": count}
    if language == "co":
        kernel, constants = Kernel(croqtile.load(CO, "ring.co", {"COUNT": count}).sources["ring"]), {}
    a: Any = testing.random_array((100, 200), "f16", 1, "small_integers")
    b: Any = testing.random_array((90, 200), "f16", 2, "small_integers")
    c = np.zeros((100, 90), np.float32)
    kernel.on(target)(a, b, c, **constants)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))
