"""Work on single elements: reads and writes, atomics, and what `Apply` does with a fragment's values."""

from __future__ import annotations

from dataclasses import replace

from tilemma import dtypes
from tilemma.ir import expr, tile, walk
from tilemma.ir.expr import Element, FragmentElement
from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.lower.context import Lowering, NotLowered, RegisterTile, Visit, lowers
from tilemma.lower.control import assign
from tilemma.lower.convert import convert, pair_rounding, register, register_type
from tilemma.lower.emitter import Value
from tilemma.lower.expressions import unrounded
from tilemma.lower.fragments import Spread, key, pack, registers_of, spread, unpack
from tilemma.lower.loads import load_element
from tilemma.lower.memory import place
from tilemma.lower.stores import store_scalar


def read_element(lo: Lowering, view: View) -> Value:
    """The value of the element that ``view`` (without axes) names; zero over the edge of a parameter."""
    return load_element(lo, replace(view, axes=()), ())


@lowers(tile.SetElement)
def lower_set_element(lo: Lowering, op: tile.SetElement) -> None:
    """Written once for an instance: by every lane of a thread level, by one lane of a group or block."""
    writer = True if op.view.base.space is Space.LOCAL else lo.elected(lo.instance)
    reads = {x.view.base.name for x in expr.walk(op.value) if isinstance(x, Element)}
    if op.view.base.name in reads and isinstance(writer, Reg):
        # The other lanes do not read what this one is about to change: nothing would order them.
        with lo.where(writer):
            _write_element(lo, op, writer)
    else:
        _write_element(lo, op, writer)


def _write_element(lo: Lowering, op: tile.SetElement, writer: Reg | bool) -> None:
    e = lo.e
    t = op.view.dtype
    value = register(e, convert(e, lo.scalar(op.value), op.value.type, t, lo.arch), t)
    spot = place(lo, op.view, ())
    ok = e.both(spot.valid, writer)
    if ok is not False:
        store_scalar(lo, spot.space, spot.address, value, t, ok)


# PTX ISA, 9.7.13.5: which operations atom has on which types.


@lowers(tile.Atomic)
def lower_atomic(lo: Lowering, op: tile.Atomic) -> None:
    """`atom`: once for an instance; the old value reaches the other lanes of a warp by a shuffle."""
    e = lo.e
    t = op.view.dtype
    value = register(e, convert(e, lo.scalar(op.value), op.value.type, t, lo.arch), t)
    name = op.name
    if name == "sub":
        name = "add"
        value = register(e, _negated(lo, value, t), t)
    spot = place(lo, op.view, ())
    instance = lo.instance
    ok = e.both(spot.valid, lo.elected(instance))
    if ok is False:
        return
    mnemonic = f"atom.{spot.space}.{_atomic(lo, op, name, t)}"
    old = e.reg("old", value.type, mutable=True)
    source: tuple[Value, ...] = (value,)
    if name == "cas":
        assert op.compare is not None
        wanted = register(e, convert(e, lo.scalar(op.compare), op.compare.type, t, lo.arch), t)
        source = (wanted, value)
    if isinstance(ok, Reg) and op.result is not None:
        assign(lo, old, Imm(0.0 if old.type in ("f32", "f64") else 0, old.type))
    e.do(mnemonic, (old,), (spot.address, *source), guard=ok if isinstance(ok, Reg) else None)
    if op.result is None:
        return
    if instance.threads > 32:
        raise NotLowered(
            op.span,
            what="the old value of an atomic executed by more than a warp",
            arch=lo.arch,
            expected_what="an atomic at thread or warp level, where the result is used",
            remedy="write the result to shared memory and read it after a barrier",
        )
    if instance.threads > 1:
        e.do("shfl.sync.idx.b32", (old,), (old, Imm(0), Imm(31), Imm(-1, "b32")))
    target = lo.variables.get(op.result.name)
    if target is None:
        target = e.reg(op.result.name, register_type(op.result.dtype), mutable=True)
        lo.variables[op.result.name] = target
    assign(lo, target, convert(e, old, t, op.result.dtype, lo.arch))


def _negated(lo: Lowering, v: Reg, t: dtypes.DType) -> Value:
    e = lo.e
    if not t.is_float:
        return e.pure(f"neg.s{max(32, t.bits)}", v.type, v)
    if t.bits >= 32:
        return e.pure(f"neg.f{t.bits}", v.type, v)
    return e.pure("xor.b16", "b16", v, Imm(0x8000, "b16"))


