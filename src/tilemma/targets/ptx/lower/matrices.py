"""ldmatrix and stmatrix: grouping the 8x8 matrices (8 rows of 16 bytes) of a tile, and the row addresses of the
lanes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from tilemma.atoms import CopyAtom, Operand, catalogue
from tilemma.records import record
from tilemma.targets.ptx.lower.ownership import Digit, digits

# (atom of the tile, register or first value of the atom) that a matrix is loaded into or stored from.
Target = tuple[tuple[int, int], int]
Piece = tuple[Target, tuple[int, int]]


@record
class MatrixMove:
    """One ldmatrix or stmatrix: its matrices, and the start of their rows as digits of the lane plus a constant.

    Positions are (row, col) in the operand's tile; lane 8 * j + r addresses row r of matrix j as stored.
    """

    targets: tuple[Target, ...]
    digits: tuple[Digit, ...]
    origin: tuple[int, int]


@cache
def matrix_atom(kind: str, count: int, transposed: bool) -> CopyAtom:
    """The record that moves ``count`` matrices, transposing them where ``transposed``."""
    for atom in catalogue.copies("matrix_copies"):
        if (atom.kind, atom.matrices, atom.trans) == (kind, count, transposed):
            assert [*map(atom.lane_of_row, range(atom.rows))] == [*range(atom.rows)], "rows follow the lanes"
            return atom
    raise AssertionError((kind, count, transposed))


def moves(pieces: Sequence[Piece], transposed: bool) -> tuple[MatrixMove, ...]:
    """``pieces`` grouped into instructions of four matrices, or of two or one where four have no linear addresses.

    ``transposed``: a stored row is a column of the operand.
    """
    found: list[MatrixMove] = []
    at = 0
    while at < len(pieces):
        for count in (4, 2, 1):
            group = pieces[at : at + count]
            made = _move(group, transposed) if len(group) == count else None
            if made is not None:
                found.append(made)
                at += count
                break
    return tuple(found)


def _move(group: Sequence[Piece], transposed: bool) -> MatrixMove | None:
    first = group[0][1]
    found = _digits(tuple((row - first[0], col - first[1]) for _, (row, col) in group), transposed)
    return None if found is None else MatrixMove(tuple(target for target, _ in group), found, first)


@cache
def _digits(at: tuple[tuple[int, int], ...], transposed: bool) -> tuple[Digit, ...] | None:
    """The start of each lane's row, for matrices at the positions ``at``; None if it is not linear in the lane's
    bits."""

    def address(lane: int) -> tuple[int, int]:
        matrix, r = at[lane // 8], lane % 8
        down, right = (0, r) if transposed else (r, 0)
        return matrix[0] + down, matrix[1] + right

    try:
        return digits(8 * len(at), address)
    except ValueError:
        return None


@lru_cache(maxsize=256)
def matrix_loads(operand: Operand, repeat: tuple[int, int], transposed: bool) -> tuple[MatrixMove, ...]:
    """The ldmatrix instructions for ``repeat`` atoms of ``operand``."""
    origins = operand.matrices()
    assert origins is not None, f"{operand.name} is not made of matrices of 8 rows of 16 bytes"
    rows, cols = operand.shape
    pieces = [
        (((i, j), r), (row + i * rows, col + j * cols))
        for j in range(repeat[1])
        for i in range(repeat[0])
        for r, (row, col) in enumerate(origins)
    ]
    return moves(pieces, transposed)
