"""Register tiles of the reference executor: their owners, and the operations on them.

A tile is held by the threads that wrote it.  A tile that an outer scope writes (a fill at block scope) is visible
to every inner instance; an instance that writes it then has its own.  An outer scope can read a tile that exactly
one inner instance holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic.convert import Array, carrier, rounded
from tilemma.dtypes import DType
from tilemma.ir.tiles import written
from tilemma.targets.cpu.faults import FragmentElsewhere, FragmentUnset, UnwaitedMultiply
from tilemma.targets.cpu.values import Value, read_tf32

Threads = tuple[int, int]  # first thread of the block, and how many


class Tile:
    """``data`` holds values (carriers); None: ``fill`` everywhere, of a shape that the first use determines.

    ``hidden``: the sum accumulated since the last retroactive scaling.
    """

    __slots__ = ("data", "dtype", "fill", "hidden", "pending")

    def __init__(self, dtype: DType, data: Array | None = None, fill: Value = 0) -> None:
        self.dtype, self.data, self.fill = dtype, data, fill
        self.hidden: Array | None = None
        self.pending: str | None = None

    def values(self, shape: tuple[int, ...]) -> Array:
        """The elements, of ``shape`` if only a fill is known."""
        if self.data is None:
            return np.full(shape, self.fill, carrier(self.dtype))
        return self.data

    def own(self) -> Tile:
        """A copy that can be changed."""
        tile = Tile(self.dtype, None if self.data is None else self.data.copy(), self.fill)
        tile.hidden, tile.pending = self.hidden, self.pending
        return tile


class Registers:
    """One named fragment, as declared by one instance: an array of tiles, each held by threads."""

    __slots__ = ("held", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[Any, dict[Threads, Tile]] = {}

    def write(self, index: tuple[int, ...], threads: Threads, tile: Tile) -> None:
        """``threads`` hold ``tile`` now, all of them."""
        holders = self.held.setdefault(index, {})
        if len(holders) > (threads in holders):
            first, count = threads
            for other in [h for h in holders if first <= h[0] and h[0] + h[1] <= first + count]:
                del holders[other]
        holders[threads] = tile

    def is_unset(self, index: tuple[int, ...], threads: Threads) -> bool:
        """Whether none of ``threads`` holds a tile."""
        first, count = threads
        return all(h[0] + h[1] <= first or first + count <= h[0] for h in self.held.get(index, ()))

    def read(self, index: tuple[int, ...], threads: Threads) -> Tile:
        """The tile as ``threads`` see it."""
        holders = self.held.get(index)
        if not holders:
            raise FragmentUnset(name=self.name)
        tile = holders.get(threads)
        if tile is not None:
            if len(holders) == 1:
                return tile
            first, count = threads
            newer = [
                t for h, t in holders.items() if h != threads and first <= h[0] and h[0] + h[1] <= first + count
            ]
            if not newer:
                return tile
            if len(newer) == 1:
                return newer[0]
            raise FragmentElsewhere(name=self.name, holders=len(newer))
        first, count = threads
        around = [h for h in holders if h[0] <= first and first + count <= h[0] + h[1]]
        if around:
            return holders[min(around, key=lambda h: h[1])]
        inside = [t for h, t in holders.items() if first <= h[0] and h[0] + h[1] <= first + count]
        if len(inside) == 1:
            return inside[0]
        if inside:
            raise FragmentElsewhere(name=self.name, holders=len(inside))
        raise FragmentUnset(name=self.name)

    def update(self, index: tuple[int, ...], threads: Threads) -> Tile:
        """The tile of ``threads``, theirs alone, to be changed in place."""
        tile = self.read(index, threads)
        holders = self.held[index]
        if holders.get(threads) is not tile:
            tile = tile.own()
            self.write(index, threads, tile)
        return tile

    def readable(self, index: tuple[int, ...], threads: Threads) -> Tile:
        """As `read`, for uses of the values: no multiply may be in flight."""
        tile = self.read(index, threads)
        if tile.pending is not None:
            raise UnwaitedMultiply(fragment=self.name, future=written(tile.pending))
        return tile


def operand(values: Array, t: DType) -> Array:
    """The values that the multiplier reads from an operand."""
    if t.is_float:
        return read_tf32(values) if t.name == "tf32" else values
    # Products and sums of 8-bit integers are exact in float64 up to K = 2**37; wide ones wrap.
    return values.astype(np.float64 if t.bits <= 8 else np.int64)


def product(a: Array, b: Array, acc: DType) -> Array:
    """``a`` [M, K] times ``b`` [K, N], in the accumulator's precision before its rounding."""
    p = a @ b
    return p.astype(np.int64) if acc.is_integer else p


def accumulate(acc: Array, p: Array, t: DType) -> Array:
    """``acc + p``: f32 in place, f16 rounded once, integers modulo 2**bits."""
    if t.is_integer:
        return (acc.astype(np.int64) + p).astype(carrier(t))
    if t in (dtypes.f32, dtypes.f64):
        acc += p
        return acc
    return rounded(acc + p, dtypes.f32, t)
