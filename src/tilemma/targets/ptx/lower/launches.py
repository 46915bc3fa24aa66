"""Lowering of a kernel to its launches: lane code, grid and launch plan for each top-level block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tilemma import launch
from tilemma.errors import CompileError
from tilemma.ir import tile, usage, walk
from tilemma.ir.effects import element_reads, read_views, written_views
from tilemma.ir.expr import Index
from tilemma.ir.lane import Imm, LaneKernel, Reg
from tilemma.ir.tile import Alloc, Kernel, Op, Parallel
from tilemma.ir.types import Buffer, Space
from tilemma.records import record
from tilemma.targets.ptx.lower import memory, tma
from tilemma.targets.ptx.lower.clusters import bind_cluster, cluster_barrier, leave_cluster
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.control import (
    GRID_LIMIT,
    bind_blocks,
    block_instance,
    count_blocks,
    launch_threads,
    may_exceed,
)
from tilemma.targets.ptx.lower.events import MBARRIER, initialise
from tilemma.targets.ptx.lower.futures import place_rotating
from tilemma.targets.ptx.lower.interleave_multiplies import with_multiplies_interleaved
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.loads_ahead import with_loads_ahead
from tilemma.targets.ptx.lower.local_registers import with_locals_in_registers
from tilemma.targets.ptx.lower.memory import default_plan
from tilemma.targets.ptx.lower.params import size, symbol
from tilemma.targets.ptx.lower.places import compute_first
from tilemma.targets.ptx.target import Target


class GridNotComputable(CompileError):
    code = "grid-not-computable"
    found = "the extent of block index `{index}` depends on more than the arguments' sizes"
    expected = "an expression over dimensions, scalar parameters and constants"
    fix = "compute the extent from dimensions, or loop inside the block"


@record
class Lowered:
    """One launch: its lane code and its launch plan."""

    lane: LaneKernel
    launch: launch.Launch


def lower(kernel: Kernel, arch: str) -> tuple[Lowered, ...]:
    """Lane code for each top-level `parallel ... : block` of ``kernel``, whose decisions are all made.

    The entry has the kernel's name, with ``_0``, ``_1``, ... appended if there are several launches.  ``arch`` is
    a PTX target such as `sm_90a`.  Raises NotLowered for operations without machine code, and GridNotComputable.
    """
    prelude: list[Op] = []
    blocks: list[tuple[Parallel, tuple[Op, ...]]] = []
    for op in kernel.body:
        if isinstance(op, Parallel):
            blocks.append((op, tuple(prelude)))
        else:
            prelude.append(op)
    found = []
    for i, (op, before) in enumerate(blocks):
        name = symbol(kernel.name) if len(blocks) == 1 else f"{symbol(kernel.name)}_{i}"
        found.append(_launch(kernel, op, before, arch, name))
    return tuple(found)


def _launch(kernel: Kernel, op: Parallel, prelude: tuple[Op, ...], arch: str, entry: str) -> Lowered:
    assert op.level is not None and op.level.kind in ("block", "cluster"), op.level
    cluster = op if op.level.kind == "cluster" else None
    if cluster is not None:
        prelude = (*prelude, *(p for p in cluster.body if not isinstance(p, Parallel)))
        op = next(p for p in cluster.body if isinstance(p, Parallel))
    overlap = (cluster or op).overlap if Target.of(arch).has("griddepcontrol") else False
    threads = launch_threads(op)
    indices = op.indices if cluster is None else (*cluster.indices, *op.indices)
    lo = Lowering(kernel, arch, threads, tuple(i.extent for i in indices))
    lo.e.span = op.span
    lo.min_blocks = op.min_blocks or 1
    if cluster is None:
        bind_blocks(lo, op.indices)
        count_blocks(lo, op.indices, "nctaid.x")
    else:
        bind_cluster(lo, cluster.indices, op.indices)
        count_blocks(lo, cluster.indices, "nclusterid.x")
    with lo.within(block_instance(threads)):
        before = [p for p in prelude if isinstance(p, (tile.Declare, tile.Assign))]
        count = _leading_without_memory((*before, *op.body)) if overlap else 0
        if overlap and count < len(before):
            _wait_for_previous_launch(lo, overlap)
        lo.body(before)
        apart = compute_first(lo, op.body)
        early = bool(overlap) and count >= len(before)
        first = max(0, count - len(before))

        def meanwhile() -> None:
            place_rotating(lo, op.body)
            lo.body(op.body[:first])

        prefetched = _prologue(lo, op.body, early, apart, meanwhile)
        if overlap and early:
            if not prefetched:
                # Their places may follow from what has been computed now.
                _by_one_thread(lo, apart, lambda: tma.prefetch_first_tiles(lo, op.body, computes=True))
            _wait_for_previous_launch(lo, overlap)
        lo.body(op.body[first:])
        if cluster is not None and not cluster.drained:
            leave_cluster(lo)
    arrays = _arrays(kernel)
    pairs = lo.params.arguments(tuple(b.name for b in arrays))
    shared = _shared_bytes(op)
    lane = LaneKernel(
        name=entry,
        arch=arch,
        params=tuple(p for p, _ in pairs),
        threads=threads,
        shared=shared,
        body=tuple(lo.e.regions[0].ops),
        # Without a number ptxas ignores setmaxnreg (its advisory C7508).
        min_blocks=op.min_blocks or (1 if lo.reallocates or _fills_multiprocessor(shared, arch) else None),
        max_registers=op.max_registers,
        cluster=(lo.cluster.size, 1, 1) if lo.cluster is not None else None,
        locals=tuple(lo.locals),
    )
    lane = with_multiplies_interleaved(with_locals_in_registers(lane))
    if _is_pipelined(kernel):
        lane = with_loads_ahead(lane)
    read, written = accesses(op)
    grid, checks = _grid(lo, op) if cluster is None else _cluster_grid(cluster, lo)
    plan = launch.Launch(
        entry=entry,
        arch=arch,
        arrays=tuple(_array_param(lo, b, b.name in read, b.name in written) for b in arrays),
        scalars=tuple(launch.ScalarParam(p.scalar.name, p.scalar.dtype.name) for p in kernel.scalars),
        arguments=tuple(a for _, a in pairs),
        grid=grid,
        block=(threads, 1, 1),
        cluster=lane.cluster,
        shared=shared,
        overlap=bool(overlap),
        checks=(*usage.checks(kernel), *checks, *tma.store_checks(lo, op.body), *_whole_row_checks(lo, op.body)),
        shared_names=_shared_names(op),
        clustered=_clustered(cluster),
        joined=None if op.joined is None else size(op.joined),
    )
    return Lowered(lane, plan)


def _is_pipelined(kernel: Kernel) -> bool:
    """Whether the program asks for copies ahead, and nowhere forbids them."""
    loops = (op.pipeline for op in walk.walk(kernel.body) if isinstance(op, tile.For))
    given = [x for x in (kernel.pipeline, *loops) if x is not None]
    return bool(given) and not any(x.off for x in given)


def _whole_row_checks(lo: Lowering, body: tile.Body) -> tuple[tuple[launch.Size, str], ...]:
    """The launch checks of arrays whose rows ``body`` copies in whole vectors, as their facts allow."""
    found: dict[tuple[launch.Size, str], None] = {}
    for op in walk.walk(body):
        if not isinstance(op, tile.Copy) or op.plan is None:
            continue
        view = op.src if op.plan.edge == "whole vectors" else op.dst
        array, facts = view.base, lo.facts(view.base)
        stored = op.plan.engine == "ldst" and array.space is Space.GLOBAL
        if not (stored or view is op.src) or not memory.has_whole_rows(lo, view):
            continue
        extent = size(array.shape[-1])
        if extent is None or op.plan.vector * 8 <= array.dtype.bits:
            continue
        unit = op.plan.vector * 8 // array.dtype.bits
        text = (
            f"the kernel was compiled for rows of whole 16-byte units: dimension {facts.contiguous} of "
            f"`{array.name}` must be a multiple of {unit}"
        )
        found[("eq", ("mod", extent, unit), 0), text] = None
    return tuple(found)


def _clustered(cluster: Parallel | None) -> tuple[str, launch.Size] | None:
    """See `launch.Launch.clustered`."""
    extent = None if cluster is None or cluster.tiles is None else size(cluster.tiles)
    return None if extent is None or cluster is None or cluster.clustered is None else (cluster.clustered, extent)


def _shared_names(op: Parallel) -> tuple[launch.SharedName, ...]:
    """The buffers and events in shared memory, by their offsets."""
    found = []
    for inner in walk.walk(op.body):
        if isinstance(inner, tile.Alloc) and inner.offset is not None and inner.layout is not None:
            buffer = inner.buffer
            stride = inner.layout.stride
            found.append(launch.SharedName(buffer.name, "buffer", inner.offset, stride, buffer.copies))
        elif isinstance(inner, tile.DeclareEvent) and inner.offset is not None:
            event = inner.event
            found.append(launch.SharedName(event.name, "event", inner.offset, MBARRIER, event.slots))
    return tuple(sorted(found, key=lambda s: (s.offset, s.name)))


def _fills_multiprocessor(shared: int, arch: str) -> bool:
    """Whether a block uses more than half of the multiprocessor's shared memory: a second one never runs beside
    it, so that ptxas need not limit registers for it."""
    return 2 * shared > Target.of(arch).shared_per_sm


def _leading_without_memory(ops: tuple[Op, ...]) -> int:
    """The number of leading ``ops`` that only declare or compute and read no global memory of earlier launches."""
    for i, op in enumerate(ops):
        if not isinstance(op, (tile.Declare, tile.Assign, Alloc, tile.DeclareEvent)) or element_reads(op):
            return i
    return len(ops)


def _wait_for_previous_launch(lo: Lowering, overlap: bool | Literal["before"]) -> None:
    """Programmatic dependent launch: wait until the previous launch has ended and its writes are visible, and
    allow the blocks of the next launch to start, unless these overlap with the launch before only.

    PTX ISA, griddepcontrol; without the launch attribute both instructions have no effect.
    """
    lo.e.do("griddepcontrol.wait")
    if overlap != "before":
        lo.e.do("griddepcontrol.launch_dependents")


def _by_one_thread(lo: Lowering, apart: bool, lower: Callable[[], Any]) -> None:
    """What ``lower`` emits, by one thread of the block; ``apart``: not of the first warp."""
    first = lo.e.compare("eq", Linear.of(lo.thread), Linear(const=32)) if apart else lo.elected(lo.instance)
    with lo.e.collect() as ops:
        lower()
        found = tuple(ops)
    if found and isinstance(first, Reg):
        lo.e.select_branch(first, found, ())


def _prologue(lo: Lowering, body: tuple[Op, ...], early: bool, apart: bool, meanwhile: Callable[[], None]) -> bool:
    """The prologue: one thread prefetches tensor maps and initialises mbarriers, then a barrier of all threads.

    ``early``: the launch then waits for the previous one, and that thread prefetches first tiles too; returns
    whether there are any.  ``apart``: the first warp has something else to do meanwhile.  ``meanwhile`` lowers
    what follows and accesses no memory: blocks of a cluster wait for each other longer than it takes.
    """
    events = prefetched = False

    def lower() -> None:
        nonlocal events, prefetched
        tma.prefetch(lo, body)
        events = initialise(lo, body)
        prefetched = early and tma.prefetch_first_tiles(lo, body)

    _by_one_thread(lo, apart, lower)
    if lo.cluster is not None and lo.cluster.uses_distributed_shared_memory:
        # Other blocks arrive on these events and write into this block's memory: all blocks have to have started.
        cluster_barrier(lo, initialised=True, meanwhile=meanwhile)
        return prefetched
    if events:
        lo.e.do("bar.sync", (), (Imm(0),))
    meanwhile()
    return prefetched


def _arrays(kernel: Kernel) -> list[Buffer]:
    found = [p.buffer for p in kernel.arrays]
    if kernel.returns is not None and all(b.name != kernel.returns.name for b in found):
        found.append(kernel.returns)
    names = {b.name for b in found}
    for op in kernel.body:
        if isinstance(op, Alloc) and op.buffer.space is Space.GLOBAL and op.buffer.name not in names:
            found.append(op.buffer)
    return found


def _array_param(lo: Lowering, b: Buffer, read: bool, written: bool) -> launch.ArrayParam:
    facts = lo.facts(b)
    dims = []
    for d in b.shape:
        extent = size(d)
        assert extent is not None, f"dimension of {b.name}"
        dims.append(extent)
    return launch.ArrayParam(
        b.name, b.dtype.name, tuple(dims), written, read, facts.alignment, facts.contiguous, facts.nonempty
    )


def accesses(op: Op) -> tuple[set[str], set[str]]:
    """Names of the global arrays that ``op`` and what is inside it read, and of those it writes."""
    ops = tuple(walk.walk((op,)))
    read = {v.base.name for x in ops for v in read_views(x) if v.base.space is Space.GLOBAL}
    written = {v.base.name for x in ops for v in written_views(x) if v.base.space is Space.GLOBAL}
    return read, written


def _shared_bytes(op: Parallel) -> int:
    """Bytes of dynamic shared memory: up to the end of the last buffer or event."""
    end = 0
    for inner in walk.walk(op.body):
        match inner:
            case Alloc() if inner.buffer.space is Space.SHARED and inner.offset is not None:
                plan = inner.layout or default_plan(inner.buffer)
                end = max(end, inner.offset + plan.total(inner.buffer.copies))
            case tile.DeclareEvent() if inner.offset is not None:
                end = max(end, inner.offset + 8 * max(1, inner.event.slots))
    return end


def _cluster_grid(cluster: Parallel, lo: Lowering) -> tuple[Sizes, tuple[tuple[launch.Size, str], ...]]:
    """The blocks of all clusters, numbered along x."""
    assert lo.cluster is not None
    return _along_x([lo.cluster.size, *map(_size, cluster.indices)])


def _along_x(sizes: list[launch.Size]) -> tuple[Sizes, tuple[tuple[launch.Size, str], ...]]:
    """The grid of as many blocks as the product of ``sizes``."""
    total, limit = sizes[0], 2**31 - 1
    for n in sizes[1:]:
        total = ("mul", total, n)
    return (total, 1, 1), ((("le", total, limit), f"at most {limit} blocks: the grid is too large"),)


Sizes = tuple[launch.Size, launch.Size, launch.Size]


def _grid(lo: Lowering, op: Parallel) -> tuple[Sizes, tuple[tuple[launch.Size, str], ...]]:
    """Grid extents and the checks of a launch.

    x counts the last index, y the one before, z the one before that.  Only x may exceed 65535 on the device: with
    two indices, the first continues in z in steps of 65535, and surplus blocks exit at once; with three or more,
    if one may exceed the limit, all blocks are numbered row-major along x.
    """
    sizes = [_size(i) for i in op.indices]
    match len(sizes):
        case 0:
            return (1, 1, 1), ()
        case 1:
            return (sizes[0], 1, 1), ()
        case 2:
            if not may_exceed(lo, op.indices[0].extent, GRID_LIMIT):
                return (sizes[1], sizes[0], 1), ()
            return (sizes[1], ("min", sizes[0], GRID_LIMIT), ("cdiv", sizes[0], GRID_LIMIT)), ()
        case 3 if not any(may_exceed(lo, i.extent, GRID_LIMIT) for i in op.indices[:2]):
            return (sizes[2], sizes[1], sizes[0]), ()
    return _along_x(sizes)


def _size(i: Index) -> launch.Size:
    found = size(i.extent)
    if found is None:
        raise GridNotComputable(index=i.name)
    return found
