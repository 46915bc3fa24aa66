"""Constants in registers, and conversion between element types, as `tilemma.arithmetic.convert` defines it.

Each conversion rounds once.  Where the hardware has to convert through f32, the first step rounds to odd: it
truncates and sets the last bit if the result is inexact, so that the second rounding is correct.  Conversions of
8-bit floats are instructions from sm_89 on; below, they are integer arithmetic on the bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic import convert as arithmetic
from tilemma.arithmetic.integers import bounds, wrap
from tilemma.atoms.atom import arch_number
from tilemma.dtypes import DType
from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.float8 import from_float8, to_float8
from tilemma.targets.ptx.lower.regions import Value


def register_type(t: DType) -> str:
    """The PTX type of the register that holds one value of ``t``; see `tilemma.targets.ptx.lower.expressions`."""
    if t.kind == "bool":
        return "pred"
    if t.is_float:
        return "f64" if t.bits == 64 else "f32" if t.bits == 32 else "b16"
    if t.bits == 64:
        return "u64" if t.kind == "uint" else "s64"
    return "u32" if t == dtypes.u32 else "s32"


def constant(e: Emitter, value: int | float | bool, t: DType) -> Value:
    """``value`` rounded to ``t``; PTX has immediates for all types but floats of 16 and 8 bits, which take a
    register."""
    if t.kind == "bool":
        return Imm(int(bool(value)), "pred")
    if not t.is_float:
        return Imm(int(value), register_type(t))
    if t.bits >= 32:
        return Imm(arithmetic.constant(value, t), register_type(t))
    return e.pure("mov.b16", "b16", Imm(bits_of(value, t), "b16"), hint="half", uniform=True)


def bits_of(value: int | float, t: DType) -> int:
    """The bit pattern of ``value`` rounded to the float type ``t``."""
    stored: Any = np.array(arithmetic.constant(value, t)).astype(t.numpy)
    return int(stored.view(np.dtype(f"u{t.bits // 8}")))


def register(e: Emitter, v: Value, t: DType, hint: str = "c") -> Reg:
    """``v`` in a register."""
    if isinstance(v, Reg):
        return v
    kind = register_type(t)
    if kind == "pred":
        return e.pure("setp.ne.s32", "pred", Imm(int(v.value)), Imm(0), hint=hint, uniform=True)
    return e.pure(f"mov.{kind if t.is_float else 'b' + str(max(t.bits, 32))}", kind, v, hint=hint, uniform=True)


def convert(e: Emitter, v: Value, have: DType, want: DType, arch: str = "sm_80") -> Value:
    """``v`` of type ``have`` as ``want``."""
    if have == want:
        return v
    if isinstance(v, Imm):
        return _convert_constant(e, v, have, want)
    if want.kind == "bool":
        return _truth(e, v, have, arch)
    if have.kind == "bool":
        as_int = e.pure("selp.b32", "s32", Imm(1), Imm(0), v)
        return convert(e, as_int, dtypes.s32, want, arch)
    if have.is_float and want.is_float:
        return _float_to_float(e, v, have, want, arch)
    if have.is_float:
        wide = v if have.bits >= 32 else register(e, _float_to_float(e, v, have, dtypes.f32, arch), dtypes.f32)
        return _float_to_int(e, wide, "f64" if have.bits == 64 else "f32", want)
    if want.is_float:
        return _int_to_float(e, v, have, want, arch)
    return _int_to_int(e, v, have, want)


def _convert_constant(e: Emitter, v: Imm, have: DType, want: DType) -> Value:
    value = wrap(int(v.value), have) if have.is_integer else v.value
    return constant(e, arithmetic.constant(value, want), want)


def _truth(e: Emitter, v: Reg, have: DType, arch: str) -> Reg:
    if not have.is_float:
        return e.pure(f"setp.ne.s{max(have.bits, 32)}", "pred", v, Imm(0))
    wide = v if have.bits >= 32 else _float_to_float(e, v, have, dtypes.f32, arch)
    kind = "f64" if have.bits == 64 else "f32"
    return e.pure(f"setp.neu.{kind}", "pred", wide, Imm(0.0, kind))


def _float_to_float(e: Emitter, v: Reg, have: DType, want: DType, arch: str) -> Reg:
    plain = {"f64": "f64", "f32": "f32", "f16": "f16"}
    if have == dtypes.tf32 and want == dtypes.f32:
        return v
    if want == dtypes.tf32:
        odd = _to_odd(e, v) if have.bits == 64 else v
        return _to_tf32(e, odd if have.bits >= 32 else _float_to_float(e, v, have, dtypes.f32, arch))
    if have == dtypes.tf32:
        have = dtypes.f32
    if have.name in plain and want.name in plain:
        rounding = ".rn" if want.bits < have.bits else ""
        return e.pure(f"cvt{rounding}.{want.name}.{have.name}", register_type(want), v, hint=want.name)
    if have == dtypes.f64 and want.bits < 32:
        return _float_to_float(e, _to_odd(e, v), dtypes.f32, want, arch)
    if have != dtypes.f32 and want != dtypes.f32:
        return _float_to_float(e, _float_to_float(e, v, have, dtypes.f32, arch), dtypes.f32, want, arch)
    if have == dtypes.bf16:
        # bf16 is the upper half of f32.
        wide = e.pure("mov.b32", "b32", Vec((_zero16(e), v)))
        return e.pure("mov.b32", "f32", wide, hint="f32")
    if want == dtypes.bf16:
        return e.pure("cvt.rn.bf16.f32", "b16", v, hint="bf16") if arch_number(arch)[0] >= 80 else _to_bf16(e, v)
    return _float8(e, v, have, want, arch)


def _to_tf32(e: Emitter, v: Reg) -> Reg:
    """Rounded to nearest even to 10 bits of mantissa; sm_80's cvt only rounds ties away from zero."""
    bits = e.pure("mov.b32", "b32", v)
    odd = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", bits, Imm(13)), Imm(1, "b32"))
    up = e.pure("add.s32", "b32", e.pure("add.s32", "b32", bits, Imm(0xFFF)), odd)
    cut = e.pure("mov.b32", "f32", e.pure("and.b32", "b32", up, Imm(0xFFFFE000, "b32")))
    finite = e.pure("setp.lt.f32", "pred", e.pure("abs.f32", "f32", v), Imm(float("inf"), "f32"), hint="finite")
    return e.pure("selp.f32", "f32", cut, v, finite, hint="tf32")


