"""The model of single products of small and middle size, and the tiles that only these have: fitted to the times
of 2,214 plans of 241 products, flushed and by graph replay.

The results have tiles for one or two rounds of the SMs, and K is no longer than some thousands: starting, filling
a ring and storing count as much as the steps.  The time is a smooth maximum of what the parts of the machine take,
besides what each launch and each tile cost.

- The port of an SM and the L2 cache: rows that start within lines take longer, and those that start within sectors
more than twice as long.  Blocks of a cluster that share tiles read less.
- TMA takes longer to fill rows of zeros beyond an edge than to load rows, and the longer the more blocks do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import few_rounds
from tilemma.ops.limits import CACHE_RATE, CLOCK, PORT_BYTES, described, divided, smooth_maximum
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, SECTOR

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# Products that the model is for: rows and columns, at least; elements of the result and K, at most.
LEAST, RESULT, LONGEST = 257, 3_000_000, 3072
# The same elements and K, at most, where rows start within sectors.
RESULT_WITHIN, LONGEST_WITHIN = 8_500_000, 4608
# How much longer rows take that start within lines, and within sectors.
WITHIN_LINES, WITHIN_SECTORS = 0.391, 0.945
# How much longer than at its peak rate it takes: tensor cores, the port of an SM, the L2 cache and memory.
TENSOR, PORT, CACHE, MEMORY, SMOOTH = 1.07, 0.501, 0.299, 2.41, 4.0
# Seconds until a slot is filled, its own or shared; slots that are being multiplied.
LATENCY, LATENCY_SHARED, BUSY = 5.28e-7, 6.98e-7, 1.33
# Seconds for a row of zeros, and the exponent of the share of the SMs that fill as many.
ZEROS, BY_SMS = 6.7e-9, 0.81
# Seconds of a launch, of one of clusters, of one of a kernel by hand, and of each tile; of a byte that is stored
# by TMA, by a copy and from registers; of tiles that divide sectors of the result.
START, CLUSTER, HAND, TILE = 3.27e-6, 1.09e-6, 1.38e-7, 2e-8
STORE = {"tma": 3.77e-11, "copy": 6.84e-11, "direct": 3.65e-11}
DIVIDED_SECTORS = 1.84e-7
# The second kernel: its launch, and the bytes of parts a second.
ADD, ADD_RATE = 1.87e-6, 7.76e12
# Columns of the tiles of which a whole number makes a result, and their rows with the warpgroups; SMs for each of
# these tiles, at most.
COLUMNS, ROWS, FEWEST = (64, 256), ((64, 1), (128, 2), (192, 3)), 3
# Clusters for rows that start within sectors, and rounds of their blocks, at most.
SHARING, MOST_ROUNDS = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4)), 3


def applies(p: Problem) -> bool:
    """Whether ``p`` is a product of the kind that the model is for."""
    m, n, k = p.shape
    simple = p.batch == 1 and len(p.outer) == 1 and not p.grouped and not p.promote
    if not (simple and p.lhs.dtype.bits == p.rhs.dtype.bits == 16 and min(m, n) >= LEAST):
        return False
    result, longest = (RESULT_WITHIN, LONGEST_WITHIN) if _within_sectors(p) else (RESULT, LONGEST)
    return m * n <= result and 0 < k <= longest


def _within_sectors(p: Problem) -> bool:
    """Whether K is contiguous, and the rows of an operand start within sectors."""
    by_rows = "col" not in (p.lhs_major, p.rhs_major)
    return by_rows and any((x.strides[1] * x.dtype.bytes | x.pointer) % SECTOR for x in (p.lhs, p.rhs))


def tiles(p: Problem, sms: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    """(tile, warpgroups): tiles of which a whole number makes the columns of the result, for most SMs one each."""
    if not (applies(p) or few_rounds.applies(p)):
        return
    m, n, _ = p.shape
    for rows, groups in ROWS:
        down = cdiv(m, rows)
        for across in range(cdiv(n, COLUMNS[1]), n // COLUMNS[0] + 1):
            if sms <= FEWEST * down * across and down * across <= sms:
                yield (rows, cdiv(cdiv(n, across), 8) * 8, 64), groups


def sharing(
    p: Problem, on: Hardware, always: bool = False
) -> Iterator[tuple[tuple[int, int, int], int, tuple[int, int]]]:
    """(tile, warpgroups, cluster): tiles for whole rounds, which the blocks of a cluster share, of operands whose
    rows start within sectors, or ``always``.

    1048x1304x2248 took 18.0 us with pairs, 14.5 us with fours that share 192 rows.
    """
    wide_rows = few_rounds.applies(p) and few_rounds.within_lines(p)
    if not (always or wide_rows or (applies(p) and _within_sectors(p))):
        return
    m, n, _ = p.shape
    for high, wide in SHARING:
        resident = on.resident(high * wide)
        for rows, groups in ROWS:
            down = cdiv(m, rows * high) * high
            most = [rounds * resident // (down * wide) for rounds in range(1, MOST_ROUNDS + 1)]
            for across in dict.fromkeys(wide * (x - less) for x in most for less in (0, 1) if x > less):
                columns = cdiv(cdiv(n, across), 8) * 8
                if COLUMNS[0] <= columns <= COLUMNS[1]:
                    yield (rows, columns, 64), groups, (high, wide)


def _weight(pitch: int, pointer: int) -> float:
    """How much longer rows take that start so many bytes apart."""
    apart = pitch | pointer
    return 1 + WITHIN_LINES * (apart % LINE > 0) + WITHIN_SECTORS * (apart % SECTOR > 0)


def seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """The time of ``plan`` for ``p``, transposed already if the plan says so, and what bounds it."""
    (m, n, k), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    high, wide = plan.cluster
    shares = plan.share and high * wide > 1
    down, across = cdiv(m, rows), cdiv(n, columns)
    tasks, rounds, steps = divided(p, plan, on)
    # Blocks that share a tile load a part of it each.
    left, right = (rows / wide, columns / high) if shares else (float(rows), float(columns))
    read = left * _weight(p.lhs.strides[1] * size, p.lhs.pointer)
    read += right * _weight(p.rhs.strides[1] * size, p.rhs.pointer)
    read *= steps * depth * size
    zeros = (down * rows - m) * (left / rows) * min(1.0, across / on.sms) ** BY_SMS
    zeros += (across * columns - n) * (right / columns) * min(1.0, down / on.sms) ** BY_SMS
    filled = ZEROS * rounds * steps * zeros * depth * size / LINE
    latency = LATENCY_SHARED if shares else LATENCY
    limits = {
        "tensor cores": TENSOR * rounds * steps * 2.0 * rows * columns * depth / on.tensor / CLOCK,
        "the port of an SM": PORT * rounds * read / PORT_BYTES / CLOCK + filled,
        "the L2 cache": CACHE * tasks * read / CACHE_RATE,
        "memory": MEMORY * (m + n) * k * size / on.memory,
        "the way from memory": latency * rounds * steps / max(plan.stages - BUSY, 0.5),
    }
    total = smooth_maximum(limits.values(), SMOOTH)
    total += START + (CLUSTER if shares else HAND * plan.by_hand)
    stored = 4 if plan.split > 1 else p.out.dtype.bytes
    total += rounds * (TILE + STORE.get(plan.store, STORE["tma"]) * rows * columns * stored)
    total += rounds * DIVIDED_SECTORS * (plan.store == "tma" and not plan.swap and columns % 16 == 8)
    if plan.split > 1:
        total += ADD + 8.0 * plan.split * m * n / ADD_RATE
    return total, described(limits, tasks, rounds, on.sms, steps)
