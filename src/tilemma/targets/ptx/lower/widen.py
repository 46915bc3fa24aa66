"""Widening loads (dequantisation in registers): narrow elements of shared memory become pairs of 16-bit floats.

The four lanes of a quad hold 8 neighbouring elements of a row in registers of two (PTX ISA, fragments of mma and
wgmma for 16-bit types).  All four load the same 16 bytes, and each takes its own pair of every 8 elements with
`prmt`.  Integers become floats without a conversion instruction: the last bit of a bf16 is worth 1 at 128, that of
an f16 at 1024.  The bits of 128 (1024) with a small integer n in place of the mantissa are the float 128 + n
(1024 + n), from which the constant is subtracted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.ir.plans import KOrder
from tilemma.ir.types import View
from tilemma.records import record
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile
from tilemma.targets.ptx.lower.convert import bits_of
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.fragments import operand_of, warp_origin
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import place
from tilemma.targets.ptx.lower.ownership import Digit, position

# Tables of lop3 (PTX ISA): (a and b) xor c, (a and b) or c.
_AND_XOR, _AND_OR = 0x6A, 0xEA
# Elements along K of which the instructions give each lane of a quad a pair.
UNIT = 8
# Of f16 and bf16: the bits of the smallest power of two whose last bit is worth 1, and its value.
_UNIT = {"f16": (0x6400, 1024.0), "bf16": (0x4300, 128.0)}


def load_widened(lo: Lowering, found: RegisterTile, src: View, have: DType, order: KOrder | None) -> None:
    """Fill ``found`` from the rows of ``src``, bytes with elements of ``have``, in ``order`` along K."""
    e, plan = lo.e, found.plan
    lane = _Lane.of(lo, found)
    places, total = lane.places, lane.units
    words = have.bits // 4
    run = 1 if order is None else order.run // UNIT
    several = next(n for n in (4, 2, 1) if total * have.bits % (4 * n) == 0 and n >= words)
    if order is not None:
        several = run * words
    for row in dict.fromkeys(row for row, _ in places):
        for first in range(0, total, several // words * (1 if order is None else 4)):
            column = Linear(const=first * have.bits)
            if order is not None:
                column += lane.quad * (run * have.bits)
            loaded = _vector(lo, src, lane.row + row, column, several)
            if order is None:
                pairs = _pairs(e, loaded, lane.quad, have, plan.dtype)
            else:
                pairs = [
                    x
                    for i in range(0, several, words)
                    for x in _own_pairs(e, loaded[i : i + words], have, plan.dtype)
                ]
            for group, pair in enumerate(pairs, first):
                e.do("mov.b32", (places[row, group],), (pair,))


def load_runs(lo: Lowering, found: RegisterTile, src: View, order: KOrder) -> None:
    """Fill ``found`` from the rows of ``src``, elements of 16 bits, in ``order`` along K."""
    e, lane, run = lo.e, _Lane.of(lo, found), order.run
    for row in dict.fromkeys(row for row, _ in lane.places):
        for first in range(0, lane.units, 4 * run // UNIT):
            for i in range(run // UNIT):
                column = lane.quad * run + (first * UNIT + i * UNIT)
                words = _vector(lo, src, lane.row + row, column, 4)
                if order.distance == 4:
                    words = [
                        _permuted(e, words[j], words[j + 2], Imm(selector, "b32"))
                        for j in (0, 1) for selector in (0x5410, 0x7632)
                    ]  # fmt: skip
                for j, word in enumerate(words):
                    e.do("mov.b32", (lane.places[row, first + 4 * i + j],), (word,))


@record
class _Lane:
    """The part of a tile that a lane holds: its first ``row``, its number in the ``quad``, and the registers of
    each 8 elements of a row, by row and number of the 8; there are ``units`` of them in a row."""

    row: Linear
    quad: Linear
    places: dict[tuple[int, int], Reg]
    units: int

    @classmethod
    def of(cls, lo: Lowering, found: RegisterTile) -> _Lane:
        operand = operand_of(found.plan)
        origins = operand.matrices()
        assert origins is not None and operand.pack == 2
        rows, columns = operand.shape
        first_row, first_col = warp_origin(lo, found.plan)
        down, _ = position(lo, (Digit(2, 7, 1, 0),), lo.lane)
        quad = Linear.of(lo.e.pure("and.b32", "s32", lo.e.register(lo.lane), Imm(3), hint="lane_quad"))
        assert first_col == Linear(), "the units of a warp divide rows"
        places = {}
        for (i, j), (r, (row, col)) in product(found.regs, enumerate(origins)):
            places[i * rows + row, (j * columns + col) // UNIT] = found.regs[i, j][r]
        return cls(first_row + down, quad, places, 1 + max(unit for _, unit in places))


def _vector(lo: Lowering, src: View, row: Linear, column: Linear, words: int) -> Sequence[Reg]:
    """So many words of ``src`` from an element on."""
    at = place(lo, src, (row, column)).address
    loaded = lo.e.regs("narrow", "b32", words)
    if words == 1:
        lo.e.do("ld.shared.b32", loaded, (at,))
    else:
        lo.e.do(f"ld.shared.v{words}.b32", (Vec(loaded),), (at,))
    return loaded


def _own_pairs(e: Emitter, words: Sequence[Reg], have: DType, want: DType) -> list[Reg]:
    """The pairs of a lane's own 8 elements, in one word of 4-bit elements or two of 8-bit ones: those that are 4
    apart, or neighbours."""
    if have.bits == 4:
        return _own_nibbles(e, words[0], have.kind == "int", want)
    if have.is_float:
        halves = [x for w in words for x in (w, e.pure("shr.u32", "b32", w, Imm(16), hint="upper"))]
        return [_floats(e, x, have, want) for x in halves]
    both = [_permuted(e, w, Imm(0, "b32"), Imm(selector, "b32")) for w in words for selector in (0x1100, 0x3322)]
    return [_bytes(e, x, have.kind == "int", want) for x in both]


def _own_nibbles(e: Emitter, word: Reg, signed: bool, want: DType) -> list[Reg]:
    """Elements n and n + 4 of a word, in the same bits of its halves."""
    unit, value = _UNIT[want.name]
    table, away = (_AND_XOR, 8) if signed else (_AND_OR, 0)
    found = []
    for shift in range(0, 16, 4):
        # An f16 has room for 4 bits more: there an element is worth 16 times as much.
        up = 4 if want == dtypes.f16 and shift % 8 else 0
        low = word if shift == up else e.pure("shr.u32", "b32", word, Imm(shift - up), hint="nibbles")
        raised = _logic(e, low, 0xF << up, unit | away << up, table)
        scale = 0.5**up
        found.append(_times(e, raised, scale, -(value * scale + away), want))
    return found


def _pairs(e: Emitter, words: Sequence[Reg], quad: Linear, have: DType, want: DType) -> list[Reg]:
    """This lane's pair of each 8 elements of ``words``."""
    if have.bits == 4:
        return _nibbles(e, words, quad, have.kind == "int", want)
    halves = [words[i : i + 2] for i in range(0, len(words), 2)]
    if have.is_float:
        chosen = e.register(quad * 0x22 + 0x10, hint="bytes_of_lane")
        both = [_permuted(e, low, high, chosen) for low, high in halves]
        return [_floats(e, x, have, want) for x in both]
    # Each byte twice, so that one is the low byte of a half.
    chosen = e.register(quad * 0x2222 + 0x1100, hint="bytes_of_lane")
    both = [_permuted(e, low, high, chosen) for low, high in halves]
    return [_bytes(e, x, have.kind == "int", want) for x in both]


