"""NumPy arrays in the machine's global memory: bytes in, bytes out, with strides and alignment kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.machine.arguments import refuse
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


@dataclass(frozen=True, slots=True)
class Placed:
    """An array in global memory: ``start`` is the offset in bytes of its first element in ``allocation``."""

    allocation: Allocation
    start: int

    @property
    def address(self) -> int:
        return self.allocation.base + self.start

    def elements(self, array: Any) -> Any:
        """The elements of ``array`` in the allocation, as unsigned integers, in place."""
        word = _WORD[array.itemsize]
        if array.size == 0:
            return np.zeros(array.shape, word)
        data = self.allocation.data.data
        return np.ndarray(array.shape, word, buffer=data, offset=self.start, strides=array.strides)


def place(memory: GlobalMemory, arrays: Mapping[str, Any], writable: Mapping[str, bool]) -> dict[str, Placed]:
    """Copy ``arrays`` into allocations of their own; arrays that overlap in memory share one, as they lie.

    The base of an allocation has the alignment of its lowest byte up to 16 bytes, so that the assumptions of a
    kernel about the base hold or fail as they would with the array itself.
    """
    placed: dict[str, Placed] = {}
    for names in _overlapping(arrays):
        low = min(_bytes_of(arrays[n])[0] for n in names)
        high = max(_bytes_of(arrays[n])[1] for n in names)
        first = arrays[names[0]]
        allocation = memory.allocate(
            " and ".join(names), high - low, phase=low % 16, writable=any(writable.get(n, True) for n in names)
        )
        allocation.itemsize = first.itemsize
        allocation.element = first.dtype if len({arrays[n].dtype for n in names}) == 1 else None
        if len(names) == 1:
            allocation.shape, allocation.strides = first.shape, first.strides
        else:
            allocation.shape, allocation.strides = (-(-(high - low) // first.itemsize),), (first.itemsize,)
        holes = np.ones(len(allocation.data), bool)
        for name in names:
            array = arrays[name]
            here = placed[name] = Placed(allocation, _address(array) - low)
            here.elements(array)[...] = raw(array)
            if array.size:
                _bytes_in(holes, here.start, array)[...] = 0
        if holes[: high - low].any():
            allocation.holes = holes
    return placed


def _overlapping(arrays: Mapping[str, Any]) -> list[list[str]]:
    """The names of ``arrays``, grouped by overlapping ranges of bytes, in the order of each group's first name."""
    groups: list[list[str]] = []
    end = 0
    for name in sorted(arrays, key=lambda n: _bytes_of(arrays[n])):
        low, high = _bytes_of(arrays[name])
        if groups and low < min(end, high):
            groups[-1].append(name)
        else:
            groups.append([name])
            end = 0
        end = max(end, high)
    order = list(arrays)
    return sorted((sorted(g, key=order.index) for g in groups), key=lambda g: order.index(g[0]))


def take_back(placed: Placed, array: Any) -> None:
    """Copy the elements back into ``array``; BadMachineCall for one that cannot be written."""
    if not array.flags.writeable:
        refuse("a read-only array that the kernel writes", "an array that can be written", "pass a copy")
    raw(array)[...] = placed.elements(array)


def raw(array: Any) -> Any:
    """``array``'s elements as unsigned integers, in place."""
    return array.view(_WORD[array.itemsize])


def _address(array: Any) -> int:
    """The address of the first element."""
    return int(array.__array_interface__["data"][0])


def _bytes_of(array: Any) -> tuple[int, int]:
    """The addresses of the lowest byte and of one past the highest byte."""
    low, high = span(array)
    return _address(array) + low, _address(array) + high


def _bytes_in(flat: Any, start: int, array: Any) -> Any:
    """The entries of ``flat``, one for each byte, that belong to elements of ``array``: [..., itemsize]."""
    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    return np.ndarray(shape, np.uint8, buffer=flat.data, offset=start, strides=strides)
