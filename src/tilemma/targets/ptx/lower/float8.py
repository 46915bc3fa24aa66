"""Floats of a byte on targets that have no conversions for them (below sm_89; formats of 6 and 4 bits on all):
integer arithmetic on the bits.

e5m2 is the upper byte of an f16.  Other formats derive from their entry; without infinities, as in e4m3, only the
bits of all ones are NaN, if any.
"""

from __future__ import annotations

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir.lane import Imm, Reg
from tilemma.targets.ptx.lower.emitter import Emitter


def from_float8(e: Emitter, v: Reg, have: DType) -> Reg:
    """The f32 value of the float in the low byte of ``v``; bits above its sign are ignored."""
    wide = e.pure("cvt.u32.u16", "b32", v)
    place = have.floating.sign
    byte = e.pure("and.b32", "b32", wide, Imm((2 << place) - 1, "b32"))
    if have == dtypes.e5m2:
        half = e.pure("cvt.u16.u32", "b16", e.pure("shl.b32", "b32", byte, Imm(8)))
        return e.pure("cvt.f32.f16", "f32", half, hint="f32")
    form = have.floating
    # Exponent and mantissa under f32's, scaled by 2**(127 - bias): exact, subnormals included.
    sign = e.pure("shl.b32", "b32", e.pure("and.b32", "b32", byte, Imm(1 << place, "b32")), Imm(31 - place))
    size = e.pure("and.b32", "b32", byte, Imm((1 << place) - 1, "b32"))
    raised = e.pure("mov.b32", "f32", e.pure("shl.b32", "b32", size, Imm(23 - form.mantissa)))
    scale = Imm(2.0 ** (127 - form.bias), "f32")
    bits = e.pure("mov.b32", "b32", e.pure("mul.rn.f32", "f32", raised, scale))
    infinity = (1 << place) - (1 << form.mantissa)
    if form.nan:
        nan = e.pure("setp.gt.s32", "pred", size, Imm(infinity if form.infinite else (1 << place) - 2), hint="p")
        bits = e.pure("selp.b32", "b32", Imm(0x7FC00000, "b32"), bits, nan)
    if form.infinite:
        limit = e.pure("setp.eq.s32", "pred", size, Imm(infinity), hint="p")
        bits = e.pure("selp.b32", "b32", Imm(0x7F800000, "b32"), bits, limit)
    return e.pure("mov.b32", "f32", e.pure("or.b32", "b32", bits, sign), hint="f32")


def to_float8(e: Emitter, v: Reg, want: DType) -> Reg:
    """``v``, an f32, rounded to nearest even and saturated (or infinite, by the entry), in the low byte of a b16
    register."""
    mantissa, bias, top = want.floating.mantissa, want.floating.bias, want.floating.largest
    place = want.floating.sign
    bits = e.pure("mov.b32", "b32", v)
    sign = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", bits, Imm(31 - place)), Imm(1 << place, "b32"))
    size = e.pure("abs.f32", "f32", v)
    clamped = e.pure("min.f32", "f32", size, Imm(top, "f32"))
    # Normal results: round away the surplus mantissa bits, then rebias the exponent.
    drop = 23 - mantissa
    raw = e.pure("mov.b32", "b32", clamped)
    odd = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", raw, Imm(drop)), Imm(1, "b32"))
    half = e.pure("add.s32", "b32", e.pure("add.s32", "b32", raw, Imm((1 << drop - 1) - 1)), odd)
    normal = e.pure("sub.s32", "b32", e.pure("shr.u32", "b32", half, Imm(drop)), Imm((127 - bias) << mantissa))
    # Subnormal results: a multiple of the smallest one, rounded by the conversion to an integer.
    units = e.pure("mul.rn.f32", "f32", clamped, Imm(2.0 ** (bias - 1 + mantissa), "f32"))
    subnormal = e.pure("cvt.rni.u32.f32", "b32", units)
    small = e.pure("setp.lt.f32", "pred", clamped, Imm(2.0 ** (1 - bias), "f32"), hint="p")
    result = e.pure("selp.b32", "b32", subnormal, normal, small)
    if not want.floating.saturates:
        # From half a unit above the largest number on, rounding to even gives infinity.
        limit = top + 2.0 ** (want.floating.top - mantissa - 1)
        beyond = e.pure("setp.ge.f32", "pred", size, Imm(limit, "f32"), hint="p")
        result = e.pure("selp.b32", "b32", Imm((1 << place) - (1 << mantissa), "b32"), result, beyond)
    nan = e.pure("setp.nan.f32", "pred", v, v, hint="p")
    highest = Imm((1 << place) - 1, "b32")
    if want.floating.nan:
        result = e.pure("or.b32", "b32", e.pure("selp.b32", "b32", highest, result, nan), sign)
    else:
        # The highest bits are the largest number, which NaN becomes whatever its sign.
        result = e.pure("selp.b32", "b32", highest, e.pure("or.b32", "b32", result, sign), nan)
    return e.pure("cvt.u16.u32", "b16", result, hint=want.name)
