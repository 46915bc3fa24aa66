"""The plans of products with a long K whose results have some hundred rows and columns, and their model, fitted
to 670 times of plans for 22 products of `WIDE` rows and columns in sum or more.

Parts of K give every SM a task.  All read the operands from the L2 cache at the same time, many times as much as
comes from memory.  What blocks in one group of SMs (GPC) read together, the cache delivers once.  Blocks that
start together are placed in order, so that neighbours are in the same group; those that start one by one, while
the kernel before ends, take the places of its blocks: 512x512x16384 took 24 us like this, otherwise 18 us.  So the
kernel that adds the parts does not let the next one start before its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.limits import CACHE_RATE, CLOCK, PORT_BYTES, described, smooth_maximum
from tilemma.ops.problem import Problem

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# Products that this is for: K so many times the other extents, which are no more than this, and in sum no less.
LONG, MOST, LEAST = 16, 512, 200
# Products of so many rows and columns in sum have tiles of which the order matters, too; the K of others.
WIDE, LEAST_K = 600, 16384
# Rows of tiles with their warpgroups; in how many parts the columns are divided, and how many columns a part has.
ROWS, PARTS, COLUMNS = ((64, 1), (128, 2)), range(1, 8), (40, 256)
# The share of the SMs that has a task, at least, of wide products and of others; steps of a part, at least; parts
# of K, at most; columns of tiles that are also loaded in steps of twice the depth, at most.
BUSY, STEPS, SPLIT, DEEP = {True: 0.75, False: 0.45}, 4, 40, 136
# Blocks that are placed in the same group of SMs.
NEIGHBOURS = 16
# Seconds of a launch of both kernels; those for each byte of the parts; what the next kernel gains if it may start
# early, where tiles of 64 rows have an odd multiple of 8 columns, up to this: they were as fast whatever the order
# of the blocks, in 196 plans of 22 products.
START, ADD, EARLY, NARROW = 3.55e-6, 0.59e-12, 1.03e-6, 136
# How much longer than at its peak rate it takes: tensor cores, the port of an SM, the L2 cache and memory; seconds
# until a ring is filled again; the exponent of the smooth maximum.
TENSOR, PORT, CACHE, MEMORY, LATENCY, SMOOTH = 1.19, 0.72, 0.79, 1.176, 9.8e-7, 5.7
# Products whose transpose is computed took so much of the time.
TURNED = 0.988


def applies(p: Problem) -> bool:
    """Whether ``p`` is a product of the kind that this is for."""
    m, n, k = p.shape
    simple = p.batch == 1 and len(p.outer) == 1 and not p.grouped and not p.promote
    types = p.lhs.dtype.bits == p.rhs.dtype.bits == 16
    # Of columns that are contiguous, wgmma reads multiples of 64 only.
    by_rows = p.lhs_major == p.rhs_major == "row" and k >= LEAST_K
    sizes = max(m, n) <= MOST and m + n >= (LEAST if by_rows else WIDE) and min(m, n) >= ROWS[0][0]
    return simple and types and sizes and k >= LONG * max(m, n)


def overlap(p: Problem, plan: Plan) -> bool | Literal["before"]:
    """How the kernel that adds parts overlaps with others."""
    return "before" if applies(p) and not _in_any_order(plan) else True


def _in_any_order(plan: Plan) -> bool:
    """Whether the order of the blocks does not matter."""
    rows, columns, _ = plan.tile
    return rows == 64 and columns % 16 == 8 and columns <= NARROW


def tiles(p: Problem, on: Hardware) -> Iterator[tuple[tuple[int, int, int], int, int]]:
    """(tile, warpgroups, parts of K): as many parts as there are SMs for, of tiles of equal numbers of columns."""
    m, n, k = p.shape
    wide, unit = m + n >= WIDE, 8 if p.rhs_major == "row" else 64
    widths = dict.fromkeys(cdiv(cdiv(n, parts), unit) * unit for parts in PARTS)
    if not wide:
        widths = dict.fromkeys(x + 8 * (x % 16 == 0) for x in widths)
    for rows, groups in ROWS if wide else ROWS[:1]:
        for columns in widths:
            count = cdiv(m, rows) * cdiv(n, columns)
            most = min(on.sms // count, SPLIT)
            if not COLUMNS[0] <= columns <= (COLUMNS[1] if wide else NARROW):
                continue
            for split in (most,) if wide else dict.fromkeys((most, most * 2 // 3)):
                for depth in (64, 128) if rows == 64 and columns <= DEEP else (64,):
                    if split > 1 and count * split >= BUSY[wide] * on.sms and cdiv(k, depth) >= STEPS * split:
                        yield (rows, columns, depth), groups, split


def _read(down: int, across: int, split: int, rows: int, columns: int) -> int:
    """Rows of operands that all groups of SMs read in a step: tasks are numbered along the columns, then the rows,
    then the parts."""
    total, each = 0, down * across
    for first in range(0, each * split, NEIGHBOURS):
        last = min(first + NEIGHBOURS, each * split)
        total += rows * ((last - 1) // across - first // across + 1)
        for part in range(first // each, (last - 1) // each + 1):
            total += columns * min(across, min(last, (part + 1) * each) - max(first, part * each))
    return total


def seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """The time of ``plan`` for ``p``, transposed already if the plan says so, and what bounds it."""
    (m, n, k), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    down, across = cdiv(m, rows), cdiv(n, columns)
    tasks, steps = down * across * plan.split, cdiv(cdiv(k, depth), plan.split)
    rounds, each = cdiv(tasks, on.sms), depth * size
    limits = {
        "tensor cores": TENSOR * rounds * steps * 2.0 * rows * columns * depth / on.tensor / CLOCK,
        "the port of an SM": PORT * rounds * steps * (rows + columns) * each / PORT_BYTES / CLOCK,
        "the L2 cache": CACHE * steps * _read(down, across, plan.split, rows, columns) * each / CACHE_RATE,
        "memory": MEMORY * (m + n) * k * size / on.memory,
        "the way from memory": LATENCY * rounds * steps / max(plan.stages - 1, 1),
    }
    total = START + ADD * plan.split * m * n * 4 + smooth_maximum(limits.values(), SMOOTH)
    total = total * (TURNED if plan.swap else 1.0) - EARLY * _in_any_order(plan)
    return total, described(limits, tasks, rounds, on.sms, steps)