def _atomic(lo: Lowering, op: tile.Atomic, name: str, t: dtypes.DType) -> str:
    """``.op.type`` of the instruction; NotLowered for types it does not have."""
    legal = {
        "add": {"s32": "u32", "u32": "u32", "s64": "u64", "u64": "u64", "f32": "f32", "f64": "f64",
                "f16": "noftz.f16"},
        "exch": {"s32": "b32", "u32": "b32", "f32": "b32", "s64": "b64", "u64": "b64", "f64": "b64"},
        "min": {"s32": "s32", "u32": "u32", "s64": "s64", "u64": "u64"},
        "max": {"s32": "s32", "u32": "u32", "s64": "s64", "u64": "u64"},
        "and": {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"},
        "or": {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"},
        "xor": {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"},
        "cas": {"s32": "b32", "u32": "b32", "f32": "b32", "s64": "b64", "u64": "b64", "f64": "b64"},
    }[name]  # fmt: skip
    if t.name not in legal:
        raise NotLowered(
            op.span,
            what=f"atomic {op.name} on {t}",
            arch=lo.arch,
            expected_what=f"one of {', '.join(legal)}",
            remedy="use an element type that the hardware has this atomic for",
        )
    return f"{name}.{legal[t.name]}"


# ---- apply -----------------------------------------------------------------------------------------------


# Operations that neither branch nor write to memory.
_STRAIGHT = (tile.SetFragmentElement, tile.Declare, tile.Assign)


@lowers(tile.Apply)
def lower_apply(lo: Lowering, op: tile.Apply) -> None:
    """The body for every value that this lane holds, its row and column known up to the lane's part."""
    found = registers_of(lo, op.fragment)
    where = spread(lo, found.plan)
    dtype = found.plan.dtype
    k = key(lo, op.fragment)
    lo.e.comment(f"apply in {op.fragment.name}")
    per = where.operand.pack
    writes = any(isinstance(x, tile.SetFragmentElement) for x in walk.walk(op.body))
    # Rows of an atom often read the same column of a vector.
    straight = all(isinstance(x, _STRAIGHT) for x in walk.walk(op.body))
    lo.recent = {} if straight else None
    last = _sole_write(op) if per == 2 else None
    for atom, regs in found.regs.items():
        for r, reg in enumerate(regs):
            if last is not None:
                _write_pair(lo, op, last, where, Visit(k, atom, r * per, reg))
                continue
            values = _separate(lo, reg, dtype)
            for v, value in enumerate(values):
                _visit(lo, op, where, Visit(k, atom, r * per + v, value))
                lo.body(op.body)
            if writes and len(values) > 1:
                lo.e.do("mov.b32", (reg,), (pack(lo, values, dtype),))
    lo.visiting = lo.recent = None


def _visit(lo: Lowering, op: tile.Apply, where: Spread, visit: Visit) -> None:
    """What is lowered next is the body for the element of ``visit``."""
    for index, coordinate in zip(op.indices, where.at(visit.atom, visit.value), strict=False):
        lo.indices[index.name] = coordinate
    lo.visiting = visit


def _sole_write(op: tile.Apply) -> tile.SetFragmentElement | None:
    """The operation that alone writes the element, at the end of a body whose variables are the visit's own.

    None for another body: one that assigns to a variable may change what the other half's value is read from.
    """
    *before, last = op.body
    own = all(isinstance(x, tile.Declare) for x in before)
    return last if own and isinstance(last, tile.SetFragmentElement) else None


def _write_pair(lo: Lowering, op: tile.Apply, last: tile.SetFragmentElement, where: Spread, first: Visit) -> None:
    """The register of ``first`` from its two new values, taken apart only if the old ones are read."""
    e, reg = lo.e, first.register
    dtype = registers_of(lo, op.fragment).plan.dtype
    old = unpack(lo, reg, dtype) if walk.reads_visited(op) else [reg, reg]
    have, values = last.value.type, list[Value]()
    exact = have == dtype
    for v in range(2):
        _visit(lo, op, where, replace(first, value=first.value + v, register=old[v]))
        lo.body(op.body[:-1])
        e.span = last.span or op.span or e.span
        value, have = unrounded(lo, last.value) if exact else (lo.scalar(last.value), have)
        values.append(value)
    rounded = pair_rounding(have, dtype)
    if rounded is not None:
        low, high = (register(e, v, have) for v in values)
        e.do(rounded, (reg,), (high, low))
    else:
        halves = [register(e, convert(e, v, have, dtype, lo.arch), dtype) for v in values]
        e.do("mov.b32", (reg,), (pack(lo, halves, dtype),))


def _separate(lo: Lowering, reg: Reg, dtype: dtypes.DType) -> list[Reg]:
    """The values in ``reg`` as registers that the body may assign to."""
    if dtype.bits >= 32:
        return [reg]
    halves = lo.e.regs("half", "b16", 2, mutable=True)
    lo.e.do("mov.b32", (Vec(halves),), (reg,))
    return list(halves)


def read_fragment_element(lo: Lowering, x: FragmentElement) -> Value:
    """The value of ``x.fragment`` at the element being visited; a fragment of the same plan, lane for lane."""
    assert lo.visiting is not None, "fragment elements are read inside apply"
    visit = lo.visiting
    read = key(lo, tile.FragmentRef(x.fragment, x.index))
    if read == visit.fragment:
        return visit.register
    found = lo.fragments[read]
    visited = lo.fragments[visit.fragment]
    assert isinstance(found, RegisterTile) and isinstance(visited, RegisterTile)
    # Tiles of other types may have another record, whose values lie alike (passes/element_tiles.py).
    assert (found.plan.shape, found.plan.repeat, found.plan.role) == (
        visited.plan.shape, visited.plan.repeat, visited.plan.role,
    ), "fragments of different layouts"  # fmt: skip
    per = max(1, 32 // found.plan.dtype.bits)
    reg = found.regs[visit.atom][visit.value // per]
    return unpack(lo, reg, found.plan.dtype)[visit.value % per]


@lowers(tile.SetFragmentElement)
def lower_set_fragment_element(lo: Lowering, op: tile.SetFragmentElement) -> None:
    assert lo.visiting is not None
    visit = lo.visiting
    if key(lo, op.fragment) != visit.fragment:
        raise NotLowered(
            op.span,
            what=f"writing `{op.fragment.name}` in an `apply` over another tile",
            arch=lo.arch,
            expected_what="an `apply` that writes the tile it goes over; it may read others that lie alike",
            remedy=f"go over `{op.fragment.name}` and read the other tile there",
        )
    dtype = registers_of(lo, op.fragment).plan.dtype
    e = lo.e
    value = convert(e, lo.scalar(op.value), op.value.type, dtype, lo.arch)
    assign(lo, visit.register, register(e, value, dtype))
