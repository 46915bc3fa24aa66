"""The cost model of batches: requests to the L2 cache, and products whose rhs stays in shared memory.

Fitted to 390 batches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, of_rows

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# The share of the time that memory needs at its rate, and the seconds that a request to the L2 cache for a read
# and for a write takes besides, and a box's row that starts or ends within a sector, of so many bytes.
STREAMED, READ, WRITE, SEAM, SECTOR = 0.65, 4e-12, 1.2e-11, 1.8e-11, 32
# What the shorter of two times that pass together adds to the other.
BESIDE = 0.1
# How much longer a batch takes whose tiles leave as whole rows.
IN_ROWS = 2e-07
# Products whose rhs stays in shared memory: the share of the time that memory needs at its rate, the seconds that
# a request takes besides, and how much longer that is if some blocks have one more tile than others.
RESIDENT, REQUEST, UNEVEN = 0.86, 6.4e-12, 0.1
# Seconds of a tile of theirs, of each of its warpgroups and columns; until the first bytes come, and how much
# longer than memory these take.
TILE, GROUP, COLUMN = 2.9e-07, 3.5e-07, 4e-09
LATENCY, LOAD = 1.3e-06, 1.0
# What a launch takes for each warpgroup but one.
BOTH = 3e-07
# Of a tile whose transpose is computed: of each of its warpgroups, of 64 columns, of 16 along K for these; and of
# a launch.
TURNED_TILE, TURNED_GROUP, TURNED_PART, TURNED_STEP, TURNED_ONCE = 3.4e-07, 1.9e-07, 1.1e-07, 8e-09, 1.1e-06
# Rows of an instruction, and elements along K.
ROWS, DEPTH = 64, 16


def seconds_of_batch(p: Problem, plan: Plan, on: Hardware, seconds: float) -> float:
    """Seconds of a batch whose blocks work for ``seconds``: the requests to the L2 cache take theirs."""
    reads, writes, seams = _requests(p, plan)
    least = STREAMED * _once(p) / on.memory + reads * READ + writes * WRITE + seams * SEAM
    least *= p.batch
    found = max(seconds, least) + BESIDE * min(seconds, least)
    return found + IN_ROWS * (plan.store == "rows")


def resident_seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """Seconds of products whose rhs stays in shared memory, and what bounds them: memory and the requests to the
    L2 cache, or the tiles of a block, one after another."""
    (m, n, k), (rows, columns, _), size = p.shape, plan.tile, p.lhs.dtype.bytes
    down, row = cdiv(m, rows), k * size
    tiles = p.batch // plan.grid * down + cdiv(p.batch % plan.grid * down, plan.grid)
    requests = of_rows(m + n, row, row)
    requests += m * n * size / LINE if plan.store == "lines" else of_rows(m, n * size, n * size)
    memory = p.batch * (RESIDENT * _once(p) / on.memory + requests * REQUEST)
    # The last tiles of some blocks are done when memory has nothing else to do.
    memory *= 1 + UNEVEN * (tiles * plan.grid / (p.batch * down) - 1)
    turned = rows < ROWS * plan.groups
    if turned:
        part = TURNED_PART + TURNED_STEP * plan.groups * cdiv(k, DEPTH)
        work = down * (TURNED_TILE + TURNED_GROUP * plan.groups + cdiv(columns, ROWS) * part)
    else:
        work = down * (TILE + GROUP * plan.groups + COLUMN * columns)
    # Products wait for rhs where few slots are on their way.
    loading = LATENCY + LOAD * (columns + rows) * row * min(on.sms, p.batch * down) / on.memory
    each = tiles / down * max(work, (loading + work) / plan.slots)
    seconds = max(memory, each) + BESIDE * min(memory, each) + TURNED_ONCE * turned + BOTH * (plan.groups - 1)
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
