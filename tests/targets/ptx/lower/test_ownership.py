"""Fragments as address arithmetic: every record of the catalogue, lane by lane."""

from __future__ import annotations

import pytest

from tilemma.atoms import MmaAtom, catalogue
from tilemma.targets.ptx.lower.matrices import matrix_atom, matrix_loads, moves
from tilemma.targets.ptx.lower.ownership import digits, ownership

OPERANDS = {
    (atom.name, letter): operand
    for atom in catalogue.mma()
    for letter, operand in atom.operands.items()
    if operand.in_registers
}
# One operand of each layout: the same fragments come in many types.
SAMPLE = {
    (o.shape, str(o.layout), o.pack): (name, letter)
    for (name, letter), o in OPERANDS.items()
    if not name.startswith("SM90_64x") or o.shape[1] in (8, 16, 24, 64, 256)
}
SAMPLE = {which: OPERANDS[which] for which in SAMPLE.values()}


def sum_of(found, lane: int) -> tuple[int, int]:
    row = sum((lane >> d.shift & d.mask) * d.row for d in found)
    col = sum((lane >> d.shift & d.mask) * d.col for d in found)
    return row, col


@pytest.mark.parametrize("which", SAMPLE, ids="-".join)
def test_digits_and_values_give_every_element(which: tuple[str, str]) -> None:
    operand = SAMPLE[which]
    if operand.shared_by > 1:
        pytest.skip("replicated operands are not linear in the lane")
    owned = ownership(operand)
    for lane in range(operand.threads):
        row, col = sum_of(owned.digits, lane)
        for value, (r, c) in enumerate(owned.values):
            assert (row + r, col + c) == operand.coordinates(lane, value)


def test_what_is_not_linear_is_refused() -> None:
    with pytest.raises(ValueError):
        digits(4, lambda lane: (lane * lane, 0))


# Two elements of 16 bits fill a register of ldmatrix.
HALF = {k: o for k, o in SAMPLE.items() if o.matrices() is not None and k[1] in "AB" and o.dtype.bits == 16}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("repeat", [(1, 1), (2, 1), (3, 2), (4, 4)])
@pytest.mark.parametrize("which", HALF, ids="-".join)
def test_ldmatrix_gives_each_lane_its_elements(
    which: tuple[str, str], repeat: tuple[int, int], turned: bool
) -> None:
    """Lane l receives, of matrix j, elements 2 (l % 4) and the next of stored row l // 4 (or column)."""
    operand = HALF[which]
    rows, cols = operand.shape
    got: dict[tuple[tuple[int, int], int, int], list[tuple[int, int]]] = {}
    for move in matrix_loads(operand, repeat, turned):
        atom = matrix_atom("ldmatrix", len(move.targets), turned)
        for lane in range(32):
            for j, (target, register) in enumerate(move.targets):
                pair = []
                for half in range(2):
                    stored_row, stored_col = lane // 4, 2 * (lane % 4) + half
                    if turned:
                        stored_row, stored_col = stored_col, stored_row
                    r, c = sum_of(move.digits, 8 * j + stored_row)
                    r, c = r + move.origin[0], c + move.origin[1]
                    pair.append((r + stored_col, c) if turned else (r, c + stored_col))
                got[target, register, lane] = pair
        assert atom.trans == turned
    for i in range(repeat[0]):
        for j in range(repeat[1]):
            for register in range(operand.registers):
                for lane in range(32):
                    wanted = [operand.coordinates(lane, 2 * register + h) for h in range(2)]
                    wanted = [(r + i * rows, c + j * cols) for r, c in wanted]
                    assert got[(i, j), register, lane] == wanted


def test_four_matrices_at_a_time() -> None:
    atom = catalogue["SM80_16x8x16_F32F16F16F32_TN"]
    assert isinstance(atom, MmaAtom)
    assert [len(m.targets) for m in matrix_loads(atom.a, (2, 2), False)] == [4] * 4
    assert [len(m.targets) for m in matrix_loads(atom.b, (4, 1), False)] == [4, 4]


def test_scattered_matrices_go_one_by_one() -> None:
    pieces = [(((0, 0), 0), (0, 0)), (((0, 0), 1), (8, 0)), (((0, 0), 2), (0, 24)), (((0, 0), 3), (40, 8))]
    assert [len(m.targets) for m in moves(pieces, False)] == [2, 2]
