"""Lowering of `Load`: operand tiles into registers by ldmatrix or element by element, or as a wgmma descriptor,
for which no instruction is emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilemma.ir import tile
from tilemma.ir.lane import CopyInstr, Reg
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile, SharedTile, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import convert, register
from tilemma.targets.ptx.lower.element_loads import load_element
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.fragments import key, lane_layout, operand_of, pack, warp_origin
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.matrices import matrix_atom, matrix_loads
from tilemma.targets.ptx.lower.matrix import Matrix
from tilemma.targets.ptx.lower.memory import matrix, place, shared_address
from tilemma.targets.ptx.lower.metadata import load_metadata
from tilemma.targets.ptx.lower.ownership import position


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
        load_metadata(lo, found, op.src)
        return
    transposed = is_transposed(lo, op.fragment.name)
    lo.e.comment(f"load {op.fragment.name} <= {op.src.base.space} {op.src.base.name}, {how.method}")
    if how.method == "ldmatrix":
        _ldmatrix(lo, found, matrix(lo, op.src), transposed)
    else:
        _by_lane(lo, found, op.src, transposed)


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


def _by_lane(lo: Lowering, found: RegisterTile, src: View, transposed: bool) -> None:
    """Each lane loads its own elements; elements outside a parameter's bounds are zero."""
    e = lo.e
    where = lane_layout(lo, found.plan)
    operand = where.operand
    have, want = src.dtype, found.plan.dtype
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
