"""Conversions of integers and floats in `__device__` functions are C++'s: modulo 2 to the width, towards zero."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilemma import croqtile, testing
from tilemma.dtypes import dtype
from tilemma.kernels import Kernel

INTEGERS = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"]
# A cast, an argument, a declaration, an assignment and a result convert; so does each return of a longer body.
TEXT = """
__device__ {b} cast({a} x) {{ return ({b})x; }}
__device__ {b} given({b} x) {{ return x; }}
__device__ {b} result({a} x) {{ return x; }}
__device__ {b} declared({a} x) {{ {b} y = x; if (x == 3) {{ return x; }} y = x; return y; }}
__co__ void convert(global {a} [N] x, global {b} [4, N] y) {{
  parallel i by N : block {{
    y.at(0, i) = cast(x.at(i));
    y.at(1, i) = given(x.at(i));
    y.at(2, i) = result(x.at(i));
    y.at(3, i) = declared(x.at(i));
  }}
}}
"""


def edges(name: str) -> list[int]:
    info = np.iinfo(dtype(name).numpy)
    near = [
        info.min,
        info.max,
        0,
        3,
        -1,
        127,
        128,
        255,
        256,
        32767,
        32768,
        65535,
        2**31 - 1,
        2**31,
        -(2**31),
        2**32 - 1,
    ]
    return [x for x in near if info.min <= x <= info.max]


def loaded(text: str) -> Kernel:
    (source,) = croqtile.load(text, "convert.co", {}).sources.values()
    return Kernel(source)


@pytest.mark.parametrize(("a", "b"), [(a, b) for a, b in product(INTEGERS, INTEGERS) if a != b])
def test_integers_wrap(a: str, b: str) -> None:
    x = np.array(edges(a), dtype(a).numpy)
    y = np.zeros((4, len(x)), dtype(b).numpy)
    loaded(TEXT.format(a=a, b=b)).on("cpu")(x, y)
    assert (y == x.astype(y.dtype)).all()


@pytest.mark.parametrize(
    ("a", "b"), [("s32", "u8"), ("u64", "s64"), ("s64", "u64"), ("s64", "s16"), ("u32", "s32")]
)
def test_integers_wrap_on_the_machine(a: str, b: str) -> None:
    x = np.array(edges(a), dtype(a).numpy)
    y = np.zeros((4, len(x)), dtype(b).numpy)
    loaded(TEXT.format(a=a, b=b)).on("machine", arch="sm_80")(x, y)
    assert (y == x.astype(y.dtype)).all()


@pytest.mark.parametrize("b", ["s32", "s8", "u16"])
def test_floats_are_cut_towards_zero(b: str) -> None:
    x = np.array([0, 0.5, 1.5, 2.5, 100.9, -0.5, -1.5, -100.9], np.float32)
    x = x if b.startswith("s") else abs(x)
    y = testing.random_array((4, len(x)), b, seed=0)
    # The assignment of a float to an integer is refused, as everywhere.
    text = TEXT.replace("y = x; return y;", "return y;").format(a="f32", b=b)
    loaded(text).on("cpu")(x, y)
    assert (y == np.trunc(x)).all()
