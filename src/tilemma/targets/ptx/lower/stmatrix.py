"""Lowering of accumulator stores by stmatrix: pairs of values form 8x8 matrices of 16-bit elements."""

from __future__ import annotations

from tilemma.ir import tile
from tilemma.ir.lane import CopyInstr, Reg
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile
from tilemma.targets.ptx.lower.fragments import operand_of, warp_origin
from tilemma.targets.ptx.lower.matrices import Piece, matrix_atom, moves
from tilemma.targets.ptx.lower.memory import matrix, shared_address
from tilemma.targets.ptx.lower.ownership import Digit, ownership, position
from tilemma.targets.ptx.lower.words import words_of

# In an 8x8 matrix lane l holds row l // 4, columns 2 * (l % 4) and the next.
_PATTERN = (Digit(0, 3, 0, 2), Digit(2, 7, 1, 0))


def store_matrices(lo: Lowering, op: tile.Store, found: RegisterTile) -> None:
    """Store the tile or a part of it, four matrices at a time; the plan ensures 16-bit elements and no mask."""
    operand = operand_of(found.plan)
    owned = ownership(operand)
    assert tuple(d for d in owned.digits if d.shift < 5) == _PATTERN, "not made of 8x8 matrices"
    rows, cols = operand.shape
    pieces: list[Piece] = []
    for i, j in sorted(found.regs, key=lambda a: (a[1], a[0])):
        for v in range(0, operand.values, 2):
            r, c = owned.values[v]
            first, count = op.part or (0, (j + 1) * cols)
            if first <= j * cols + c < first + count:
                pieces.append((((i, j), v), (i * rows + r, j * cols + c - first)))
    dst = matrix(lo, op.dst)
    first_row, first_col = warp_origin(lo, found.plan)
    for move in moves(pieces, op.transpose):
        row, col = position(lo, move.digits, lo.lane)
        row, col = row + first_row + move.origin[0], col + first_col + move.origin[1]
        at = dst.position((col, row) if op.transpose else (row, col))
        address = shared_address(lo, dst.plan, dst.base, at[0], at[1] * 2)
        regs: list[Reg] = []
        for atom, v in move.targets:
            words = words_of(lo, found, atom, range(v, v + 2), op.dst.dtype)
            assert words is not None and len(words) == 1
            regs.append(words[0])
        name = matrix_atom("stmatrix", len(regs), op.transpose).name
        lo.e.add(CopyInstr(name, address, tuple(regs), span=lo.e.span))
