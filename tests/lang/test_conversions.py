"""The type of a scalar converts a value as a variable of that type does."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, parallel, var
from tilemma.errors import CompileError


@tm.kernel
def converted(x: tm.Global["S", "N"], y: tm.Global["T", 2, "N"], *, S="f32", T="s32"):
    for i in parallel(cdiv(x.shape[0], 1), level="block"):
        y[0, i] = tm.Scalar[T](x[i])
        y[1, i] = var(x[i], T)


@pytest.mark.parametrize("source", ["f32", "s32", "f64", "s64"])
@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u32", "s64", "f16", "bf16", "f32", "f64", "e4m3"])
def test_as_a_variable_of_the_type(source: str, to: str) -> None:
    values = np.array([0, 1, -1, 3.5, 127, 128, -129, 300, 70000, -70000, 2**31 - 1, -(2**31)])
    x = values.astype(tm.dtypes.dtype(source).numpy)
    y = tm.testing.random_array((2, len(x)), to, seed=0)
    converted.on("cpu")(x, y, S=source, T=to)
    assert y[0].tobytes() == y[1].tobytes()


def test_in_an_expression() -> None:
    @tm.kernel
    def mixed(x: tm.Global["f32", "N"], y: tm.Global["s32", "N"]):
        for i in parallel(x.shape[0], level="block"):
            y[i] = tm.Int(x[i]) * 2 + tm.Scalar["s8"](3)

    y = np.zeros(3, np.int32)
    mixed.on("cpu")(np.array([1.9, -2.9, 7.0], np.float32), y)
    assert y.tolist() == [7, -3, 17]


def test_a_constant_beyond_the_type_is_refused() -> None:
    @tm.kernel
    def beyond(y: tm.Global["s32", "N"]):
        for i in parallel(y.shape[0], level="block"):
            y[i] = tm.Scalar["s8"](300)

    with pytest.raises(CompileError, match="300"):
        beyond.on("cpu")(np.zeros(3, np.int32))


def test_outside_a_kernel_it_is_refused() -> None:
    with pytest.raises(CompileError, match="outside a kernel"):
        tm.Int(3)
