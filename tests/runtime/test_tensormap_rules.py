"""The rules of tensor maps at both sides of each limit (CUDA driver API, cuTensorMapEncodeTiled)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilemma import dtypes
from tilemma.launch import TensorMapArgument
from tilemma.runtime.tensormap import TensorMapRefused, check, data_type, swizzle_code

# Sizes stand for themselves.
BOUND: Any = SimpleNamespace(size=int)


def checked(address: int = 256, dims: tuple[int, ...] = (64, 8, 4), strides: tuple[int, ...] = (128, 1024)) -> Any:
    argument = TensorMapArgument("x", "f16", dims, strides, (64, 8, 1), (1, 1, 1))
    return check("k", argument, address, BOUND)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_extents(axis: int) -> None:
    for extent in (0, 1, 2**32):
        dims = tuple(extent if d == axis else 8 for d in range(3))
        assert checked(dims=dims) == (list(dims), [128, 1024])
    with pytest.raises(TensorMapRefused, match=rf"extent in dimension {axis} is {2**32 + 1}") as refused:
        checked(dims=tuple(2**32 + 1 if d == axis else 8 for d in range(3)))
    assert "split" in refused.value.render()


@pytest.mark.parametrize("axis", [1, 2])
def test_strides(axis: int) -> None:
    def strides(value: int) -> tuple[int, ...]:
        return (value, 1024) if axis == 1 else (128, value)

    for value in (0, 16, 48, 2**40 - 16):
        assert checked(strides=strides(value))[1] == list(strides(value))
    for value in (-16, 8, 17, 24, 2**40):
        with pytest.raises(
            TensorMapRefused, match=rf"stride in dimension {axis} \(from the innermost\) is {value} "
        ):
            checked(strides=strides(value))


def test_addresses() -> None:
    for address in (0, 16, 2**40 + 16):
        assert checked(address)
    for address in (1, 8, 17, 24):
        with pytest.raises(TensorMapRefused, match=f"address is {address:#x}"):
            checked(address)


def test_types_and_swizzles() -> None:
    """Types that the driver does not have travel as unsigned integers of their width."""
    own = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "s32": "INT32",
           "s64": "INT64",
           "u8": "UINT8", "s8": "UINT8", "u16": "UINT16", "s16": "UINT16", "u32": "UINT32", "u64": "UINT64",
           "f8_e4m3": "UINT8", "f8_e5m2": "UINT8"}  # fmt: skip
    assert {t: data_type(dtypes.dtype(t)) for t in own} == own
    assert [swizzle_code(n) for n in (0, 32, 64, 128)] == [0, 1, 2, 3]
