"""The cost model of `matmul`: predicts the time of each plan and chooses the fastest.

Times are in seconds and sizes in bytes.  A block works through tasks (tiles of the result, or slices of K of one);
a step loads one slice of K of both operands and multiplies it.  A step takes as long as the slowest of

- the tensor cores: 2 * m * n * k operations at the SM's rate,
- shared memory, from which each instruction reads the rows of A of its warpgroup and all of B,
- the L2 cache, from which each working SM reads (m + n) * k elements: fewer in a cluster, where each block reads a
part of the shared tiles; up to twice as many where rows do not start on cache lines.

A task adds filling the ring and storing the tile.  A product takes ceil(tasks / resident blocks) rounds, and at
least the time that memory needs to read each operand and write the result once, and that TMA needs in each SM for
the lines of its tasks.  Memory is slow if few bytes are on their way.  The clock is higher where the tensor cores
wait.  Products of few rows by large weights have a model of their own, `few_rows`; so have those of some hundred
rows, `hundreds`, with a long K, `long_k`, of small and middle size, `middle`, and larger ones of a few rounds,
`few_rounds`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import batch_model, few_rounds, few_rows, hundreds, long_k, middle, unaligned_batches
from tilemma.ops.epilogue import BLOCK
from tilemma.ops.operand_layouts import aligned, far_scales, packed, transposed_product
from tilemma.ops.problem import Problem
from tilemma.ops.requests import LINE
from tilemma.runtime.arrays import ArrayRef


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a product.

    ``kernel``: "tiles" (any strides, every target), "ahead" (that one, with copies ahead), "pipelined"
    (sm_90a, operands that TMA can read) or "resident" (the same, for batches: rhs stays in shared memory, in
    ``slots`` buffers, while the rows of lhs pass by).  ``by_hand``: not the plain text, which the compiler
    pipelines, but the kernel with events and roles.
    ``tile`` is (M, N, K) of a block's step; ``groups`` warpgroups multiply, each tile[0] / groups rows, fed
    through ``stages`` slots.  ``raster``: tile rows in a group that blocks walk together.  ``grid``: blocks that
    stay.  ``split``: slices of K, added in order afterwards.  ``store``: through shared memory by "tma", or by a
    "copy" of rows that TMA cannot write, by TMA in "lines" of the L2 cache that hold whole rows, or in boxes of
    whole "rows" of the tile, or "direct".
    ``swap``: the transposed product is computed.  ``pack``: operands ("lhs", "rhs", after the swap) that are first
    copied to aligned memory.  ``cluster`` blocks (along M,
    along N) take neighbouring tiles; each loads a part of a shared tile for all of them, or without ``share`` they
    only run at the same time.  ``back``: groups of tiles and K are traversed in alternating directions, in rounds
    of equal numbers of tiles.  ``loaded``: of a tile's rows only so many are loaded and stored, the next tile
    starts behind them (0: the whole tile).  ``prompt``: a slot is released when its step has been multiplied, not
    after the next one has been started.  ``streamed``: the operand that is read once, after the swap, or "both":
    the L2 cache gives it up first, and has the first tiles of a block's only task when the kernel before ends.
    ``turns``: blocks have other tiles of a product in each round.  ``queue``: blocks take the tiles of a batch
    from a queue.  ``kept``: the L2 cache gives up the operands last.  ``ordered``: blocks start when the kernel
    before has ended, and are placed in order.  ``inside``: the last tiles end at the edges.
    """

    kernel: str
    tile: tuple[int, int, int]
    groups: int
    stages: int = 1
    raster: int = 16
    grid: int = 0
    split: int = 1
    store: str = "direct"
    swap: bool = False
    pack: tuple[str, ...] = ()
    cluster: tuple[int, int] = (1, 1)
    share: bool = True
    back: bool = False
    by_hand: bool = False
    slots: int = 0
    loaded: int = 0
    prompt: bool = False
    streamed: str = ""
    turns: bool = False
    queue: bool = False
    kept: bool = False
    ordered: bool = False
    inside: bool = False

    @property
    def height(self) -> int:
        """The rows of lhs that a tile computes."""
        return self.loaded or self.tile[0]

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time values of the kernel."""
        m, n, k = self.tile
        if self.kernel == "resident":
            sizes = {"GROUPS": self.groups, "HEIGHT": m // self.groups, "TILE_N": n, "TILE_K": k}
            return {**sizes, "STAGES": self.stages, "SLOTS": self.slots, "GRID": self.grid, "STORE": self.store}
        values: dict[str, Any] = {"WARP_M": m // self.groups, "TILE_N": n, "TILE_K": k, "GROUPS": self.groups}
        values |= {"RASTER": self.raster, "STORE": self.store}
        if self.kernel == "pipelined":
            values |= {"GRID": self.grid, "SPLIT": self.split}
        if self.by_hand:
            values |= {"STAGES": self.stages, "SHARE": self.share, "BACK": self.back, "LOADED": self.loaded}
            values |= {"PROMPT": self.prompt, "STREAMED": self.streamed, "TURNS": self.turns}
            values |= {"QUEUE": self.queue, "KEPT": self.kept, "OVERLAP": not self.ordered, "INSIDE": self.inside}
            values |= {"CLUSTER_M": self.cluster[0], "CLUSTER_N": self.cluster[1]}
        return values

    def __str__(self) -> str:
        parts = [
            f"{self.kernel} {'x'.join(map(str, self.tile))}",
            f"{self.groups} x {self.tile[0] // self.groups} rows",
        ]
        if self.stages > 1:
            parts += [f"{self.stages} stages", f"{self.grid} blocks"]
        if self.stages > 1 or self.store != "direct":
            parts.append(f"{self.store} store")
        parts += [f"{self.slots} slots"] * (self.kernel == "resident")
        parts += [f"raster {self.raster}"] * (self.kernel != "resident")
        parts += [f"clusters of {'x'.join(map(str, self.cluster))}"] * (self.cluster != (1, 1))
        parts += ["not shared"] * (not self.share)
        parts += ["there and back"] * self.back + ["by hand"] * self.by_hand
        parts += [f"{self.loaded} rows loaded"] * bool(self.loaded) + ["prompt release"] * self.prompt
        parts += [f"{self.streamed} streamed"] * bool(self.streamed)
        parts += ["in turns"] * self.turns + ["from a queue"] * self.queue
        parts += ["operands kept"] * self.kept + ["in order"] * self.ordered + ["inside"] * self.inside
        parts += [f"split {self.split}"] * (self.split > 1)
        parts += ["swapped"] * self.swap
        parts += [f"packs {' and '.join(self.pack)}"] * bool(self.pack)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The model's parameters of a device.  The rates are of one H200 under load; other devices scale by SMs, by
    ``tensor``, operations a clock and SM, and by their memory."""

    name: str = "H200"
    capability: tuple[int, int] = (9, 0)
    sms: int = 132
    shared: int = 227 * 1024
    clock: float = 1.65e9
    tensor: float = 4096.0
    memory: float = 4.3e12
    cache: float = 64.0  # bytes a clock and SM

    @property
    def pipelines(self) -> bool:
        return self.capability == (9, 0)

    def resident(self, cluster: int) -> int:
        """The number of blocks that run at a time in clusters of so many.

        Larger clusters have less room: each lies in one group of SMs (GPC), and the groups differ in size.
        """
        return int(self.sms * (1 if cluster <= 2 else ROOM.get(cluster, ROOM[8]))) // cluster * cluster