def _to_bf16(e: Emitter, v: Reg) -> Reg:
    """Rounded to nearest even to the upper half of f32; sm_80 has an instruction for it."""
    bits = e.pure("mov.b32", "b32", v)
    odd = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", bits, Imm(16)), Imm(1, "b32"))
    up = e.pure("add.s32", "b32", e.pure("add.s32", "b32", bits, Imm(0x7FFF)), odd)
    number = e.pure("setp.num.f32", "pred", v, v, hint="number")
    chosen = e.pure("selp.b32", "b32", up, Imm(0x7FFFFFFF, "b32"), number)
    return e.pure("cvt.u16.u32", "b16", e.pure("shr.u32", "b32", chosen, Imm(16)), hint="bf16")


def _to_odd(e: Emitter, v: Reg) -> Reg:
    """An f64 as f32, rounded to odd: a second rounding to 16 or 8 bits then equals a single rounding."""
    cut = e.pure("cvt.rz.f32.f64", "f32", v)
    inexact = e.pure("setp.neu.f64", "pred", e.pure("cvt.f64.f32", "f64", cut), v, hint="inexact")
    return _made_odd(e, cut, inexact)


def _made_odd(e: Emitter, cut: Reg, inexact: Reg) -> Reg:
    bits = e.pure("or.b32", "b32", e.pure("mov.b32", "b32", cut), Imm(1, "b32"))
    return e.pure("selp.f32", "f32", e.pure("mov.b32", "f32", bits), cut, inexact, hint="odd")


def _zero16(e: Emitter) -> Reg:
    return e.pure("mov.b16", "b16", Imm(0, "b16"), hint="zero16", uniform=True)


def _float8(e: Emitter, v: Reg, have: DType, want: DType, arch: str) -> Reg:
    """Between f32 and an 8-bit float."""
    first = (have if want == dtypes.f32 else want).cvt
    if not first or arch_number(arch)[0] < first:
        return from_float8(e, v, have) if want == dtypes.f32 else to_float8(e, v, want)
    if want == dtypes.f32:
        pair = e.pure(f"cvt.rn.f16x2.{have.ptx}x2", "b32", v)
        low = e.pure("cvt.u16.u32", "b16", pair)
        return e.pure("cvt.f32.f16", "f32", low, hint="f32")
    return e.pure(f"cvt.rn.satfinite.{want.ptx}x2.f32", "b16", Imm(0.0, "f32"), v, hint=want.name)


