"""Lowering of cooperative copies (cp.async, or load and store): the threads of an instance each move chunks of a
tile.

Thread t moves the chunks t + i * threads; chunks are numbered row-major over the tile's constant extents, and each
is one vector of bytes.  If the whole tile lies inside its parameters (a comparison uniform in the instance), each
chunk is one vector access.  A tile that crosses an array's edge takes the other path: cp.async reads fewer bytes
and fills the rest with zeros (a chunk fully outside reads zero bytes at the array's first element, a valid address
unless the array is empty); loads and stores go element by element.  No executed access has an address outside its
array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilemma.ir import tile
from tilemma.ir.lane import Imm, Reg
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower import memory, tma
from tilemma.targets.ptx.lower.chunks import LOOP_UNROLL, Chunks, chunk_of, visit_chunks
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.cp_async import CpAsync
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.load_store import REGISTER, WIDEST, LoadStore, vector_of
from tilemma.targets.ptx.lower.movers import Mover
from tilemma.targets.ptx.lower.refusals import NotLowered

# The most chunks of one thread that are unrolled; more chunks become a loop.
UNROLL = {"cp.async": 16, "ldst": 8}
# Elements of a tile over the edge that are read before the first is written: reads wait for memory together.
EDGE_ELEMENTS = 4
# Registers of pieces narrower than a vector that are read before the first is written, and elements over the edge.
AT_ONCE, AT_ONCE_EDGE = 32, 16


def tile_shape(op: tile.Copy) -> tuple[int, ...]:
    """The constant extents of the copy: the destination's, else the source's."""
    for view in (op.dst, op.src):
        shape = view.static_shape
        if shape is not None:
            return shape if shape else (1,)
    raise NotLowered(
        op.span,
        what="a copy with run-time extents on both sides",
        arch="any target",
        expected_what="constant extents on one side, which define the size of the tile",
        remedy="copy through a buffer of fixed shape, or with subspan(h, w)",
    )


@lowers(tile.Copy)
def lower_copy(lo: Lowering, op: tile.Copy) -> None:
    plan = op.plan
    assert plan is not None, "no plan for this copy"
    if plan.engine == "tma":
        tma.lower_copy(lo, op)
        return
    if op.transpose is not None or op.pad:
        raise NotLowered(
            op.span,
            what="this form of copy",
            arch=lo.arch,
            expected_what="`dma.copy` of a tile, synchronous or asynchronous",
            remedy="use `dma.copy` without a transposition or padding",
        )
    e = lo.e
    shape = tile_shape(op)
    instance = lo.enclosing(plan.level)
    # Each thread copies the whole tile into its own local buffer.
    alone = op.dst.base.space is Space.LOCAL
    thread = Linear() if alone else lo.thread_in(instance)
    size = memory.storage_bytes(op.src.base)
    chunks = Chunks(shape, max(1, plan.vector // size), 1 if alone else plan.threads)
    assert shape[-1] % chunks.elements == 0, f"{plan.vector} bytes do not divide rows of {shape}"
    e.comment(f"copy {_text(op.src)} => {_text(op.dst)}, {plan.engine} by {plan.vector} bytes")
    mover = CpAsync(lo, op, chunks) if plan.engine == "cp.async" else LoadStore(lo, op, chunks)
    if plan.threads < instance.threads:
        taking = e.compare("lt", thread, Linear(const=plan.threads), hint="copies")
        if isinstance(taking, Reg):
            with e.branch(taking):
                _move(lo, op, mover, chunks, thread)
            return
    _move(lo, op, mover, chunks, thread)


def _text(v: View) -> str:
    return f"{v.base.space} {v.base.name}"


def _move(lo: Lowering, op: tile.Copy, mover: Mover, chunks: Chunks, thread: Linear) -> None:
    e = lo.e
    assert op.plan is not None
    edge, unroll = op.plan.edge, UNROLL[op.plan.engine]
    group = LOOP_UNROLL
    at_edge = max(1, EDGE_ELEMENTS // chunks.elements) if isinstance(mover, LoadStore) else 1
    over = mover.edge
    if mover.vector < WIDEST:
        if isinstance(mover, CpAsync):
            over, at_edge = mover.narrow_edge, unroll
        else:
            unroll = group = AT_ONCE // max(1, mover.vector // 4)
            at_edge = max(1, AT_ONCE_EDGE // chunks.elements)
    if isinstance(mover, LoadStore) and mover.is_narrow_load and chunks.per_thread <= unroll:
        _load_then_store(lo, mover, chunks, thread)
        return
    if isinstance(mover, CpAsync) and edge == "whole vectors":
        visit_chunks(lo, chunks, thread, mover.whole_vectors, unroll)
        return
    if isinstance(mover, CpAsync) and edge == "cut vectors":
        # This path is rarely taken: a loop compiles faster, and ptxas does not turn the branch into predicates.
        visit_chunks(lo, chunks, thread, mover.cut_vectors, 1)
        return
    whole = e.both(_whole(lo, op.src, chunks.shape), _whole(lo, op.dst, chunks.shape), hint="whole")
    paths: list[Callable[[], None]] = [partial(visit_chunks, lo, chunks, thread, mover.whole, unroll, group)]
    conditions = [whole]
    if isinstance(mover, LoadStore) and mover.is_store:
        paths.append(partial(visit_chunks, lo, chunks, thread, mover.store_pieces, unroll, group))
        conditions.append(mover.cuts_no_piece(op.dst))
    paths.append(partial(visit_chunks, lo, chunks, thread, over, at_edge, at_edge))
    _first_of(lo, paths, conditions)


def _first_of(lo: Lowering, paths: Sequence[Callable[[], None]], conditions: Sequence[Reg | bool]) -> None:
    """The first of ``paths`` whose condition holds, or the last."""
    e = lo.e
    if not conditions or conditions[0] is True:
        paths[0]()
        return
    if conditions[0] is False:
        _first_of(lo, paths[1:], conditions[1:])
        return
    with e.collect() as then:
        paths[0]()
        then_ops = tuple(then)
    with e.collect() as otherwise:
        e.comment("a tile over the edge")
        _first_of(lo, paths[1:], conditions[1:])
        other_ops = tuple(otherwise)
    e.select_branch(conditions[0], then_ops, other_ops)


def _load_then_store(lo: Lowering, mover: LoadStore, chunks: Chunks, thread: Linear) -> None:
    """Load all pieces of a thread, by any path into the same registers, then store them: `loads_ahead` moves the
    loads."""
    e = lo.e
    moved = [chunk_of(lo, chunks, thread, Linear(const=i)) for i in range(chunks.per_thread)]
    kind, count = vector_of(mover.vector)
    registers = [tuple(e.reg("moved", REGISTER[kind]) for _ in range(count)) for _ in moved]
    loads = (mover.load_whole, mover.load_pieces, mover.load_elements)
    whole, uncut = _whole(lo, mover.op.src, chunks.shape), mover.cuts_no_piece(mover.op.src)

    paths = [partial(load, moved, registers) for load in loads]
    _first_of(lo, paths, (whole, uncut))
    mover.store(moved, registers)


def _whole(lo: Lowering, view: View, shape: Sequence[int]) -> Reg | bool:
    """Whether the tile of ``shape`` at the view's origin lies inside both view and array; uniform in the
    instance."""
    e = lo.e
    inside: Reg | bool = True
    for axis, n in zip(view.axes, shape, strict=False):
        have = linear(lo, axis.extent)
        inside = e.both(inside, e.compare("le", Linear(const=n), have), hint="whole")
    if view.base.space is not Space.GLOBAL:
        return inside
    zero = [Linear()] * len(view.axes)
    first = memory.coordinates(lo, view, zero)
    last = list(first)
    for axis, n in zip(view.axes, shape, strict=False):
        step = linear(lo, axis.step)
        if step.known is None or step.known < 0:
            return False
        last[axis.dim] = last[axis.dim] + step.known * (n - 1)
    for low, high, extent in zip(first, last, view.base_shape, strict=True):
        if e.range_of(low)[0] < 0:
            inside = e.both(inside, e.compare("ge", low, Linear()), hint="whole")
        inside = e.both(
            inside, e.compare("lt", high, linear(lo, extent), unsigned=True, hint="inside"), hint="whole"
        )
    return inside


@lowers(tile.CopyCommit)
def lower_copy_commit(lo: Lowering, op: tile.CopyCommit) -> None:
    lo.e.do("cp.async.commit_group")


@lowers(tile.CopyWait)
def lower_copy_wait(lo: Lowering, op: tile.CopyWait) -> None:
    lo.e.do("cp.async.wait_group", (), (Imm(op.pending),))
