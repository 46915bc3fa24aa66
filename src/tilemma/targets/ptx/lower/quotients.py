"""Remainders and integral quotients of floats, as `tilemma.arithmetic.floats` defines them."""

from __future__ import annotations

import math

from tilemma.dtypes import DType
from tilemma.ir.lane import Imm, Reg
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.floating import Float
from tilemma.targets.ptx.lower.regions import Value

# Quotient bits that one step of the long division produces: fewer than the type's precision.
_STEP = {"f32": 23, "f64": 52}


def remainder(f: Float, x: Value, y: Value) -> Reg:
    """C's fmod, exact for every quotient.

    Long division: the divisor starts as ``|y|`` times a power of two near ``|x|`` and goes down to ``|y|``.  The
    quotient of a step is an integer below 2**53 (2**24 in f32), and the remainder is representable, so that the
    fused multiply-add computes it exactly.  Quotients of up to 52 (23) bits take one step.
    """
    e = f.e
    size, divisor = f.abs(x), f.abs(y)
    (left,) = e.cse_control_flow(("remainder", f.kind, x, y), (x, y), lambda: (_long_division(f, size, divisor),))
    result = f.where(f.test("eq", divisor, f.c(math.inf)), size, left)
    defined = e.pure(
        "and.pred", "pred", f.test("lt", size, f.c(math.inf)), f.test("gt", divisor, f.c(0.0)), hint="defined"
    )
    return f.where(defined, f.copysign(result, x), f.c(math.nan))


def _long_division(f: Float, size: Reg, divisor: Reg) -> Reg:
    e, factor = f.e, 2.0 ** _STEP[f.kind]
    left, scaled = e.reg("left", f.kind, mutable=True), e.reg("scaled", f.kind, mutable=True)
    # The loop would not terminate for a divisor of 0, infinity or NaN: it divides by 1, and the caller selects
    # the result.
    usable = e.pure(
        "and.pred", "pred", f.test("gt", divisor, f.c(0.0)), f.test("lt", divisor, f.c(math.inf)), hint="usable"
    )
    first = f.where(usable, divisor, f.c(1.0))
    e.do(f"mov.{f.kind}", (left,), (f.where(f.test("lt", size, f.c(math.inf)), size, f.c(0.0)),))
    e.do(f"mov.{f.kind}", (scaled,), (first,))
    with e.collect("loop") as setup:
        larger = f.mul(scaled, f.c(factor))
        below = f.test("le", larger, left)
        computed = tuple(setup)
    with e.collect("loop") as body:
        e.do(f"mov.{f.kind}", (scaled,), (larger,))
        raised = tuple(body)
    e.while_loop(computed, below, raised)
    with e.collect("loop") as body:
        quotient = f.whole(f.toward_zero(left, scaled), "rzi")
        e.do(f"fma.rn.{f.kind}", (left,), (f.neg(quotient), scaled, left))
        last = f.test("le", scaled, first)
        e.do(f"mul.rn.{f.kind}", (scaled,), (scaled, f.c(1.0 / factor)))
        reduced = tuple(body)
    e.until(reduced, last)
    return left


def floor_quotient(f: Float, x: Value, y: Value, t: DType) -> Reg:
    """The exact quotient of two values of ``t`` rounded down to an integer, then to nearest in the type of ``f``.

    While the type represents all integers near the quotient, the quotient rounded down has the same floor.  Beyond
    that, the floor is rounded to nearest.  If the floor is a tie, IEEE's quotient would use the fraction above it
    to round up; the floor has no fraction, so that the tie goes to the even value.
    """
    down = f.down(x, y)
    low = f.whole(down, "rmi")
    if t.bits < 32:
        return low  # the operands have at most 11 bits: their quotient is never a tie at 24 bits
    near, size = f.div(x, y), f.abs(y)
    half = f.mul(f.sub(near, down), f.c(0.5))
    rest = f.abs(f.fma(f.neg(down), y, x))
    beyond = f.sub(rest, f.mul(half, size))
    tie = f.e.pure("and.pred", "pred", f.test("gt", beyond, f.c(0.0)), f.test("lt", beyond, size), hint="tie")
    tie = f.e.pure("and.pred", "pred", tie, _even(f.e, f.kind, down), hint="tie")
    large = f.test("ge", half, f.c(1.0))
    return f.where(large, f.where(tie, down, near), low)


def ceil_quotient(f: Float, x: Value, y: Value, t: DType) -> Reg:
    """The same, rounded up."""
    return f.neg(floor_quotient(f, f.neg(x), y, t))


def _even(e: Emitter, kind: str, x: Reg) -> Reg:
    """Whether the last bit of the float is 0."""
    bits = "b64" if kind == "f64" else "b32"
    held = "s64" if kind == "f64" else "s32"
    last = e.pure(f"and.{bits}", held, e.pure(f"mov.{bits}", held, x), Imm(1, held))
    return e.pure(f"setp.eq.{held}", "pred", last, Imm(0, held), hint="even")
