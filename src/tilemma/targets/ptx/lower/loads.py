"""Lowering of `Load`: operand tiles into registers by ldmatrix or element by element, or as a wgmma descriptor,
for which no instruction is emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir import tile
from tilemma.ir.lane import CopyInstr, Imm, Mem, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile, SharedTile, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import convert, register
from tilemma.targets.ptx.lower.element_loads import load_element
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.fragments import (
    atom_of,
    element_place,
    key,
    lane_layout,
    operand_of,
    pack,
    warp_origin,
)
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.matrices import matrix_atom, matrix_loads
from tilemma.targets.ptx.lower.matrix import Matrix
from tilemma.targets.ptx.lower.memory import matrix, place, shared_address
from tilemma.targets.ptx.lower.metadata import load_metadata
from tilemma.targets.ptx.lower.ownership import position
from tilemma.targets.ptx.lower.widen import load_runs, load_widened


def is_transposed(lo: Lowering, name: str) -> bool:
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
    if how.method == "metadata":
        load_metadata(lo, found, op.src, op.order)
        return
    transposed = is_transposed(lo, op.fragment.name)
    lo.e.comment(f"load {op.fragment.name} <= {op.src.base.space} {op.src.base.name}, {how.method}")
    if how.method == "ldmatrix":
        _ldmatrix(lo, found, matrix(lo, op.src), transposed)
    elif how.method == "vectors" and how.k_order is not None:
        load_runs(lo, found, op.src, how.k_order)
    elif how.method == "vectors":
        _vectors(lo, found, op.src)
    elif how.method == "widened":
        load_widened(lo, found, op.src, op.stored, how.k_order)
    else:
        _by_lane(lo, found, op.src, transposed, op.stored)


# ---- ldmatrix --------------------------------------------------------------------------------------------


def _ldmatrix(lo: Lowering, found: RegisterTile, src: Matrix, transposed: bool) -> None:
    operand = operand_of(found.plan)
    first_row, first_col = warp_origin(lo, found.plan)
    # Bytes of an element of the memory, and how many elements of the tile are in it.
    size, packed = max(1, operand.dtype.bits // 8), operand.dtype.per_byte
    for load in matrix_loads(operand, found.plan.repeat, transposed):
        row, col = position(lo, load.digits, lo.lane)
        row, col = row + first_row + load.origin[0], col + first_col + load.origin[1]
        col = col.divided(packed)
        at = src.position((col, row) if transposed else (row, col))
        address = shared_address(lo, src.plan, src.base, at[0], at[1] * size)
        regs = tuple(found.regs[atom][r] for atom, r in load.targets)
        lo.e.add(CopyInstr(matrix_atom("ldmatrix", len(regs), transposed).name, address, regs, span=lo.e.span))


# ---- lane by lane ----------------------------------------------------------------------------------------


def _by_lane(lo: Lowering, found: RegisterTile, src: View, transposed: bool, stored: DType) -> None:
    """Each lane loads its own elements; elements outside a parameter's bounds are zero."""
    e = lo.e
    where = lane_layout(lo, found.plan)
    operand = where.operand
    have, want = src.dtype, found.plan.dtype
    if stored.bits < 8 and stored != want:
        _by_fields(lo, found, src, stored)
        return
    # A register of packed elements is one of bytes.
    step = want.per_byte
    want = have if step > 1 else want
    pack_of = operand.pack // step
    together = _contiguous(lo, src) and have == want
    for atom, regs in found.regs.items():
        for r, reg in enumerate(regs):
            first = r * operand.pack
            places = [where.at(atom, first + v * step) for v in range(pack_of)]
            index = [_stored_order((row, col.divided(step)), transposed) for row, col in places]
            if together and pack_of > 1 and src.base.space is Space.SHARED and _run(index):
                spot = place(lo, src, index[0])
                e.do(f"ld.{spot.space}.b32", (reg,), (spot.address,))
                continue
            values = [register(e, convert(e, v, have, want, lo.arch), want) for v in _elements(lo, src, index)]
            if pack_of == 1:
                assign(lo, reg, values[0])
            else:
                e.do("mov.b32", (reg,), (pack(lo, values, want),))


