"""Lowering of element operations: reads and writes of single elements, atomics, and `Apply` on fragments."""

from __future__ import annotations

from dataclasses import replace

from tilemma import dtypes
from tilemma.ir import expr, tile, walk
from tilemma.ir.expr import Element, FragmentElement
from tilemma.ir.lane import Reg, Vec
from tilemma.ir.types import THREAD, Space, View
from tilemma.targets.ptx.lower.context import Instance, Lowering, RegisterTile, Visit, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import convert, pair_rounding, register
from tilemma.targets.ptx.lower.element_loads import load_element
from tilemma.targets.ptx.lower.expressions import evaluates, scalar, unrounded
from tilemma.targets.ptx.lower.fragments import (
    LaneLayout,
    acting_holder,
    key,
    lane_layout,
    pack,
    registers_of,
    unpack,
)
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import place
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.regions import Value
from tilemma.targets.ptx.lower.stores import store_scalar


def read_element(lo: Lowering, view: View) -> Value:
    """The value of the element that ``view`` (without axes) names; zero outside a parameter's bounds."""
    return load_element(lo, replace(view, axes=()), ())


@evaluates(Element)
def _element(lo: Lowering, x: Element) -> Value:
    return read_element(lo, x.view)


@lowers(tile.SetElement)
def lower_set_element(lo: Lowering, op: tile.SetElement) -> None:
    """One write for each instance: by the thread at thread level, by one elected thread of a group or block."""
    writer = True if op.view.base.space is Space.LOCAL else lo.elected(lo.instance)
    reads = {x.view.base.name for x in expr.walk(op.value) if isinstance(x, Element)}
    if op.view.base.name in reads and isinstance(writer, Reg):
        # Only the writer reads the element: reads of other lanes would race with its write.
        with lo.where(writer):
            _write_element(lo, op, writer)
    else:
        _write_element(lo, op, writer)


def _write_element(lo: Lowering, op: tile.SetElement, writer: Reg | bool) -> None:
    e = lo.e
    t = op.view.dtype
    value = register(e, convert(e, scalar(lo, op.value), op.value.type, t, lo.arch), t)
    spot = place(lo, op.view, ())
    ok = e.both(spot.valid, writer)
    if ok is not False:
        store_scalar(lo, spot.space, spot.address, value, t, ok)


# ---- apply -----------------------------------------------------------------------------------------------


# Operations that neither branch nor write to memory.
_STRAIGHT = (tile.SetFragmentElement, tile.Declare, tile.Assign)


@lowers(tile.Apply)
def lower_apply(lo: Lowering, op: tile.Apply) -> None:
    """Lower the body once for every value that a lane holds.

    The row and column of a value are the lane's part plus constants.  Each lane is an instance of its own here: it
    executes the body for its elements, whatever the scope around the `apply`.
    """
    plan = registers_of(lo, op.fragment).plan
    lo.e.comment(f"apply in {op.fragment.name}")
    # Several rows of an atom often read the same column of a vector: load it once.
    straight = all(isinstance(x, _STRAIGHT) for x in walk.walk(op.body))
    lo.cse_loads = {} if straight else None
    acts = True if straight else acting_holder(lo, plan)
    if acts is not True and any(isinstance(x, tile.Atomic) and x.result is not None for x in walk.walk(op.body)):
        raise NotLowered(
            op.span,
            what=f"the old value of an atomic for each element of `{op.fragment.name}`, held by several lanes,",
            arch=lo.arch,
            expected_what="an accumulator: one lane holds each of its elements",
            remedy="use an accumulator, or leave the old value unused",
        )
    with lo.within(Instance(THREAD, 1, Linear(), Linear.of(lo.thread), 1, acts)):
        _visit_all(lo, op, lane_layout(lo, plan))
    lo.visiting = lo.cse_loads = None


def _visit_all(lo: Lowering, op: tile.Apply, where: LaneLayout) -> None:
    found = registers_of(lo, op.fragment)
    dtype, per = found.plan.dtype, where.operand.pack
    k = key(lo, op.fragment)
    writes = any(isinstance(x, tile.SetFragmentElement) for x in walk.walk(op.body))
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


def _visit(lo: Lowering, op: tile.Apply, where: LaneLayout, visit: Visit) -> None:
    """Set the state for lowering the body at the element of ``visit``."""
    for index, coordinate in zip(op.indices, where.at(visit.atom, visit.value), strict=False):
        lo.indices[index.name] = coordinate
    lo.visiting = visit


def _sole_write(op: tile.Apply) -> tile.SetFragmentElement | None:
    """The last operation of the body, if it alone writes the element and the others only declare variables.

    None for any other body: an assignment to a variable may change the operands of the other half's value.
    """
    *before, last = op.body
    own = all(isinstance(x, tile.Declare) for x in before)
    return last if own and isinstance(last, tile.SetFragmentElement) else None


def _write_pair(
    lo: Lowering, op: tile.Apply, last: tile.SetFragmentElement, where: LaneLayout, first: Visit
) -> None:
    """Write both 16-bit values of ``first``'s register at once; unpack the old ones only if the body reads
    them."""
    e, reg = lo.e, first.register
    dtype = registers_of(lo, op.fragment).plan.dtype
    old = unpack(lo, reg, dtype) if walk.reads_visited(op) else [reg, reg]
    have, values = last.value.type, list[Value]()
    exact = have == dtype
    for v in range(2):
        _visit(lo, op, where, replace(first, value=first.value + v, register=old[v]))
        lo.body(op.body[:-1])
        e.span = last.span or op.span or e.span
        value, have = unrounded(lo, last.value) if exact else (scalar(lo, last.value), have)
        values.append(value)
    rounded = pair_rounding(have, dtype, lo.arch)
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


@evaluates(FragmentElement)
def read_fragment_element(lo: Lowering, x: FragmentElement) -> Value:
    """The value of ``x.fragment`` at the visited element: the same lane holds it, as both fragments have one
    layout."""
    assert lo.visiting is not None, "fragment elements are read inside apply"
    visit = lo.visiting
    read = key(lo, tile.FragmentRef(x.fragment, x.index))
    if read == visit.fragment:
        return visit.register
    found = lo.fragments[read]
    visited = lo.fragments[visit.fragment]
    assert isinstance(found, RegisterTile) and isinstance(visited, RegisterTile)
    # Tiles of different types may use different atoms with equal register layouts (passes/element_tiles.py).
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
    assert key(lo, op.fragment) == visit.fragment, (
        "apply writes only the tile that it visits (passes/check_apply.py)"
    )
    dtype = registers_of(lo, op.fragment).plan.dtype
    e = lo.e
    value = convert(e, scalar(lo, op.value), op.value.type, dtype, lo.arch)
    assign(lo, visit.register, register(e, value, dtype))
