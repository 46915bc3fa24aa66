"""The model of products of few rows by large weights: fitted to 4,517 times of plans.

A tile has some of the rows, all of them or a half or a third, and some of the weights.  The time is a smooth
maximum of what the parts of the machine take, besides what each launch and each tile cost:

- memory, which reads the weights, once more in part if several tiles need them; it is slower if few bytes are on
their way, and if the last of several rounds leaves SMs out,
- TMA in each SM: lines from memory, from the L2 cache, and of zeros beyond an edge,
- the L2 cache, all SMs together, and the port of each,
- the way from memory: a slot of the ring is filled again after so long, and one or two are being multiplied,
- the tensor cores, and shared memory.

Timings of plans like the one in question correct it (`few_rows_timings`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.few_rows_timings import LEFT_OUT, Timed, factor
from tilemma.ops.limits import described, smooth_maximum
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE, lines, parted

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# Products that the model is for: so many rows at most; weights of so many rows, columns and bytes at least.
ROWS, LEAST, WEIGHTS = 256, 2048, 8e6
# Stages, at most, of rings whose slots are released without waiting for the next step: longer ones took longer.
# Bytes of weights that the L2 cache gives up first, at most: more took longer.
PROMPT_RING, STREAMED = 5, 256e6
# Clusters of a transposed product that share its few rows (the first number) and the weights (the second), or only
# read them at the same time; whether their tiles have all of the 64 weights of each warpgroup, or as many as give
# all SMs as many, or only few rows.
CLUSTERS = (
    ((1, 1), True, "both"), ((2, 1), True, "whole"), ((4, 1), True, "both"), ((8, 1), True, "both"),
    ((2, 2), True, "whole"), ((4, 2), True, "whole"), ((2, 2), False, "both"), ((1, 4), False, "whole"),
    ((1, 2), False, "even"), ((1, 2), True, "whole"), ((1, 3), False, "narrow"),
)  # fmt: skip
# Columns of their tiles, at most, and at least where they divide the rows, and of others: 2x7936x15488 took 91 us
# in clusters of eight that share eight rows, 55 us without.
WIDEST, NARROWEST_PART, NARROWEST = 248, 24, 40
# Weights of a tile, at least, and at most, where all SMs have as many.
LEAST_EVEN, MOST_EVEN = 24, 320
# Columns, at most, of tiles whose steps have twice as many elements.
DEEP = 64
# Tiles of the rows beside each other, at most; columns of those that are not transposed, and of transposed ones of
# 256 weights.
MOST_BESIDE, WIDEST_BESIDE, WIDEST_OF_256 = 4, 256, 192
# The rate of memory over that at which large products read; bytes in flight for which it is halved; how much
# longer it takes at most for the last of several rounds.
MEMORY, FLIGHT, UNEVEN = 1.19, 2.63e5, 0.241
# Bytes of filled rings beyond which memory gets slower, and how much at twice as many.
MOST, EXCESS = 1.35e7, 0.273
# The bytes of few rows count less: they come from the L2 cache.
LESS = 0.184
# The share of weights that comes from memory again for each further tile that needs it: if the blocks of a cluster
# compute them, and otherwise.
AGAIN, AGAIN_APART = 0.0129, 0.366
# Nanoseconds that TMA takes for a line from memory, from the cache, and of zeros beyond the last row and beyond
# the last of the weights; the share of it in an SM whose neighbour is idle, and where blocks share tiles.
FROM_MEMORY, FROM_CACHE, ZERO_ROWS, ZERO_WEIGHTS, LONE, SHARED = 2.36, 0.0653, 2.94, 2.85, 0.4, 0.856
# The first where clusters leave half of the SMs idle: their blocks are neighbours.
BESIDE = 0.689
# Bytes a second from the cache, and into an SM, where its tiles are its own and where they are shared.
L2, PORT, PORT_SHARED = 1.5e13, 2.52e11, 3.02e11
# Requests for lines a second that the L2 cache takes where rows start within lines.  Blocks that read the same at
# the same time do not share them.  From the times of docs/performance/tall.json.
REQUESTS = 7.5e10
# Seconds until a slot is filled, its own or shared; slots that are being multiplied, and if they are released
# promptly.
LATENCY, LATENCY_SHARED, BUSY, BUSY_PROMPT = 7.05e-7, 8.56e-7, 2.1, 2.0
# Clocks a second at which the tensor cores and shared memory would work.
TENSOR, SHARED_MEMORY = 1.89e9, 5.05e9
# How much longer all this takes where two, four or eight blocks share tiles.
PAIRS, FOURS, EIGHTS = 1.07, 1.02, 1.0
# The same where two warpgroups multiply fewer weights than they could.
EVEN = 1.05
# The same where blocks are placed in order, and seconds for which they wait for the end of the kernel before.
ORDERED, ORDER = 1.05, 3.5e-7
# The exponent of the smooth maximum.
SMOOTH = 4.06
# Timings correct what takes less than so many times the least that memory or the tensor cores need.
FAR = 2.0
# Seconds of a launch, of one of clusters, of each step, of each tile, of each further warpgroup of it, and of an
# element that is stored by TMA and otherwise.
START, CLUSTER, STEP, TILE, GROUP = 9.83e-7, 8.96e-7, 7.48e-9, 3.32e-7, 1.38e-7
STORE_TMA, STORE = 4.53e-11, 1.0e-10
# The second kernel: its launch, and the bytes of parts a second.
ADD, ADD_RATE = 1.53e-6, 4.25e12


@dataclass(frozen=True, slots=True)
class FewRows:
    """How ``plan`` computes a product of ``rows`` rows and ``weights`` weights: ``tiles`` tiles of ``held`` rows,
    each by ``wide`` weights in ``across`` tiles.  Its ``tasks``, of ``steps`` steps that read ``depth`` bytes of
    each row and weight, come in ``rounds`` of ``together``.  ``turned``: the rows are the columns of the tiles.
    Rows and weights start at multiples of ``pitch`` bytes, a line at most.
    """

    plan: Plan
    turned: bool
    size: int
    rows: int
    weights: int
    held: int
    wide: int
    tiles: int
    across: int
    tasks: int
    together: int
    rounds: int
    steps: int
    depth: int
    pitch: int

    @property
    def blocks(self) -> int:
        """The blocks of a cluster."""
        return self.plan.cluster[0] * self.plan.cluster[1]

    @property
    def shares(self) -> bool:
        return self.plan.share and self.blocks > 1

    @property
    def beside(self) -> bool:
        """Whether all blocks that need the same weights are neighbours, which run at the same time."""
        return self.plan.cluster[self.turned] >= self.tiles or self.plan.ordered

    @property
    def free(self) -> float:
        """Slots of the ring that are being filled."""
        return max(0.25, self.plan.stages - (BUSY_PROMPT if self.plan.prompt else BUSY))


def applies(p: Problem) -> bool:
    """Whether ``p`` is a product of the kind that the model is for."""
    m, n, k = p.shape
    few, many = min(m, n), max(m, n)
    simple = p.batch == 1 and len(p.outer) == 1 and not p.grouped and not p.promote
    types = p.lhs.dtype.bits == p.rhs.dtype.bits <= 16 and p.acc == "f32"
    large = min(many, k) >= LEAST and many * k * p.lhs.dtype.bytes >= WEIGHTS and k < 8 * many
    return simple and types and p.lhs_major == p.rhs_major == "row" and few <= ROWS and large


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of ``shape``, of 16-bit elements, by ``groups`` warpgroups; so many of their rows are ``loaded`` (0:
    all).  Their blocks are in clusters, and share or only read the same at the same time, or placed in order.
    """

    shape: tuple[int, int, int]
    groups: int
    loaded: int = 0
    cluster: tuple[int, int] = (1, 1)
    share: bool = True
    ordered: bool = False


