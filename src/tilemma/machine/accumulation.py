"""Products on the same accumulators, one after the other: do A and B go through K in the same steps?

A tile that one copy has brought to shared memory is multiplied in slices of the instruction's K.  A descriptor
whose step is wrong multiplies a slice of A with another slice of B, although each operand is a tile.  Two products
are compared only if their operands lie in the same two tiles, so that sums over several pairs of tiles (taps of a
convolution, high and low halves of a number) stay the business of the program.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilemma.machine.provenance import Contraction, say
from tilemma.machine.syntax import Instruction

# Rows that the smallest tile has: without a copy that names the tile, closer slices are taken to be of one tile.
_ROWS = 64
# Products on the same tiles that a product is compared with.
_PRODUCTS = 16


class Slice(NamedTuple):
    """An operand: its contraction, the shared address of its first element, and the tile that it is part of.

    ``copy`` is the event of the tensor copy that wrote the tile, -1 if something else wrote it; ``swizzle`` is the
    width of a row of the tile in bytes; ``more`` says that the tile's rows have columns of K behind the slice,
    ``less`` that they have some before it.
    """

    contraction: Contraction
    address: int
    copy: int
    swizzle: int
    more: bool
    less: bool

    def in_tile_of(self, other: Slice, *, same_group: bool) -> bool:
        """Whether both slices lie in one tile; ``same_group``: no tile can have been replaced between them."""
        mine, theirs = self.contraction, other.contraction
        if mine.allocation is not theirs.allocation or mine.axis != theirs.axis:
            return False
        if self.copy != other.copy:
            return False
        near = abs(self.address - other.address) < _ROWS * self.swizzle
        return self.copy >= 0 or (same_group and near)

    def along(self, other: Slice) -> int:
        """The step along K from another slice."""
        mine, theirs = self.contraction.first, other.contraction.first
        assert mine is not None and theirs is not None
        axis = self.contraction.axis
        return mine[axis] - theirs[axis]

    def step_from(self, other: Slice) -> tuple[int, bool]:
        """The step along K from another slice, and whether the rows are others."""
        steps = self.steps_from(other)
        along = steps.pop(self.contraction.axis)
        return along, any(steps)

    def steps_from(self, other: Slice) -> list[int]:
        """The steps along each dimension of the array from another slice of it."""
        mine, theirs = self.contraction.first, other.contraction.first
        assert mine is not None and theirs is not None
        return [a - b for a, b in zip(mine, theirs, strict=True)]


class Product(NamedTuple):
    """A product on some accumulators: its PTX line, its commit group and its operands."""

    line: int
    group: int
    a: Slice
    b: Slice


def _exchanged(mine: tuple[Slice, Slice], other: tuple[Slice, Slice]) -> int:
    """The step along its rows of an operand whose coordinates are exchanged in at least one of two tiles; or 0.

    The slices are (now, before); ``other`` has gone along K alone.  Exchanged coordinates move by the same sum.
    The taps of a convolution do not: they move the rows by less than the columns of a tile.
    """
    for now, before in (mine, other):
        if now.contraction.allocation is not before.contraction.allocation:
            return 0
        if now.contraction.axis != before.contraction.axis:
            return 0
    (along, _), (due, moved) = mine[0].step_from(mine[1]), other[0].step_from(other[1])
    steps = mine[0].steps_from(mine[1])
    del steps[mine[0].contraction.axis]
    rows = [x for x in steps if x]
    return rows[0] if not moved and len(rows) == 1 and along + rows[0] == due else 0


def check_step(w: Any, ins: Instruction, before: list[Product], k: int, here: Product) -> list[Product]:
    """Check a product of ``k`` columns against those ``before`` it on its accumulators, of the same two tiles.

    Returns the products that the next one is checked against.
    """
    if not before:
        return [here]
    last, a, b = before[-1], here.a, here.b

    def since(product: Product) -> str:
        return f"since the product of PTX line {product.line} on the same accumulators"

    def report(letter: str, what: str) -> list[Product]:
        say(w, ins, letter, (a if letter == "A" else b).contraction.allocation, what)
        return [here]

    again = f"{k} columns of K are multiplied twice and the next {k} not at all"
    first_again = f"{k} columns of K are multiplied twice and the {k} before them not at all"
    repeated = len(before) > 1 and last.a.step_from(before[-2].a) == (0, False)
    same_group = here.group == last.group
    if not (a.in_tile_of(last.a, same_group=same_group) and b.in_tile_of(last.b, same_group=same_group)):
        if repeated and last.a.more:
            return report("A", f"in the tile before, {again}")
        if repeated and len(before) == 2 and (last.a.less or last.b.less):
            return report("A", f"in the tile before, {first_again}")
        first = before[0]
        pairs = (a, first.a), (b, first.b)
        for name, one, two in (("A", *pairs), ("B", *pairs[::-1])):
            if gone := _exchanged(one, two):
                what = f"it has gone {gone} along its rows, and the other operand along K only"
                return report(name, f"{since(first)}, {what}: are the coordinates of its tile exchanged?")
        return [here]
    (step_a, moved_a), (step_b, moved_b) = a.step_from(last.a), b.step_from(last.b)
    if moved_a or moved_b:
        # A convolution goes to other rows of its image where it has multiplied all channels.
        letter, step, other, slice_ = ("A", step_a, step_b, last.a) if moved_a else ("B", step_b, step_a, last.b)
        if step == other != 0 or (step == 0 and other == k and slice_.more):
            return report(letter, f"{since(last)}, it has gone to other rows, and {step} columns of K further")
        return [here]
    for letter, now, then in (("A", a, last.a), ("B", b, last.b)):
        mine, theirs = now.contraction.rows, then.contraction.rows
        if mine and theirs and mine != theirs:
            return report(letter, f"{since(last)}, from the same first row on, it has other rows")
    # The slices of a tile may be taken in any order, each with one of the other operand.
    for product in before:
        step_a, step_b = a.along(product.a), b.along(product.b)
        if step_a != step_b and min(abs(step_a), abs(step_b)) < k:
            letter = "A" if abs(step_a) < k else "B"
            return report(letter, f"{since(product)}, A has gone {step_a} columns of K further, and B {step_b}")
    earlier = last.a.along(before[-2].a) if len(before) > 1 else k
    if {earlier, a.along(last.a)} == {0, 2 * k}:
        return report("A", f"{since(last)}, {again}")
    if len(before) == 2 and (earlier, a.along(last.a)) == (0, k) and (before[0].a.less or before[0].b.less):
        return report("A", f"{since(before[0])}, {first_again}")
    return [*before[1 - _PRODUCTS :], here]


def check_strays(w: Any, ins: Instruction, letter: str, before: Product, address: int, origin: Any) -> None:
    """Check an operand, ``origin`` [rows, k], of which no tile is known: some rows may lie behind the last tile.

    ``before`` is the product before it on its accumulators, of the same commit group.
    """
    last = before.a if letter == "A" else before.b
    allocation = last.contraction.allocation
    here = (origin >= allocation.base) & (origin < allocation.base + allocation.size)
    strays = (origin > 0) & ~here
    if here[0, 0] and strays.any() and abs(address - last.address) < _ROWS * last.swizzle:
        row = int(np.flatnonzero(strays.any(axis=1))[0])
        other = w.cta.machine.memory.find(int(origin[strays][0]))
        name = "another array" if other is None else f"`{other.name}`"
        what = f"its row {row} is of {name}, and was of this array in the product of PTX line {before.line}"
        say(w, ins, letter, allocation, what)
