"""`Load`: operand tiles into registers, by ldmatrix or lane by lane, or as a descriptor, which costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from tilemma.ir import tile
from tilemma.ir.lane import CopyInstr, Imm, Reg
from tilemma.ir.types import Space, View
from tilemma.lower.context import Lowering, RegisterTile, SharedTile, lowers
from tilemma.lower.control import assign
from tilemma.lower.convert import convert, register, register_type
from tilemma.lower.fragments import key, operand_of, pack, spread, warp_origin
from tilemma.lower.linear import Linear
from tilemma.lower.matrices import matrix_atom, matrix_loads
from tilemma.lower.memory import Matrix, Place, matrix, place, shared_address
from tilemma.lower.ownership import position


def transposed(lo: Lowering, name: str) -> bool:
    """Whether the operand is stored with K first: [K, M] or [K, N]."""
    if name not in lo.contracts:
        return False
    role, contract = lo.contracts[name]
    return {"A": contract.a_transposed, "B": contract.b_transposed}.get(role, False)


@lowers(tile.Load)
def lower_load(lo: Lowering, op: tile.Load) -> None:
    declared = lo.declared[op.fragment.name]
    plan, how = declared.plan, op.plan
    assert plan is not None and how is not None, f"no plan for loading {op.fragment.name}"
    if how.method == "descriptor":
        placed = matrix(lo, op.src)
        lo.fragments[key(lo, op.fragment)] = SharedTile(plan, op.src, placed)
        return
    found = lo.fragments[key(lo, op.fragment)]
    assert isinstance(found, RegisterTile)
    turned = transposed(lo, op.fragment.name)
    lo.e.comment(f"load {op.fragment.name} <= {op.src.base.space} {op.src.base.name}, {how.method}")
    if how.method == "ldmatrix":
        _ldmatrix(lo, found, matrix(lo, op.src), turned)
    else:
        _by_lane(lo, found, op.src, turned)


# ---- ldmatrix --------------------------------------------------------------------------------------------


def _ldmatrix(lo: Lowering, found: RegisterTile, src: Matrix, turned: bool) -> None:
    operand = operand_of(found.plan)
    first_row, first_col = warp_origin(lo, found.plan)
    size = operand.dtype.bytes
    for load in matrix_loads(operand, found.plan.repeat, turned):
        row, col = position(lo, load.digits, lo.lane)
        row, col = row + first_row + load.origin[0], col + first_col + load.origin[1]
        at = src.position((col, row) if turned else (row, col))
        address = shared_address(lo, src.plan, src.base, at[0], at[1] * size)
        regs = tuple(found.regs[atom][r] for atom, r in load.targets)
        lo.e.add(CopyInstr(matrix_atom("ldmatrix", len(regs), turned).name, address, regs, span=lo.e.span))


# ---- lane by lane ----------------------------------------------------------------------------------------

# Values that are kept for a second reader: more would fill the registers.
_REMEMBERED = 4
_LOADS = {8: "b8", 16: "b16", 32: "b32", 64: "b64"}


def _by_lane(lo: Lowering, found: RegisterTile, src: View, turned: bool) -> None:
    """Each lane loads its own elements; what lies over the edge of a parameter is zero."""
    e = lo.e
    where = spread(lo, found.plan)
    operand = where.operand
    have, want = src.dtype, found.plan.dtype
    together = _contiguous(lo, src) and have == want
    for atom, regs in found.regs.items():
        for r, reg in enumerate(regs):
            first = r * operand.pack
            index = [_turn(where.at(atom, first + v), turned) for v in range(operand.pack)]
            if together and operand.pack > 1 and src.base.space is Space.SHARED and _run(index):
                spot = place(lo, src, index[0])
                e.do(f"ld.{spot.space}.b32", (reg,), (spot.address,))
                continue
            values = [register(e, convert(e, v, have, want, lo.arch), want) for v in _elements(lo, src, index)]
            if operand.pack == 1:
                assign(lo, reg, values[0])
            else:
                e.do("mov.b32", (reg,), (pack(lo, values, want),))


def _turn(at: tuple[Linear, Linear], turned: bool) -> tuple[Linear, Linear]:
    return (at[1], at[0]) if turned else at


def _contiguous(lo: Lowering, src: View) -> bool:
    """Whether the view's last axis runs along the base's last dimension, element by element."""
    if not src.axes or src.reshape is not None:
        return False
    axis = src.axes[-1]
    return axis.dim == src.base.rank - 1 and lo.linear(axis.step).known == 1


def _run(index: Sequence[tuple[Linear, Linear]]) -> bool:
    """Whether the elements follow each other along the last axis."""
    return (
        all(b[0] == a[0] and (b[1] - a[1]).known == 1 for a, b in pairwise(index))
        and index[0][1].const % len(index) == 0
    )


def _elements(lo: Lowering, src: View, index: Sequence[tuple[Linear, Linear]]) -> Iterator[Reg]:
    for at in index:
        yield load_element(lo, src, at)


def load_element(lo: Lowering, src: View, index: Sequence[Linear]) -> Reg:
    """One element in a register of its type; zero over the edge of a parameter."""
    e = lo.e
    t = src.dtype
    spot = place(lo, src, index)
    spot = replace(spot, valid=e.both(spot.valid, lo.guard))
    if t.kind == "bool":
        raw = e.reg("flag", "s32", mutable=True)
        _guarded(lo, raw, "u8", spot)
        return e.pure("setp.ne.s32", "pred", raw, Imm(0), hint="flag")
    kind = register_type(t)
    known = lo.recent if src.base.space is Space.GLOBAL else None
    place_read = (spot.address, spot.valid, t)
    if known is not None and place_read in known:
        return known[place_read]
    reg = e.reg("element", kind, mutable=spot.valid is not True)
    suffix = f"{'s' if t.kind == 'int' else 'u'}{t.bits}" if not t.is_float and t.bits < 32 else _LOADS[t.bits]
    _guarded(lo, reg, suffix, spot)
    if known is not None:
        if len(known) >= _REMEMBERED:
            del known[next(iter(known))]
        known[place_read] = reg
    return reg


def _guarded(lo: Lowering, reg: Reg, suffix: str, spot: Place) -> None:
    e = lo.e
    if spot.valid is True:
        e.do(f"ld.{spot.space}.{suffix}", (reg,), (spot.address,))
        return
    zero: int | float = 0.0 if reg.type in ("f32", "f64") else 0
    e.do(f"mov.{_mov(reg)}", (reg,), (Imm(zero, reg.type),))
    if isinstance(spot.valid, Reg):
        e.do(f"ld.{spot.space}.{suffix}", (reg,), (spot.address,), guard=spot.valid)


def _mov(reg: Reg) -> str:
    return {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}.get(reg.type, reg.type)