def tiles(p: Problem, swap: bool, on: Hardware) -> Iterator[Tiles]:
    """The tiles of ``p``, transposed already if it is to be, in clusters or in order."""
    yield from _transposed(p, on) if swap else _beside(p, on)
    yield from _in_order(p, swap, on)


def _transposed(p: Problem, on: Hardware) -> Iterator[Tiles]:
    """The tiles of the transposed product ``p`` in clusters.

    74x5376x4992 took 17.5 us in 84 tiles of 64 weights, 16.0 us in 112 of 48.
    """
    m, n, _ = p.shape
    for (high, wide), share, kind in CLUSTERS:
        columns, clusters = 8 * cdiv(cdiv(n, wide), 8), on.resident(high * wide) // (high * wide)
        narrowest = NARROWEST_PART if wide > 1 else NARROWEST if high > 1 else 0
        if not narrowest <= columns <= WIDEST or cdiv(n, columns) != wide:
            continue
        for groups in (1, 2, 3) if kind != "even" and (kind != "narrow" or columns < NARROWEST) else ():
            if m > 64 * groups * (high - 1):
                yield Tiles((64 * groups, columns, 64), groups, 0, (high, wide), share)
                if groups == 1 and columns <= DEEP:
                    yield Tiles((64 * groups, columns, 128), groups, 0, (high, wide), share)
        for rounds in (1, 2) if kind in ("even", "both") else ():
            height = 8 * cdiv(cdiv(m, rounds * clusters * high), 8)
            if LEAST_EVEN <= height <= MOST_EVEN and (height % 64 or height > 192):
                yield _even(height, columns, (high, wide), share)
        if wide == 2 and not share and m > MOST_EVEN * high:
            yield _even(MOST_EVEN, columns, (high, wide), share)


