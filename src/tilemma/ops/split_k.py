"""Split-K reduction: adds the partial sums of a tile within the kernel that computes them, in a fixed order.

Every warpgroup writes its part to a workspace and counts its arrival.  The parts of a tile are added in the order
of K by the warpgroups that are there, each for a share of the columns.  No warpgroup waits for one that may not be
running: after so many looks it leaves, and the last to arrive adds the shares of those that have left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilemma import apply, atomic, else_, foreach, if_, mma, select, sync, var, while_

# How often a warpgroup looks whether the other parts of its tile have arrived, about a microsecond each time.
LOOKS = 32
# Columns of an accumulator that neighbouring registers hold.
UNIT = 8
# Registers of a lane that are filled from the workspace at a time.
LOADED = 64
# The word of a tile, from its lowest bits: how many parts have arrived; how many never read the word again; and
# from bit LEFT on, the parts that have left without adding their share.
BYTE, DEPARTURE, LEFT = 255, 256, 16


def width_of(columns: int, parts: int) -> int:
    """Columns of a share: a divisor of ``columns`` that gives a share to as many of the parts as possible."""
    fitting = [w for w in range(UNIT, columns + 1, UNIT) if columns % w == 0 and columns // w >= parts]
    return max(fitting, default=UNIT)


@dataclass(frozen=True)
class SplitKReduction:
    """``split`` parts of tiles of ``rows`` x ``columns``, those of warpgroup ``group`` of each block.

    They are written to ``room`` [tiles * split, groups * rows, columns].  ``words`` [tiles, groups] counts their
    arrivals; it is zero before and after the kernel.  ``looks``: how often a warpgroup looks
    whether the others have arrived; 0: only the last to arrive adds.
    """

    room: Any
    words: Any
    group: Any
    split: int
    rows: int
    columns: int
    looks: int

    @property
    def width(self) -> int:
        return width_of(self.columns, self.split if self.looks else 1)

    @property
    def shares(self) -> int:
        return self.columns // self.width

    def add(self, mc: Any, tile: Any, part: Any, finish: Callable[[Any, Any, int], None]) -> None:
        """Write ``mc``, part ``part`` of tile ``tile``.  For each share that falls to this warpgroup, call
        ``finish`` with the sums, the number of the share, and its columns."""
        word = self.words[tile, self.group]
        whole = self.room.subspan(1, self.rows, self.columns)
        mma.store(mc, whole.at(tile * self.split + part, self.group, 0).sqz())
        # The writes of the warpgroup are visible to those that see its arrival.
        sync.barrier("group-4")
        sync.fence("device")
        if not self.looks:
            old = var(atomic.add(word, 1))
            with if_(old == self.split - 1):
                self._observe()
                atomic.exch(word, 0)
                for share in foreach(self.shares):
                    self._finish(tile, share, finish)
            return
        # A part without a share never looks.
        waits = part < self.shares
        departed = var(select(waits, 0, 1))
        word_now = var(atomic.add(word, select(waits, 1, 1 + DEPARTURE)))
        own = var(select(waits, var(1, "s64") << part, 0))
        falls = var(0, "s64")
        with if_((word_now & BYTE) == self.split - 1):
            falls.set((word_now >> LEFT) | own)
        with else_(), if_(waits):
            tries = var(0)
            with while_(lambda: ((word_now & BYTE) < self.split) & (tries < self.looks)):
                word_now.set(atomic.or_(word, 0))
                tries += 1
            with if_((word_now & BYTE) < self.split):
                word_now.set(atomic.add(word, DEPARTURE + (own << LEFT)))
                departed.set(1)
            falls.set(select((word_now & BYTE) == self.split, own, 0))
        with if_(falls != 0):
            self._observe()
            for of in foreach(min(self.split, self.shares)):
                with if_(((falls >> of) & 1) == 1):
                    for share in foreach(self.shares, start=of, step=self.split):
                        self._finish(tile, share, finish)
        with if_(departed == 0):
            word_now.set(atomic.add(word, DEPARTURE))
        with if_(((word_now // DEPARTURE) & BYTE) == self.split - 1):
            atomic.exch(word, 0)

    def _observe(self) -> None:
        """The writes of the parts that have been seen to arrive are visible to this warpgroup."""
        sync.fence("device")
        sync.barrier("group-4")

    def _of(self, tile: Any, part: Any, share: Any) -> Any:
        return self.room.subspan(1, self.rows, self.width).at(tile * self.split + part, self.group, share).sqz()

    def _finish(self, tile: Any, share: Any, finish: Callable[[Any, Any, int], None]) -> None:
        """Add a share of all parts, in the order of K."""
        total = mma.frag("f32", self.rows, self.width)
        mma.load(self._of(tile, 0, share), into=total)
        together = max(1, LOADED // (self.width // 2))
        for begin in range(1, self.split, together):
            parts = []
            for part in range(begin, min(begin + together, self.split)):
                x = mma.frag("f32", self.rows, self.width)
                mma.load(self._of(tile, part, share), into=x)
                parts.append(x)
            for i, j in apply(total):
                value = total[i, j]
                for x in parts:
                    value = value + x[i, j]
                total[i, j] = value
        finish(total, share, self.width)
