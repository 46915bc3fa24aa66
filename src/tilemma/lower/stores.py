"""`Store`: an accumulator to memory, each lane its own elements, converted on the way."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.dtypes import DType
from tilemma.ir import tile
from tilemma.ir.lane import Imm, Mem, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.lower.context import Lowering, RegisterTile, lowers
from tilemma.lower.convert import convert, pack_pair, register
from tilemma.lower.fragments import Spread, pack, registers_of, spread, unpack
from tilemma.lower.linear import Linear
from tilemma.lower.memory import Places, storage_bytes

Position = tuple[Linear, Linear]


@lowers(tile.Store)
def lower_store(lo: Lowering, op: tile.Store) -> None:
    found = registers_of(lo, op.fragment)
    where = spread(lo, found.plan)
    plan = op.plan
    vector = plan.vector if plan is not None else 0
    lo.e.comment(f"store {op.fragment.name} => {op.dst.base.space} {op.dst.base.name}")
    if plan is not None and plan.method == "stmatrix":
        from tilemma.lower.stmatrix import store_matrices

        store_matrices(lo, op, found)
        return
    places = Places(lo, op.dst)
    for atom in found.regs:
        _store_atom(lo, op, found, where, atom, vector, places)


def _store_atom(
    lo: Lowering,
    op: tile.Store,
    found: RegisterTile,
    where: Spread,
    atom: tuple[int, int],
    vector: int,
    places: Places,
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
    for first, count in _runs(positions, turned=op.transpose):
        if first not in inside:
            continue
        step = min(count, max(1, vector // size)) if vector else count
        while count % step:
            step -= 1
        for v in range(first, first + count, step):
            _store_run(lo, op, found, atom, range(v, v + step), positions[v : v + step], places)


def _runs(positions: Sequence[Position], turned: bool) -> list[tuple[int, int]]:
    """(first value, count) of values that follow each other along the destination's last axis."""
    last = 0 if turned else 1
    found: list[tuple[int, int]] = []
    for v, at in enumerate(positions):
        if found:
            first, count = found[-1]
            before = positions[v - 1]
            if at[1 - last] == before[1 - last] and (at[last] - before[last]).known == 1:
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
) -> None:
    """The values of one run: as one access where all of it may be written, else one by one."""
    e, have, want = lo.e, found.plan.dtype, op.dst.dtype
    words = words_of(lo, found, atom, values, want)
    allowed = [_allowed(lo, op, at, places) for at in positions]
    everything: Reg | bool = True
    for ok in allowed:
        everything = e.both(everything, ok, hint="all")
    spot = places.at(_index(op, positions[0]))
    if len(values) == 1 or words is None:
        for v, at, ok in zip(values, positions, allowed, strict=True):
            _store_element(lo, places, _index(op, at), _value(lo, found, atom, v, have, want), ok)
        return
    if everything is False:
        return
    if everything is True:
        _store_words(lo, op.dst, spot.space, spot.address, words)
        return
    with e.collect() as then:
        _store_words(lo, op.dst, spot.space, spot.address, words)
        whole = tuple(then)
    with e.collect() as otherwise:
        for v, at, ok in zip(values, positions, allowed, strict=True):
            _store_element(lo, places, _index(op, at), _value(lo, found, atom, v, have, want), ok)
        single = tuple(otherwise)
    e.select_branch(everything, whole, single)


def _index(op: tile.Store, at: Position) -> Position:
    return (at[1], at[0]) if op.transpose else at


def _allowed(lo: Lowering, op: tile.Store, at: Position, places: Places) -> Reg | bool:
    """Whether the program may write the element: inside the array, the view and the mask."""
    e = lo.e
    ok: Reg | bool = True
    for limit, coordinate in ((op.rows, at[0]), (op.columns, at[1])):
        if limit is not None:
            ok = e.both(ok, e.compare("lt", coordinate, lo.linear(limit), hint="masked"))
    for axis, i in zip(op.dst.axes, _index(op, at), strict=True):
        ok = e.both(ok, e.compare("lt", i, lo.linear(axis.extent), hint="in_view"))
    if op.dst.base.space is Space.GLOBAL:
        ok = e.both(ok, places.at(_index(op, at)).valid)
    return ok


def words_of(
    lo: Lowering, found: RegisterTile, atom: tuple[int, int], values: range, want: DType
) -> list[Reg] | None:
    """The run's values converted and packed into registers of 32 bits (or 64), in memory order."""
    regs, have = found.regs[atom], found.plan.dtype
    bits = want.bits * len(values)
    if have == want and have.bits < 32:
        per = 32 // have.bits
        if values.start % per == 0 and len(values) % per == 0:
            return [regs[v // per] for v in range(values.start, values.stop, per)]
    if have == want and have.bits >= 32:
        return [regs[v] for v in values]
    if bits % 32:
        return None
    scalars = [_scalar(lo, found, atom, v) for v in values]
    if want.bits >= 32:
        return [register(lo.e, convert(lo.e, s, have, want, lo.arch), want) for s in scalars]
    out: list[Reg] = []
    per = 32 // want.bits
    for i in range(0, len(scalars), per):
        group = scalars[i : i + per]
        packed = pack_pair(lo.e, group[0], group[1], have, want) if per == 2 else None
        if packed is None:
            single = [register(lo.e, convert(lo.e, s, have, want, lo.arch), want) for s in group]
            packed = pack(lo, single, want)
        out.append(packed)
    return out


def _scalar(lo: Lowering, found: RegisterTile, atom: tuple[int, int], value: int) -> Reg:
    dtype = found.plan.dtype
    per = max(1, 32 // dtype.bits)
    return unpack(lo, found.regs[atom][value // per], dtype)[value % per]


def _value(lo: Lowering, found: RegisterTile, atom: tuple[int, int], value: int, have: DType, want: DType) -> Reg:
    return register(lo.e, convert(lo.e, _scalar(lo, found, atom, value), have, want, lo.arch), want)


def _store_words(lo: Lowering, view: View, space: Space, address: Mem, words: list[Reg]) -> None:
    wide = words[0].type in ("f64", "s64", "u64", "b64")
    kind = "b64" if wide else "b32"
    limit = 2 if wide else 4
    size = 8 if wide else 4
    for i in range(0, len(words), limit):
        part = words[i : i + limit]
        if len(part) == 3:
            raise AssertionError("runs are powers of two")
        vector = f".v{len(part)}" if len(part) > 1 else ""
        value = Vec(tuple(part)) if len(part) > 1 else part[0]
        here = Mem(address.base, address.offset + i * size)
        lo.e.do(f"st.{space}{vector}.{kind}", (), (here, value))


def _store_element(lo: Lowering, places: Places, index: Sequence[Linear], value: Reg, ok: Reg | bool) -> None:
    if ok is False:
        return
    spot = places.at(index, check=False)
    store_scalar(lo, spot.space, spot.address, value, places.view.dtype, ok)


def store_scalar(lo: Lowering, space: Space, address: Mem, value: Reg, t: DType, ok: Reg | bool) -> None:
    """One element of type ``t`` to memory, where ``ok``."""
    e = lo.e
    if t.kind == "bool":
        value = e.pure("selp.b32", "s32", Imm(1), Imm(0), value, hint="flag")
    bits = 8 if t.kind == "bool" else t.bits
    guard = ok if isinstance(ok, Reg) else None
    e.do(f"st.{space}.b{bits}", (), (address, value), guard=guard)
