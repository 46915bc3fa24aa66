"""8x8 matrices of 16-bit elements, as ldmatrix and stmatrix move them: grouping, and the lanes' row addresses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from tilemma.atoms import CopyAtom, Operand, catalogue
from tilemma.lower.ownership import Digit, digits
from tilemma.records import record

# (atom of the tile, register or first value of the atom) that a matrix fills or comes from.
Target = tuple[tuple[int, int], int]
Piece = tuple[Target, tuple[int, int]]


@record
class MatrixMove:
    """One ldmatrix or stmatrix: its matrices, and where their rows start, as digits of the lane and a constant.

    Positions are (row, col) in the operand's tile; lane 8 * j + r is that of row r of matrix j as stored.
    """

    targets: tuple[Target, ...]
    digits: tuple[Digit, ...]
    origin: tuple[int, int]


@cache
def matrix_atom(kind: str, count: int, turned: bool) -> CopyAtom:
    """The record that moves ``count`` matrices, transposing them where ``turned``."""
    for atom in catalogue.copies():
        if (atom.kind, atom.matrices, atom.trans) == (kind, count, turned):
            return atom
    raise AssertionError((kind, count, turned))


def moves(kind: str, pieces: Sequence[Piece], turned: bool) -> tuple[MatrixMove, ...]:
    """``pieces`` in as few instructions as their places allow: four matrices each, else two, else one.

    ``turned``: a stored row is a column of the operand.
    """
    found: list[MatrixMove] = []
    at = 0
    while at < len(pieces):
        for count in (4, 2, 1):
            group = pieces[at : at + count]
            made = _move(kind, group, turned) if len(group) == count else None
            if made is not None:
                found.append(made)
                at += count
                break
    return tuple(found)


def _move(kind: str, group: Sequence[Piece], turned: bool) -> MatrixMove | None:
    first = group[0][1]
    found = _digits(kind, tuple((row - first[0], col - first[1]) for _, (row, col) in group), turned)
    return None if found is None else MatrixMove(tuple(target for target, _ in group), found, first)


@cache
def _digits(kind: str, at: tuple[tuple[int, int], ...], turned: bool) -> tuple[Digit, ...] | None:
    """Where the lanes' rows start, for matrices ``at`` these places; None where no digits say it."""
    atom = matrix_atom(kind, len(at), turned)

    def address(lane: int) -> tuple[int, int]:
        matrix, r = at[lane // 8], lane % 8
        assert atom.lane_of_row(lane) == lane, "rows follow the lanes"
        down, right = (0, r) if turned else (r, 0)
        return matrix[0] + down, matrix[1] + right

    try:
        return digits(8 * len(at), address)
    except ValueError:
        return None


@lru_cache(maxsize=256)
def matrix_loads(operand: Operand, repeat: tuple[int, int], turned: bool) -> tuple[MatrixMove, ...]:
    """The ldmatrix instructions for ``repeat`` atoms of ``operand``."""
    origins = operand.matrices()
    assert origins is not None, f"{operand.name} is not made of 8x8 matrices"
    rows, cols = operand.shape
    pieces = [
        (((i, j), r), (row + i * rows, col + j * cols))
        for j in range(repeat[1])
        for i in range(repeat[0])
        for r, (row, col) in enumerate(origins)
    ]
    return moves("ldmatrix", pieces, turned)
