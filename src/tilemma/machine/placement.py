"""NumPy arrays in the machine's global memory: bytes in, bytes out, with strides and alignment kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma.machine.memory import Allocation, GlobalMemory

_WORD: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def span(array: Any) -> tuple[int, int]:
    """Lowest and one past the highest byte of ``array`` relative to its first element."""
    low = high = 0
    if array.size == 0:
        return 0, 0
    for extent, stride in zip(array.shape, array.strides, strict=True):
        reach = (extent - 1) * stride
        low, high = min(low, low + reach), max(high, high + reach)
    return low, high + array.itemsize


def place(memory: GlobalMemory, name: str, array: Any, *, writable: bool) -> Allocation:
    """Copy ``array`` into an allocation of its own; bytes between its elements are holes.

    The allocation's base has the array's own alignment up to 16 bytes, so that what a kernel assumes of the
    base holds or fails as it would with the array itself.
    """
    low, high = span(array)
    address = array.__array_interface__["data"][0] + low
    allocation = memory.allocate(name, high - low, phase=address % 16, writable=writable)
    allocation.shape, allocation.strides = array.shape, array.strides
    allocation.itemsize, allocation.origin, allocation.element = array.itemsize, -low, array.dtype
    view = _view(allocation, array)
    view[...] = raw(array)
    if array.size * array.itemsize != high - low:
        holes = np.ones(len(allocation.data), bool)
        _view_of(holes.view(np.uint8), allocation, array)[...] = 0
        allocation.holes = holes
    return allocation


def take_back(allocation: Allocation, array: Any) -> None:
    """Copy the elements back into ``array``."""
    raw(array)[...] = _view(allocation, array)


def raw(array: Any) -> Any:
    """``array``'s elements as unsigned integers, in place."""
    return array.view(_WORD[array.itemsize])


def _view(allocation: Allocation, array: Any) -> Any:
    word = _WORD[array.itemsize]
    flat = allocation.data
    start = allocation.origin
    if array.size == 0:
        return np.zeros(array.shape, word)
    return np.ndarray(array.shape, word, buffer=flat.data, offset=start, strides=array.strides)


def _view_of(flat: Any, allocation: Allocation, array: Any) -> Any:
    """The bytes of ``flat`` that belong to elements of ``array``: [..., itemsize]."""
    return np.ndarray(
        (*array.shape, array.itemsize),
        np.uint8,
        buffer=flat.data,
        offset=allocation.origin,
        strides=(*array.strides, 1),
    )
