"""Caches the checks of a memory instruction by its pattern of addresses.

A kernel executes each instruction with few patterns of addresses.  A pattern holds results that depend on
addresses alone: alignment, bounds, duplicates, bank conflicts and sectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tilemma.machine.decode import AddressRow
from tilemma.machine.memory import SHIFT, Allocation
from tilemma.machine.performance import bank_conflicts, surplus_sectors
from tilemma.machine.state import Warp

Indices = npt.NDArray[np.int64]

# Patterns that one instruction keeps.
_MOST = 4096


@dataclass(slots=True)
class SharedPattern:
    """Addresses of lanes in shared memory.

    ``own``: aligned and inside the CTA's shared memory; ``index`` are then the words' numbers.  ``distinct``: no
    two lanes name the same word.  ``extra`` counts the surplus passes of bank conflicts, ``halves`` is where
    ldmatrix finds the two halves of each register of each lane.
    """

    addr: Indices
    index: Indices
    own: bool
    distinct: bool
    extra: int
    halves: Indices | None = None


class SharedPatterns:
    """The patterns of an instruction that accesses ``width`` bytes a lane at ``address``."""

    def __init__(self, address: AddressRow, width: int) -> None:
        self.address, self.width = address, width
        self.known: dict[bytes, SharedPattern] = {}

    def of(self, w: Warp, lanes: Any) -> SharedPattern:
        """The pattern of ``lanes`` (None: all 32) of a warp."""
        row = w.v[self.address.view][self.address.row]
        if lanes is not None:
            row = row[lanes]
        key = row.tobytes()
        found = self.known.get(key)
        if found is None:
            if len(self.known) == _MOST:
                self.known.clear()
            found = self.known[key] = self._new(w, row.astype(np.int64) + self.address.offset)
        return found

    def _new(self, w: Warp, addr: Indices) -> SharedPattern:
        width, shared = self.width, w.cta.shared
        own = len(addr) > 0 and not (addr & (width - 1)).any()
        own = own and int(addr.min()) >= shared.base and int(addr.max()) + width <= shared.limit
        distinct = len(np.unique(addr)) == len(addr)
        return SharedPattern(addr, addr >> SHIFT[width], own, distinct, bank_conflicts(addr, width) if own else 0)


@dataclass(frozen=True, slots=True)
class GlobalPattern:
    """Addresses of lanes relative to the first one's: least, end of the highest, whether all are aligned."""

    relative: Indices
    low: int
    end: int
    aligned: bool
    # By the first address modulo the size of a sector: surplus sectors.
    extra: dict[int, int] = field(default_factory=dict)


class GlobalPatterns:
    """The patterns of an instruction that accesses ``width`` bytes of global memory a lane at ``address``."""

    def __init__(self, address: AddressRow, width: int) -> None:
        self.address, self.width = address, width
        self.known: dict[bytes, GlobalPattern] = {}

    def of(self, w: Warp, lanes: Any) -> tuple[Allocation, Indices, int] | None:
        """Allocation, byte offsets and surplus sectors of ``lanes`` (None: all 32) of a warp.

        None where the accesses are not all aligned and in one allocation.
        """
        row = w.v[self.address.view][self.address.row]
        if lanes is not None:
            row = row[lanes]
            if not len(row):
                return None
        first = row[0]
        key = (row - first).tobytes()
        found = self.known.get(key)
        if found is None:
            if len(self.known) == _MOST:
                self.known.clear()
            found = self.known[key] = self._new(row)
        start = int(first) + self.address.offset
        allocation = w.cta.machine.memory.find(start)
        if allocation is None or not found.aligned:
            return None
        at = start - allocation.base
        if at & (self.width - 1) or at + found.low < 0 or at + found.end > allocation.size:
            return None
        extra = found.extra.get(start & 31)
        if extra is None:
            extra = found.extra[start & 31] = surplus_sectors(found.relative + start, self.width)
        return allocation, found.relative + at, extra

    def _new(self, row: Any) -> GlobalPattern:
        # Addresses have 64 bits; their differences wrap.
        relative = (row - row[0]).view(np.int64)
        aligned = not (relative & (self.width - 1)).any()
        return GlobalPattern(relative, int(relative.min()), int(relative.max()) + self.width, aligned)
