"""A view of shared memory as an affine map from indices to (row, column) of its buffer."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.types import Buffer
from tilemma.records import record
from tilemma.targets.ptx.lower.linear import Linear


@record
class Matrix:
    """A view of a shared buffer in the plan's rows and columns: position = origin + sum(index * step).

    ``steps`` has one (rows, columns) pair for each axis of the view.  ``base`` is the byte offset of the buffer
    (of the buffer copy that the view names) from the start of shared memory.
    """

    plan: SharedLayoutPlan
    buffer: Buffer
    base: Linear
    row: Linear
    col: Linear
    steps: tuple[tuple[Linear, Linear], ...]

    def position(self, index: Sequence[Linear]) -> tuple[Linear, Linear]:
        """(row, column) of the element at ``index``, which has one entry for each axis."""
        row, col = self.row, self.col
        for i, (r, c) in zip(index, self.steps, strict=True):
            row, col = row + _product(i, r), col + _product(i, c)
        return row, col


def _product(a: Linear, b: Linear) -> Linear:
    if a.known is not None:
        return b * a.known
    assert b.known is not None, "a step that is not known at compile time"
    return a * b.known
