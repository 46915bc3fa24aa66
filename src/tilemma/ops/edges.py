"""Tiles that end at the edges of a result: the last ones along an axis start earlier, so that no row of them lies
beyond.

TMA takes longer to fill rows of zeros than to load rows, and the blocks that have the last tiles keep the others
waiting (the model of `few_rounds`).  The last tiles compute rows and columns that the tiles before them have, too:
the result is given in four parts, each of which only its tiles store, because TMA writes nothing beyond an array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilemma as tm
from tilemma import cdiv, else_, if_, var
from tilemma.arithmetic import integers
from tilemma.runtime.arrays import ArrayRef

# The last tiles start at multiples of so many rows, or columns: sectors of the result belong to one tile.
UNIT = 16


def last_start(extent: int, size: int) -> int:
    """Where the last tile of ``size`` starts along an axis."""
    last = integers.cdiv(extent, size) - 1
    return min(integers.cdiv(max(extent - size, 0), UNIT) * UNIT, last * size)


@dataclass(frozen=True)
class Axis:
    """Tiles of ``size`` along an axis of ``extent``."""

    extent: Any
    size: int

    @property
    def last(self) -> Any:
        return cdiv(self.extent, self.size) - 1

    def start(self, tile: Any) -> Any:
        """Where ``tile`` starts; blocks of a cluster that have no tile load the last."""
        first = cdiv(tm.math.max(self.extent - self.size, 0), UNIT) * UNIT
        return var(tm.math.min(tm.math.min(tile, self.last) * self.size, first))


def parts(x: ArrayRef, tile: tuple[int, int]) -> tuple[tuple[ArrayRef, int], ...]:
    """``x`` [batch, M, N] without the last tiles along either axis, the columns beside, the rows below, and the
    corner; each with its bytes from the start of ``x``."""
    cuts = [last_start(extent, size) for extent, size in zip(x.shape[1:], tile, strict=True)]
    ranges = [((0, cut), (cut, extent)) for cut, extent in zip(cuts, x.shape[1:], strict=True)]
    found = []
    for top, bottom in ranges[0]:
        for left, right in ranges[1]:
            offset = (top * x.strides[1] + left * x.strides[2]) * x.dtype.bytes
            shape = (x.shape[0], bottom - top, right - left)
            found.append((x._replace(pointer=x.pointer + offset, shape=shape, owner=(x.owner,)), offset))
    return tuple(found)


def in_parts(
    given: tuple[Any, ...], last: tuple[Any, Any], at: tuple[Any, Any], mine: tuple[Any, Any],
    store: Callable[[Any, Any, Any], None],
) -> None:  # fmt: skip
    """``store(part, row, column)`` for the part of the result that a tile belongs to.

    ``last``: whether it is the last along M and N; ``at``: its place among all, and ``mine`` within the tile.
    """
    whole, beside, below, corner = given
    with if_(last[0]):
        with if_(last[1]):
            store(corner, *mine)
        with else_():
            store(below, mine[0], at[1])
    with else_():
        with if_(last[1]):
            store(beside, at[0], mine[1])
        with else_():
            store(whole, *at)