# The weight of a division in which all rows belong to one group: divisions of few rows are uneven, and tiles for
# the average take several times as long as larger ones where a group has many.  `bench/ops_groups.py` times both
# kinds of divisions.
ALL_IN_ONE = 0.1
# The share of the memory's peak that reading reaches.
REACHED = 0.875


def hardware(device: tuple[str, int]) -> Hardware:
    """The device that holds the arrays; for arrays on the CPU, an H200."""
    if device[0] != "cuda":
        return Hardware()
    from tilemma.runtime import cuda_device

    d = cuda_device(device[1])
    tensor = 4096.0 if d.compute_capability[0] >= 9 else 2048.0 if d.compute_capability == (8, 0) else 1024.0
    ask = d.driver.device_attribute
    # Two transfers a clock on each line of the bus.
    peak = 2e3 * ask(d.ordinal, "MEMORY_CLOCK_RATE") * ask(d.ordinal, "GLOBAL_MEMORY_BUS_WIDTH") / 8
    memory = REACHED * peak if peak else Hardware().memory
    return Hardware(d.name, d.compute_capability, d.sm_count, d.shared_per_block, tensor=tensor, memory=memory)


# Operations a clock and SM of exact f32, and of f64.
SCALAR = 256.0
# Products that are added to sums in a clock, beside the multiplications of another warpgroup in tiles of two parts
# and of one, or alone, and the clocks for which a step waits for scales from memory.  At 4096^3 block scales cost
# 8 % more time than row scales with tiles of 128x256, 13 % with 128x128, and 37 % if they do not come with the
# tiles.
ADDED, ADDED_WHOLE, ADDED_ALONE, FAR_SCALES = 300.0, 220.0, 64.0, 150.0
# Bytes a clock that cp.async writes and warps read again and again, in slots that arithmetic could use: by so much
# f32 was slower with tiles of 64 x 64 than with 128 x 128.
CARRIED = 35.0
# Clocks for each of K that f64 takes besides: tiles of 96 and 64 columns took 0.765 and 0.514 of the time of 128.
STEP_F64 = 6.0
# Rows that start within sectors lie in more lines for each that they fill; those that start with a sector do not
# gain by sharing: 928x488x1312 took 1.28 times as long.
ACROSS = 1.8
# The cost of launching clusters: their blocks start together, and none ends before the others.  The share of the
# time that blocks which share tiles wait for each other.  Where rows start within lines, the blocks wait for the
# L2 cache anyway: 1000^3 took 7.5 us with pairs that share, 8.8 us without.
CLUSTER, CLUSTER_OF_LINES, SHARING = 2.7e-06, 3e-07, 0.025
# The same of single products whose rows start on lines: 1024x1024x8192 took 41 us with pairs, 33 us without; of
# eleven others none gained.
SHARING_LINES = 0.06
# The same where sums are promoted, which reads of shared memory slow down: at 4096^3 to 8192^3 sharing blocks were
# 1 to 3 % faster.
SHARING_PROMOTED = -0.035
# A launch, filling the ring once, and a store of one byte of the result by one block, for products of other forms.
LAUNCH, FILL, STORE = 2.0e-6, 0.9e-6, 1 / 60e9
# The same of a tile here: before its first step, and to store a byte by TMA, by a copy from shared memory, and
# from registers.
START, STORED, COPIED, DIRECT = 2.5e-07, 1.9e-11, 4e-11, 6.3e-11
# Tiles of so many bytes along K are stored while the next one is multiplied, if the registers of a thread, of two
# and of three warpgroups, hold the sums and the packed tile besides others.  How much longer other stores take.
LONG_LOOP, THREADS, OTHERS, ROLE_REGISTERS, EXPOSED = 1024, 128, 40, {2: 232, 3: 160}, 2
# Adding parts: a launch, and bytes a second.
ADD, ADD_RATE = 1.9e-06, 3540000000000.0
# Storing a sum of parts of a result whose neighbours lie apart: measured at 195x5632x5376 in 3 parts.
SCATTERED = 20e-12
# Shared memory: bytes a clock.  Reserved besides the ring: the staging buffers of the result, the events, and at
# most so much for a bias and scales: the compiler lets larger ones share memory.
SHARED_RATE, STAGING, EVENTS, RESERVED = 128.0, 32 * 1024, 256, 3072
# Bytes a clock into an SM, from the L2 cache and from its neighbours.
PORT = 64.0
# The share of time that transfers cost where they are not the bottleneck: they take energy, which lowers the
# clock.
OVERLAP = 0.25
# How much higher the clock is where the tensor cores do not work.
BOOST = 0.2
# The L2 cache has two partitions.  An operand too large for it that distant blocks read at the same time crosses
# between them, at this share of the cost of reading it from memory; of split products, whose tiles are few, at the
# second.
CACHE, FAR, FAR_PARTS, FAR_SMALL = 25 << 20, 1.13, 0.358, 0.012
# Bytes in flight that saturate memory, and the number above which further ones slow memory down.
FLIGHT, MOST_FLIGHT = 8.3e6, 13.9e6
# Nanoseconds that TMA takes in one SM for a line from memory, from the L2 cache, and of zeros beyond an edge,
# while the SM beside it works too; the share of that time where it does not.
FROM_MEMORY, FROM_CACHE, FILLED = 2.8, 0.1, 5.5
LONE = 0.4
# How much longer a step takes at most if the ring is short; bytes along K of a ring that is not.
SHORT, DEEP = 0.67, 512
# Steps of tiles of so many elements, whose rows fill lines, last so long that the three stages beside a whole
# staged tile suffice.
LASTING = 32768
# How much longer TMA takes for each stage less than these.
SHALLOW, FEW = 0.66, 4
# Copying to aligned memory, one launch for both operands, reads and writes at this share of the memory's rate.
PACKING = 0.68
# How much longer memory takes at most for the last of several rounds, which leaves SMs out: 64x28672x4096 of e4m3
# took 31.7 us in one round, 33.8 us in 1.7 and 41.6 us in 1.1.
UNEVEN = 0.1
# The share of the SMs that have room for clusters of three, of four, and of eight: 39, 30 and 14 of them ran at a
# time on an H200, but not 40 of three.
ROOM = {3: 0.89, 4: 0.91, 8: 0.85}
# Tiles of all of so few rows, of weights of so many bytes: the rate of memory over that of other tiles; bytes a
# second that an SM reads from the L2 cache; what the shorter of both transfers adds to the other; the share of the
# second by how many blocks share the rows.
MOST_ALONE, LEAST_ALONE, ALONE, NEAR, BESIDE = 256, 8e6, 1.06, 108e9, 0.22
NEAR_SHARED = {1: 1.0, 2: 1.2, 4: 0.75}
# The cost of a launch of these, and of one of clusters; measured over predicted time by rows of a tile, whole or
# of a part of K, and of few rows of small weights in three or four tiles.
AGAIN, MOST_AGAIN = 1.15, 256
START_ALONE, CLUSTER_ALONE, BY_ROWS = 7e-07, 3e-07, {192: (0.95, 0.9), 256: (0.92, 0.76)}
# K is by far the longest extent: so many times the others.
LONG = 16
# Measured over predicted time of parts of a long K, fitted to 183 products: of all; of clusters; of two or three
# tiles beside each other; of more than a round; exponents of the share of the SMs that work, of the number of
# parts, of the rows of both operands that the tiles load, and of the bytes along K of a ring.
PARTED, PAIRED, TWO_OR_THREE, ROUNDS = 2.5, 1.087, 0.967, 1.1
BY_TASKS, BY_PARTS, BY_LOADED, BY_RING = 0.228, -0.109, -0.088, -0.117
# For results of more elements than this, and wholly for e times as many, fitted to 49 more products: of few long
# stages, and the exponent of the share of the SMs that work.
NARROW_RESULT, FEW_LONG, BY_TASKS_WIDE = 20000, 1.06, 0.088
# Measured over predicted time of transposed tiles of 8-bit floats whose rings are longer than beside a
# tile that is staged whole, in more than one round; K, at most.
LONGER_RING, LONGER_RING_K = 0.99, 4096
# Parts of K.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A plan with its predicted time in seconds, and the resource that bounds it."""

    plan: Plan
    seconds: float
    why: str