def _even(
    height: int, columns: int, cluster: tuple[int, int] = (1, 1), share: bool = True, ordered: bool = False
) -> Tiles:
    """Tiles of the transposed product that load ``height`` weights.  A warpgroup multiplies 64, of four 128; five
    have few registers each.

    203x20096x9856 took 142 us in tiles of 256x72, 132 us in 66 x 2 of 312 weights by 104 rows; 149x19840x10368
    96 us in 192x80, 91 us in 320x80.
    """
    parts = cdiv(height, 64)
    loaded = height if height % 64 else 0
    return Tiles((64 * parts, columns, 64), 2 if parts == 4 else parts, loaded, cluster, share, ordered)


def _beside(p: Problem, on: Hardware) -> Iterator[Tiles]:
    """The tiles of few rows in two or three, which the blocks of a cluster compute at the same time, as wide as
    one or two rounds take."""
    m, n, _ = p.shape
    for beside in (2, 3):
        groups, clusters = cdiv(cdiv(m, beside), 64), on.resident(beside) // beside
        for rounds in (1, 2):
            columns = 8 * cdiv(cdiv(n, rounds * clusters), 8)
            if cdiv(m, 64 * groups) == beside and NARROWEST <= columns <= WIDEST_BESIDE:
                for share in (False, True)[: 1 + parted(columns, beside)]:
                    yield Tiles((64 * groups, columns, 64), groups, 0, (beside, 1), share)


