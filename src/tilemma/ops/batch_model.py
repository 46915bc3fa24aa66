"""The cost model of batches: requests to the L2 cache, and products whose rhs stays in shared memory.

Fitted to some 4,500 timings of 752 batches on an H200.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.limits import smooth_maximum
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, SECTOR, of_rows

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# The share of the time that memory needs at its rate, and the seconds that a request to the L2 cache for a read
# and for a write takes besides, and a box's row that starts or ends within a sector.
STREAMED, READ, WRITE, SEAM = 0.65, 4e-12, 1.2e-11, 1.8e-11
# What the shorter of two times that pass together adds to the other.
BESIDE = 0.1
# How much longer a batch takes whose tiles leave as whole rows.
IN_ROWS = 2e-07
# The same by rounds of tiles: seconds that memory needs over those at its rate, and how much longer if the last
# round leaves blocks out; the seconds of a request for a read, and of a row within a sector.
STREAMED_BY_TILES, LEFT_OUT, READ_BY_TILES, SEAM_BY_TILES = 1.14, 0.724, 6.09e-12, 1.82e-11
# Seconds until a stage has come; the clock at which multiplications would work, were they alone, over that under
# load; a launch, and one of clusters; the exponent of the smooth maximum.
LATENCY, ALONE, LAUNCH, CLUSTER, SMOOTH = 3.7e-07, 1.49, 1.59e-06, 6.02e-07, 1.45
# Products whose rhs stays in shared memory: the share of the time that memory needs at its rate, the seconds that
# a request for a read and for a write takes besides, and how much longer that is if some blocks have one more tile
# than others.
RESIDENT, RESIDENT_READ, RESIDENT_WRITE, UNEVEN = 0.798, 2.59e-12, 9.72e-12, 0.586
# Seconds of a tile of theirs, and of a column for each warpgroup; and if its transpose is computed, of 64 columns,
# and of each warpgroup and 16 along K for these.
TILE, COLUMN, TURNED_PART, TURNED_STEP = 2.78e-07, 6.18e-10, 4.11e-08, 5.03e-09
# How much longer rhs takes to come than at memory's rate.
LOAD = 1.32
# A launch, and what it takes for each warpgroup but one, and if transposes are computed.
RESIDENT_LAUNCH, BOTH, TURNED_ONCE = 2e-6, 2.05e-07, 9.84e-07
# Rows of an instruction, its columns at most, and elements along K.
ATOM, WIDEST, DEPTH = 64, 256, 16


def seconds_of_batch(p: Problem, plan: Plan, on: Hardware, seconds: float) -> float:
    """Seconds of a batch whose blocks work for ``seconds``: the requests to the L2 cache take theirs.

    Of 16-bit operands it is the geometric mean with `_seconds_by_tiles`: a plan that one model underestimates is
    seldom underestimated by the other.  Of 104 batches that it was not fitted to, the chosen plans have 1.201 of
    torch's speed with the mean, 1.185 without, and 5 and 7 are slower than 0.97 of it.
    """
    reads, writes, seams = _requests(p, plan)
    least = STREAMED * _once(p) / on.memory + reads * READ + writes * WRITE + seams * SEAM
    least *= p.batch
    found = max(seconds, least) + BESIDE * min(seconds, least) + IN_ROWS * (plan.store == "rows")
    timed = p.lhs.dtype.bits == 16 and plan.split == 1 and not plan.pack and len(p.outer) == 1
    return math.sqrt(found * _seconds_by_tiles(p, plan, on)) if timed else found


def _seconds_by_tiles(p: Problem, plan: Plan, on: Hardware) -> float:
    """Seconds of a batch in which memory, the L2 cache and the blocks' rounds of tiles pass together."""
    (rows, columns, depth), (high, wide) = plan.tile, plan.cluster
    tasks = p.batch * cdiv(p.shape[0], rows * high) * cdiv(p.shape[1], columns * wide)
    rounds = cdiv(tasks, plan.grid)
    uneven = rounds * plan.grid / tasks - 1 if rounds > 1 else 0.0
    memory = STREAMED_BY_TILES * (1 + LEFT_OUT * uneven) * _once(p) / on.memory
    reads, _, seams = _requests(p, plan)
    step = max(2 * rows * columns * depth / (on.tensor * ALONE * on.clock), LATENCY / plan.stages)
    limits = (
        p.batch * memory,
        p.batch * (reads * READ_BY_TILES + seams * SEAM_BY_TILES),
        rounds * cdiv(p.shape[2], depth) * step,
    )
    return smooth_maximum(limits, SMOOTH) + LAUNCH + CLUSTER * (high * wide > 1)


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
        work = tiles * (TILE + COLUMN * beside * columns * plan.groups)
    loading = loads * LOAD * (columns + rows) * row * min(on.sms, p.batch * down) / on.memory
    # Products wait for rhs where few slots are on their way.
    each = max(work, (loading + work) / plan.slots)
    seconds = smooth_maximum((memory, each), SMOOTH)
    seconds += RESIDENT_LAUNCH + TURNED_ONCE * turned + BOTH * (plan.groups - 1)
    return seconds, "memory" if memory > each else "waits"


def _once(p: Problem) -> float:
    """Bytes of one product of a batch, each read or written once."""
    m, n, k = p.shape
    return float((m + n) * k * p.lhs.dtype.bytes + m * n * p.out.dtype.bytes)


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
