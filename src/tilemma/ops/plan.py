"""How a product is computed, chosen by a small written model.

Times are in seconds and sizes in bytes.  A block works through tasks (tiles of the result, or parts of K of one);
a step brings one slice of K of both operands and multiplies it.  A step takes as long as the slowest of

- the tensor cores: 2 * m * n * k operations at the SM's rate,
- shared memory, which hands a warpgroup its rows of A and all of B for every instruction,
- the L2 cache, which delivers (m + n) * k elements to each SM that works.

A task adds filling the ring and storing the tile; the product takes as many rounds of tasks as there are for
each resident block, and never less than memory needs to bring each operand and the result once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tilemma.ops.arguments import Problem
from tilemma.runtime.arrays import ArrayRef, facts


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a product.

    ``kernel``: "tiles" (any strides, every target) or "pipelined" (sm_90a, operands that TMA can read).
    ``tile`` is (M, N, K) of a block's step; ``groups`` warpgroups multiply, each tile[0] / groups rows, fed
    through ``stages`` slots.  ``raster``: tile rows in a group that blocks walk together.  ``grid``: blocks that
    stay.  ``split``: parts of K, added in order afterwards.  ``store``: "tma", through shared memory, or
    "direct".  ``swap``: the transposed product is computed.  ``pack``: operands ("lhs", "rhs", after the swap)
    that are first copied to aligned memory.  ``cluster`` blocks share the tiles of operand ``shared``, each
    bringing a part of them to all.
    """

    kernel: str
    tile: tuple[int, int, int]
    groups: int
    stages: int = 1
    raster: int = 8
    grid: int = 0
    split: int = 1
    store: str = "direct"
    swap: bool = False
    pack: tuple[str, ...] = ()
    cluster: int = 1
    shared: str = ""
    evict: tuple[str | None, str | None] = (None, None)

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
            values |= {"STAGES": self.stages, "GRID": self.grid, "SPLIT": self.split, "STORE": self.store}
            values |= {"CLUSTER": self.cluster, "SHARED": self.shared}
            values |= {"EVICT_LHS": self.evict[0], "EVICT_RHS": self.evict[1]}
        return values

    def __str__(self) -> str:
        parts = [
            f"{self.kernel} {'x'.join(map(str, self.tile))}",
            f"{self.groups} x {self.tile[0] // self.groups} rows",
        ]
        if self.kernel == "pipelined":
            parts += [f"{self.stages} stages", f"{self.grid} blocks", f"{self.store} store"]
        parts.append(f"raster {self.raster}")
        parts += [f"clusters of {self.cluster} share {self.shared}"] * (self.cluster > 1)
        parts += [f"split {self.split}"] * (self.split > 1) + ["swapped"] * self.swap
        parts += [f"packs {' and '.join(self.pack)}"] * bool(self.pack)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the model knows of a device.  The rates are of one H200 under load; other devices scale by SMs and by
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


def hardware(device: tuple[str, int]) -> Hardware:
    """The device that arrays are on; an H200 stands for the CPU, where nothing is timed."""
    if device[0] != "cuda":
        return Hardware()
    from tilemma.runtime import cuda_device

    d = cuda_device(device[1])
    tensor = 4096.0 if d.compute_capability[0] >= 9 else 2048.0 if d.compute_capability == (8, 0) else 1024.0
    return Hardware(d.name, d.compute_capability, d.sm_count, d.shared_per_block, tensor=tensor)


# A launch, filling the ring once, and a store of one byte of the result by one block.
LAUNCH, FILL, STORE = 2.0e-6, 0.9e-6, 1 / 60e9
# Shared memory: bytes a clock.  What stays free of it: events, and the pieces that results are staged through.
SHARED_RATE, STAGING, RESERVED = 128.0, 32 * 1024, 2048
# Bytes a clock into an SM, from the L2 cache and from its neighbours.
PORT = 64.0
# What bytes from the L2 cache cost where they are not the limit: energy, and with it clock.
OVERLAP = 0.2
# Copying to aligned memory reads and writes at this share of the memory's rate.
PACKING = 0.5
LARGEST_RING = 8