def _float_to_int(e: Emitter, v: Reg, kind: str, want: DType) -> Reg:
    if kind == "f64" or want.bits == 64:
        # Only f32 to 32 bits gives 0 for NaN (PTX ISA, cvt, Floating Point Notes).
        number = e.pure(f"setp.num.{kind}", "pred", v, v, hint="number")
        v = e.pure(f"selp.{kind}", kind, v, Imm(0.0, kind), number)
    if want.bits >= 32:
        return e.pure(f"cvt.rni.{want.name}.{kind}", register_type(want), v, hint=want.name)
    # The 32-bit conversion saturates at the bounds of s32; the clamp saturates at those of the narrow type.
    return _clamp(e, e.pure(f"cvt.rni.s32.{kind}", "s32", v), want)


def _clamp(e: Emitter, v: Reg, want: DType) -> Reg:
    low, high = bounds(want)
    return e.pure("max.s32", "s32", e.pure("min.s32", "s32", v, Imm(high)), Imm(low), hint=want.name)


def _int_to_float(e: Emitter, v: Reg, have: DType, want: DType, arch: str) -> Reg:
    source = have.name if have.bits >= 32 else "s32"
    if want.bits == 64 or want in (dtypes.f32, dtypes.f16):
        return e.pure(f"cvt.rn.{want.name}.{source}", register_type(want), v, hint=want.name)
    if have.bits < 32:
        single = e.pure(f"cvt.rn.f32.{source}", "f32", v)  # exact
    else:
        single = _integer_to_odd(e, v, source)
    return _float_to_float(e, single, dtypes.f32, want, arch)


def _integer_to_odd(e: Emitter, v: Reg, source: str) -> Reg:
    """An integer as f32, rounded to odd; see `_to_odd`."""
    cut = e.pure(f"cvt.rz.f32.{source}", "f32", v)
    back = e.pure(f"cvt.rzi.{source}.f32", v.type, cut)
    inexact = e.pure(f"setp.ne.{source}", "pred", back, v, hint="inexact")
    return _made_odd(e, cut, inexact)


def _int_to_int(e: Emitter, v: Reg, have: DType, want: DType) -> Value:
    """A saturating conversion: clamp in the source's type if its range exceeds the result's, then resize."""
    (low, high), (least, greatest) = bounds(want), bounds(have)
    wide = 64 if have.bits == 64 else 32
    # A narrow source is held as an s32, whatever its own type.
    kind = f"{'u' if have.kind == 'uint' and have.bits >= 32 else 's'}{wide}"
    held = register_type(have)
    if greatest > high:
        v = e.pure(f"min.{kind}", held, v, Imm(high))
    if least < low:
        v = e.pure(f"max.{kind}", held, v, Imm(low))
    return resized(e, v, have, want)


def resized(e: Emitter, v: Reg, have: DType, want: DType) -> Reg:
    """``v`` truncated, or extended according to its own type: integers of 32 and 64 bits."""
    if want.bits == 64 and have.bits != 64:
        return e.pure(f"cvt.{want.name}.{'u32' if have == dtypes.u32 else 's32'}", register_type(want), v)
    if want.bits != 64 and have.bits == 64:
        return e.pure("cvt.u32.u64", register_type(want), v, hint=want.name)
    return v


def promoted(e: Emitter, v: Value, have: DType, want: DType, arch: str) -> Value:
    """An operand converted to the type of its operation: like `convert`, but integers wrap as in C."""
    if have.is_integer and want.is_integer and want.bits >= 32:
        return resized(e, v, have, want) if isinstance(v, Reg) else constant(e, wrap(int(v.value), want), want)
    return convert(e, v, have, want, arch)


def pair_rounding(have: DType, want: DType, arch: str) -> str | None:
    """The instruction that rounds two values to 16-bit floats and packs them; None if there is none for these
    types.

    PTX ISA, cvt: the first source goes to the upper half.
    """
    known = have == dtypes.f32 and want in (dtypes.f16, dtypes.bf16) and arch_number(arch)[0] >= 80
    return f"cvt.rn.{want.ptx}x2.f32" if known else None


def pack_pair(e: Emitter, low: Reg, high: Reg, have: DType, want: DType, arch: str) -> Reg | None:
    """Two f32 rounded and packed into one register by one instruction; None for other types."""
    rounding = pair_rounding(have, want, arch)
    return None if rounding is None else e.pure(rounding, "b32", high, low, hint=f"{want.ptx}x2")
