"""The time of batches of small products whose rows along K do not start at multiples of 16 bytes.

TMA cannot read such rows.  They are copied to aligned ones first, in a launch of its own, or the kernel for any
strides reads them where they are, in pieces as wide as their alignment, a step ahead.  The latter takes no bytes
twice, and is the faster but for long rows of large products or of few.  Terms add up: an SM takes its time for
each piece that it moves.  `bench/fit_unaligned_batches.py` measures and fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.operand_layouts import packed
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import facts

if TYPE_CHECKING:
    from tilemma.ops.plan import Estimate, Plan

# The largest extent and the number of products that are like those that were timed.
LARGEST, FEWEST = 1088, 16
# Bytes that cp.async moves at least.
LEAST_OF_CP_ASYNC = 4


class Way(NamedTuple):
    """A plan of the kernel for any strides: see `plan.Plan`."""

    tile: tuple[int, int, int]
    groups: int
    stages: int = 1


# Microseconds of each way: of a launch, of each step, of each tile, of each step of each tile, of each piece that
# is loaded, of each byte from or to memory, of each store.
WAYS = {
    Way((64, 32, 64), 1): (1.54, 0.538, 0.00112, 0.000422, 3.27e-07, 1.25e-07, 3.26e-07),
    Way((64, 48, 64), 1): (1.66, 0.596, 0.00187, 0.000352, 3.58e-07, 1.28e-07, 5.67e-07),
    Way((64, 64, 64), 1): (1.5, 0.65, 0.00196, 0.000235, 3.68e-07, 1.49e-07, 3.8e-07),
    Way((64, 64, 32), 1): (1.09, 0.536, 0.0009, 0.000579, 2.57e-07, 1.57e-07, 5.07e-07),
    Way((64, 96, 64), 1): (1.6, 0.787, 0.0035, 8.85e-05, 4.32e-07, 1.69e-07, 4.66e-07),
    Way((64, 128, 32), 1): (1.27, 0.584, 0.00216, 0.00102, 2.33e-07, 1.87e-07, 4.29e-07),
    Way((128, 64, 64), 2): (1.35, 0.626, 0.00439, 0.000404, 4.67e-07, 1.37e-07, 4.46e-07),
    Way((128, 96, 32), 2): (1.22, 0.538, 0.00418, 0.0012, 3.82e-07, 1.35e-07, 7.71e-07),
    Way((128, 128, 32), 2): (1.54, 0.502, 0.00557, 0.000514, 4.65e-07, 2.27e-07, 1.63e-07),
}
# Microseconds of a product of copies: of the launches, a part of what the model of aligned operands says with the
# copies' bytes, of each load, and of each row.
COPIES = (0.632, 0.782, 0.0, 8.33e-5)


def applies(p: Problem) -> bool:
    """Whether ``p`` is a batch like those that were timed: of 16-bit operands, K contiguous in both, neither of
    them aligned."""
    if p.batch < FEWEST or p.lhs.dtype.bits != 16 or p.grouped or len(p.outer) != 1 or max(p.shape) > LARGEST:
        return False
    rows = p.lhs_major == p.rhs_major == "row" and p.lhs.strides[2] == p.rhs.strides[2] == 1
    return rows and {"lhs", "rhs"} <= set(packed(p))


def plans(p: Problem) -> Iterator[Plan]:
    """The plans that read operands where they are: loads a step ahead, or stages of cp.async."""
    from tilemma.ops.plan import Plan

    # Warps write rows whole from shared memory.
    store = "copy" if p.out.strides[2] == 1 and p.out.dtype.bits == 16 else "direct"
    for way in WAYS:
        if way.stages == 1 or min(facts(p.lhs).alignment, facts(p.rhs).alignment) >= LEAST_OF_CP_ASYNC:
            yield Plan("ahead", way.tile, way.groups, way.stages, raster=0, store=store)


def way_of(plan: Plan) -> Way:
    """The way of a plan without copies."""
    return Way(plan.tile, plan.groups, plan.stages)


def corrected(p: Problem, found: Sequence[Estimate]) -> list[Estimate]:
    """The estimates with seconds by this file's terms, of plans that it knows."""
    return [replace(x, seconds=_seconds(p, x)) for x in found]


def terms_of_tiles(p: Problem, tile: tuple[int, int, int]) -> tuple[float, ...]:
    """What the numbers of a way are multiplied with."""
    (m, n, k), (rows, columns, depth), size = p.shape, tile, p.lhs.dtype.bytes
    tiles, steps = p.batch * cdiv(m, rows) * cdiv(n, columns), cdiv(k, depth)
    pieces = tiles * steps * depth * size * (rows / facts(p.lhs).alignment + columns / facts(p.rhs).alignment)
    moved = p.batch * ((m + n) * k * size + m * n * p.out.dtype.bytes)
    stores = p.batch * m * n * p.out.dtype.bytes / facts(p.out).alignment
    return 1.0, steps, tiles, tiles * steps, pieces, moved, stores


def terms_of_copies(p: Problem, seconds: float) -> tuple[float, ...]:
    """What the numbers of `COPIES` are multiplied with; ``seconds`` by the model of aligned operands."""
    (m, n, k), size = p.shape, p.lhs.dtype.bytes
    loads = p.batch * k * size * (m / facts(p.lhs).alignment + n / facts(p.rhs).alignment)
    return 1.0, seconds * 1e6, loads, p.batch * (m + n)


def _seconds(p: Problem, found: Estimate) -> float:
    plan = found.plan
    numbers: tuple[float, ...]
    if plan.kernel == "ahead" and way_of(plan) in WAYS:
        numbers, terms = WAYS[way_of(plan)], terms_of_tiles(p, plan.tile)
    elif plan.pack:
        numbers, terms = COPIES, terms_of_copies(p, found.seconds)
    else:
        return found.seconds
    return sum(a * b for a, b in zip(numbers, terms, strict=True)) * 1e-6