def straddling(x: ArrayRef, packed: bool) -> float:
    """Cache lines that each 128 bytes of an operand's rows lie in, on average."""
    if packed:
        return 1.0
    return 2.0 - math.gcd(x.strides[1] * x.dtype.bytes, x.pointer, LINE) / LINE


def outgrows_cache(p: Problem, plan: Plan, cluster: tuple[int, int]) -> bool:
    """Whether sums are promoted, and the rows of lhs that blocks walk together are too many for the L2 cache,
    whose misses take power: 8192^3 took 0.991 of the time with half as many."""
    rows = plan.raster * cluster[0] * plan.tile[0]
    return p.promote and rows * p.shape[2] * p.lhs.dtype.bytes > CACHE


def _read(p: Problem, plan: Plan) -> float:
    """Bytes that a step of a block reads from the L2 cache."""
    (rows, columns, depth), size = plan.tile, p.lhs.dtype.bytes
    high, wide = plan.cluster if plan.share else (1, 1)
    left = rows * depth * size / wide * straddling(p.lhs, "lhs" in plan.pack)
    return left + columns * depth * size / high * straddling(p.rhs, "rhs" in plan.pack)


def _step(p: Problem, plan: Plan, on: Hardware, busy: float, filled: float = 1.0) -> tuple[float, str]:
    """Clocks of one step of a block while the share ``busy`` of all SMs works, and the resource that bounds it.

    ``filled``: the share of the warpgroups that have rows of the result.
    """
    (rows, columns, depth), size = plan.tile, p.lhs.dtype.bytes
    tensor = 2.0 * rows * columns * depth / (on.tensor * 2 / size if p.on_tensor_cores else SCALAR)
    if p.promote:
        # Two warpgroups add in turns, while the other multiplies.
        added = ADDED_ALONE if plan.groups == 1 else ADDED if columns > BLOCK else ADDED_WHOLE
        tensor += rows * columns / added
        scales = (("scale_lhs", p.left), ("scale_rhs", p.right))
        tensor += FAR_SCALES * sum(far_scales(x) and name not in plan.pack for name, x in scales)
    left, right = rows * depth * size, columns * depth * size
    # Every instruction of a warpgroup, 64 rows and 16 of K, reads 64 rows of A and all of B's tile; TMA writes
    # both in lines, at half the cost of reading them.
    shared = ((rows // 64) * (64 + columns) * depth * size + (left + right) / 2) / SHARED_RATE
    cache = _read(p, plan) / on.cache * busy
    if plan.kernel == "ahead" and aligned(p.lhs) and aligned(p.rhs):
        more = STEP_F64 * depth if p.acc == "f64" else (left + right) / CARRIED
        return max(tensor, cache) + more, "arithmetic"
    if plan.kernel != "pipelined":
        # No overlap: the block waits for its copies, then multiplies.
        return tensor + (cache + 1200) * (
            1 if aligned(p.lhs) and aligned(p.rhs) and not packed(p) else 6
        ), "copies"
    limits = {"tensor cores": tensor * filled, "shared memory": shared * filled, "L2 cache": cache}
    slowest = max(limits, key=lambda x: limits[x])
    # Where every operand is read from memory repeatedly, L2 transfers cost energy too.
    energy = ((left + right) / PORT + shared) / 2 + (cache / 4 if plan.back else 0.0)
    load = min(1.0, tensor / limits[slowest]) * busy
    return (limits[slowest] + OVERLAP * energy * load) / (1 + BOOST * (1 - load)), slowest


def _moved(p: Problem, plan: Plan, shape: tuple[int, int, int]) -> float:
    """Bytes of one batch, of extents ``shape``, between memory and the chip."""
    (m, n, k), size, (own_left, own_right) = shape, p.lhs.dtype.bytes, p.apart
    left, right = m * k * size * own_left, n * k * size * own_right
    far = FAR if plan.split == 1 else FAR_PARTS
    # Blocks of clusters that read the same part of a long K gained nothing by it.
    high, wide = (1, 1) if plan.split > 1 and k >= LONG * max(m, n) and not plan.share else plan.cluster
    if m > plan.tile[0] * high:
        right *= 1 + (far if right > CACHE else FAR_SMALL)
    if n > plan.tile[1] * wide:
        left *= 1 + (far if left > CACHE else FAR_SMALL)
    parts = plan.split * m * n * 4 if plan.split > 1 else 0
    return left + right + m * n * p.out.dtype.bytes + parts


def _streamed(p: Problem, plan: Plan, on: Hardware, moved: float, tasks: int, steps: int) -> float:
    """Seconds that memory needs to move ``moved`` bytes for ``tasks`` of ``steps`` steps."""
    (m, n, _), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    working = max(1, min(tasks, on.sms))
    if plan.kernel != "pipelined" or p.grouped:
        # Half the SMs can keep most of memory busy, fewer cannot.
        return moved / (on.memory * min(1.0, 1.5 * working / on.sms))
    flight = working * plan.stages * (min(m, rows) + min(n, columns)) * depth * size
    saturated = min(1.0, max(1, flight) / FLIGHT)
    # Of each task's rows some come from memory, others, which another task reads too, from the L2 cache.  Those
    # beyond an edge are filled with zeros: all are in the last tiles, which some block has in each of its rounds,
    # and they take longest where many tasks have the same.
    tiles_m, tiles_n = max(1, cdiv(m, rows)), max(1, cdiv(n, columns))
    high, wide = m / tiles_m, n / tiles_n
    first = high / tiles_n + wide / tiles_m
    rounds = max(1, cdiv(tasks, on.sms))
    # Two SMs share a path to the L2 cache, which one alone does not fill.
    each = max(LONE * rounds, cdiv(2 * tasks, on.sms) / 2) * steps * depth * size / LINE * 1e-9
    held = plan.height
    zeros = (held - high) * (1 + (tiles_m - 1) / rounds) * math.sqrt(min(1.0, tiles_n / on.sms))
    zeros += (columns - wide) * (1 + (tiles_n - 1) / rounds) * math.sqrt(min(1.0, tiles_m / on.sms))
    lines = FROM_MEMORY * first + FROM_CACHE * (high + wide - first) + FILLED * zeros
    each *= lines * (1 + SHALLOW * max(0, FEW - plan.stages))
    if _alone(p, plan):
        # What comes from memory and what comes from the L2 cache get in each other's way.
        far = moved / (on.memory * ALONE * saturated)
        near = NEAR_SHARED.get(plan.cluster[1], 1.0) * tasks / working * held * steps * depth * size / NEAR
        return max(max(far, near) + BESIDE * min(far, near), each)
    uneven = rounds * on.sms / tasks - 1 if rounds > 1 and plan.split == 1 else 0.0
    return max(moved / (on.memory * saturated), each) * (1 + UNEVEN * uneven)


def _alone(p: Problem, plan: Plan) -> bool:
    """Whether a block of a few rows has all of them: the blocks read the same rows, and each its own weights."""
    m, n, k = p.shape
    large = n * k * p.lhs.dtype.bytes > LEAST_ALONE and k < LONG * n
    streams = plan.kernel == "pipelined" and plan.by_hand and plan.share and not p.grouped
    held, unit = plan.height, 8 * plan.cluster[1]
    return streams and large and m <= min(held, MOST_ALONE) and held - m < unit


def _parts(p: Problem, plan: Plan, on: Hardware) -> float:
    """How much longer parts of a long K take than the other terms say."""
    (m, n, k), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    if plan.split == 1 or k < LONG * max(m, n):
        return 1.0
    down, across = cdiv(m, rows), cdiv(n, columns)
    factor = PARTED * (PAIRED if plan.cluster != (1, 1) else 1.0) * (TWO_OR_THREE if across in (2, 3) else 1.0)
    tasks = p.batch * down * across * plan.split
    factor *= ROUNDS if tasks > on.sms else 1.0
    wide = min(1.0, max(0.0, math.log(max(1, m * n) / NARROW_RESULT)))
    factor *= FEW_LONG**wide if plan.stages <= FEW and depth * size > LINE else 1.0
    by_tasks = BY_TASKS + (BY_TASKS_WIDE - BY_TASKS) * wide
    factor *= min(1.0, tasks / on.sms) ** by_tasks * plan.split**BY_PARTS
    ring = plan.stages * depth * size / DEEP
    return float(factor * (m * across + n * down) ** BY_LOADED * ring**BY_RING)


def _tiles_of_groups(groups: int, divided: int, each: int) -> float:
    """Tiles of ``each`` rows that ``groups`` of ``divided`` rows in sum have: a group ends anywhere in its last
    tile, and one that is not empty has one."""
    return groups * max(1.0, divided / groups / each + 0.5) if groups > 1 else max(1, cdiv(divided, each))


def _has_longer_ring(p: Problem, plan: Plan, on: Hardware) -> bool:
    """Whether shared memory holds more stages because the tile is transposed, and stored, in small parts."""
    (rows, columns, depth), size = plan.tile, p.lhs.dtype.bytes
    room = on.shared - EVENTS - min(rows * columns * p.out.dtype.bytes, STAGING)
    m, n, k = p.shape
    turned = plan.swap and plan.store == "tma" and size == 1 and min(m, n) > MOST_ALONE and k <= LONGER_RING_K
    return turned and plan.stages > room // ((rows + columns) * depth * size)


def _stores(p: Problem, plan: Plan, steps: int, rounds: float) -> float:
    """How often storing a tile adds to the time of ``rounds`` tiles of ``steps`` steps."""
    if p.grouped or plan.store != "tma" or plan.split > 1 or steps * plan.tile[2] * p.lhs.dtype.bytes < LONG_LOOP:
        return rounds
    sums = plan.tile[0] // plan.groups * plan.tile[1] / THREADS
    kept = sums * p.out.dtype.bits / 32
    fit = plan.groups > 1 and sums + kept + OTHERS <= ROLE_REGISTERS[plan.groups]
    if p.out.dtype.bits > 16 or not fit:
        return EXPOSED * rounds
    # Each is stored while the next is multiplied, but parts of sectors take their time.
    return 1 if plan.tile[1] % 16 == 0 else rounds + 1


def estimates(problem: Problem, plans: Iterable[Plan], on: Hardware) -> list[Estimate]:
    """The model of this file's head, for each plan."""
    sides = problem, transposed_product(problem)
    found = [_of_groups(sides[x.swap], x, on) for x in plans]
    if problem.batch == 1:
        return few_rounds.corrected(problem, found, on) if few_rounds.applies(problem) else found
    if unaligned_batches.applies(problem):
        return unaligned_batches.corrected(problem, found)
    return batch_model.corrected([sides[x.plan.swap] for x in found], found, on)


def estimate(problem: Problem, plan: Plan, on: Hardware) -> Estimate:
    """The model of this file's head, for one plan."""
    return estimates(problem, (plan,), on)[0]


def _of_groups(p: Problem, plan: Plan, on: Hardware) -> Estimate:
    """`_estimate`; for groups, also of rows that all belong to one group."""
    found = _estimate(p, plan, on)
    if p.offsets is None or p.offsets.shape[0] < 2:
        return found
    alone = replace(p, offsets=p.offsets._replace(shape=(1,)))
    seconds = (1 - ALL_IN_ONE) * found.seconds + ALL_IN_ONE * _estimate(alone, plan, on).seconds
    return replace(found, seconds=seconds)


def _estimate(p: Problem, plan: Plan, on: Hardware) -> Estimate:
    """The estimate for ``p``, transposed if the plan is, by formulas alone; groups have about equal rows."""
    if batch_model.like_timed(p, plan):
        return Estimate(plan, *batch_model.seconds(p, plan, on))
    if plan.kernel == "pipelined" and not plan.pack and few_rows.applies(p):
        return Estimate(plan, *few_rows.seconds(p, plan, on))
    if plan.kernel == "pipelined" and plan.split > 1 and not plan.by_hand and long_k.applies(p):
        return Estimate(plan, *long_k.seconds(p, plan, on))
    if plan.kernel == "pipelined" and not plan.pack and few_rounds.applies(p):
        return Estimate(plan, *few_rounds.seconds(p, plan, on))
    if plan.kernel == "pipelined" and not plan.pack and middle.applies(p):
        return Estimate(plan, *middle.seconds(p, plan, on))
    (m, n, k), (rows, columns, depth) = p.shape, plan.tile
    stored = 4 if plan.split > 1 else p.out.dtype.bytes
    batch = p.batch * len(p.outer)
    high, wide = plan.cluster
    tasks = batch * cdiv(m, rows * high) * cdiv(n, columns * wide) * plan.split * high * wide
    resident = on.resident(high * wide)
    rounds: float = max(1, cdiv(tasks, resident))
    filled = 1.0
    if p.offsets is not None:
        groups = max(p.offsets.shape[0], 1)
        divided, each = (m, rows) if p.grouped == "rows" else (n, columns)
        tiles = _tiles_of_groups(groups, divided, each)
        tasks = math.ceil(tiles * (cdiv(n, columns) if p.grouped == "rows" else cdiv(m, rows)))
        m, n = (cdiv(m, groups), n) if p.grouped == "rows" else (m, cdiv(n, groups))
        batch, rounds = groups, max(1.0, tasks / resident + 0.5 * (groups > 1))
        if p.grouped == "rows":
            # A warpgroup without rows of the group leaves the tensor cores to the others.
            each //= plan.groups
            filled = _tiles_of_groups(groups, divided, each) / (tiles * plan.groups)
    busy = max(1, min(tasks, resident)) / on.sms
    steps = cdiv(cdiv(k, depth), plan.split)
    step, bound_by = _step(p, plan, on, busy, filled)
    across = max(straddling(p.lhs, "lhs" in plan.pack), straddling(p.rhs, "rhs" in plan.pack)) > ACROSS
    if plan.store != "copy" or across or rows * columns < LASTING:
        step *= 1 + SHORT * max(0.0, 1 - plan.stages * depth * p.lhs.dtype.bytes / DEEP)
    by = {"tma": STORED, "rows": STORED, "copy": COPIED}
    begin, byte = (FILL, STORE) if p.grouped else (START, by.get(plan.store, DIRECT))
    store = rows * columns * stored * byte * (1 if plan.store != "direct" or stored == 4 else 1.5)
    seconds = rounds * (steps * step / on.clock + begin) + _stores(p, plan, steps, rounds) * store
    why = f"{tasks} tasks in {rounds:.3g} rounds of {min(tasks, resident)}, {steps} steps each bound by {bound_by}"
    memory = _streamed(p, plan, on, batch * _moved(p, plan, (m, n, k)), tasks, steps)
    # Blocks that start and end together leave memory idle.
    memory += 0.5 * (begin + store) / rounds
    if memory > seconds:
        why = f"{tasks} tasks, bound by memory"
    seconds = max(memory, seconds) + 0.05 * min(memory, seconds)
    shares = high * wide > 1 and plan.share
    # Where power is the limit, the bytes that blocks share save as much.
    alone = _alone(p, plan)
    if alone:
        seconds *= BY_ROWS.get(rows, (1.0, 1.0))[plan.split > 1]
    elif not plan.swap and batch == 1 and 2 * rows < m <= MOST_AGAIN and n * k * p.lhs.dtype.bytes < CACHE:
        seconds *= AGAIN
    if shares and not (alone or plan.back):
        lines = not across and p.batch == 1 and plan.store == "tma"
        seconds *= 1 + (SHARING_PROMOTED if p.promote else SHARING_LINES if lines else SHARING)
    seconds += START_ALONE * alone
    cluster = CLUSTER_ALONE if alone else CLUSTER_OF_LINES if across else CLUSTER
    seconds += (LAUNCH + cluster * shares) * len(p.outer)
    if plan.split > 1:
        seconds += ADD + 2.0 * plan.split * batch * m * n * 4 / ADD_RATE
        # Sums of a result that is contiguous along neither axis are stored one by one.
        seconds += SCATTERED * batch * m * n * (1 not in p.out.strides[1:])
    for name in plan.pack:
        packed = k * p.lhs.dtype.bytes if name in ("lhs", "rhs") else cdiv(k, BLOCK) * 4
        packed *= m if name in ("lhs", "scale_lhs") else n
        seconds += 2.0 * batch * packed / (on.memory * PACKING)
    seconds += LAUNCH * bool(plan.pack)
    seconds *= _parts(p, plan, on) * (LONGER_RING if rounds > 1 and _has_longer_ring(p, plan, on) else 1.0)
    if p.batch > 1 and plan.kernel == "pipelined" and not p.grouped:
        seconds = batch_model.seconds_of_batch(p, plan, on, seconds)
    if hundreds.applies(p) and hundreds.knows(plan):
        seconds = hundreds.seconds(p, plan, on, seconds)
    return Estimate(plan, seconds, why)
