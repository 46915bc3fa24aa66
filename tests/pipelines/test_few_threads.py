"""Statements of a part of a block's threads: beside multiplies of two warpgroups, and in a branch of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel, facts_of

PRODUCT = """
[[pipeline(persistent=false, stages=2)]] __co__ void kernel(global f16 [M, K] a, global f16 [N, K] b,
    global f32 [M, N] c) {
  parallel {i, j} by [cdiv(M, 128), cdiv(N, 32)] : block {
    shared f16 [128, 32] sa;
    shared f16 [32, 32] sb;
    shared f32 [32] sums;
    parallel t by 32 : thread
      sums.at(t) = 0.0f;
    mc = mma.fill.f32 0.0f;
    foreach k in cdiv(K, 32) {
      dma.copy a.subspan(128, 32).at(i, k) => sa;
      dma.copy b.subspan(32, 32).at(j, k) => sb;
      WORK
      parallel g by 2 : group-4
        mma.row.row mc, sa.subspan(64, 32).at(g, 0), sb;
    }
    parallel g by 2 : group-4 {
      apply {x, y} in mc.span
        mc.at(x, y) = mc.at(x, y) + sums.at(y);
      mma.store mc, c.subspan(64, 32).at(i # g, j);
    }
  }
}
"""
WORK = {
    "32 threads read": "parallel t by 32 : thread sums.at(t) = sums.at(t) + __to<f32>(sb.at(t, 1));",
    "a branch reads": ("parallel t by 256 : thread if (t < 32) sums.at(t) = sums.at(t) + __to<f32>(sb.at(t, 1));"),
    "64 threads change the tiles of both": (
        "parallel t by 64 : thread foreach e in 32 { sa.at(t, e) = sa.at(t, e) + __to<f16>(1.0f);"
        " sa.at(t + 64, e) = sa.at(t + 64, e) * sa.at(t + 64, e); }"
    ),
    "a warpgroup changes the tile of the other": (
        "parallel g by 1 : group-4, t by 128 : thread if (t < 64) foreach e in 32 sa.at(t + 64, e) = 1.0f;"
    ),
}
COPIES = """
__co__ void kernel(global s32 [64] x, global s32 [2, 64] y) {
  parallel i by 2 : block {
    shared s32 [64] s;
    parallel g by 2 : group-4 {
      if (g == 1) {
        parallel THREADS {
          dma.copy x => s;
        }
      }
    }
    parallel t by 256 : thread
      if (t < 64) y.at(i, t) = s.at(t);
  }
}
"""


def kernel_of(text: str) -> Kernel:
    return Kernel(croqtile.load(text, "few_threads.co").sources["kernel"])


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (n, 104)).astype(np.float16) for n in (128, 32))
    return {"a": a, "b": b, "c": np.zeros((128, 32), np.float32)}


@pytest.mark.parametrize("name", WORK)
def test_beside_multiplies(name: str) -> None:
    kernel, wanted = kernel_of(PRODUCT.replace("WORK", WORK[name])), arrays()
    kernel.on("cpu")(**wanted)
    compiled = kernel.compile("sm_90a", facts=facts_of(wanted))
    assert any("full" in d.data for d in compiled.decisions), compiled.decisions
    found = arrays()
    kernel.on("machine", arch="sm_90a", seed=1, strict=True)(**found)
    np.testing.assert_array_equal(found["c"], wanted["c"])


@pytest.mark.parametrize("name", WORK)
def test_without_a_producer(name: str) -> None:
    text = PRODUCT.replace("persistent=false, stages=2", "off").replace("WORK", WORK[name])
    assert kernel_of(text).compile("sm_90a").ptx


@pytest.mark.parametrize("threads", ["t by 1 : thread", "t by 32 : thread", "w by 2 : group", "w by 1 : group"])
def test_a_copy_by_few_threads_of_a_warpgroup(threads: str) -> None:
    """All elements are copied, although most threads of the warpgroup do not take part."""
    x, y = np.arange(64, dtype=np.int32), np.zeros((2, 64), np.int32)
    kernel_of(COPIES.replace("THREADS", threads)).on("machine", arch="sm_80", strict=True)(x=x, y=y)
    np.testing.assert_array_equal(y, np.stack([x, x]))