def _in_order(p: Problem, swap: bool, on: Hardware) -> Iterator[Tiles]:
    """The tiles of few rows in several, whose blocks are placed in order: neighbours read the same weights at the
    same time, and the L2 cache answers them together.

    216x11264x16256 took 139 us in 132 tiles of 256x72 of the transposed product if blocks took the places of
    those of the kernel before, 124 us in order, and 141 us in 118 tiles in clusters.  They wait for the end of the
    kernel before: if only the next kernel waited, it took 168 us after kernels that let the next one start early.
    """
    few, many = p.shape[:2][::-1] if swap else p.shape[:2]
    for beside in range(2, MOST_BESIDE + 1):
        unit = 8 if swap else 64
        held = unit * cdiv(cdiv(few, beside), unit)
        if cdiv(few, held) != beside or held < NARROWEST_PART:
            continue
        wide = [8 * cdiv(cdiv(many, rounds * (on.sms // beside)), 8) for rounds in (1, 2)]
        if swap:
            for x in wide:
                if LEAST_EVEN <= x <= MOST_EVEN and x % 64 and held >= NARROWEST:
                    yield _even(x, held, ordered=True)
            for height in range(64, MOST_EVEN + 1, 64) if held <= WIDEST else ():
                if height != ROWS or held <= WIDEST_OF_256:
                    yield _even(height, held, ordered=True)
            if held <= DEEP:
                yield Tiles((64, held, 128), 1, ordered=True)
        else:
            for x in wide:
                if NARROWEST <= x <= WIDEST_BESIDE:
                    yield Tiles((held, x, 64), held // 64, ordered=True)


def settled(problem: Problem, plan: Plan) -> Plan:
    """``plan``, whose blocks release short rings promptly and stream the weights.

    70x4480x5504 took 16.8 us, with slots of two groups that are released promptly 16.3 us, 84x5888x5376 19.4 us,
    with weights that the L2 cache gives up first 18.5 us.
    """
    if plan.kernel != "pipelined" or plan.pack or plan.back:
        return plan
    m, n, k = problem.shape
    prompt = plan.groups > 1 and plan.stages <= PROMPT_RING
    weights = "lhs" if (m > n) != plan.swap else "rhs"
    streamed = weights if max(m, n) * k * problem.lhs.dtype.bytes <= STREAMED else ""
    hand = plan.by_hand or prompt or bool(streamed)
    return replace(plan, prompt=prompt, streamed=streamed, by_hand=hand)


def _placed(p: Problem, plan: Plan, on: Hardware) -> FewRows:
    (m, n, k), (_, columns, depth), (high, wide) = p.shape, plan.tile, plan.cluster
    tasks = cdiv(m, plan.height * high) * cdiv(n, columns * wide) * plan.split * high * wide
    together = on.resident(high * wide)
    size, steps = p.lhs.dtype.bytes, cdiv(cdiv(k, depth), plan.split)
    starts = (x.strides[1] * x.dtype.bytes | x.pointer for x in (p.lhs, p.rhs))
    work = tasks, together, cdiv(tasks, together), steps, depth * size, gcd(LINE, *starts)
    turned = m > n
    sides = (m, plan.height, cdiv(m, plan.height)), (n, columns, cdiv(n, columns))
    (rows, held, tiles), (weights, wide, across) = sides[::-1] if turned else sides
    return FewRows(plan, turned, size, rows, weights, held, wide, tiles, across, *work)


def _memory(f: FewRows, k: int, on: Hardware) -> float:
    """Seconds that memory takes."""
    plan = f.plan
    again = (f.tiles - 1) * (AGAIN if f.beside else AGAIN_APART / plan.split)
    moved = f.weights * k * f.size * (1 + again) + f.rows * k * f.size + 2 * f.rows * f.weights
    flight = min(f.tasks, f.together) * f.free * (f.wide / f.tiles + LESS * f.held) * f.depth
    memory = moved / (on.memory * MEMORY) * (1 + FLIGHT / flight)
    memory *= 1 + EXCESS * max(0.0, flight / f.free * plan.stages / MOST - 1)
    return memory * (1 + UNEVEN * (f.rounds * on.sms / f.tasks - 1 if f.rounds > 1 else 0.0))


def _lines(f: FewRows, on: Hardware) -> float:
    """Seconds that TMA takes in an SM for the lines of its tasks."""
    first = f.wide / f.tiles + f.held / f.across
    lines = FROM_MEMORY * first + FROM_CACHE * (f.wide + f.held - first)
    # All zeros are in the last tile of the rows, which some block has in each of its rounds.
    zeros = (f.held * f.tiles - f.rows) * (1 / f.tiles + (1 - 1 / f.tiles) / f.rounds)
    lines += ZERO_ROWS * zeros + ZERO_WEIGHTS * (f.wide - f.weights / f.across)
    # Two SMs share a path to the L2 cache, which one alone does not fill.
    paths = max(LONE * f.rounds, cdiv(2 * f.tasks, on.sms) / 2)
    paths = BESIDE if f.blocks > 1 and 2 * f.tasks <= on.sms else paths
    return lines * paths * f.steps * f.depth / LINE * 1e-9 * (SHARED if f.shares else 1.0)


def limits(f: FewRows, k: int, on: Hardware) -> dict[str, float]:
    """Seconds that each part of the machine takes."""
    (rows, columns, _), (high, wide), steps = f.plan.tile, f.plan.cluster, f.rounds * f.steps
    # Neighbours that read the same lines at the same time read them once, also without sharing.
    if f.plan.ordered:
        high, wide = (1, f.tiles) if f.turned else (f.tiles, 1)
    pieces = f.tasks * f.steps * (f.plan.height / wide + columns / high)
    read = pieces * f.depth / L2
    if f.pitch < LINE:
        if not f.shares:
            pieces = f.tasks * f.steps * (f.plan.height + columns)
        read = max(read, pieces * lines(f.depth, f.pitch) / REQUESTS)
    inner = (rows // 64 * (64 + columns) * f.depth + (rows + columns) * f.depth / 2) / on.cache / 2
    return {
        "memory": _memory(f, k, on),
        "TMA": _lines(f, on),
        "the L2 cache": read,
        "the port of an SM": steps * (f.wide + f.held) * f.depth / (PORT_SHARED if f.shares else PORT),
        "the way from memory": steps * (LATENCY_SHARED if f.shares else LATENCY) / f.free,
        # The tensor cores take as long for each 16 bytes along K of other types.
        "tensor cores": steps * rows * columns * f.depth / on.tensor / TENSOR,
        "shared memory": steps * inner / SHARED_MEMORY,
    }


def seconds(p: Problem, plan: Plan, on: Hardware) -> tuple[float, str]:
    """The time of ``plan`` for ``p``, transposed already if the plan says so, and what bounds it."""
    known, why = timed(p, plan, on)
    m, n, k = p.shape
    least = max(max(m, n) * k * p.lhs.dtype.bytes / on.memory, 2 * m * n * k / (on.sms * on.tensor * on.clock))
    # Looking up the timings takes twice as long as the model.
    return known.seconds * (factor(known) if known.seconds < FAR * (least + START) else 1.0), why


def timed(p: Problem, plan: Plan, on: Hardware) -> tuple[Timed, str]:
    """The plan as `few_rows_timings` knows it, by the formula of this file's head, and what bounds it."""
    f = _placed(p, plan, on)
    parts = limits(f, p.shape[2], on)
    total = _formula(p, f, parts)
    shares = tuple(x / total for name, x in parts.items() if name != LEFT_OUT)
    known = Timed(
        f.rows, f.weights, f.held, f.wide, plan.stages, *plan.cluster, plan.share, f.turned, plan.store,
        plan.split, plan.loaded, min(f.tasks, f.together), total, shares,
    )  # fmt: skip
    return known, described(parts, f.tasks, f.rounds, f.together, f.steps)


def _formula(p: Problem, f: FewRows, parts: dict[str, float]) -> float:
    """Seconds by the formula of this file's head alone, where ``parts`` of the machine take so long."""
    plan, (m, n, _), (rows, columns, _), steps = f.plan, p.shape, f.plan.tile, f.rounds * f.steps
    total = smooth_maximum(parts.values(), SMOOTH)
    if f.shares:
        total *= PAIRS if f.blocks < 4 else FOURS if f.blocks < 8 else EIGHTS
    total *= EVEN if plan.swap and plan.loaded and plan.groups > 1 else 1.0
    total *= ORDERED if plan.ordered else 1.0
    total += START + CLUSTER * f.shares + ORDER * plan.ordered + steps * STEP
    stored = rows * columns * (STORE_TMA if plan.store == "tma" else STORE)
    total += f.rounds * (TILE + GROUP * (plan.groups - 1) + stored)
    if plan.split > 1:
        total += ADD + 8.0 * plan.split * m * n / ADD_RATE
    return total
