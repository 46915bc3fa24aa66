"""The cost model of `matmul`: predicts the time of each plan and chooses the fastest.

Times are in seconds and sizes in bytes.  A block works through tasks (tiles of the result, or slices of K of one);
a step loads one slice of K of both operands and multiplies it.  A step takes as long as the slowest of

- the tensor cores: 2 * m * n * k operations at the SM's rate,
- shared memory, from which each instruction reads the rows of A of its warpgroup and all of B,
- the L2 cache, from which each working SM reads (m + n) * k elements: fewer in a cluster, where each block reads a
part of the shared tiles; up to twice as many where rows do not start on cache lines,
- the port through which those elements enter an SM.

A task adds filling the ring and storing the tile.  A product takes ceil(tasks / resident blocks) rounds, and at
least the time that memory needs to read each operand and write the result once, and TMA to fill rows beyond the
edges with zeros.  Memory is slow if few bytes are on their way, and idle in rounds that do not fill the SMs.  The
clock is higher where the tensor cores wait.  Where K is by far the longest, the blocks of a split product wait for
memory and for the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.epilogue import BLOCK
from tilemma.ops.operand_layouts import aligned, far_scales, packed, packs, transposed_product
from tilemma.ops.problem import Problem
from tilemma.ops.split_k import MOST_PARTS
from tilemma.runtime.arrays import ArrayRef


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a product.

    ``kernel``: "tiles" (any strides, every target), "ahead" (that one, pipelined by cp.async) or "pipelined"
    (sm_90a, operands that TMA can read).  ``by_hand``: not the plain text, which the compiler pipelines, but the
    kernel with events and roles.
    ``tile`` is (M, N, K) of a block's step; ``groups`` warpgroups multiply, each tile[0] / groups rows, fed
    through ``stages`` slots.  ``raster``: tile rows in a group that blocks walk together.  ``grid``: blocks that
    stay.  ``split``: slices of K, added in order afterwards.  ``store``: "tma", through shared memory, or
    "direct".  ``swap``: the transposed product is computed.  ``pack``: operands ("lhs", "rhs", after the swap)
    that are first copied to aligned memory.  ``cluster`` blocks (along M, along N) take neighbouring tiles; each
    loads a part of a shared tile for all of them, or without ``share`` they only run at the same time.  ``back``:
    groups of tiles and K are traversed in alternating directions, in rounds of equal numbers of tiles.
    ``fused``: the blocks that compute the slices of K add them in the same kernel (`fused`; `candidates` has none,
    because they have not been timed).
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
    fused: bool = False
    by_hand: bool = False

    @property
    def hand(self) -> bool:
        """Whether the kernel is written by hand: parts are added in the same kernel only there."""
        return self.by_hand or self.fused

    @property
    def constants(self) -> dict[str, Any]:
        """The compile-time values of the kernel."""
        m, n, k = self.tile
        values: dict[str, Any] = {
            "WARP_M": m // self.groups,
            "TILE_N": n,
            "TILE_K": k,
            "GROUPS": self.groups,
            "RASTER": self.raster,
        }
        if self.kernel == "pipelined":
            values |= {"GRID": self.grid, "SPLIT": self.split, "STORE": self.store}
        if self.hand:
            values |= {"STAGES": self.stages, "SHARE": self.share, "BACK": self.back, "FUSED": self.fused}
            values |= {"CLUSTER_M": self.cluster[0], "CLUSTER_N": self.cluster[1]}
        return values

    def __str__(self) -> str:
        parts = [
            f"{self.kernel} {'x'.join(map(str, self.tile))}",
            f"{self.groups} x {self.tile[0] // self.groups} rows",
        ]
        if self.kernel == "pipelined":
            parts += [f"{self.stages} stages", f"{self.grid} blocks", f"{self.store} store"]
        parts.append(f"raster {self.raster}")
        parts += [f"clusters of {'x'.join(map(str, self.cluster))}"] * (self.cluster != (1, 1))
        parts += ["not shared"] * (not self.share)
        parts += ["there and back"] * self.back + ["by hand"] * self.hand
        parts += [f"split {self.split}" + " in one kernel" * self.fused] * (self.split > 1)
        parts += ["swapped"] * self.swap
        parts += [f"packs {' and '.join(self.pack)}"] * bool(self.pack)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The model's parameters of a device.  The rates are of one H200 under load; other devices scale by SMs and by
    ``tensor``, operations a clock and SM."""

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
        """The number of blocks that run at a time, in clusters of one or two.

        Of larger clusters there is room for fewer: each lies in one group of SMs (GPC), and groups differ in size.
        """
        return self.sms // cluster * cluster


