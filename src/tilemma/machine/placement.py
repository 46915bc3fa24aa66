"""NumPy arrays in the machine's global memory: bytes in, bytes out, with strides and alignment kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.machine.arguments import refuse
from tilemma.machine.memory import Allocation, GlobalMemory, padded

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


@dataclass(frozen=True, slots=True)
class Group:
    """Arrays that lie in one range of addresses, ``low`` up to ``high``; those of one array are its facts.

    ``starts``: of each array by name, its first element; ``holes``: the bytes of no element, None without any.
    """

    low: int
    high: int
    starts: dict[str, int]
    holes: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    element: Any

    @staticmethod
    def of(names: list[str], arrays: Mapping[str, Any]) -> Group:
        """The group of the arrays ``names``."""
        low = min(_bytes_of(arrays[n])[0] for n in names)
        high = max(_bytes_of(arrays[n])[1] for n in names)
        first = arrays[names[0]]
        element = first.dtype if len({arrays[n].dtype for n in names}) == 1 else None
        shape, strides = first.shape, first.strides
        if len(names) > 1:
            shape, strides = (-(-(high - low) // first.itemsize),), (first.itemsize,)
        starts = {n: _address(arrays[n]) - low for n in names}
        holes = np.ones(padded(high - low), bool)
        for name in names:
            if arrays[name].size:
                _bytes_in(holes, starts[name], arrays[name])[...] = 0
        gaps = holes if holes[: high - low].any() else None
        return Group(low, high, starts, gaps, shape, strides, first.itemsize, element)


def groups_of(arrays: Mapping[str, Any]) -> list[Group]:
    """``arrays`` by the ranges of addresses that they share."""
    return [Group.of(names, arrays) for names in _overlapping(arrays)]


def place(
    memory: GlobalMemory,
    arrays: Mapping[str, Any],
    writable: Mapping[str, bool],
    groups: list[Group] | None = None,
) -> dict[str, Placed]:
    """Copy ``arrays`` into allocations of their own; those of one of their ``groups`` share one, as they lie.

    ``groups`` are `groups_of` the arrays, where they are known.

    The base of an allocation has the alignment of its lowest byte up to 16 bytes, so that the assumptions of a
    kernel about the base hold or fail as they would with the array itself.
    """
    placed: dict[str, Placed] = {}
    for group in groups_of(arrays) if groups is None else groups:
        allocation = memory.allocate(
            " and ".join(group.starts), group.high - group.low, phase=group.low % 16,
            writable=any(writable.get(n, True) for n in group.starts),
        )  # fmt: skip
        allocation.itemsize, allocation.element, allocation.holes = group.itemsize, group.element, group.holes
        allocation.shape, allocation.strides = group.shape, group.strides
        for name, start in group.starts.items():
            here = placed[name] = Placed(allocation, start)
            here.elements(arrays[name])[...] = raw(arrays[name])
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
