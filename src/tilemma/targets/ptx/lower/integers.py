"""Lowering of integer operations that are not affine sums: divisions, shifts, bitwise operations, products.

They compute the results of `tilemma.arithmetic.integers` for all values of the operands.  If the ranges of the
operands exclude a case, its instructions are omitted.
"""

from __future__ import annotations

from tilemma.arithmetic import integers
from tilemma.arithmetic.integers import DIVISIONS, Range
from tilemma.dtypes import DType
from tilemma.ir.lane import Imm, Reg
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.convert import register_type
from tilemma.targets.ptx.lower.regions import Value


def operate(lo: Lowering, op: str, t: DType, a: Value, b: Value, ranges: tuple[Range, Range]) -> Value:
    """``a op b`` in ``t``, of 32 or 64 bits; ``ranges`` are those of the operands before their promotion."""
    if isinstance(a, Imm) and isinstance(b, Imm):
        return Imm(integers.binary(op, t)(int(a.value), int(b.value)), register_type(t))
    e, bits, reg = lo.e, t.bits, register_type(t)
    kind = f"{'u' if t.kind == 'uint' else 's'}{bits}"
    if isinstance(a, Imm) and op in ("add", "mul", "and", "or", "xor", "min", "max"):
        a, b = b, a
    first = a if isinstance(a, Reg) else e.pure(f"mov.b{bits}", reg, a)
    if op in ("shl", "shr"):
        mnemonic = f"shl.b{bits}" if op == "shl" else f"shr.{kind}"
        return e.pure(mnemonic, reg, first, _shift_count(lo, b, bits, ranges[1]), hint=op)
    if op in DIVISIONS:
        return _divide(lo, op, t, first, b, ranges)
    mnemonic = {"mul": f"mul.lo.{kind}", "and": f"and.b{bits}", "or": f"or.b{bits}", "xor": f"xor.b{bits}"}.get(
        op, f"{op}.{kind}"
    )
    return e.pure(mnemonic, reg, first, b, hint=op)


def _shift_count(lo: Lowering, b: Value, bits: int, known: Range) -> Value:
    """The shift count as u32; the instruction clamps it to the width (PTX ISA, shl and shr)."""
    if isinstance(b, Imm):
        return b if 0 <= b.value < bits else Imm(bits)
    if bits == 32:
        return b
    # The lower half of a sign-extended s32 suffices: a negative count is a u32 beyond the width.
    if not (known[0] >= -(2**31) and known[1] < 2**32):
        b = lo.e.pure("min.u64", b.type, b, Imm(bits), hint="count")
    return lo.e.pure("cvt.u32.u64", "u32", b)


def _divide(lo: Lowering, op: str, t: DType, a: Reg, b: Value, ranges: tuple[Range, Range]) -> Value:
    e, reg = lo.e, register_type(t)
    unsigned = t.kind == "uint" or (ranges[0][0] >= 0 and ranges[1][0] >= 0)
    found = _quotient_or_remainder(lo, op, t, a, b, unsigned)
    if isinstance(b, Imm) and b.value:
        return found
    if not ranges[1][0] <= 0 <= ranges[1][1]:
        return found
    # The result of a division by 0 is not specified (PTX ISA, div and rem).
    divisor = b if isinstance(b, Reg) else e.pure(f"mov.b{t.bits}", reg, b)
    zero = e.pure(f"setp.eq.s{t.bits}", "pred", divisor, Imm(0), hint="zero")
    return e.pure(f"selp.b{t.bits}", reg, Imm(0), found, zero, hint="q")


def _quotient_or_remainder(lo: Lowering, op: str, t: DType, a: Reg, b: Value, unsigned: bool) -> Reg:
    e, bits, reg = lo.e, t.bits, register_type(t)
    kind = f"{'u' if t.kind == 'uint' else 's'}{bits}"
    if unsigned and bits == 32 and op in ("mod", "floormod"):
        # Quotient and rest of the same numbers share the division, which takes twenty instructions.
        quotient = e.pure("div.u32", reg, a, b, hint="q")
        return e.pure("sub.s32", reg, a, e.pure("mul.lo.s32", reg, quotient, b), hint="mod")
    if op == "mod" or (op == "floormod" and unsigned):
        return e.pure(f"rem.{kind}", reg, a, b, hint="mod")
    if op == "floormod":
        rest = e.pure(f"rem.{kind}", reg, a, b)
        moved = e.pure(f"add.{kind}", reg, rest, b)
        return e.pure(f"selp.b{bits}", reg, moved, rest, _inexact_with_sign(lo, "lt", kind, rest, b), hint="mod")
    quotient = e.pure(f"div.{'u' if unsigned else 's'}{bits}", reg, a, b, hint="div" if bits == 64 else "q")
    if op == "div" or (op == "floordiv" and unsigned):
        return quotient
    product = e.pure(f"mul.lo.{kind}", reg, quotient, b)
    # The truncated quotient is off by one if the remainder is not 0 and has the wrong sign for this rounding.
    rest = e.pure(f"sub.{kind}", reg, a, product)
    if unsigned:
        inexact = e.pure(f"setp.ne.{kind}", "pred", rest, Imm(0))
    else:
        inexact = _inexact_with_sign(lo, "lt" if op == "floordiv" else "ge", kind, rest, b)
    moved = e.pure(f"add.{kind}", reg, quotient, Imm(-1 if op == "floordiv" else 1))
    return e.pure(f"selp.b{bits}", reg, moved, quotient, inexact, hint="q")


def _inexact_with_sign(lo: Lowering, way: str, kind: str, rest: Reg, b: Value) -> Reg:
    """Whether the remainder is not 0, and its sign differs from the divisor's ("lt") or equals it ("ge")."""
    e = lo.e
    inexact = e.pure(f"setp.ne.{kind}", "pred", rest, Imm(0))
    signs = e.pure(f"xor.b{kind[1:]}", rest.type, rest, b)
    return e.pure("and.pred", "pred", inexact, e.pure(f"setp.{way}.{kind}", "pred", signs, Imm(0)))
