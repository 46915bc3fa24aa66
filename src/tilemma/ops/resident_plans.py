"""The plans of batches whose rhs stays in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.batch_model import ATOM, DEPTH
from tilemma.ops.operand_layouts import aligned
from tilemma.ops.plan import EVENTS, Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE
from tilemma.runtime.arrays import ArrayRef

# Stages of lhs, and of rhs, at most, and of lhs at least.
MOST, LEAST = 6, 2
# The registers of a multiprocessor hold the sums of so many columns for each of several blocks.
MOST_COLUMNS = {2: 160, 3: 72, 4: 48}
# The longest K worth a try.
LONGEST = 1024
# Tiles on their way at least: blocks with fewer waited for rhs.
AHEAD = 3
# Rows of a warpgroup whose transposes are computed, and the columns from which on they are worth a try.
HEIGHTS, NARROWEST_TURNED = (32, 24, 16), 256
# Stages of their lhs that are better than more buffers of rhs, and bytes that the alignment of buffers takes.
ENOUGH, SPARE = 4, 1024
# Bytes that each block of several in a multiprocessor takes besides its own.
BESIDE = 1024


def resident_plans(p: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans for a batch of products whose rhs fits into shared memory, and is used for several tiles."""
    if not _possible(p) or p.shape[0] <= ATOM or p.shape[2] > LONGEST:
        return
    (m, n, k), size, store = p.shape, p.lhs.dtype.bytes, _store(p)
    if not store:
        return
    depth, tiles = cdiv(k, DEPTH) * DEPTH, cdiv(m, ATOM)
    # Buffers have whole swizzle atoms.
    row = sum(width for _, width in steps_of(depth)) * size
    for groups, beside in ((2, 1), (1, 1), (1, 2), (1, 3), (1, 4)):
        if beside > 1 and n > MOST_COLUMNS[beside]:
            continue
        room = _room(p, groups * ATOM, beside, on)
        found = [
            (min(slots * cdiv(tiles, groups), stages), -slots, stages)
            for slots, stages in _rings(room, n * row, groups * ATOM * row)
        ]
        if found:
            _, slots, stages = max(found)
            if -slots * cdiv(m, ATOM * groups) >= AHEAD:
                tile, grid = (ATOM * groups, n, depth), beside * on.sms
                yield Plan("resident", tile, groups, stages, 0, grid, 1, store, slots=-slots)
    if n >= NARROWEST_TURNED:
        yield from _turned_plans(p, on)


def _turned_plans(p: Problem, on: Hardware) -> Iterator[Plan]:
    """The same with tiles of few rows, whose transposes are computed: rhs of more columns fits."""
    (_, n, k), size, store = p.shape, p.lhs.dtype.bytes, _store(p)
    depth = cdiv(k, DEPTH) * DEPTH
    row = sum(width for _, width in steps_of(depth, tight=True)) * size
    for groups in (2, 3):
        for height in HEIGHTS:
            room = _room(p, groups * height, 1, on) - SPARE
            rings = _rings(room, n * row, groups * height * row)
            found = [(min(stages, ENOUGH), min(slots, 2), stages, slots) for slots, stages in rings]
            if found:
                *_, stages, slots = max(found)
                tile = (groups * height, n, depth)
                yield Plan("resident", tile, groups, stages, 0, on.sms, 1, store, slots=slots)


def other_rings(p: Problem, plan: Plan, on: Hardware) -> Iterator[Plan]:
    """``plan`` with other numbers of buffers of rhs and of stages of lhs."""
    (rows, columns, depth), size, beside = plan.tile, p.lhs.dtype.bytes, max(1, plan.grid // on.sms)
    turned = rows < ATOM * plan.groups
    row = sum(width for _, width in steps_of(depth, turned)) * size
    room = _room(p, rows, beside, on) - SPARE * turned
    for slots, most in _rings(room, columns * row, rows * row):
        for stages in sorted({most, plan.stages, most - 1, LEAST}, reverse=True):
            if LEAST <= stages <= most and (slots, stages) != (plan.slots, plan.stages):
                yield replace(plan, slots=slots, stages=stages)


def _room(p: Problem, rows: int, beside: int, on: Hardware) -> int:
    """Bytes for the buffers of a block of so many rows, of which so many are ``beside`` each other in an SM."""
    staged = rows * p.shape[1] * p.out.dtype.bytes
    return on.shared // beside - (beside > 1) * BESIDE - EVENTS - staged


def _rings(room: int, each: int, tile: int) -> Iterator[tuple[int, int]]:
    """Buffers of rhs, of ``each`` bytes, and of tiles of lhs that fit into ``room`` bytes."""
    for slots in range(1, MOST + 1):
        stages = min(MOST, (room - slots * each) // tile)
        if stages >= LEAST:
            yield slots, stages


def _possible(p: Problem) -> bool:
    """Whether the kernel can compute the product."""
    if p.batch == 1 or len(p.outer) != 1 or p.grouped or p.promote or not p.plain or p.lhs.dtype.bits != 16:
        return False
    if p.lhs_major != "row" or p.rhs_major != "row" or p.out.dtype.bits != 16 or p.out.shape[2] % 8:
        return False
    operands = (p.lhs, p.rhs)
    return all(aligned(x) for x in (*operands, p.out)) and all(x.strides[0] and x.shape[0] > 1 for x in operands)


def _store(p: Problem) -> str:
    """How tiles of all columns are stored: whole swizzles by boxes, others in lines."""
    if p.shape[1] % (LINE // p.out.dtype.bytes) == 0:
        return "tma"
    return "" if lines_of(p.out) is None else "lines"


def lines_of(out: ArrayRef) -> ArrayRef | None:
    """The matrices of a result as lines of the L2 cache, if their rows follow one another."""
    b, m, n = out.shape
    line = LINE // out.dtype.bytes
    if out.strides[1:] != (n, 1) or m * n % line:
        return None
    return out._replace(shape=(b, m * n // line, line), strides=(out.strides[0], line, 1), owner=(out.owner,))


def steps_of(depth: int, tight: bool = False) -> list[tuple[int, int]]:
    """(first, number) of the elements along K that swizzle atoms hold: 64, for the rest fewer.  ``tight``: and no
    more than ``depth``."""
    found, first = [], 0
    while first < depth:
        rest = depth - first
        width = 64 if rest > (48 if tight else 32) else 32 if rest > 16 else 16
        found.append((first, width))
        first += width
    return found
