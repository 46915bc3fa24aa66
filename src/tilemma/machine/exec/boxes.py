"""Tiles of tensors that copies move: where their elements are in the array, and in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilemma.machine.isa import tensormap
from tilemma.machine.memory import SHIFT
from tilemma.machine.native.blocks import address_of
from tilemma.machine.state import Cta


def chunk_width(addresses: Any, size: int) -> tuple[Any, int]:
    """Element addresses as those of the largest units (to 16 bytes) that runs of elements make up."""
    per = 16 // size
    if per > 1 and len(addresses) % per == 0:
        groups = addresses.reshape(-1, per)
        if not (groups[:, 0] & 15).any() and (groups[:, -1] - groups[:, 0] == (per - 1) * size).all():
            return groups[:, 0], 16
    return addresses, size


@dataclass(frozen=True, slots=True)
class Places:
    """Shared addresses of ``size``-byte elements, and the units of ``width`` bytes that they make up."""

    addresses: Any
    size: int
    units: Any
    width: int

    @staticmethod
    def of(addresses: Any, size: int) -> Places:
        units, width = chunk_width(addresses, size)
        contiguous = (np.ascontiguousarray(x, np.int64) for x in (addresses, units))
        return Places(next(contiguous), size, next(contiguous), width)


@dataclass(frozen=True, slots=True)
class Box:
    """A tile of a tensor: byte offsets of its elements, -1 outside, which of them are ``inside`` (None: all), and
    where they go."""

    offsets: Any
    inside: Any
    within: Any
    low: int
    high: int
    places: Places


@dataclass(frozen=True, slots=True)
class BoxSource:
    """The elements of a box at ``start`` of an array; those outside are ``fill``."""

    box: Box
    allocation: Any
    start: int
    fill: int

    def __call__(self) -> tuple[Any, Any]:
        """The words, and their global addresses or 0."""
        box, allocation, size = self.box, self.allocation, self.box.places.size
        offsets = box.offsets + self.start
        if box.inside is None:
            return allocation.words[size][offsets >> SHIFT[size]], offsets + allocation.base
        words = np.full(len(offsets), self.fill, f"u{size}")
        words[box.inside] = allocation.words[size][(box.within + self.start) >> SHIFT[size]]
        return words, np.where(box.inside, offsets + allocation.base, 0)

    def move(self, cta: Cta, places: Places) -> None:
        """Copy the elements in the native library."""
        origins, to, allocation = cta.shared.origins(), places.addresses, self.allocation
        cta.machine.native.move_box(
            cta.shared.record.data, address_of(origins), address_of(to), len(to), places.size,
            address_of(allocation.data), allocation.base, address_of(self.box.offsets), self.start, self.fill,
        )  # fmt: skip


def transfer(image: Any, corner: list[int], offsets: list[int], address: int) -> tuple[Any, Any]:
    """The byte offsets in the tensor and the shared addresses that a copy in the map's mode moves between."""
    if image.corners is None:
        return _box(image, tuple(corner), address)
    return tensormap.column_transfer(image, corner, offsets or [0] * (image.rank - 2), address)


@lru_cache(64)
def _box(image: Any, corner: tuple[int, ...], address: int) -> tuple[Any, Any]:
    """`box_transfer`: each schedule moves the same boxes."""
    found = tensormap.box_transfer(image, corner, address)
    for array in found:
        array.setflags(write=False)
    return found


def _box_of(transfer: tuple[Any, Any], size: int) -> Box:
    offsets, addresses = (np.ascontiguousarray(x, np.int64) for x in transfer)
    inside = offsets >= 0
    within = offsets[inside]
    low, high = (int(within.min()), int(within.max()) + size) if len(within) else (0, 0)
    places = Places.of(addresses, size)
    return Box(offsets, None if inside.all() else inside, within, low, high, places)


@lru_cache(64)
def _tile_box(image: Any, corner: tuple[int, ...], address: int) -> Box:
    return _box_of(_box(image, corner, address), image.element_bytes)


def whole_box(image: Any, corner: list[int], offsets: list[int], address: int) -> Box:
    """The elements that a copy in the map's mode moves to shared memory at ``address``."""
    if image.corners is None:
        return _tile_box(image, tuple(corner), address)
    return _box_of(transfer(image, corner, offsets, address), image.element_bytes)
