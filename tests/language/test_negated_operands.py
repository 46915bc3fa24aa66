"""`mma.row.row mc, -ma, mb`: the sign of an operand is reversed, by the instruction where it can."""

from __future__ import annotations

import numpy as np
import pytest
from construct import Arrays
from differential import agree, croqtile_kernel, python_kernel
from test_element_types import numbers, programs

from tilemma.dtypes import dtype
from tilemma.errors import CompileError
from tilemma.kernels import Kernel

CASES = [
    ("f16", "f32", "sm_90a", "group-4", "1, -1, 1,"),
    ("f8_e4m3", "f32", "sm_89", "group", "%negative"),
    pytest.param("tf32", "f32", "sm_90a", "group-4", "1, -1, 1", marks=pytest.mark.slow),
    ("tf32", "f32", "sm_80", "group", "%negative"),
    ("f64", "f64", "sm_80", "group", "neg.f64"),
    pytest.param("s32", "s32", "sm_80", "group", "neg.s32", marks=pytest.mark.slow),
    pytest.param("bf16", "f32", "sm_80", "group-4", "%negative", marks=pytest.mark.slow),
]
SIGNS = [("-ma", "mb"), ("ma", "-mb")]


def texts(t: str, d: str, level: str, a: str, b: str) -> tuple[str, str]:
    co, python = programs(dtype(t), dtype(t), dtype(d), "row.row", level, 32)
    return tuple(x.replace("mc, ma, mb", f"mc, {a}, {b}") for x in (co, python))


def problem(t: str, d: str) -> tuple[Arrays, Arrays]:
    """The arguments of `texts`, and the negative product that they make of them."""
    x, y = numbers(dtype(t), (70, 40), 1), numbers(dtype(t), (20, 40), 2)
    wide = np.int64 if t == "s32" else np.float64
    product = (-(x.astype(wide) @ y.astype(wide).T)).astype(dtype(d).numpy)
    return {"a": x, "b": y, "c": np.zeros((70, 20), dtype(d).numpy)}, {"c": product}


@pytest.mark.parametrize(("t", "d", "arch", "level", "text"), CASES)
@pytest.mark.parametrize("signs", SIGNS)
def test_products_are_subtracted(t: str, d: str, arch: str, level: str, text: str, signs: tuple[str, str]) -> None:
    co, python = texts(t, d, level, *signs)
    given, wanted = problem(t, d)
    found = agree(co, python, given, (arch,))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], wanted["c"])
    assert text in croqtile_kernel(co).compile(arch).ptx


def test_two_signs_cancel() -> None:
    co, python = texts("f16", "f32", "group", "-ma", "-mb")
    for make, text, plain in ((croqtile_kernel, co, 0), (python_kernel, python, 1)):
        unsigned = make(texts("f16", "f32", "group", "ma", "mb")[plain]).compile("sm_80").ptx
        assert make(text).compile("sm_80").ptx.count("xor.b32") == unsigned.count("xor.b32")


@pytest.mark.parametrize("t", ["s8", "u8"])
def test_narrow_integers_are_refused(t: str) -> None:
    """-(-128) is no s8: the instruction would get another number."""
    co, python = texts(t, "s32", "group", "-ma", "mb")
    kernels: tuple[Kernel, ...] = (croqtile_kernel(co), python_kernel(python))
    for kernel in kernels:
        with pytest.raises(CompileError) as caught:
            kernel.compile("sm_80")
        assert caught.value.code == "negated-operand" and "9.7.15.5" in str(caught.value)


@pytest.mark.parametrize("t", ["f8_e4m3", "s8"])
def test_arithmetic_on_operands_of_8_bits(t: str) -> None:
    d = "s32" if t == "s8" else "f32"
    co, python = texts(t, d, "group", "ma", "mb")
    co, python = (
        co.replace("mma.row", "ma = -ma; mma.row", 1),
        python.replace("mma.row", "ma.set(-ma); mma.row", 1),
    )
    x, y = numbers(dtype(t), (24, 40), 1), numbers(dtype(t), (24, 40), 2)
    x[0, 0], x[1, 1] = (-128, 127) if t == "s8" else (-448, 448)
    found = agree(co, python, {"a": x, "b": y, "c": np.zeros((24, 24), dtype(d).numpy)}, ("sm_89",))
    assert not isinstance(found, str), found
    opposite = np.clip(-x.astype(np.float64), *((-128, 127) if t == "s8" else (-448, 448)))
    np.testing.assert_array_equal(found["c"], opposite @ y.astype(np.float64).T)
