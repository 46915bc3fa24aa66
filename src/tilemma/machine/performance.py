"""The two performance notes: shared-memory bank conflicts and uncoalesced global accesses.

Banks are 4 bytes wide, 32 of them.  Lanes are served 128 bytes at a time: all 32 for accesses up to 4 bytes,
16 for 8 bytes, 8 for 16 bytes and for each matrix of ldmatrix; lanes that read the same word share a pass.
Global memory moves in sectors of 32 bytes (CUDA C++ Programming Guide, "Device Memory Accesses").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilemma.machine.hazards import PerformanceNote
from tilemma.machine.syntax import Instruction


class Performance:
    """Collects both notes for a run; address patterns are cached, because kernels repeat a few."""

    def __init__(self) -> None:
        self.notes: dict[tuple[str, int], PerformanceNote] = {}
        self._known: dict[Any, int] = {}
        # What else has counted: kind, instruction, and executions, surplus and worst.
        self.counted: Callable[[], list[tuple[str, Instruction, tuple[int, int, int]]]] | None = None

    def shared(self, ins: Instruction, addr: Any, width: int) -> None:
        """Count the extra passes of one warp's shared access at ``addr``."""
        key = (width, int(addr[0]) & 127, (addr - addr[0]).tobytes())
        extra = self._known.get(key)
        if extra is None:
            extra = self._known[key] = bank_conflicts(addr, width)
        self.add("bank-conflict", ins, extra)

    def global_(self, ins: Instruction, addr: Any, width: int) -> None:
        """Count the surplus sectors of one warp's global access at ``addr``."""
        key = ("g", width, int(addr[0]) & 31, (addr - addr[0]).tobytes())
        extra = self._known.get(key)
        if extra is None:
            extra = self._known[key] = surplus_sectors(addr, width)
        self.add("uncoalesced", ins, extra)

    def add(self, kind: str, ins: Instruction, extra: int) -> None:
        """Count one execution of ``ins`` with ``extra`` surplus passes or sectors."""
        note = self._note(kind, ins)
        note.executions += 1
        if extra:
            note.count += extra
            note.worst = max(note.worst, extra)

    def _note(self, kind: str, ins: Instruction) -> PerformanceNote:
        note = self.notes.get((kind, id(ins)))
        if note is None:
            note = self.notes[kind, id(ins)] = PerformanceNote(kind, ins.line, ins.text)
        return note

    def found(self) -> list[PerformanceNote]:
        """The notes, by line."""
        for kind, ins, (executions, count, worst) in () if self.counted is None else self.counted():
            note = self._note(kind, ins)
            note.executions += executions
            note.count += count
            note.worst = max(note.worst, worst)
        return sorted((n for n in self.notes.values() if n.count), key=lambda n: n.line)


def bank_conflicts(addr: Any, width: int) -> int:
    """Passes beyond the least that one warp's access takes."""
    lanes = max(1, 128 // max(width, 4))
    extra = 0
    for start in range(0, len(addr), lanes):
        part = addr[start : start + lanes]
        words = np.unique((part[:, None] + np.arange(0, max(width, 4), 4)) >> 2)
        extra += int(np.bincount(words & 31).max()) - 1
    return extra


def surplus_sectors(addr: Any, width: int) -> int:
    """32-byte sectors touched beyond those that the distinct bytes would fill."""
    first = np.unique(addr)
    touched = np.unique(np.concatenate([first >> 5, (first + width - 1) >> 5]))
    return len(touched) - -(-len(first) * width // 32)
