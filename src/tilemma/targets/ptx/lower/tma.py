"""Lowering of TMA copies: construction of the TMA descriptor (tensor map), and one bulk copy for each box of the
tile.

PTX ISA, cp.async.bulk.tensor.  One elected thread issues the copies.  Loads complete on an mbarrier; stores belong
to the bulk group of their thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

from tilemma import launch
from tilemma.ir import tile
from tilemma.ir.expr import Call, Element, Expr, FragmentElement, Index, Var, substitute, value_of
from tilemma.ir.expr import walk as terms
from tilemma.ir.lane import Coordinates, Imm, LaneOperand, Mem, Reg, Special
from tilemma.ir.plans import SharedLayoutPlan
from tilemma.ir.types import View
from tilemma.ir.walk import bodies, substituted, walk
from tilemma.targets.ptx.lower.clusters import cluster_barrier
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.events import address, arrival, expectation
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import line_offset, matrix, storage_bytes
from tilemma.targets.ptx.lower.params import size
from tilemma.targets.ptx.passes.plan_events import copy_bytes
from tilemma.targets.ptx.tensor_copies import dimension_order, element_strides, is_load, sides, unfolded

# CUtensorMapL2promotion, by the requested bytes; 128-byte lines unless the program specifies otherwise.
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
_PROMOTION = 128
# Bytes of a block's first tiles to have in the L2 cache when the launch before has ended.  For products of few
# rows on an H200, 16 to 32 KiB were the best of 4 to 260: more delay the tiles that come first.
_EARLY = 20 * 1024


def copies(body: tile.Body) -> Iterator[tile.Copy]:
    """The TMA copies of ``body``."""
    for op in walk(body):
        if isinstance(op, tile.Copy) and op.plan is not None and op.plan.engine == "tma":
            yield op


def prefetch(lo: Lowering, body: tile.Body) -> None:
    """Prefetch the tensor maps that ``body`` uses, before the first copy."""
    for map_ in dict.fromkeys(tensor_map(lo, op) for op in copies(body)):
        lo.e.do("prefetch.tensormap", (), (Mem(map_),))


def prefetch_first_tiles(lo: Lowering, body: tile.Body, *, computes: bool = False) -> bool:
    """Brings the first tiles of what is read once (``evict="first"``) into the L2 cache; returns whether there are
    any whose places are known here.  ``computes``: the variables that places need are computed for it.

    For launches that wait for the previous one: it may write the array later, which changes what the cache has.
    """
    changing = {x.var.name for x in walk(body) if isinstance(x, tile.Assign if computes else tile.Declare)}
    streams = list(_streamed(lo, body, changing, {}))
    for loop, found in streams:
        for i in range(max(1, _EARLY // sum(map(copy_bytes, found)))):
            lo.indices[loop.index.name] = linear(lo, loop.start) + linear(lo, loop.step) * i
            for op in found:
                map_, extra = tensor_map(lo, op), _hint(lo, op)
                for _, coords in _boxes(lo, op):
                    mnemonic = f"cp.async.bulk.prefetch.tensor.{len(coords)}d.L2.global.tile.L2::cache_hint"
                    place = tuple(lo.e.value(x, hint="coord") for x in coords)
                    lo.e.do(mnemonic, (), (Coordinates(map_, place), *extra))
        del lo.indices[loop.index.name]
    return bool(streams)


def _streamed(
    lo: Lowering, body: tile.Body, changing: set[str], defined: dict[str, Expr]
) -> Iterator[tuple[tile.For, list[tile.Copy]]]:
    """The outermost loops and their loads of what is read once: those whose places need no more than the loop's
    index and variables that are not ``changing``, and which stand in no branch of it."""
    for op in body:
        if isinstance(op, tile.Declare) and op.var.name not in {*changing, *lo.variables}:
            defined[op.var.name] = substitute(op.value, defined)
        elif isinstance(op, tile.For):
            direct = tuple(x for x in op.body if isinstance(x, tile.Copy) and x.evict == "first")
            loop, *loads = substituted((replace(op, body=()), *direct), defined)
            assert isinstance(loop, tile.For)
            found = [x for x in copies(tuple(loads)) if is_load(x) and _is_computable(lo, x, loop)]
            if found:
                yield loop, found
        elif not isinstance(op, tile.While):
            for _, inner in bodies(op):
                yield from _streamed(lo, inner, changing, defined)


def _is_computable(lo: Lowering, op: tile.Copy, loop: tile.For) -> bool:
    """Whether the copy's places follow from what is known before the loop, without memory."""
    known = {*lo.indices, *lo.variables, loop.index.name}
    there, _ = sides(op)
    used = [x for place in (*there.offsets, loop.start, loop.step) for x in terms(place)]
    return all(
        x.name in known if isinstance(x, (Index, Var)) else not isinstance(x, (Element, FragmentElement, Call))
        for x in used
    )