# (tile, warpgroups) of the pipelined kernel, and of the one for any strides.
PIPELINED = (
    ((128, 256, 64), 2),
    ((256, 128, 64), 2),
    ((128, 192, 64), 2),
    ((128, 128, 64), 2),
    ((64, 256, 64), 1),
    ((64, 128, 64), 1),
    ((64, 64, 64), 1),
    ((128, 64, 64), 2),
    ((64, 32, 128), 1),
    ((64, 16, 128), 1),
)
# Their registers do not hold an epilogue and the addresses of direct stores at the same time.
SPILLING = ((256, 128, 64), (64, 256, 64))
# Blocks of a cluster, and the operand whose tiles they share.
CLUSTERS = ((1, ""), (2, "lhs"), (2, "rhs"), (4, "lhs"), (4, "rhs"))
TILES = (((128, 128, 64), 2), ((64, 64, 64), 1))
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A plan with its predicted time in seconds, and what the time is spent on."""

    plan: Plan
    seconds: float
    why: str


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def aligned(x: ArrayRef) -> bool:
    """Whether TMA can read or write ``x``: neighbours along the last dimension, all else in 16-byte steps."""
    found = facts(x)
    return found.contiguous == x.rank - 1 and found.alignment == 16


def turned(problem: Problem) -> Problem:
    """The transposed product: out^T = rhs x lhs^T."""

    def transposed(x: ArrayRef) -> ArrayRef:
        (b, m, n), (sb, sm, sn) = x.shape, x.strides
        return x._replace(shape=(b, n, m), strides=(sb, sn, sm))

    return replace(
        problem,
        lhs=problem.rhs,
        rhs=problem.lhs,
        lhs_major=problem.rhs_major,
        rhs_major=problem.lhs_major,
        out=transposed(problem.out),
        c=None if problem.c is None else transposed(problem.c),
        epilogue=problem.epilogue.swapped(),
        swapped=not problem.swapped,
        outer=tuple((r, left, c, o) for left, r, c, o in problem.outer),
    )


def candidates(problem: Problem, on: Hardware) -> Iterator[Plan]:
    """The plans that can compute ``problem``, good or bad."""
    m, _, k = problem.shape
    for tile, groups in TILES:
        yield Plan("tiles", tile, groups)
    if not on.pipelines or k == 0:
        return
    for swap in (False, True):
        if swap and m > 256:
            break
        p = turned(problem) if swap else problem
        pack = tuple(name for name, x in (("lhs", p.lhs), ("rhs", p.rhs)) if not aligned(x))
        if pack and len(problem.outer) != 1:
            continue
        size = p.out.dtype.bytes
        # A lane's neighbouring f32 fill whole sectors: they need no detour through shared memory.
        # Tensor stores write whole 16-byte units, over the edge too.
        whole = p.out.shape[2] * size % 16 == 0
        store = "tma" if size == 2 and whole and aligned(p.out) and not swap else "direct"
        for tile, groups in PIPELINED:
            stage = (tile[0] + tile[1]) * tile[2] * p.lhs.dtype.bytes
            staging = min(tile[0] * tile[1] * size, STAGING) if store == "tma" else 0
            stages = min(LARGEST_RING, (on.shared - RESERVED - staging) // stage)
            if stages < 2 or (tile[1] % 64 and (p.rhs_major == "col" or store == "tma")):
                continue
            for split in SPLITS:
                if split > 1 and (cdiv(k, tile[2]) < 4 * split or len(problem.outer) != 1):
                    break
                how = store if split == 1 else "direct"
                if how == "direct" and split == 1 and not p.epilogue.plain and tile in SPILLING:
                    continue
                plan = Plan("pipelined", tile, groups, stages, 8, on.sms, split, how, swap, pack)
                for cluster, shared in CLUSTERS:
                    if _clusters(p, tile, cluster, shared):
                        yield replace(plan, grid=on.sms // cluster, cluster=cluster, shared=shared)


def _clusters(p: Problem, tile: tuple[int, int, int], cluster: int, shared: str) -> bool:
    """Whether ``cluster`` blocks can share tiles of ``shared``, and there is something to share.

    A part is a whole number of swizzle patterns, 8 lines of memory each.
    """
    if cluster == 1:
        return True
    (m, n, _), (rows, columns, depth) = p.shape, tile
    if shared == "lhs":
        lines, neighbours, others = rows if p.lhs_major == "row" else depth, cdiv(n, columns), cdiv(m, rows)
    else:
        lines, neighbours, others = columns if p.rhs_major == "row" else depth, cdiv(m, rows), cdiv(n, columns)
    # Four blocks where all of the result is a single row of tiles: elsewhere two do.
    return lines % (8 * cluster) == 0 and neighbours >= cluster and (cluster == 2 or others == 1)


def estimate(problem: Problem, plan: Plan, on: Hardware) -> Estimate:
    """The model of this file's head, for one plan."""
    p = turned(problem) if plan.swap else problem
    (m, n, k), (tm, tn, tk) = p.shape, plan.tile
    size, stored = p.lhs.dtype.bytes, 4 if plan.split > 1 else p.out.dtype.bytes
    batch = p.batch * len(p.outer)
    high, wide = (plan.cluster if plan.shared == x else 1 for x in ("rhs", "lhs"))
    tasks = batch * cdiv(m, tm * high) * cdiv(n, tn * wide) * plan.split * plan.cluster
    resident = on.sms // plan.cluster * plan.cluster
    rounds = cdiv(tasks, resident)
    steps = cdiv(cdiv(k, tk), plan.split)
    tensor = 2.0 * tm * tn * tk / on.tensor
    # Every warpgroup's instruction of 64 rows and 16 of K reads 64 rows of A and all of B's tile.
    shared = (tm // 64) * (64 + tn) * tk * size / SHARED_RATE
    busy = min(tasks, resident) / on.sms
    cache = (tm / wide + tn / high) * tk * size / on.cache * busy
    port = (tm + tn) * tk * size / PORT
    slowest = max((tensor, "tensor cores"), (shared, "shared memory"), (cache, "L2 cache"), (port, "the SM's port"))
    store = tm * tn * stored * STORE * (1 if plan.store == "tma" or stored == 4 else 1.5)
    step, bound_by = slowest[0] + OVERLAP * cache, slowest[1]
    if plan.kernel == "tiles":
        # Nothing overlaps: copies wait, then the tensor cores work.
        step = tensor + (cache + 1200) * (1 if aligned(p.lhs) and aligned(p.rhs) else 6)
        bound_by = "copies"
    seconds = rounds * (steps * step / on.clock + FILL + store)
    moved = batch * ((m * k + n * k) * size + m * n * p.out.dtype.bytes)
    why = f"{tasks} tasks in {rounds} rounds of {min(tasks, resident)}, {steps} steps each bound by {bound_by}"
    # Half the SMs can keep most of memory busy, fewer cannot.
    memory = moved / (on.memory * min(1.0, 1.5 * busy))
    if memory > seconds:
        why = f"{tasks} tasks, bound by memory"
    seconds = max(memory, seconds) + 0.05 * min(memory, seconds)
    seconds += LAUNCH * len(p.outer)
    if plan.split > 1:
        seconds += LAUNCH + 2.0 * plan.split * batch * m * n * 4 / (2 * on.memory)
    for name in plan.pack:
        rows = m if name == "lhs" else n
        seconds += LAUNCH + 2.0 * batch * rows * k * size / (on.memory * PACKING)
    return Estimate(plan, seconds, why)


def ranked(problem: Problem, on: Hardware) -> list[Estimate]:
    """All candidates, the predicted best first; ties go to the earlier one."""
    return sorted((estimate(problem, p, on) for p in candidates(problem, on)), key=lambda e: e.seconds)


def _reach(extent: int, largest: int) -> int:
    """The smallest multiple of 64 that holds ``extent``, up to ``largest``."""
    return min(cdiv(max(extent, 1), 64) * 64, largest)


def choose(problem: Problem) -> Plan:
    """The plan for ``problem`` on its device."""
    m, n, k = problem.shape
    device = problem.out.device
    if device[0] == "cpu":
        # The reference works tile by tile: few large ones are fastest.
        return Plan("tiles", (_reach(m, 512), _reach(n, 512), _reach(k, 512)), 1)
    return ranked(problem, hardware(device))[0].plan
