"""Elements as conditions, and elements of arrays of buffers: the reference and the PTX machine."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import croqtile, dtypes, foreach, parallel, shared
from tilemma.kernels import Kernel

TRUTH = """
__co__ void truth(global {t} [8] x, global s32 [8] o) {{
  parallel b by 1 : block {{
    parallel i by 8 : thread {{
      if (x.at(i)) {{ o.at(i) = 1; }} else {{ o.at(i) = 2; }}
      o.at(i) += !x.at(i) ? 10 : 20;
    }}
  }}
}}
"""
NUMBERS = [0, -0.0, 1, 2, 3, 0, 1, 0]


@pytest.mark.parametrize("t", ["f16", "bf16", "f32", "f64", "f8_e4m3", "s8", "u16", "s32", "s64"])
def test_what_is_not_zero_is_true(t: str) -> None:
    (source,) = croqtile.load(TRUTH.format(t=t), "truth.co", {}).sources.values()
    kernel, x = Kernel(source), np.array(NUMBERS).astype(dtypes.dtype(t).numpy)
    if dtypes.dtype(t).is_float:
        # 1 and 2 as the smallest numbers of the type: a conversion to a narrower one would make them 0.
        least = np.nextafter(x.dtype.type(0), x.dtype.type(1))
        x[2:4] = least, -least
    for call in (kernel.on("cpu"), kernel.on("machine", arch="sm_80")):
        o = np.zeros(8, np.int32)
        call(x, o)
        np.testing.assert_array_equal(o, np.where(np.array(NUMBERS) != 0, 21, 12))


@tm.kernel
def slots(y: tm.Global["f32", 3, 4]):
    for _ in parallel(1, level="block"):
        s = shared("f32", 4, copies=3)
        for i in foreach(3):
            for j in foreach(4):
                s[i, j] = 10 * i + j
        for i in foreach(3):
            for j in foreach(4):
                y[i, j] = s[i][j] + s[2 - i, 3 - j]


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_an_element_of_a_copy_of_a_buffer_is_assigned(target: str) -> None:
    y = np.zeros((3, 4), np.float32)
    slots.on(target)(y)
    np.testing.assert_array_equal(y, 23)
