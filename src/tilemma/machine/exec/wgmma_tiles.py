"""The operands of wgmma in shared memory, by their descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilemma.dtypes import dtype
from tilemma.machine.isa import descriptors


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """An operand in shared memory: the address of each element [rows, k], and the ``width``-byte units that hold
    them.  ``first`` is the first element's address."""

    at: Any
    units: Any
    width: int
    first: int


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """An operand in shared memory: its ``letter`` and descriptor ``raw``, and its tile, moved by ``delta`` bytes.

    ``first`` is the address of its first element, ``swizzle`` the descriptor's in bytes; ``problems`` say why the
    descriptor is not admissible; ``more`` and ``less``: the swizzled rows have columns of K behind it, and
    before it.
    """

    letter: str
    raw: int
    tile: Tile
    delta: int
    first: int
    swizzle: int
    problems: tuple[str, ...]
    more: bool
    less: bool

    @staticmethod
    def of(letter: str, raw: int, extent: tuple[int, int, int], bits: int, major: Any, limit: int) -> Operand:
        """``extent``: rows, units of ``bits`` along K, and the bytes along K of a whole product."""
        rows, k, width = extent
        tile, delta = tile_of(raw, rows, k, bits, major)
        fields, first = descriptors.decode(raw), tile.first + delta
        problems = tuple(descriptors.problems(fields, rows, k, bits, major, limit))
        start = first % max(1, fields.swizzle)
        more, less = major == "K" and start + width < fields.swizzle, major == "K" and start >= width
        return Operand(letter, raw, tile, delta, first, fields.swizzle, problems, more, less)


_tiles: dict[Any, Tile] = {}


def tile_of(raw: int, rows: int, k: int, bits: int, major: Any) -> tuple[Tile, int]:
    """The tile of a descriptor, cached relative to the swizzle pattern's start, and where that lies."""
    pattern = (raw & 0x3F) << 4
    key = (raw & ~0x3FFF, pattern, rows, k, bits, major)
    found = _tiles.get(key)
    moved = ((raw & 0x3FFF) << 4) - pattern
    if found is None:
        if len(_tiles) > 4096:
            _tiles.clear()
        at = descriptors.operand_addresses(descriptors.decode(raw), rows, k, bits, major) - moved
        at = np.ascontiguousarray(at)
        found = _tiles[key] = Tile(at, *chunks(at, bits // 8, major), int(at.flat[0]))
    return found, moved


def chunks(at: Any, size: int, major: Any) -> tuple[Any, int]:
    """The 16-byte units that hold the elements: the contiguous dimension is K or M/N."""
    per = 16 // size
    lines = at if major == "K" else at.T
    if lines.shape[1] % per == 0:
        first = lines[:, ::per]
        if not (first & 15).any():
            return np.ascontiguousarray(first), 16
    return np.ascontiguousarray(at), size


def elements(words: Any, name: str) -> Any:
    """Memory words as the values of a type."""
    t = dtype(name)
    if t.name == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32)
    return words.view(t.numpy)
