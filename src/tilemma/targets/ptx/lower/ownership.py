"""Thread-value layouts of atoms as address arithmetic: digits of the lane, plus constants for each value.

Every fragment of the catalogue is linear in the bits of the lane: the position of element (lane, value) is the sum
of one step for each set bit of the lane, plus a step that depends on the value only.  A run of bits whose steps
double is a digit of the lane, ``(lane >> shift) & mask``, times a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tilemma.atoms import Operand
from tilemma.ir.lane import Imm
from tilemma.records import record
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.linear import Linear


@record
class Digit:
    """``(lane >> shift) & mask``, worth ``row`` rows and ``col`` columns a unit."""

    shift: int
    mask: int
    row: int
    col: int


@record
class Ownership:
    """Position of (lane, value): the sum of the lane's digits, plus ``values[value]``, as (row, col)."""

    threads: int
    digits: tuple[Digit, ...]
    values: tuple[tuple[int, int], ...]


def digits(threads: int, position: Callable[[int], tuple[int, int]]) -> tuple[Digit, ...]:
    """The digits of ``position`` (of each lane, 0 for lane 0); ValueError where it is not linear in its bits."""
    steps = [position(1 << b) for b in range((threads - 1).bit_length())]
    sums = [(0, 0)]
    for row, col in steps:
        # The lanes with this bit set follow those without it.
        sums += [(r + row, c + col) for r, c in sums]
    if sums[:threads] != [position(lane) for lane in range(threads)]:
        raise ValueError("not linear in the bits of the lane")
    found: list[Digit] = []
    b = 0
    while b < len(steps):
        run = 1
        while b + run < len(steps) and steps[b + run] == (steps[b][0] << run, steps[b][1] << run):
            run += 1
        if steps[b] != (0, 0):
            found.append(Digit(b, (1 << run) - 1, *steps[b]))
        b += run
    return tuple(found)


@lru_cache(maxsize=512)
def ownership(operand: Operand) -> Ownership:
    """The layout of ``operand``, which is in registers."""
    rows = operand.shape[0]
    table: NDArray[np.int64] = operand.coordinates_table
    base = table[0]
    row, col = table[:, 0] % rows - base[0] % rows, table[:, 0] // rows - base[0] // rows
    positions = list(zip(row.tolist(), col.tolist(), strict=True))
    found = digits(operand.threads, positions.__getitem__)
    values = tuple(zip((base % rows).tolist(), (base // rows).tolist(), strict=True))
    rebuilt = row[:, None] + base % rows + (col[:, None] + base // rows) * rows
    assert np.array_equal(rebuilt, table), f"{operand.name}: lane and value do not separate"
    return Ownership(operand.threads, found, values)


@lru_cache(maxsize=512)
def row_ownership(operand: Operand) -> Ownership:
    """The rows of which a lane holds elements of ``operand``, each once, as the layout of a single column."""
    whole = ownership(operand)
    rows = tuple((r, 0) for r in dict.fromkeys(r for r, _ in whole.values))
    return Ownership(whole.threads, tuple(Digit(d.shift, d.mask, d.row, 0) for d in whole.digits if d.row), rows)


def position(lo: Lowering, found: Sequence[Digit], lane: Linear) -> tuple[Linear, Linear]:
    """(row, col) of the lane's first element: the digits in registers."""
    row, col = Linear(), Linear()
    e = lo.e
    for d in found:
        reg = e.value(lane)
        if isinstance(reg, Imm):
            value = Linear(const=int(reg.value) >> d.shift & d.mask)
        else:
            high = e.range_of(reg)[1]
            if d.shift:
                reg = e.pure("shr.u32", "s32", reg, Imm(d.shift), hint=f"lane_div{1 << d.shift}")
                e.bounded(reg, 0, high >> d.shift)
            if high >> d.shift > d.mask:
                reg = e.pure("and.b32", "s32", reg, Imm(d.mask), hint=f"lane_digit{d.shift}")
                e.bounded(reg, 0, d.mask)
            value = Linear.of(reg)
        row, col = row + value * d.row, col + value * d.col
    return row, col
