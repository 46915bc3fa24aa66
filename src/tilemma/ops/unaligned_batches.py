"""The time of batches of small products whose rows along K do not start at multiples of 16 bytes.

TMA cannot read such rows.  They are copied to aligned ones first, in a launch of its own, or the kernel for any
strides reads them where they are, in pieces as wide as their alignment.  The latter takes no bytes twice, and is
the faster where its tiles are well filled and rows are short.  Terms add up, since the kernel for any strides does
not overlap them.  `bench/fit_unaligned_batches.py` measures and fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.operand_layouts import packed
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import facts

if TYPE_CHECKING:
    from tilemma.ops.plan import Estimate

# The largest extent and the number of products that are like those that were timed.
LARGEST, FEWEST = 1088, 16
# Microseconds of the kernel for any strides, by tile: of a launch, of each step, of each tile, of each step of
# each tile, of each load, of each byte from or to memory, of each store.
TILES = {
    (64, 64, 64): (3.18, 0.919, 1.35e-3, 0.0, 7.98e-7, 1.61e-7, 2.76e-6),
    (64, 64, 32): (2.79, 0.671, 7.11e-4, 2.47e-4, 7.06e-7, 1.80e-7, 2.74e-6),
    (128, 64, 64): (2.70, 1.198, 5.47e-3, 8.02e-4, 8.65e-7, 7.18e-8, 2.68e-6),
    (128, 128, 64): (2.65, 1.469, 1.057e-2, 0.0, 1.31e-6, 1.38e-7, 2.71e-6),
}
# Microseconds of a product of copies: of the launches, a part of what the model of aligned operands says with the
# copies' bytes, of each load, and of each row.
COPIES = (1.37, 0.674, 4.85e-7, 1.365e-4)
# Tiles, and warpgroups, besides those that every product may have.
FURTHER = (((64, 64, 32), 1), ((128, 64, 64), 2))


def applies(p: Problem) -> bool:
    """Whether ``p`` is a batch like those that were timed: of 16-bit operands, K contiguous in both, neither of
    them aligned."""
    if p.batch < FEWEST or p.lhs.dtype.bits != 16 or p.grouped or len(p.outer) != 1 or max(p.shape) > LARGEST:
        return False
    rows = p.lhs_major == p.rhs_major == "row" and p.lhs.strides[2] == p.rhs.strides[2] == 1
    return rows and {"lhs", "rhs"} <= set(packed(p))


def corrected(p: Problem, found: Sequence[Estimate]) -> list[Estimate]:
    """The estimates with seconds by this file's terms, of plans that it knows."""
    return [replace(x, seconds=_seconds(p, x)) for x in found]


def terms_of_tiles(p: Problem, tile: tuple[int, int, int]) -> tuple[float, ...]:
    """What the numbers of `TILES` are multiplied with."""
    (m, n, k), (rows, columns, depth), size = p.shape, tile, p.lhs.dtype.bytes
    down, across, steps = cdiv(m, rows), cdiv(n, columns), cdiv(k, depth)
    tiles = p.batch * down * across
    loads = p.batch * (m * k * across / facts(p.lhs).alignment + n * k * down / facts(p.rhs).alignment) * size
    moved = p.batch * ((m + n) * k * size + m * n * p.out.dtype.bytes)
    together = 1 if n % 2 else 2 if n % 4 else 4
    return 1.0, steps, tiles, tiles * steps, loads, moved, p.batch * m * n / together


def terms_of_copies(p: Problem, seconds: float) -> tuple[float, ...]:
    """What the numbers of `COPIES` are multiplied with; ``seconds`` by the model of aligned operands."""
    (m, n, k), size = p.shape, p.lhs.dtype.bytes
    loads = p.batch * k * size * (m / facts(p.lhs).alignment + n / facts(p.rhs).alignment)
    return 1.0, seconds * 1e6, loads, p.batch * (m + n)


def _seconds(p: Problem, found: Estimate) -> float:
    plan = found.plan
    numbers: tuple[float, ...]
    if plan.kernel == "tiles" and plan.tile in TILES:
        numbers, terms = TILES[plan.tile], terms_of_tiles(p, plan.tile)
    elif plan.pack:
        numbers, terms = COPIES, terms_of_copies(p, found.seconds)
    else:
        return found.seconds
    return sum(a * b for a, b in zip(numbers, terms, strict=True)) * 1e-6