def tensor_map(lo: Lowering, op: tile.Copy) -> Reg:
    """The generic address of the tensor map that describes the copy's array, box and swizzle."""
    there, here = sides(op)
    assert op.plan is not None
    buffer, facts = there.base, lo.facts(there.base)
    assert facts.contiguous is not None
    layout = lo.allocs[here.base.name].layout
    order = dimension_order(buffer.rank, facts.contiguous)
    steps = element_strides(op, facts.contiguous)
    dims = tuple(size(buffer.shape[d]) for d in order)
    assert all(d is not None for d in dims), buffer
    argument = launch.TensorMapArgument(
        array=buffer.name,
        dtype=buffer.dtype.name,
        dims=tuple(d for d in dims if d is not None),
        strides=tuple(("mul", f"{buffer.name}.stride{d}", storage_bytes(buffer)) for d in order[1:]),
        # A box of n elements in steps of s is encoded as n * s elements (elementStrides).
        box=tuple(n * s for n, s in zip(op.plan.box, steps, strict=True)),
        element_strides=steps,
        swizzle=layout.swizzle_atom if layout is not None and layout.swizzle_atom > 16 else 0,
        l2_promotion=_PROMOTIONS[_PROMOTION if op.promote is None else op.promote],
    )
    name = lo.params.tensor_map(argument)
    e = lo.e
    with e.at_root():
        there_param = e.pure("mov.b64", "u64", Special(name), hint=name, uniform=True)
        return e.pure("cvta.param.u64", "u64", there_param, hint=name, uniform=True)


# A tensor store clips its box in units of this many bytes along the innermost dimension (measured on an H200: in
# rows of 70 f16 columns, columns 70 and 71 are written).  Loads clip element by element.
STORE_UNIT = 16


def store_checks(lo: Lowering, body: tile.Body) -> tuple[tuple[launch.Size, str], ...]:
    """The launch checks of arrays that ``body`` stores to by TMA: rows of whole 16-byte units."""
    found: dict[tuple[launch.Size, str], None] = {}
    for op in copies(body):
        there, _ = sides(op)
        facts = lo.facts(there.base)
        if there is op.src or facts.contiguous is None:
            continue
        extent = size(there.base.shape[facts.contiguous])
        assert extent is not None, there.base
        unit = STORE_UNIT // storage_bytes(there.base)
        text = (
            f"`tma.copy` stores to `{there.base.name}` in units of {STORE_UNIT} bytes: dimension "
            f"{facts.contiguous} must be a multiple of {unit}; `dma.copy` stores any extent"
        )
        found[("eq", ("mod", extent, unit), 0), text] = None
    return tuple(found)


def lower_copy(lo: Lowering, op: tile.Copy) -> None:
    """All boxes of the copy, by the elected thread of the instance that the plan names."""
    if op.plan is not None and op.plan.in_step:
        cluster_barrier(lo)
    guard = lo.elect()
    lo.e.comment(f"tma {op.src.base.name} => {op.dst.base.name}")
    if guard is False:
        return
    # Every thread that reaches this point computes the addresses: warp-uniform values stay in uniform registers,
    # and several copies of a tile share the divisions of its number.
    instructions = list(_store(lo, op) if not is_load(op) else _load(lo, op))
    if guard is lo.solo and isinstance(guard, Reg):
        for mnemonic, operands in instructions:
            lo.e.do(mnemonic, (), operands, guard=guard)
        return
    with lo.e.branch(guard) if isinstance(guard, Reg) else nullcontext():
        for mnemonic, operands in instructions:
            lo.e.do(mnemonic, (), operands)


Instructions = Iterator[tuple[str, tuple[LaneOperand, ...]]]


def _store(lo: Lowering, op: tile.Copy) -> Instructions:
    map_, extra = tensor_map(lo, op), _hint(lo, op)
    for where, coords in _pieces(lo, op):
        mnemonic = f"cp.async.bulk.tensor.{len(coords)}d.global.shared::cta.bulk_group"
        yield mnemonic + (".L2::cache_hint" if extra else ""), (Coordinates(map_, coords), where, *extra)
    yield "cp.async.bulk.commit_group", ()


def _load(lo: Lowering, op: tile.Copy) -> Instructions:
    assert op.event is not None and op.plan is not None, "loads by TMA complete an event"
    map_, barrier = tensor_map(lo, op), address(lo, op.event)
    if op.plan.counted == "arrive":
        yield arrival(lo, barrier, copy_bytes(op))
    elif op.plan.counted == "expect":
        yield expectation(barrier, copy_bytes(op))
    extra, mask = _hint(lo, op), _mask(lo, op)
    suffix = (".multicast::cluster" if mask else "") + (".L2::cache_hint" if extra else "")
    for where, coords in _pieces(lo, op):
        mnemonic = f"cp.async.bulk.tensor.{len(coords)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        yield mnemonic + suffix, (where, Coordinates(map_, coords), barrier, *mask, *extra)


