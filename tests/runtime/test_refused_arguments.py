"""Arguments and functions that are refused, each with the whole text of its error."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import foreach, parallel
from tilemma.errors import TilemmaError
from tilemma.launch import ValueArgument
from tilemma.runtime import describe, dlpack
from tilemma.runtime.loading import _value_bytes

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


class Capsule:
    """An array of DLPack: one f32 [2, 3] on the CPU, changed by ``change``."""

    def __init__(self, change: Callable[[Any], None], name: bytes = b"dltensor_versioned") -> None:
        self.memory, self.shape = np.zeros(6, np.float32), (ctypes.c_int64 * 2)(2, 3)
        self.whole, self.name = dlpack._Versioned(), name
        self.whole.major, self.whole.minor = 1, 1
        tensor = self.whole.tensor
        tensor.data, tensor.ndim = self.memory.ctypes.data, 2
        tensor.device.type = 1
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = 2, 32, 1
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        change(self.whole)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self.whole), self.name, None)


def change(path: str, value: Any) -> Callable[[Any], None]:
    def apply(whole: Any) -> None:
        *owners, field = path.split(".")
        for owner in owners:
            whole = getattr(whole, owner)
        if field == "extent":
            whole.shape[0] = value
        else:
            setattr(whole, field, value)

    return apply


def message(call: Callable[[], object]) -> str:
    with pytest.raises(TilemmaError) as e:
        call()
    return f"{e.value.code}: {e.value.message}"


UNREADABLE = {
    "major": (change("major", 2), "DLPack version 2.1"),
    "negative rank": (change("tensor.ndim", -1), "a DLPack tensor of -1 dimensions"),
    "rank": (change("tensor.ndim", dlpack.MAX_RANK + 1), "a DLPack tensor of 65 dimensions"),
    "shape": (change("tensor.shape", None), "a DLPack tensor without a shape"),
    "extent": (change("tensor.extent", -2), "a DLPack tensor of shape (-2, 3)"),
    "address": (change("tensor.data", None), "a DLPack tensor with elements and no address"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_capsule_that_cannot_be_read(case: str) -> None:
    changed, reason = UNREADABLE[case]
    assert f"cannot be read ({reason})" in message(lambda: describe(Capsule(changed)))


def test_capsules_at_the_limits_are_read() -> None:
    assert describe(Capsule(lambda _: None)).shape == (2, 3)
    assert describe(Capsule(change("tensor.extent", 0))).shape == (0, 3)
    scalar = describe(Capsule(change("tensor.ndim", 0)))
    assert scalar.shape == ()

    def empty(whole: Any) -> None:
        whole.tensor.shape[0], whole.tensor.data = 0, None

    assert describe(Capsule(empty)).shape == (0, 3)


def test_a_capsule_of_another_name_device_or_type() -> None:
    assert "(no DLPack capsule)" in message(lambda: describe(Capsule(lambda _: None, b"other")))
    assert "is on ('device type 8', 0)" in message(lambda: describe(Capsule(change("tensor.device.type", 8))))
    assert "code 2, 32 bits, 2 lanes" in message(lambda: describe(Capsule(change("tensor.dtype.lanes", 2))))


@tm.kernel
def one(x: tm.Global["f32", "N"], y: tm.Global["f32", 1], v: tm.Float):
    for _ in parallel(1, level="block"):
        for i in foreach(1):
            y[i] = x[i] + v


def test_extents_and_numbers_that_no_kernel_takes() -> None:
    y, small = np.zeros(1, np.float32), np.zeros(1, np.float32)
    large = np.broadcast_to(small, (2**31,))
    assert message(lambda: one(large, y, 1.0)).startswith("extent-too-large: ")
    one(small, y, float("inf"))
    assert y[0] == np.inf
    for number in (10**400, 1e39, Fraction(10**400), np.datetime64("2026")):
        assert message(lambda number=number: one(small, y, number)).startswith("scalar-type: one: `v` is ")


def test_an_argument_computed_for_a_call_fits_its_type() -> None:
    bound: Any = SimpleNamespace(size=lambda value: value)

    def computed(value: Any, kind: Any) -> bytes:
        argument: Any = ValueArgument.__new__(ValueArgument)
        object.__setattr__(argument, "value", value)
        object.__setattr__(argument, "type", kind)
        return _value_bytes("k", argument, bound)

    assert computed(2**31 - 1, "s32") == (2**31 - 1).to_bytes(4, "little")
    assert "an argument computed for this call, 2147483648, is no s32" in message(lambda: computed(2**31, "s32"))
    assert "-1, is no u64" in message(lambda: computed(-1, "u64"))


def test_functions_that_are_no_kernels() -> None:
    read: Any = tm.kernel
    assert "is no function" in message(lambda: read(3))
    assert "has no statements" in message(lambda: read(lambda: 0))
    assert message(lambda: read(plain, source=3)).startswith("wrong-type: ")
    assert message(lambda: read(plain, source="def other(): pass")).startswith("no-kernel-source: ")


def plain() -> None:
    pass
