"""Lowering of element operations: reads and writes of single elements, atomics, and `Apply` on fragments."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from tilemma import dtypes
from tilemma.ir import expr, tile, walk
from tilemma.ir.effects import old_values, variables_set
from tilemma.ir.expr import Element, FragmentElement
from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.ir.types import THREAD, Space, View
from tilemma.targets.ptx.lower.context import Instance, Lowering, RegisterTile, Visit, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import convert, pair_rounding, register, register_type
from tilemma.targets.ptx.lower.element_loads import load_element
from tilemma.targets.ptx.lower.expressions import evaluates, predicate, scalar, unrounded
from tilemma.targets.ptx.lower.fragments import (
    LaneLayout,
    acting_holder,
    element_place,
    element_registers,
    key,
    lane_layout,
    owned,
    pack,
    packed,
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
    rows = _row_condition(op) if packed(plan) == 1 else None
    straight = rows is not None or _is_straight(op.body)
    lo.cse_loads = {} if straight else None
    acts = True if straight else acting_holder(lo, plan)
    if acts is not True and any(map(old_values, walk.walk(op.body))):
        raise NotLowered(
            op.span,
            what=f"the old value of an atomic for each element of `{op.fragment.name}`, held by several lanes,",
            arch=lo.arch,
            expected_what="an accumulator: one lane holds each of its elements",
            remedy="use an accumulator, or leave the old value unused",
        )
    with lo.within(Instance(THREAD, 1, Linear(), Linear.of(lo.thread), 1, acts)):
        if rows is not None:
            _visit_rows(lo, op, rows, lane_layout(lo, plan))
        else:
            _visit_all(lo, op, lane_layout(lo, plan))
    lo.visiting = lo.cse_loads = None


def _is_straight(body: tile.Body) -> bool:
    return all(isinstance(x, _STRAIGHT) for x in walk.walk(body))


def _row_condition(op: tile.Apply) -> tile.If | None:
    """The body, if it is a condition on the row of the element around straight code."""
    inner = op.body[0] if len(op.body) == 1 and len(op.indices) == 2 else None
    if not isinstance(inner, tile.If) or inner.otherwise or not _is_straight(inner.then):
        return None
    changed = {x.name for y in walk.walk(inner.then) for x in variables_set(y)} | {op.indices[1].name}
    terms = expr.walk(inner.cond)
    fixed = not any(isinstance(x, FragmentElement) or getattr(x, "name", "") in changed for x in terms)
    return inner if fixed else None


def _visit_rows(lo: Lowering, op: tile.Apply, condition: tile.If, where: LaneLayout) -> None:
    """Visit the elements row by row, with one branch for each row, in which equal loads are one."""
    found, k = registers_of(lo, op.fragment), key(lo, op.fragment)
    rows: dict[Linear, list[Visit]] = {}
    for atom, regs in found.regs.items():
        for v, reg in enumerate(regs):
            rows.setdefault(where.at(atom, v)[0], []).append(Visit(k, atom, v, reg))
    for visits in rows.values():
        lo.cse_loads = {}
        _visit(lo, op, where, visits[0])
        taken = predicate(lo, condition.cond)
        if taken is False:
            continue
        with nullcontext() if taken is True else lo.e.branch(taken):
            lo.cse_loads = {}
            for visit in visits:
                _visit(lo, op, where, visit)
                lo.body(condition.then)


def _visit_all(lo: Lowering, op: tile.Apply, where: LaneLayout) -> None:
    found = registers_of(lo, op.fragment)
    dtype, per = found.plan.dtype, packed(found.plan)
    k = key(lo, op.fragment)
    writes = any(isinstance(x, tile.SetFragmentElement) and x.fragment == op.fragment for x in walk.walk(op.body))
    last = _sole_write(op) if per == 2 else None
    for atom, regs in found.regs.items():
        for r, reg in enumerate(regs):
            if last is not None:
                _write_pair(lo, op, last, where, Visit(k, atom, r * per, reg))
                continue
            values = _separate(lo, reg, dtype) if per > 1 else [reg]
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
    return last if own and isinstance(last, tile.SetFragmentElement) and last.fragment == op.fragment else None


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
        _visit(lo, op, where, Visit(first.fragment, first.atom, first.value + v, old[v]))
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
    if dtype.bits == 8:
        values = lo.e.regs("value", register_type(dtype), 4, mutable=True)
        for value, byte in zip(values, unpack(lo, reg, dtype), strict=True):
            assign(lo, value, byte)
        return list(values)
    halves = lo.e.regs("half", "b16", 2, mutable=True)
    lo.e.do("mov.b32", (Vec(halves),), (reg,))
    return list(halves)


def _place(lo: Lowering, found: RegisterTile) -> tuple[Reg, int | None]:
    """The register of ``found`` with the visited element, and which of the values packed in it that is.

    The lane that visits an element holds it in every tile used there (passes/element_tiles.py).
    """
    assert lo.visiting is not None, "fragment elements are used inside apply"
    visit = lo.visiting
    visited = lo.fragments[visit.fragment]
    assert isinstance(visited, RegisterTile)
    r, c = element_place(visited.plan, visit.atom, visit.value)
    atom, value = element_registers(found.plan)[r, 0 if found.plan.role == "R" else c]
    per = packed(found.plan)
    return found.regs[atom][value // per], value % per if per > 1 else None


@evaluates(FragmentElement)
def read_fragment_element(lo: Lowering, x: FragmentElement) -> Value:
    """The value of ``x.fragment`` at the visited element."""
    assert lo.visiting is not None, "fragment elements are used inside apply"
    read = key(lo, tile.FragmentRef(x.fragment, x.index))
    if read == lo.visiting.fragment:
        return lo.visiting.register
    found = lo.fragments[read]
    assert isinstance(found, RegisterTile)
    reg, half = _place(lo, found)
    return reg if half is None else unpack(lo, reg, found.plan.dtype)[half]


@lowers(tile.SetFragmentElement)
def lower_set_fragment_element(lo: Lowering, op: tile.SetFragmentElement) -> None:
    assert lo.visiting is not None
    found, e = registers_of(lo, op.fragment), lo.e
    dtype = found.plan.dtype
    value = register(e, convert(e, scalar(lo, op.value), op.value.type, dtype, lo.arch), dtype)
    if key(lo, op.fragment) == lo.visiting.fragment:
        assign(lo, lo.visiting.register, value)
        return
    reg, half = _place(lo, found)
    if half is None:
        assign(lo, reg, value)
        return
    values = _separate(lo, reg, dtype)
    assign(lo, values[half], value)
    e.do("mov.b32", (reg,), (pack(lo, values, dtype),))


# ---- reductions ------------------------------------------------------------------------------------------


@lowers(tile.Reduce)
def lower_reduce(lo: Lowering, op: tile.Reduce) -> None:
    """Combine a lane's own elements of each row, then those of the lanes that hold the rest of the row."""
    e, source, result = lo.e, registers_of(lo, op.src), registers_of(lo, op.dst)
    plan = source.plan
    assert plan.grid[1] == 1, "a row belongs to one executing unit (passes/choose_atoms.py)"
    have = plan.dtype
    wide = have if have.bits >= 32 else dtypes.f32
    e.comment(f"reduce_{op.name} {op.dst.name} <= {op.src.name}")
    per = packed(plan)
    rows: dict[int, list[Reg]] = {}
    for (r, _), (atom, v) in sorted(element_registers(plan).items(), key=lambda item: (item[0], item[1])):
        reg = source.regs[atom][v // per]
        value = reg if per == 1 else unpack(lo, reg, have)[v % per]
        rows.setdefault(r, []).append(register(e, convert(e, value, have, wide, lo.arch), wide))
    bits = [1 << b for d in owned(plan).digits if d.col for b in range(d.shift, d.shift + d.mask.bit_length())]
    for r, values in rows.items():
        total = _balanced(lo, op.name, wide, values)
        for bit in bits:
            total = _combined(lo, op.name, wide, total, _from_lane(lo, total, bit))
        atom, v = element_registers(result.plan)[r, 0]
        want = result.plan.dtype
        assign(lo, result.regs[atom][v], register(e, convert(e, total, wide, want, lo.arch), want))


def _balanced(lo: Lowering, name: str, t: dtypes.DType, values: list[Reg]) -> Reg:
    """The values combined as a balanced tree: short chains of dependent instructions."""
    while len(values) > 1:
        pairs = [_combined(lo, name, t, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(values) // 2 * 2 :]
    return values[0]


def _combined(lo: Lowering, name: str, t: dtypes.DType, a: Reg, b: Reg) -> Reg:
    kind = register_type(t)
    mnemonic = f"{name}.{kind}" if name != "sum" else f"add.rn.{kind}" if t.is_float else f"add.s{max(t.bits, 32)}"
    return lo.e.pure(mnemonic, kind, a, b, hint=name)


def _from_lane(lo: Lowering, value: Reg, bit: int) -> Reg:
    """``value`` of the lane whose number differs in ``bit``; `shfl` moves 32 bits at a time."""
    e = lo.e
    words = e.regs("word", "b32", 2 if value.type in ("f64", "s64", "u64") else 1, mutable=True)
    e.do(f"mov.b{32 * len(words)}", (Vec(words),) if len(words) == 2 else words, (value,))
    for word in words:
        e.do("shfl.sync.bfly.b32", (word,), (word, Imm(bit), Imm(31), Imm(-1, "b32")))
    other = e.reg("other", value.type, mutable=True)
    e.do(f"mov.b{32 * len(words)}", (other,), (Vec(words),) if len(words) == 2 else words)
    return other