def _share(lo: Lowering, op: tile.Copy) -> tuple[int, Linear]:
    """(the number of blocks that share the tile, this block's position among them)."""
    assert op.plan is not None
    if lo.cluster is None:
        return 1, Linear()
    count, position = 1, Linear()
    for name, extent in lo.cluster.extents:
        if name in op.plan.peers:
            position = position * extent + lo.indices[name]
            count *= extent
    return count, position


def _mask(lo: Lowering, op: tile.Copy) -> tuple[Reg | Imm, ...]:
    """The ctaMask of a multicast: a bit for the rank of each block that differs from this one in ``peers``
    only."""
    assert op.plan is not None
    if not op.plan.peers or lo.cluster is None:
        return ()
    bits, base = 1, Linear()
    stride = lo.cluster.size
    for name, extent in lo.cluster.extents:
        stride //= extent
        if name in op.plan.peers:
            bits = sum(bits << i * stride for i in range(extent))
        else:
            base = base + lo.indices[name] * stride
    if base.known is not None:
        return (Imm(bits << base.known, "b16"),)
    e = lo.e
    wide = e.pure("shl.b32", "b32", Imm(bits, "b32"), e.register(base), hint="peers")
    return (e.pure("cvt.u16.u32", "b16", wide, hint="peers"),)


def _hint(lo: Lowering, op: tile.Copy) -> tuple[LaneOperand, ...]:
    """The cache policy that the program requests."""
    if op.evict is None:
        return ()
    e = lo.e
    with e.at_root():
        name = f"createpolicy.fractional.L2::evict_{op.evict}.b64"
        return (e.pure(name, "b64", Imm(1.0, "f32"), hint=f"evict_{op.evict}", uniform=True),)


def _pieces(lo: Lowering, op: tile.Copy) -> Iterator[tuple[Mem, tuple[Reg | Imm, ...]]]:
    """(address in shared memory, coordinates in the array) of every box."""
    here, plan = _destination(lo, op)
    placed = matrix(lo, here)
    for index, coords in _boxes(lo, op):
        row, col = placed.position(index)
        line = line_offset(lo.e, plan, row, col * storage_bytes(here.base)) + placed.base
        yield _address(lo, line), tuple(lo.e.value(x, hint="coord") for x in coords)


def _destination(lo: Lowering, op: tile.Copy) -> tuple[View, SharedLayoutPlan]:
    """The view of shared memory and its layout, `unfolded`."""
    _, here = sides(op)
    layout = lo.allocs[here.base.name].layout
    assert layout is not None, here.base.name
    return unfolded(here, layout)


def _boxes(lo: Lowering, op: tile.Copy) -> Iterator[tuple[list[Linear], list[Linear]]]:
    """(subscripts in the shared tile, coordinates in the array) of every box."""
    there, _ = sides(op)
    here, _ = _destination(lo, op)
    assert op.plan is not None
    facts = lo.facts(there.base)
    assert facts.contiguous is not None
    order = dimension_order(there.base.rank, facts.contiguous)
    box = dict(zip(order, op.plan.box, strict=True))
    outer = [a for a in there.axes if a.dim != facts.contiguous and value_of(a.extent) != 1]
    inner = next(a for a in there.axes if a.dim == facts.contiguous)
    axes = (*outer, inner)
    shares, position = _share(lo, op)
    steps = [range(0, (value_of(a.extent) or 1) // (1 if a is inner else shares), box[a.dim]) for a in axes]
    part = (value_of(outer[0].extent) or 1) // shares if outer and shares > 1 else 0
    shared_axes = _matching(here)
    for at in product(*steps):
        index = [Linear()] * len(here.axes)
        for axis, i in zip(shared_axes, at, strict=True):
            index[axis] = Linear(const=i)
        if part:
            index[shared_axes[0]] = index[shared_axes[0]] + position * part
        coords = {d: linear(lo, there.offsets[d]) for d in order}
        for a, i in zip(axes, at, strict=True):
            coords[a.dim] = coords[a.dim] + i * (value_of(a.step) or 1)
        if part:
            coords[outer[0].dim] = coords[outer[0].dim] + position * part
        yield index, [coords[d] for d in order]


def _matching(here: View) -> list[int]:
    """The shared view's axes that are longer than 1, the innermost last."""
    last = here.base.rank - 1
    found = [i for i, a in enumerate(here.axes) if value_of(a.extent) != 1 and a.dim != last]
    return [*found, next(i for i, a in enumerate(here.axes) if a.dim == last)]


def _address(lo: Lowering, line: Linear) -> Mem:
    """The shared address of a box.  Boxes start where a row of 128 bytes does, whose bits of the address are not
    swizzled: TMA swizzles by the address, also where the box starts within an atom."""
    if line.known is not None:
        return Mem(lo.shared, line.known)
    return Mem(lo.e.register(line.variable + lo.shared, hint="box_at"), line.const)


@lowers(tile.BulkWait)
def lower_bulk_wait(lo: Lowering, op: tile.BulkWait) -> None:
    read = "" if op.complete else ".read"
    lo.e.do(f"cp.async.bulk.wait_group{read}", (), (Imm(op.pending),))