def _permuted(e: Emitter, low: Reg, high: Reg | Imm, selector: Reg | Imm) -> Reg:
    return e.pure("prmt.b32", "b32", low, high, selector, hint="bytes")


def _logic(e: Emitter, a: Reg, mask: int, other: int, table: int) -> Reg:
    operands = (Imm(mask * 0x10001, "b32"), Imm(other * 0x10001, "b32"), Imm(table))
    return e.pure("lop3.b32", "b32", a, *operands, hint="raised")


def _twice(e: Emitter, value: float, t: DType) -> Reg:
    return e.pure("mov.b32", "b32", Imm(bits_of(value, t) * 0x10001, "b32"), hint="pair", uniform=True)


def _less(e: Emitter, raised: Reg, away: float, t: DType) -> Reg:
    """A pair minus a constant; the difference is exact."""
    return _times(e, raised, 1.0, -away, t)


def _times(e: Emitter, pair: Reg, factor: float, more: float, t: DType) -> Reg:
    return _fma(e, pair, _twice(e, factor, t), _twice(e, more, t), t)


def _fma(e: Emitter, a: Reg, b: Reg, c: Reg, t: DType) -> Reg:
    return e.pure(f"fma.rn.{t.ptx}x2", "b32", a, b, c, hint="wide")


def _nibbles(e: Emitter, words: Sequence[Reg], quad: Linear, signed: bool, want: DType) -> list[Reg]:
    """Lane q of a quad has byte q of each word: two neighbouring elements, the first in the low bits."""
    unit, value = _UNIT[want.name]
    table, away = (_AND_XOR, 8) if signed else (_AND_OR, 0)
    chosen = e.register(quad + 0x4440, hint="byte_of_lane")
    found = []
    for word in words:
        own = _permuted(e, word, Imm(0, "b32"), chosen)
        # The byte, and again 12 bits higher: its upper element starts the upper half. The multiplication leaves
        # the units of prmt and lop3 free, which are half as fast as those of fma and have most of the work.
        both = e.pure("mul.lo.u32", "b32", own, Imm(0x1001, "b32"), hint="both")
        # The flipped sign bit is 8 more than the element.
        found.append(_less(e, _logic(e, both, 0xF, unit | away, table), value + away, want))
    return found


def _bytes(e: Emitter, both: Reg, signed: bool, want: DType) -> Reg:
    unit, value = _UNIT[want.name]
    if want == dtypes.f16:
        if signed:
            return _less(e, _logic(e, both, 0xFF, unit | 0x80, _AND_XOR), value + 128, want)
        return _less(e, _logic(e, both, 0xFF, unit, _AND_OR), value, want)
    # A bf16 has room for 7 bits. The sign bit, in the place of the last bit of the exponent, makes 256 of 128.
    size, sign = _logic(e, both, 0x7F, unit, _AND_OR), _logic(e, both, 0x80, unit, _AND_OR)
    return _fma(e, sign, _twice(e, -1.0, want), size, want)


def _floats(e: Emitter, both: Reg, have: DType, want: DType) -> Reg:
    """The 8-bit floats in the lower half of ``both``."""
    pair = e.pure(f"cvt.rn.f16x2.{have.ptx}x2", "b32", e.pure("cvt.u16.u32", "b16", both), hint="wide")
    if want == dtypes.f16:
        return pair
    low, high = e.reg("low", "b16"), e.reg("high", "b16")
    e.do("mov.b32", (Vec((low, high)),), (pair,))
    wide = [e.pure("cvt.f32.f16", "f32", x) for x in (low, high)]
    return e.pure("cvt.rn.bf16x2.f32", "b32", wide[1], wide[0], hint="wide")
