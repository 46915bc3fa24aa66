"""Lowering of the metadata of a sparse A: from rows of fields in memory to the words that its lanes hold."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.arithmetic.sparsity import ORDERS, Order
from tilemma.ir.lane import Imm, Reg
from tilemma.ir.types import View
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.element_loads import load_element
from tilemma.targets.ptx.lower.fragments import lane_layout
from tilemma.targets.ptx.lower.linear import Linear

_FIELD = 4  # bits


def load_metadata(lo: Lowering, found: RegisterTile, src: View, order: str | None) -> None:
    """Each lane assembles its words, of prepacked metadata those of ``order``.  A field of 0, which stands for a
    chunk of zeros (one beyond the array, for instance), becomes one that the hardware takes."""
    e, where = lo.e, lane_layout(lo, found.plan)
    rows = [row for row, _ in where.values]
    run = 8 if len(set(rows)) == 1 else 4  # fields of a word that lie in one row
    # The upper and the lower half of a word of 16-bit parts are those of two rows, as a lane holds them.
    whole = order is not None and ORDERS[order].part == 16 and run == 4 and _are_halves(where.values)
    for atom, regs in found.regs.items():
        word: Reg | None = None
        for first in range(0, 8, 8 if whole else run):
            row, chunk = where.at(atom, first)
            if order is None:
                part = _fields(lo, src, row, chunk, run)
            else:
                part = _prepacked(lo, src, row, chunk, 8 if whole else run, ORDERS[order])
            if first:
                part = e.pure("shl.b32", "b32", part, Imm(_FIELD * first))
            word = part if word is None else e.pure("or.b32", "b32", word, part)
        assert word is not None
        assign(lo, regs[0], _legal(lo, word))


def _are_halves(values: Sequence[tuple[int, int]]) -> bool:
    """Whether fields 4 to 7 of a lane's word are those of the row 8 below fields 0 to 3."""
    (row, chunk), (below, beside) = values[0], values[4]
    return (below - row, beside - chunk) == (8, 0)


def _prepacked(lo: Lowering, src: View, row: Linear, chunk: Linear, count: int, order: Order) -> Reg:
    """``count`` fields of ``row`` from ``chunk`` on, in the low bits of a register; with parts of 16 bits and
    ``count`` 8 the word that has those of the row 8 below in its upper half."""
    e = lo.e
    block, inside = e.divide(row, 16, hint="block")
    upper, line = e.divide(inside, 8, hint="upper")
    if order.part == 16:
        column, rest = e.divide(chunk, 8, hint="word")
        half, _ = e.divide(rest, 4, hint="half")
        at = line * 2 + half
        index = (block, column * 16 + at) if order.in_blocks else (block * 16 + at, column)
        word = load_element(lo, src, index)
        if count == 8:
            return word
        shift = upper * 16
    else:
        pair, rest = e.divide(chunk, 16, hint="pair")
        second, left = e.divide(rest, 8, hint="second")
        word = load_element(lo, src, (block, pair * 32 + line * 4 + second * 2 + upper))
        if count == 8:
            return word
        half, _ = e.divide(left, 4, hint="half")
        shift = half * 16
    part = e.pure("shr.u32", "b32", word, e.register(shift, hint="fields_at"))
    return e.pure("and.b32", "b32", part, Imm(0xFFFF, "b32"))


def _fields(lo: Lowering, src: View, row: Linear, chunk: Linear, count: int) -> Reg:
    """``count`` fields of ``row`` from ``chunk`` on, in the low bits of a register."""
    e, per = lo.e, src.dtype.bits // _FIELD
    if per > count:
        # A part of one element: its position depends on the lane.
        element, rest = e.divide(chunk, per, hint="word")
        whole = load_element(lo, src, (row, element))
        shift = e.register(rest * _FIELD, hint="fields_at")
        part = e.pure("shr.u32", "b32", whole, shift)
        return e.pure("and.b32", "b32", part, Imm((1 << _FIELD * count) - 1, "b32"))
    word: Reg | None = None
    for i in range(0, count, per):
        element, _ = e.divide(chunk + i, per, hint="word")
        part = load_element(lo, src, (row, element))
        if i:
            part = e.pure("shl.b32", "b32", part, Imm(_FIELD * i))
        word = part if word is None else e.pure("or.b32", "b32", word, part)
    assert word is not None
    return word


def _legal(lo: Lowering, word: Reg) -> Reg:
    """0b0100 in the place of each field of 0."""
    e = lo.e
    some = e.pure("or.b32", "b32", word, e.pure("shr.u32", "b32", word, Imm(1)))
    some = e.pure("or.b32", "b32", some, e.pure("shr.u32", "b32", some, Imm(2)))
    none = e.pure("and.b32", "b32", e.pure("not.b32", "b32", some), Imm(0x11111111, "b32"))
    return e.pure("or.b32", "b32", word, e.pure("shl.b32", "b32", none, Imm(2)), hint="metadata")