def hardware(device: tuple[str, int]) -> Hardware:
    """The device that holds the arrays; for arrays on the CPU, an H200."""
    if device[0] != "cuda":
        return Hardware()
    from tilemma.runtime import cuda_device

    d = cuda_device(device[1])
    tensor = 4096.0 if d.compute_capability[0] >= 9 else 2048.0 if d.compute_capability == (8, 0) else 1024.0
    return Hardware(d.name, d.compute_capability, d.sm_count, d.shared_per_block, tensor=tensor)


# Operations a clock and SM of exact f32, and of f64.
SCALAR = 256.0
# Products that are added to sums in a clock, beside the multiplications of another warpgroup or alone, and the
# clocks for which a step waits for scales from memory.  At 4096^3 block scales cost 8 % more time than row scales
# with tiles of 128x256, 13 % with 128x128, and 37 % if they do not come with the tiles.
ADDED, ADDED_ALONE, FAR_SCALES = 300.0, 64.0, 150.0
# Bytes a clock that cp.async writes and warps read again and again, in slots that arithmetic could use: by so much
# f32 and f64 were slower with tiles of 64 x 64 than with 128 x 128.
CARRIED = 35.0
# The cost of launching clusters: their blocks start together, and none ends before the others.
CLUSTER = 0.5e-6
# K is by far the longest extent: so many times the others.
LONG = 16
# What idle blocks of the last round cost, as a share of the time of memory: measured with 138 to 224 tasks.
IDLE = 0.8
# What a split product costs the next kernel if its blocks occupy more than half of the SMs.
FOLLOWING = 1.5e-6
# A launch, filling the ring once, and a store of one byte of the result by one block.
LAUNCH, FILL, STORE = 2.0e-6, 0.9e-6, 1 / 60e9
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
# between them, at this share of the cost of reading it from memory.
CACHE, FAR = 25 << 20, 0.25
# Bytes on their way that keep memory busy, and so many that more slow it down.  Both were found by sweeps of
# products of few rows, and so was the next: the rate at which TMA moves rows and fills those beyond an edge with
# zeros, over that of memory.
FLIGHT, MOST_FLIGHT, FILLED = 4.5e6, 14.5e6, 1.25
# Bytes a clock of an SM whose tile rows come from memory a line at a time.
STREAM = 28.0
# Operands of so many bytes in sum are read from memory repeatedly.
LARGE = 400 << 20
# Copying to aligned memory reads and writes at this share of the memory's rate.
PACKING = 0.5
LARGEST_RING = 8
# More columns and an epilogue do not fit in the registers of one warpgroup.
WIDEST_FITTED = 224
# Five were 1 to 3 % slower than four.
PROMOTED_RING = 4
# Blocks of a cluster wait for each other's slots: at 1000^3, 5 were 1 % faster than 8, in a graph and alone.
SHARED_RING = 5
# Tile rows that blocks walk together.
RASTER = 16
# A line of the L2 cache, which answers for one at a time.
LINE = 128

# (tile, warpgroups) of the pipelined kernel for 16-bit operands, and of the kernel for any strides.  Steps of
# 8-bit operands have as many bytes along K.
PIPELINED = (
    ((128, 256, 64), 2),
    ((256, 128, 64), 2),
    ((128, 224, 64), 2),
    ((128, 192, 64), 2),
    ((128, 160, 64), 2),
    ((128, 128, 64), 2),
    ((64, 256, 64), 1),
    ((64, 224, 64), 1),
    ((64, 192, 64), 1),
    ((64, 160, 64), 1),
    ((64, 128, 64), 1),
    ((64, 64, 64), 1),
    ((128, 64, 64), 2),
    ((64, 32, 128), 1),
    ((64, 16, 128), 1),
)
# Their registers do not hold an epilogue and the addresses of direct stores at the same time.
SPILLING = ((256, 128, 64), (64, 256, 64))
# Those of integers are converted to f32 for an epilogue.
SPILLING_INTEGERS = (*SPILLING, (128, 256, 64))
# Blocks of a cluster along M and N, and whether they share.  Products in clusters, of groups and of promoted sums
# whose columns have scales of their own are computed by hand: their plain text was slower, or has not been timed.
# Of block scales the plain text took 1.02 of the time at 4096^3, and 0.92 at 8192^3.
CLUSTERS = (((1, 1), True), ((2, 1), True), ((1, 2), True), ((2, 1), False), ((1, 2), False))
TILES = (((128, 128, 64), 2), ((64, 64, 64), 1))
# Its registers do not hold the sum of the parts.
SPILLING_PARTS = ((64, 256, 64),)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
# Parts are for SMs without a task: no more parts than so many for each.
SPLIT_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Estimate:
    """A plan with its predicted time in seconds, and the resource that bounds it."""

    plan: Plan
    seconds: float
    why: str


