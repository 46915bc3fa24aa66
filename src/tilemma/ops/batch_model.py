"""The cost model of batches: requests to the L2 cache, and products whose rhs stays in shared memory.

Fitted to timings of batches on an H200; `batch_timings` corrects it by some of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.batch_timings import Timed, factors
from tilemma.ops.limits import smooth_maximum
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, SECTOR, of_rows

if TYPE_CHECKING:
    from tilemma.ops.plan import Estimate, Hardware, Plan

# How many times the least predicted time a plan may take whose time timings of like plans correct.
NEAR = 1.2
# The share of the time that memory needs at its rate, and the seconds that a request to the L2 cache for a read
# and for a write takes besides, and a box's row that starts or ends within a sector.
STREAMED, READ, WRITE, SEAM = 0.65, 4e-12, 1.2e-11, 1.8e-11
# K from which on tiles for no more than one round take longer than other terms say, as a whole, and less in parts.
LONG, WHOLE, PARTS = 2048, 1.22, 0.85
# What the shorter of two times that pass together adds to the other.
BESIDE = 0.1
# How much longer a batch takes whose tiles leave as whole rows.
IN_ROWS = 2e-07
# The same of 16-bit operands, by rounds of tiles: seconds that memory needs over those at its rate, and how much
# longer if the last round leaves blocks out; the seconds of a request for a read and for a write, and of a row
# within a sector.
STREAMED_BY_TILES, LEFT_OUT = 1.16, 0.235
READ_BY_TILES, WRITE_BY_TILES, SEAM_BY_TILES = 6.99e-12, 2.73e-12, 1.25e-11
# The clock at which multiplications would work, were they alone, over that under load; seconds until a stage has
# come, and of each of its bytes that are on their way to all blocks.
ALONE, LATENCY, ON_THE_WAY = 1.32, 2.29e-07, 1.57e-13
# Seconds of a tile, of a byte of it that is stored, and how much longer that is from registers.
TILE, STORED, DIRECT = 3e-07, 2.2e-12, 1.4
# Seconds in which a block, and a cluster, take a tile from the queue, at least: batches of 1865x40x32x112 and of
# 3595x32x272x32.
TAKEN = (9.5e-07, 1.4e-06)
# How much longer tiles from a queue take, and the exponent of the rounds: of pairs of plans in and without it.
QUEUE, BY_ROUNDS = 1.058, -0.023
# The same of results of more elements than were fitted, where K is at most so long: 58 products of 1024x2048x128
# took 88.6 us in turns, and 83.8 us from a queue.
WIDE_RESULT, SHORT_K, QUEUE_OF_WIDE = 2**20, 128, 0.91
# The exponent of the smooth maximum; a launch, and one of clusters; how often a tile is stored when all else is
# done.
SMOOTH, LAUNCH, CLUSTER, LAST = 2.12, 1.45e-06, 1.49e-07, 10.8
# Products whose rhs stays in shared memory: the share of the time that memory needs at its rate, the seconds that
# a request for a read and for a write takes besides, and how much longer that is if some blocks have one more tile
# than others.
RESIDENT, RESIDENT_READ, RESIDENT_WRITE, UNEVEN = 1.02, 3.77e-12, 5.28e-12, 0.229
# Seconds of a tile of theirs where one warpgroup works alone, and of a column for each warpgroup; and if its
# transpose is computed, of 64 columns, and of each warpgroup and 16 along K for these.
LONE, COLUMN, TURNED_PART, TURNED_STEP = 9.02e-08, 2.59e-09, 6.31e-08, 8.78e-09
# How much longer rhs takes to come than at memory's rate; the exponent of the smooth maximum.
LOAD, RESIDENT_SMOOTH = 0.876, 2.76
# A launch, and what it takes for each warpgroup but one, and if transposes are computed.
RESIDENT_LAUNCH, BOTH, TURNED_ONCE = 1.93e-06, 1.23e-07, 1.26e-06
# K, and K times the elements of the result, at most, of batches like those that were timed.
LONGEST, LARGEST = 1024, 2**30
# Rows of an instruction, its columns at most, and elements along K.
ATOM, WIDEST, DEPTH = 64, 256, 16


def by_tiles(p: Problem, plan: Plan) -> bool:
    """Whether `seconds_by_tiles` knows the time of a batch: of 16-bit operands, in one launch."""
    alone = plan.kernel == "pipelined" and plan.split == 1 and not plan.pack
    return alone and p.batch > 1 and p.lhs.dtype.bits == 16 and len(p.outer) == 1 and not p.grouped


def like_timed(p: Problem, plan: Plan) -> bool:
    """Whether timings of other batches say how long ``plan`` takes: not of larger products than were timed, where
    the tensor cores work all the time at a lower clock."""
    if plan.kernel == "resident":
        return True
    return by_tiles(p, plan) and p.shape[2] <= LONGEST and math.prod(p.shape) <= LARGEST


def seconds_of_batch(p: Problem, plan: Plan, on: Hardware, seconds: float) -> float:
    """Seconds of a batch whose blocks work for ``seconds``: the requests to the L2 cache take theirs.

    Of 16-bit operands it is the geometric mean with `seconds_by_tiles`.
    """
    reads, writes, seams = _requests(p, plan)
    least = STREAMED * _once(p) / on.memory + reads * READ + writes * WRITE + seams * SEAM
    least *= p.batch
    found = max(seconds, least) + BESIDE * min(seconds, least) + IN_ROWS * (plan.store == "rows")
    found = math.sqrt(found * seconds_by_tiles(p, plan, on)[0]) if by_tiles(p, plan) else found
    (m, n, k), (rows, columns, _) = p.shape, plan.tile
    if k < LONG or p.batch * cdiv(m, rows) * cdiv(n, columns) > on.sms:
        return found
    return found * (WHOLE if plan.split == 1 else PARTS)


def corrected(problems: Sequence[Problem], found: Sequence[Estimate], on: Hardware) -> list[Estimate]:
    """The estimates ``found``, each for its product; what timings of like plans say corrects those that are near
    the least."""
    known = [i for i, (p, e) in enumerate(zip(problems, found, strict=True)) if like_timed(p, e.plan)]
    most = NEAR * min((found[i].seconds for i in known), default=0.0)
    near = [i for i in known if found[i].seconds <= most]
    result = list(found)
    for i, factor in zip(near, factors([timed(problems[i], found[i].plan, on) for i in near]), strict=True):
        result[i] = replace(found[i], seconds=found[i].seconds * factor)
    return result


def timed(p: Problem, plan: Plan, on: Hardware) -> Timed:
    """The plan as `batch_timings` knows it."""
    (m, n, k), (rows, columns, depth), swap = p.shape, plan.tile, plan.swap
    return Timed(
        p.batch, n if swap else m, m if swap else n, k, rows, columns, depth, plan.groups, plan.stages,
        *plan.cluster, plan.share, swap, plan.store, plan.slots, plan.grid,
        max(1, plan.grid // on.sms) if plan.slots else 1, plan.queue, plan.kept,
    )  # fmt: skip


def seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """Seconds of a batch with a plan like timed ones, by formulas, and what bounds them."""
    return resident_seconds(p, plan, on) if plan.kernel == "resident" else seconds_by_tiles(p, plan, on)


def seconds_by_tiles(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """Seconds of a batch in which memory, the L2 cache and the blocks' rounds of tiles pass together, and the
    slowest of them."""
    (rows, columns, depth), (high, wide) = plan.tile, plan.cluster
    tasks = p.batch * cdiv(p.shape[0], rows * high) * cdiv(p.shape[1], columns * wide)
    rounds, blocks = cdiv(tasks, plan.grid), high * wide
    uneven = rounds * plan.grid / tasks - 1 if rounds > 1 else 0.0
    memory = STREAMED_BY_TILES * (1 + LEFT_OUT * uneven) * _once(p) / on.memory
    reads, writes, seams = _requests(p, plan)
    loaded = (rows + columns) * depth * p.lhs.dtype.bytes * min(tasks, plan.grid) * blocks
    multiplied = 2 * rows * columns * depth / (on.tensor * ALONE * on.clock)
    step = max(multiplied, (LATENCY + ON_THE_WAY * loaded) / plan.stages)
    store = STORED * rows * columns * p.out.dtype.bytes * (1 + DIRECT * (plan.store == "direct"))
    limits = {
        "memory": p.batch * memory,
        "L2 cache": p.batch * (reads * READ_BY_TILES + writes * WRITE_BY_TILES + seams * SEAM_BY_TILES),
        "tiles": rounds * max(cdiv(p.shape[2], depth) * step + TILE + store, TAKEN[blocks > 1] * plan.queue),
    }
    seconds = smooth_maximum(limits.values(), SMOOTH) * (QUEUE * rounds**BY_ROUNDS if plan.queue else 1.0)
    if plan.queue and p.shape[0] * p.shape[1] > WIDE_RESULT and p.shape[2] <= SHORT_K:
        seconds *= QUEUE_OF_WIDE
    seconds += LAUNCH + CLUSTER * (blocks > 1) + LAST * store
    return (
        seconds,
        f"{tasks} tasks in {rounds} rounds of {plan.grid}, bound by {max(limits, key=limits.__getitem__)}",
    )


def resident_seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """Seconds of products whose rhs stays in shared memory, and what bounds them: memory and the requests to the
    L2 cache, or the tiles of a block, one after another."""
    (m, n, k), (rows, columns, _), size = p.shape, plan.tile, p.lhs.dtype.bytes
    down, row, beside = cdiv(m, rows), k * size, plan.grid // on.sms
    # Blocks compute whole products, and share the tiles of the rest.
    share = cdiv(p.batch % plan.grid * down, plan.grid)
    tiles = p.batch // plan.grid * down + share
    loads = p.batch // plan.grid + (1 + (share - 1) / down if share else 0)
    writes = m * n * size / LINE if plan.store == "lines" else of_rows(m, n * size, n * size)
    requests = of_rows(m + n, row, row) * RESIDENT_READ + writes * RESIDENT_WRITE
    memory = p.batch * (RESIDENT * _once(p) / on.memory + requests)
    # The last tiles of some blocks are done when memory has nothing else to do.
    memory *= 1 + UNEVEN * (tiles * plan.grid / (p.batch * down) - 1)
    turned = rows < ATOM * plan.groups
    if turned:
        work = tiles * cdiv(columns, ATOM) * (TURNED_PART + TURNED_STEP * plan.groups * cdiv(k, DEPTH))
    else:
        work = tiles * (LONE * (plan.groups * beside == 1) + COLUMN * beside * columns * plan.groups)
    loading = loads * LOAD * (columns + rows) * row * min(on.sms, p.batch * down) / on.memory
    # Products wait for rhs where few slots are on their way.
    each = max(work, (loading + work) / plan.slots)
    seconds = smooth_maximum((memory, each), RESIDENT_SMOOTH)
    seconds += RESIDENT_LAUNCH + TURNED_ONCE * turned + BOTH * (plan.groups - 1)
    return seconds, f"bound by {'memory' if memory > each else 'waits'}"


def _once(p: Problem) -> float:
    """Bytes of one product of a batch, each read or written once; of an operand that all share, its part."""
    (m, n, k), (left, right) = p.shape, p.apart
    return float((m * left + n * right) * k * p.lhs.dtype.bytes + m * n * p.out.dtype.bytes)


def _requests(p: Problem, plan: Plan) -> tuple[float, float, float]:
    """Requests to the L2 cache for one product of a batch: reads, writes, and rows of boxes within sectors.

    Each tile row reads all of rhs, each tile column all of lhs; clusters that share count as one.
    """
    (m, n, k), (rows, columns, _) = p.shape, plan.tile
    high, wide = plan.cluster if plan.share else (1, 1)
    row, size = k * p.lhs.dtype.bytes, p.out.dtype.bytes
    tiles = cdiv(n, columns)
    reads = of_rows(m, row, row) * tiles / wide + of_rows(n, row, row) * cdiv(m, rows) / high
    if plan.swap:
        # The rows of the result are the columns of the transposed one.
        return reads, of_rows(n, m * size, m * size), n * cdiv(m * size, LINE) * (m * size % SECTOR != 0)
    last = n - (tiles - 1) * columns
    step = math.gcd(n * size, columns * size)
    box = columns * size if plan.store == "rows" else LINE
    writes = (tiles - 1) * of_rows(m, columns * size, step, box) + of_rows(m, last * size, step, box)
    boxes = (tiles - 1) * cdiv(columns * size, box) + cdiv(last * size, box)
    return reads, writes, m * boxes * (step % SECTOR != 0)