def _vectors(lo: Lowering, found: RegisterTile, src: View) -> None:
    """Each lane loads 16 bytes along K of its rows at a time; a register holds one element.

    In the f64 instructions lane l has columns l % 4 + 4 * n of an operand.  Here it takes columns 2 * (l % 4) and
    2 * (l % 4) + 1 of each eight as its next two values of n: the same order of K for both operands.
    """
    where, size = lane_layout(lo, found.plan), src.dtype.bytes
    strided = size == 8 and atom_of(found.plan).kind != "fma"
    rows: dict[int, dict[int, tuple[int, Reg]]] = {}
    for atom, regs in found.regs.items():
        for value, reg in enumerate(regs):
            row, col = element_place(found.plan, atom, value)
            rows.setdefault(row, {})[col // 4 if strided else col] = value, reg
    for down, held in rows.items():
        columns = sorted(held)
        assert columns == list(range(len(columns)))
        count = next(n for n in (16 // size, 2, 1) if len(columns) % n == 0)
        for first in range(0, len(columns), count):
            # The lane's own column, of which there are four, counts twice.
            right = where.col * 2 + 4 * first if strided else where.col + first
            spot = place(lo, src, (where.row + down, right))
            values, taken = zip(*(held[first + i] for i in range(count)), strict=True)
            together = values == tuple(range(values[0], values[0] + count))
            if strided and not together and _apart(lo, taken, spot.address):
                continue
            vector = f"v{count}." if count > 1 else ""
            lo.e.do(f"ld.shared.{vector}b{8 * size}", (Vec(taken),) if count > 1 else taken, (spot.address,))


def _apart(lo: Lowering, regs: tuple[Reg, ...], at: Mem) -> bool:
    """Loads two neighbouring f64, which the instruction has in registers apart, one by one, if it can.

    ptxas (13.5) joins loads of neighbours, and copies their registers before each multiply, unless the addresses
    are in registers of their own.
    """
    if len(regs) != 2 or not isinstance(at.base, Reg) or at.offset % 16:
        return False
    other = lo.e.pure("xor.b32", "b32", at.base, Imm(8, "b32"), hint="addr")
    for reg, base in zip(regs, (at.base, other), strict=True):
        lo.e.do("ld.shared.b64", (reg,), (Mem(base, at.offset),))
    return True


def _by_fields(lo: Lowering, found: RegisterTile, src: View, stored: DType) -> None:
    """Each lane loads the byte of each of its elements, which are converted; K comes last in memory."""
    e, where, want = lo.e, lane_layout(lo, found.plan), found.plan.dtype
    for atom, regs in found.regs.items():
        for r, reg in enumerate(regs):
            values = []
            for v in range(where.operand.pack):
                row, col = where.at(atom, r * where.operand.pack + v)
                column, field = e.divide(col, stored.per_byte, hint="byte")
                byte = register(e, load_element(lo, src, (row, column)), dtypes.s32)
                number = _field(e, byte, field * stored.bits, stored)
                values.append(register(e, convert(e, number, dtypes.s32, want, lo.arch), want))
            if len(values) == 1:
                assign(lo, reg, values[0])
            else:
                e.do("mov.b32", (reg,), (pack(lo, values, want),))


def _field(e: Emitter, byte: Reg, first: Linear, t: DType) -> Reg:
    """The element of ``t`` at bit ``first`` of ``byte``, as s32."""
    at = e.pure("shr.u32", "s32", byte, e.value(first))
    bits = e.pure("and.b32", "s32", at, Imm((1 << t.bits) - 1, "b32"))
    if t.kind == "uint":
        return bits
    sign = 1 << t.bits - 1
    return e.pure("sub.s32", "s32", e.pure("xor.b32", "s32", bits, Imm(sign, "b32")), Imm(sign))


def _stored_order(at: tuple[Linear, Linear], transposed: bool) -> tuple[Linear, Linear]:
    return (at[1], at[0]) if transposed else at


def _contiguous(lo: Lowering, src: View) -> bool:
    """Whether the view's last axis runs along the base's last dimension, element by element."""
    if not src.axes or src.reshape is not None:
        return False
    axis = src.axes[-1]
    return axis.dim == src.base.rank - 1 and linear(lo, axis.step).known == 1


def _run(index: Sequence[tuple[Linear, Linear]]) -> bool:
    """Whether the elements are adjacent along the last axis and start at a multiple of their number."""
    return (
        all(b[0] == a[0] and (b[1] - a[1]).known == 1 for a, b in pairwise(index))
        and index[0][1].const % len(index) == 0
    )


def _elements(lo: Lowering, src: View, index: Sequence[tuple[Linear, Linear]]) -> Iterator[Reg]:
    for at in index:
        yield load_element(lo, src, at)