def tile_for(problem: Problem, tile: tuple[int, int, int]) -> tuple[int, int, int]:
    """``tile``, of 16-bit elements, for the operands: as many bytes along K, or the `BLOCK` that is promoted."""
    m, n, k = tile
    return m, n, BLOCK if problem.promote else k * 2 // problem.lhs.dtype.bytes


def promotable(problem: Problem, tile: tuple[int, int, int], groups: int) -> bool:
    """Whether registers hold a tile and the products of a step, which are added in parts of 128 columns."""
    rows, columns = tile[0] // groups, tile[1]
    halves = columns == 256 and groups == 2 and problem.right.kind != "steps"
    return rows == 64 and (columns <= 128 or halves) if problem.promote else True


def candidates(problem: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans that can compute ``problem``, good or bad."""
    m, _, k = problem.shape
    for tile, groups in TILES:
        if not problem.promote or tile[1] == 64:
            yield Plan("tiles", tile_for(problem, tile), groups)
        if not problem.on_tensor_cores:
            yield Plan("ahead", tile_for(problem, tile), groups)
    if not on.pipelines or k == 0 or not problem.on_tensor_cores:
        return
    for swap in (False, True):
        if swap and m > 256 and not problem.grouped:
            break
        p = transposed_product(problem) if swap else problem
        ways = list(packs(p))
        if ways[0] and len(problem.outer) != 1:
            continue
        size = p.out.dtype.bytes
        # A lane's neighbouring f32 fill whole sectors: they need no detour through shared memory.
        # Tensor stores write whole 16-byte units, over the edge too.
        whole = p.out.shape[2] * size % 16 == 0 and p.grouped != "columns"
        store = "tma" if size == 2 and whole and aligned(p.out) and not swap else "direct"
        for wide, groups in dict.fromkeys((*PIPELINED, *_fitted(p))) if swap else PIPELINED:
            tile = tile_for(problem, wide)
            if not promotable(problem, tile, groups):
                continue
            staging = min(tile[0] * tile[1] * size, STAGING) if store == "tma" else 0
            most = PROMOTED_RING if p.promote else LARGEST_RING
            stages = min(most, (on.shared - _reserved(p, tile, groups) - staging) // _stage(p, tile))
            whole_boxes = tile[1] % 64 == 0 or (p.rhs_major == "row" and (store == "direct" or tile[1] > 64))
            if stages < 2 or not whole_boxes:
                continue
            tiles = p.batch * cdiv(p.shape[0], tile[0]) * cdiv(p.shape[1], tile[1])
            for split in SPLITS:
                undivided = len(problem.outer) != 1 or bool(p.grouped)
                if split > 1 and (
                    undivided or cdiv(k, tile[2]) < 4 * split or tiles * split > SPLIT_ROUNDS * on.sms
                ):
                    break
                how = store if split == 1 else "direct"
                direct = how == "direct" and split == 1 and not p.promote
                if direct and wide in SPILLING and (not p.plain or (p.grouped and wide[0] == 256)):
                    continue
                if p.acc == "s32" and split == 1 and not p.epilogue.plain and wide in SPILLING_INTEGERS:
                    continue
                plan = Plan("pipelined", tile, groups, stages, RASTER, on.sms, split, how, swap)
                plan = replace(plan, back=split == 1 and not p.grouped and _alternates(p))
                for cluster, share in CLUSTERS:
                    grid = on.resident(cluster[0] * cluster[1]) // (cluster[0] * cluster[1])
                    if p.grouped and cluster != (1, 1):
                        continue
                    if grid and _fits_cluster(p, tile, cluster, share):
                        ring = _ring(p, plan, on)
                        ring = min(ring, SHARED_RING) if share and cluster != (1, 1) else ring
                        rows = RASTER // cluster[0] if plan.back else RASTER
                        hand = p.promote or bool(p.grouped) or cluster != (1, 1)
                        found = replace(plan, grid=grid, cluster=cluster, share=share, stages=ring, raster=rows)
                        for pack in ways:
                            yield replace(found, by_hand=hand, pack=pack)


def _fitted(p: Problem) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Tiles of all columns of the transposed product, where these are few: TMA takes its time for each row beyond
    the edge, too."""
    columns = max(p.shape[1], 1)
    wide = cdiv(columns, 8) * 8 if columns <= 32 else cdiv(columns, 16) * 16
    if wide <= WIDEST_FITTED and not p.grouped:
        yield from (((64, wide, 128), 1), ((64, wide, 64), 1), ((128, wide, 64), 2))


def _ring(p: Problem, plan: Plan, on: Hardware) -> int:
    """The stages of ``plan``, or as many of them as may be on their way in the transposed product of few rows."""
    (m, n, _), (rows, columns, depth) = p.shape, plan.tile
    if not plan.swap or p.grouped:
        return plan.stages
    working = max(1, min(on.sms, cdiv(m, rows) * cdiv(n, columns) * plan.split * p.batch))
    return min(plan.stages, max(2, int(MOST_FLIGHT // (working * rows * depth * p.lhs.dtype.bytes))))


def _stage(p: Problem, tile: tuple[int, int, int]) -> int:
    """Bytes of a stage: of both operands, and of the scales that come with them."""
    scales = 0
    for scale, extent, axis in ((p.left, tile[0], "rows"), (p.right, tile[1], "columns")):
        if scale.kind == "steps":
            scales += 4 * (extent + (LINE // 4 if p.grouped == axis else 0))
        elif scale.kind == "blocks":
            scales += LINE
    return (tile[0] + tile[1]) * tile[2] * p.lhs.dtype.bytes + scales


def _reserved(p: Problem, tile: tuple[int, int, int], groups: int) -> int:
    """Bytes of shared memory besides the ring and the staging buffers: the events, each warpgroup's bias and
    scales of columns, and the ends of the groups."""
    bias = p.bias.dtype.bytes if p.bias is not None and p.epilogue.bias == "columns" else 0
    each = groups * tile[1] * (bias + 4 * (p.right.kind == "vector"))
    return min(EVENTS + each, RESERVED) + (4 * p.offsets.shape[0] if p.offsets is not None else 0)


def fused(plan: Plan, problem: Problem) -> Plan | None:
    """``plan``, a split product, with its parts added in the same kernel; None where it cannot."""
    tiles = (tile_for(problem, tile) for tile in SPILLING_PARTS)
    return replace(plan, fused=True) if 1 < plan.split <= MOST_PARTS and plan.tile not in tiles else None


def _alternates(p: Problem) -> bool:
    """Whether power is the limit, because reads of L2 and memory take it from the tensor cores: both operands much
    larger than the cache, with rows that start on cache lines.

    Traversal in alternating directions was 5 % and 3 % faster in the steady state at 537 MB and 604 MB of
    operands, and single launches as fast; at 151 MB and 268 MB, where the steady state gained too, those seemed
    slower.
    """
    m, n, k = p.shape
    if _straddling(p.lhs, False) > 1 or _straddling(p.rhs, False) > 1:
        return False
    left, right = m * k * p.lhs.dtype.bytes, n * k * p.lhs.dtype.bytes
    return min(left, right) > 2 * CACHE and left + right > LARGE


def _fits_cluster(p: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], share: bool) -> bool:
    """Whether every block of ``cluster`` has a tile, and the blocks have data to share or to read from L2
    together.

    Each loads a part of a shared tile: a whole number of swizzle atoms, 8 lines of memory each.
    """
    (m, n, _), (rows, columns, depth), (high, wide) = p.shape, tile, cluster
    if m <= rows * (high - 1) or n <= columns * (wide - 1):
        return False
    if not share:
        # All blocks that read the same part of a large operand.
        return m <= rows * high if high > 1 else n <= columns * wide
    left = rows if p.lhs_major == "row" else depth
    right = columns if p.rhs_major == "row" else depth
    return (wide == 1 or left % (8 * wide) == 0) and (high == 1 or right % (8 * high) == 0)


def _straddling(x: ArrayRef, packed: bool) -> float:
    """Cache lines that each 128 bytes of an operand's rows lie in, on average."""
    if packed:
        return 1.0
    return 2.0 - math.gcd(x.strides[1] * x.dtype.bytes, x.pointer, LINE) / LINE


def _read(p: Problem, plan: Plan) -> float:
    """Bytes that a step of a block reads from the L2 cache."""
    (rows, columns, depth), size = plan.tile, p.lhs.dtype.bytes
    high, wide = plan.cluster if plan.share else (1, 1)
    left = rows * depth * size / wide * _straddling(p.lhs, "lhs" in plan.pack)
    return left + columns * depth * size / high * _straddling(p.rhs, "rhs" in plan.pack)


def _step(p: Problem, plan: Plan, on: Hardware, busy: float, filled: float = 1.0) -> tuple[float, str]:
    """Clocks of one step of a block while the share ``busy`` of all SMs works, and the resource that bounds it.

    ``filled``: the share of the warpgroups that have rows of the result.
    """
    (rows, columns, depth), size = plan.tile, p.lhs.dtype.bytes
    tensor = 2.0 * rows * columns * depth / (on.tensor * 2 / size if p.on_tensor_cores else SCALAR)
    if p.promote:
        # Two warpgroups add in turns, while the other multiplies.
        tensor += rows * columns / (ADDED if plan.groups > 1 else ADDED_ALONE)
        scales = (("scale_lhs", p.left), ("scale_rhs", p.right))
        tensor += FAR_SCALES * sum(far_scales(x) and name not in plan.pack for name, x in scales)
    left, right = rows * depth * size, columns * depth * size
    # Every instruction of a warpgroup, 64 rows and 16 of K, reads 64 rows of A and all of B's tile; TMA writes
    # both in lines, at half the cost of reading them.
    shared = ((rows // 64) * (64 + columns) * depth * size + (left + right) / 2) / SHARED_RATE
    cache = _read(p, plan) / on.cache * busy
    port = (left + right) / PORT
    if plan.kernel == "ahead" and aligned(p.lhs) and aligned(p.rhs):
        return max(tensor, cache) + (left + right) / CARRIED, "arithmetic"
    if plan.kernel != "pipelined":
        # No overlap: the block waits for its copies, then multiplies.
        return tensor + (cache + 1200) * (
            1 if aligned(p.lhs) and aligned(p.rhs) and not packed(p) else 6
        ), "copies"
    limits = {
        "tensor cores": tensor * filled,
        "shared memory": shared * filled,
        "L2 cache": cache,
        "the SM's port": port,
    }
    slowest = max(limits, key=lambda x: limits[x])
    # Where every operand is read from memory repeatedly, L2 transfers cost energy too.
    energy = (port + shared) / 2 + (cache / 4 if plan.back else 0.0)
    load = min(1.0, tensor / limits[slowest]) * busy
    return (limits[slowest] + OVERLAP * energy * load) / (1 + BOOST * (1 - load)), slowest


def _moved(p: Problem, plan: Plan, shape: tuple[int, int, int]) -> float:
    """Bytes of one batch, of extents ``shape``, between memory and the chip."""
    (m, n, k), size = shape, p.lhs.dtype.bytes
    left, right = float(m * k * size), float(n * k * size)
    if m > plan.tile[0] * plan.cluster[0] and right > CACHE:
        right *= 1 + FAR
    if n > plan.tile[1] * plan.cluster[1] and left > CACHE:
        left *= 1 + FAR
    parts = plan.split * m * n * 4 if plan.split > 1 else 0
    return left + right + m * n * p.out.dtype.bytes + parts


def _beyond(extent: int, tile: int) -> float:
    """The share of the tiles that lies beyond the edge."""
    return 1 - extent / (max(1, cdiv(extent, tile)) * tile)


def _streamed(p: Problem, plan: Plan, on: Hardware, moved: float, tasks: int, steps: int) -> float:
    """Seconds that memory needs to move ``moved`` bytes for ``tasks`` of ``steps`` steps."""
    (m, n, _), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    working = max(1, min(tasks, on.sms))
    if plan.kernel != "pipelined" or p.grouped:
        # Half the SMs can keep most of memory busy, fewer cannot.
        return moved / (on.memory * min(1.0, 1.5 * working / on.sms))
    flight = working * plan.stages * (min(m, rows) + min(n, columns)) * depth * size
    # Rows beyond an operand's edge, which TMA fills with zeros.
    beyond = rows * _beyond(m, rows) + columns * _beyond(n, columns)
    written = moved + tasks * steps * beyond * depth * size
    each = working * STREAM * depth * size / LINE * on.clock
    return max(moved / (on.memory * min(1.0, max(1, flight) / FLIGHT)), written / min(on.memory * FILLED, each))


def estimate(problem: Problem, plan: Plan, on: Hardware) -> Estimate:
    """The model of this file's head, for one plan."""
    p = transposed_product(problem) if plan.swap else problem
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
        # A group ends anywhere in its last tile; a group that is not empty has one.
        divided, each = (m, rows) if p.grouped == "rows" else (n, columns)
        tiles = groups * max(1.0, divided / groups / each + 0.5)
        tasks = math.ceil(tiles * (cdiv(n, columns) if p.grouped == "rows" else cdiv(m, rows)))
        m, n = (cdiv(m, groups), n) if p.grouped == "rows" else (m, cdiv(n, groups))
        batch, rounds = groups, max(1.0, tasks / resident + 0.5)
        if p.grouped == "rows":
            # A warpgroup without rows of the group leaves the tensor cores to the others.
            each //= plan.groups
            filled = groups * max(1.0, divided / groups / each + 0.5) / (tiles * plan.groups)
    busy = max(1, min(tasks, resident)) / on.sms
    steps = cdiv(cdiv(k, depth), plan.split)
    step, bound_by = _step(p, plan, on, busy, filled)
    store = rows * columns * stored * STORE * (1 if plan.store == "tma" or stored == 4 else 1.5)
    seconds = rounds * (steps * step / on.clock + FILL + store)
    why = f"{tasks} tasks in {rounds:.3g} rounds of {min(tasks, resident)}, {steps} steps each bound by {bound_by}"
    memory = _streamed(p, plan, on, batch * _moved(p, plan, (m, n, k)), tasks, steps)
    # Where K is by far the longest, all blocks of a part read the same lines as these arrive from memory, and wait
    # for both.  Those of a cluster read them together, whether or not they multicast.
    long = plan.split > 1 and k >= LONG * max(m, n)
    if long:
        memory += tasks * steps * _read(p, replace(plan, share=True)) / (on.cache * on.clock * on.sms)
    # Blocks that start and end together leave memory idle, and so do those without a task in the last round.
    idle = 1 - (tasks - (cdiv(tasks, resident) - 1) * resident) / resident if rounds > 1 else 0.0
    memory += 0.5 * (FILL + store) / rounds + IDLE * memory * idle / rounds**2
    if memory > seconds:
        why = f"{tasks} tasks, bound by memory"
    seconds = max(memory, seconds) + 0.05 * min(memory, seconds)
    seconds += (LAUNCH + CLUSTER * (high * wide > 1 and plan.share)) * len(p.outer)
    if plan.split > 1:
        seconds += LAUNCH + 2.0 * plan.split * batch * m * n * 4 / on.memory
        # Where half the SMs are free, the next kernel's blocks start meanwhile.
        seconds += FOLLOWING * (long and busy > 0.5)
    for name in plan.pack:
        packed = k * p.lhs.dtype.bytes if name in ("lhs", "rhs") else cdiv(k, BLOCK) * 4
        packed *= m if name in ("lhs", "scale_lhs") else n
        seconds += LAUNCH + 2.0 * batch * packed / (on.memory * PACKING)
    return Estimate(plan, seconds, why)


def ranked(problem: Problem, on: Hardware) -> list[Estimate]:
    """All candidates, the predicted best first; ties go to the earlier one."""
    return sorted((estimate(problem, p, on) for p in candidates(problem, on)), key=lambda e: e.seconds)


def _padded(extent: int, largest: int) -> int:
    """The smallest multiple of 64 that holds ``extent``, up to ``largest``."""
    return min(cdiv(max(extent, 1), 64) * 64, largest)


def choose(problem: Problem) -> Plan:
    """The plan for ``problem`` on its device."""
    m, n, k = problem.shape
    device = problem.out.device
    if device[0] == "cpu":
        # The reference works tile by tile: few large ones are fastest.  A tile has one scale of a block.
        rows, columns = (BLOCK if x.kind == "blocks" else 512 for x in (problem.left, problem.right))
        depth = BLOCK if problem.promote else _padded(k, 512)
        return Plan("tiles", (_padded(m, rows), _padded(n, columns), depth), 1)
    return ranked(problem, hardware(device))[0].plan
