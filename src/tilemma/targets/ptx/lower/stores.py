"""Lowering of `Store`: each lane converts its own elements of an accumulator and writes them to memory."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.dtypes import DType
from tilemma.ir import tile
from tilemma.ir.expr import value_of
from tilemma.ir.lane import Imm, Mem, Reg, Vec
from tilemma.ir.types import Space
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile, lowers
from tilemma.targets.ptx.lower.convert import convert, register
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.fragments import LaneLayout, lane_layout, registers_of
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import Places, storage_bytes
from tilemma.targets.ptx.lower.stmatrix import store_matrices
from tilemma.targets.ptx.lower.words import scalar_of, words_of

Position = tuple[Linear, Linear]


@lowers(tile.Store)
def lower_store(lo: Lowering, op: tile.Store) -> None:
    found = registers_of(lo, op.fragment)
    where = lane_layout(lo, found.plan)
    plan = op.plan
    vector = plan.vector if plan is not None else 0
    lo.e.comment(f"store {op.fragment.name} => {op.dst.base.space} {op.dst.base.name}")
    if plan is not None and plan.method == "stmatrix":
        store_matrices(lo, op, found)
        return
    places = Places(lo, op.dst)
    certain = _certainly_inside(lo, op, found, where)
    for atom in found.regs:
        _store_atom(lo, op, found, where, atom, vector, places, certain)


def _certainly_inside(lo: Lowering, op: tile.Store, found: RegisterTile, where: LaneLayout) -> bool:
    """Whether every element lies inside the view, in shared memory, which is seen without looking at each."""
    if op.dst.base.space is not Space.SHARED or op.rows is not None or op.columns is not None:
        return False
    rows, columns = where.operand.shape
    last = (
        lo.e.range_of(where.row)[1] + max(i for i, _ in found.regs) * rows + max(r for r, _ in where.values),
        lo.e.range_of(where.col)[1] + max(j for _, j in found.regs) * columns + max(c for _, c in where.values),
    )
    extents = [value_of(axis.extent) for axis in op.dst.axes]
    at = last[::-1] if op.transpose else last
    return all(n is not None and i < n for i, n in zip(at, extents, strict=True))


def _store_atom(
    lo: Lowering,
    op: tile.Store,
    found: RegisterTile,
    where: LaneLayout,
    atom: tuple[int, int],
    vector: int,
    places: Places,
    certain: bool,
) -> None:
    size = storage_bytes(op.dst.base)
    operand = where.operand
    positions = [where.at(atom, v) for v in range(operand.values)]
    inside: Sequence[int] = range(operand.values)
    if op.part is not None:
        left, width = op.part
        base = atom[1] * operand.shape[1]
        inside = [v for v in inside if left <= base + where.values[v][1] < left + width]
        positions = [(row, col - left) for row, col in positions]
    for first, count in _runs(positions, transposed=op.transpose):
        if first not in inside:
            continue
        step = min(count, max(1, vector // size)) if vector else count
        while count % step:
            step -= 1
        for v in range(first, first + count, step):
            _store_run(lo, op, found, atom, range(v, v + step), positions[v : v + step], places, certain)


def _runs(positions: Sequence[Position], transposed: bool) -> list[tuple[int, int]]:
    """(first value, count) of runs of values that are adjacent along the destination's last axis."""
    across, along = (1, 0) if transposed else (0, 1)
    found: list[tuple[int, int]] = []
    for v, at in enumerate(positions):
        if found:
            first, count = found[-1]
            before = positions[v - 1]
            if at[across] == before[across] and (at[along] - before[along]).known == 1:
                found[-1] = (first, count + 1)
                continue
        found.append((v, 1))
    return found


def _store_run(
    lo: Lowering,
    op: tile.Store,
    found: RegisterTile,
    atom: tuple[int, int],
    values: range,
    positions: Sequence[Position],
    places: Places,
    certain: bool,
) -> None:
    """Store the values of one run: with one access if all of them may be written, else one by one."""
    e, have, want = lo.e, found.plan.dtype, op.dst.dtype
    words = words_of(lo, found, atom, values, want)
    allowed = [certain or _allowed(lo, op, at, places) for at in positions]
    everything: Reg | bool = True
    for ok in allowed:
        everything = e.both(everything, ok, hint="all")
    spot = places.at(_index(op, positions[0]))
    if len(values) == 1 or words is None or everything is False:
        for v, at, ok in zip(values, positions, allowed, strict=True):
            _store_element(lo, places, _index(op, at), _value(lo, found, atom, v, have, want), ok)
        return
    if everything is True:
        _store_words(lo, spot.space, spot.address, words)
        return
    with e.collect() as then:
        _store_words(lo, spot.space, spot.address, words)
        whole = tuple(then)
    with e.collect() as otherwise:
        for v, at, ok in zip(values, positions, allowed, strict=True):
            _store_element(lo, places, _index(op, at), _value(lo, found, atom, v, have, want), ok)
        single = tuple(otherwise)
    e.select_branch(everything, whole, single)


def _index(op: tile.Store, at: Position) -> Position:
    return (at[1], at[0]) if op.transpose else at


def _allowed(lo: Lowering, op: tile.Store, at: Position, places: Places) -> Reg | bool:
    """Whether the program may write the element: it is inside the array, the view and the mask."""
    e = lo.e
    ok: Reg | bool = True
    for limit, coordinate in ((op.rows, at[0]), (op.columns, at[1])):
        if limit is not None:
            ok = e.both(ok, e.compare("lt", coordinate, linear(lo, limit), hint="masked"))
    for axis, i in zip(op.dst.axes, _index(op, at), strict=True):
        ok = e.both(ok, e.compare("lt", i, linear(lo, axis.extent), hint="in_view"))
    if op.dst.base.space is Space.GLOBAL:
        ok = e.both(ok, places.at(_index(op, at)).valid)
    return ok


def _value(lo: Lowering, found: RegisterTile, atom: tuple[int, int], value: int, have: DType, want: DType) -> Reg:
    return register(lo.e, convert(lo.e, scalar_of(lo, found, atom, value), have, want, lo.arch), want)


def _store_words(lo: Lowering, space: Space, address: Mem, words: list[Reg]) -> None:
    """One store of a run, which has at most 16 bytes."""
    kind = "b64" if words[0].type in ("f64", "s64", "u64", "b64") else "b32"
    if len(words) == 1:
        lo.e.do(f"st.{space}.{kind}", (), (address, words[0]))
    else:
        lo.e.do(f"st.{space}.v{len(words)}.{kind}", (), (address, Vec(tuple(words))))


def _store_element(lo: Lowering, places: Places, index: Sequence[Linear], value: Reg, ok: Reg | bool) -> None:
    if ok is False:
        return
    spot = places.at(index, check=False)
    store_scalar(lo, spot.space, spot.address, value, places.view.dtype, ok)


def store_scalar(lo: Lowering, space: Space, address: Mem, value: Reg, t: DType, ok: Reg | bool) -> None:
    """Store one element of type ``t``, predicated by ``ok``."""
    e = lo.e
    if t.kind == "bool":
        value = e.pure("selp.b32", "s32", Imm(1), Imm(0), value, hint="flag")
    bits = 8 if t.kind == "bool" else t.bits
    guard = ok if isinstance(ok, Reg) else None
    e.do(f"st.{space}.b{bits}", (), (address, value), guard=guard)
