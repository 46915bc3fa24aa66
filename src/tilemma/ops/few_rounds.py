"""The model of single products of 1024 rows and columns and more, and K as long, whose results have tiles for a
few rounds of the SMs: fitted by `bench/fit_few_rounds.py` to times of plans, flushed and in the steady state.

Each SM loads tiles through its port, all of them from the L2 cache, while the tensor cores multiply; the time is a
smooth maximum of what these take, besides what each launch and each tile cost.

- A row of a step that starts within a line is two requests to the L2 cache.  Blocks that share tiles ask for a
part of them each; what four blocks share passes their ports in less time, of two this is not so.
- TMA takes longer to fill rows of zeros beyond an edge than to load rows: the SMs that have the last tiles keep
the others waiting.  `edges` has kernels without such rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.few_rounds_timings import Timed, factor
from tilemma.ops.limits import CACHE_RATE, CLOCK, PORT_BYTES, described, divided, smooth_maximum
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, SECTOR

if TYPE_CHECKING:
    from tilemma.ops.plan import Estimate, Hardware, Plan

# How many times the least predicted time a plan may take whose time timings of like plans correct.
NEAR = 1.15
# Products that the model is for: rows, columns and K, at least, as of what was timed; elements of the result
# and K, at most; K, more than this where rows start within sectors: shorter ones have the model of `middle`.
LEAST, RESULT, LONGEST, LONG_WITHIN_SECTORS = 1024, 8_500_000, 9216, 4608
# Rows of zeros from which on tiles that end at the edges are worth a try, and how many times the least predicted
# time the plan may take with them.
ROWS_OF_ZEROS, WORTH = 16, 1.4
# How much longer than at its peak rate it takes: tensor cores, shared memory, the port of an SM, the L2 cache and
# memory; bytes a clock of shared memory; exponents of the smooth maximum of all, and of port and cache.
TENSOR, SHARED_MEMORY, PORT, CACHE, MEMORY = 1.11, 0.922, 0.656, 0.158, 3.29
SHARED_BYTES, SMOOTH, SMOOTH_LOAD = 128.0, 9.63, 1.69
# The share of 8 columns that an odd multiple of 8 takes the tensor cores longer.
ODD = 0.168
# How many more requests to the L2 cache rows are that start within lines, and within sectors.
LINES, SECTORS = 1.0, 1.78
# The time that a row takes at the port if two or four blocks share it; that of all where four blocks or more make
# a cluster.
PAIR, FOUR, FOURS = 1.35, 0.845, 0.978
# Seconds for a line of zeros, and the exponent of the share of the SMs that work.
ZEROS, BY_SMS = 2.09e-09, 3.0
# Seconds until a slot is filled, its own or shared; slots that are being multiplied.
LATENCY, LATENCY_SHARED, BUSY = 7.49e-07, 8.59e-07, 1.84
# Seconds of a launch, of one of clusters, of one of a kernel by hand, of one whose tiles end at the edges, and of
# each tile; of a byte that is stored by TMA and otherwise, and of tiles that divide sectors of the result.
START, CLUSTER, HAND, INSIDE, TILE = 4.76e-06, 3.87e-07, 2.16e-07, 1.9e-07, 2.34e-08
STORE, STORE_OTHERWISE, DIVIDED_SECTORS = 7.6e-12, 3.65e-11, 5.07e-07
# The second kernel: its launch, and the bytes of parts a second.
ADD, ADD_RATE = 1.3e-06, 5.2e12


def applies(p: Problem) -> bool:
    """Whether ``p`` is a product of the kind that the model is for."""
    m, n, k = p.shape
    simple = p.batch == 1 and len(p.outer) == 1 and not p.grouped and not p.promote
    if not (simple and p.lhs.dtype.bits == p.rhs.dtype.bits == 16 and p.lhs_major == p.rhs_major == "row"):
        return False
    shortest = LONG_WITHIN_SECTORS if _within(p, SECTOR) else LEAST - 1
    return min(m, n) >= LEAST and m * n <= RESULT and shortest < k <= LONGEST


def within_lines(p: Problem) -> bool:
    """Whether the rows of an operand start within lines."""
    return _within(p, LINE)


def _within(p: Problem, unit: int) -> bool:
    return any((x.strides[1] * x.dtype.bytes | x.pointer) % unit for x in (p.lhs, p.rhs))


def inside(p: Problem, found: Sequence[Estimate]) -> list[Plan]:
    """The plans of ``found``, the best first, whose last tiles have many rows of zeros, with tiles that end at the
    edges.

    Others would read an addend that is the result while these tiles write it.
    """
    if not applies(p) or p.epilogue.addend == "out":
        return []
    (m, n, _), most = p.shape, WORTH * found[0].seconds
    plans = (e.plan for e in found if e.seconds < most and _known(e.plan))
    whole = (x for x in plans if x.split == 1 and x.store == "tma")
    zeros = ((x, sum(_beyond((n, m) if x.swap else (m, n), x))) for x in whole)
    return [replace(x, by_hand=True, inside=True) for x, rows in zeros if rows >= ROWS_OF_ZEROS]


def _beyond(extents: tuple[int, int], plan: Plan) -> list[int]:
    """How many rows and columns of the last clusters lie beyond the edges."""
    sizes = (x * blocks for x, blocks in zip(plan.tile, plan.cluster, strict=False))
    return [cdiv(extent, size) * size - extent for extent, size in zip(extents, sizes, strict=True)]


def corrected(problem: Problem, found: Sequence[Estimate], on: Hardware) -> list[Estimate]:
    """The estimates ``found`` for ``problem``; what timings of like plans say corrects those that are near the
    least."""
    most = NEAR * min((e.seconds for e in found if _known(e.plan)), default=0.0)
    m, n, k = problem.shape
    sides = (m, n, k), (n, m, k)
    return [
        replace(e, seconds=e.seconds * factor(timed(sides[e.plan.swap], e.plan, on)))
        if _known(e.plan) and e.seconds <= most
        else e
        for e in found
    ]


def _known(plan: Plan) -> bool:
    return plan.kernel == "pipelined" and not plan.pack


def timed(shape: tuple[int, int, int], plan: Plan, on: Hardware) -> Timed:
    """The plan for a product of ``shape``, transposed already if the plan says so, as `few_rounds_timings` knows
    it."""
    high, wide = plan.cluster
    return Timed(
        *shape, *plan.tile[:2], plan.stages, high, wide, int(plan.share), int(plan.by_hand), int(plan.swap),
        plan.store, plan.split, int(plan.inside), on.resident(high * wide),
    )  # fmt: skip


def seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """The time of ``plan`` for ``p``, transposed already if the plan says so, and what bounds it."""
    (m, n, k), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    high, wide = plan.cluster
    shares = plan.share and high * wide > 1
    tasks, rounds, steps = divided(p, plan, on)
    step, corner = _load(p, plan, on, tasks / rounds)
    # An odd multiple of 8 columns takes the tensor cores longer.
    columns_taken = columns + ODD * (columns % 16)
    read = ((rows // 64) * (64 + columns) + (rows + columns) / 2) * depth * size
    latency = LATENCY_SHARED if shares else LATENCY
    limits = {
        "tensor cores": TENSOR * rounds * steps * 2.0 * rows * columns_taken * depth / on.tensor / CLOCK,
        "shared memory": SHARED_MEMORY * rounds * steps * read / SHARED_BYTES / CLOCK,
        "loading": steps * ((rounds - 1) * step + corner),
        "memory": MEMORY * (m + n) * k * size / on.memory,
        "the way from memory": latency * rounds * steps / max(plan.stages - BUSY, 0.5),
    }
    total = smooth_maximum(limits.values(), SMOOTH) * (FOURS if shares and high * wide > 2 else 1.0)
    total += START + (CLUSTER if shares else HAND * plan.by_hand) + INSIDE * plan.inside
    stored = 4 if plan.split > 1 else p.out.dtype.bytes
    store = STORE_OTHERWISE if plan.store == "direct" else STORE
    total += rounds * (TILE + store * rows * columns * stored)
    total += rounds * DIVIDED_SECTORS * (plan.store == "tma" and not plan.swap and columns % 16 == 8)
    if plan.split > 1:
        total += ADD + 8.0 * plan.split * m * n / ADD_RATE
    return total, described(limits, tasks, rounds, on.sms, steps)


def _load(p: Problem, plan: Plan, on: Hardware, working: float) -> tuple[float, float]:
    """Seconds to load a step of a tile while so many SMs work, and of the tile that has the last rows and columns,
    some of which lie beyond the edges."""
    (m, n, _), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    high, wide = plan.cluster
    port = requests = asked = zeros = 0.0
    # Of each operand the blocks that need the same tile, and those along its axis.
    beyond = _beyond((m, n), plan)
    for x, past, whole, blocks in ((p.lhs, beyond[0], rows, wide), (p.rhs, beyond[1], columns, high)):
        blocks = blocks if plan.share else 1
        apart = x.strides[1] * size | x.pointer
        lines, sectors = apart % LINE > 0, apart % SECTOR > 0
        port += whole * (1.0 if blocks == 1 else PAIR if blocks == 2 else FOUR)
        requests += whole / blocks * (1 + LINES * lines + SECTORS * sectors)
        asked += whole / blocks
        # All blocks of a cluster have a tile, which may lie beyond the edge.
        zeros += 0 if plan.inside else min(past, whole) / blocks
    row = depth * size
    limits = PORT * port * row / PORT_BYTES / CLOCK, CACHE * working * requests * row / CACHE_RATE
    step = smooth_maximum(limits, SMOOTH_LOAD)
    longer = max(ZEROS * row / LINE - step / asked, 0.0) * min(1.0, working / on.sms) ** BY_SMS
    return step, step + zeros * longer
