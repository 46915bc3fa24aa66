"""Floating-point arithmetic, and the opcodes that integers share (PTX ISA, "Floating Point Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import integer
from tilemma.machine.exec.carries import carry_out
from tilemma.machine.exec.integer import function, ufunc2
from tilemma.machine.isa import approx, numerics

FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64")
_ELEMENT = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
_NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
ROUNDINGS = ("rn", "rz", "rm", "rp")


def as_values(x: Any, kind: str) -> Any:
    """A register row of a float type as its values; packed types give both halves, low first: [64]."""
    element = _ELEMENT.get(kind, kind)
    return x if x.dtype == _NUMPY[element] else np.ascontiguousarray(x).view(_NUMPY[element])


def as_bits(y: Any, kind: str) -> Any:
    """Values back as the row's own type."""
    if kind in ("bf16",):
        return np.ascontiguousarray(y).view(np.uint16)
    if kind in _ELEMENT:
        return np.ascontiguousarray(y).view(np.uint64 if kind == "f32x2" else np.uint32)
    return y


def on_values(d: Decoder, f: Callable[..., Any], kind: str, arity: int) -> None:
    """``d = f(values...)`` for a float type."""

    def run(*rows: Any) -> Any:
        return as_bits(f(*[as_values(x, kind) for x in rows]), kind)

    function(d, run, kind, *[kind] * arity)


def fast_fma(a: Any, b: Any, c: Any) -> Any:
    """f32 ``a * b + c`` with one rounding: the product is exact in f64; the error of the sum decides ties."""
    p = a.astype(np.float64) * b
    s = p + c
    result = s.astype(np.float32)
    # Only a sum that looks like a tie of f32, or lies below its normal numbers, may be rounded twice.
    suspect = (s.view(np.uint64) & _BELOW_F32) == _TIE
    suspect |= (np.abs(result) < _TINY) & (s != 0)
    if suspect.any():
        t = s - p
        error = (p - (s - t)) + (c - t)
        return numerics._to_odd(s, error).astype(np.float32)  # which leaves alone the lanes that are not finite
    return result


# The bits of an f64 that an f32 lacks, and their value half way between two f32; the least normal f32, and more.
_BELOW_F32, _TIE = np.uint64((1 << 29) - 1), np.uint64(1 << 28)
_TINY = np.float32(2.0**-125)


def _arith(d: Decoder, op: str, arity: int) -> None:
    kind = d.type
    rounding = d.one_of(ROUNDINGS, "rn")
    ftz, sat, relu = d.has("ftz"), d.has("sat"), d.has("relu")
    d.has("full", "approx")
    if kind in ("f16", "bf16") and "f32" in d.mods:
        _mixed(d, op, arity, rounding, sat=sat)
        return
    d.only(kind)
    if kind == "f32x2":
        d.needs(100)
    element = _ELEMENT.get(kind, kind)
    if kind == "f32" and rounding == "rn" and not (ftz or sat or relu) and op in _PLAIN:
        if op == "fma":
            function(d, fast_fma, "f32", "f32", "f32", "f32")
        else:
            ufunc2(d, _PLAIN[op], kind)
        return
    on_values(
        d, lambda *x: numerics.arith(op, element, *x, rounding=rounding, ftz=ftz, sat=sat, relu=relu), kind, arity
    )


def _mixed(d: Decoder, op: str, arity: int, rounding: str, *, sat: bool) -> None:
    """`add.f32.f16`, `fma.rn.f32.bf16`: the last source and the result are f32, the others are widened."""
    kind = d.type
    d.needs(100)
    d.has("f32")
    d.only(kind)

    def run(*rows: Any) -> Any:
        values = [as_values(x, kind).astype(np.float32) for x in rows[:-1]]
        return numerics.arith(op, "f32", *values, rows[-1], rounding=rounding, sat=sat)

    function(d, run, "f32", *[kind] * (arity - 1), "f32")


_PLAIN: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": None}


def _shared(name: str, on_integers: Callable[[Decoder], None]) -> None:
    def decode(d: Decoder) -> None:
        if d.has("cc"):
            carry_out(d)
            return
        if d.type in FLOATS:
            _arith(d, name, 2)
        else:
            on_integers(d)

    instruction(name)(decode)


_shared("add", integer.add)
_shared("sub", integer.sub)
_shared("mul", integer.mul)


@instruction("fma")
def fma(d: Decoder) -> None:
    _arith(d, "fma", 3)


@instruction("mad")
def mad(d: Decoder) -> None:
    if d.type in FLOATS:
        _arith(d, "fma", 3)
    elif d.has("cc"):
        carry_out(d)
    else:
        integer.mad(d)


@instruction("div")
def div(d: Decoder) -> None:
    if d.type not in FLOATS:
        integer.div(d)
        return
    full, ftz = d.has("full"), d.has("ftz")
    if full or d.has("approx"):
        on_values(d, lambda a, b: approx.divide(a, b, full=full, ftz=ftz), "f32", 2)
    else:
        _arith(d, "div", 2)


@instruction("rcp", "sqrt")
def reciprocal(d: Decoder) -> None:
    if d.has("approx"):
        _special(d)
    else:
        _arith(d, d.parts[0], 1)


@instruction("rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def transcendental(d: Decoder) -> None:
    _special(d)


def _special(d: Decoder) -> None:
    kind, op, ftz = d.type, d.parts[0], d.has("ftz")
    element = _ELEMENT.get(kind, kind)
    d.has("approx")
    d.only(kind)
    on_values(d, lambda x: approx.special(op, x, element, ftz=ftz), kind, 1)


@instruction("min", "max")
def extremum(d: Decoder) -> None:
    kind, op = d.type, d.parts[0]
    if kind not in FLOATS:
        integer.minimum(d)
        return
    nan, ftz = d.has("NaN"), d.has("ftz")
    xorsign = d.has("xorsign") and d.has("abs")
    magnitudes = d.has("abs") and not xorsign
    d.only(kind)
    element = _ELEMENT.get(kind, kind)
    if len(d.operands) == 4:
        if kind != "f32" or xorsign:
            d.refuse("three sources are for f32")
        d.needs(100)

        def of_three(*x: Any) -> Any:
            a, b, c = (np.abs(v) for v in x) if magnitudes else x
            first = numerics.arith(op, element, a, b, nan=nan, ftz=ftz)
            return numerics.arith(op, element, first, c, nan=nan, ftz=ftz)

        on_values(d, of_three, kind, 3)
        return
    if xorsign:
        on_values(d, lambda a, b: _with_xored_sign(op, element, a, b, nan=nan, ftz=ftz), kind, 2)
        return
    on_values(d, lambda a, b: numerics.arith(op, element, a, b, nan=nan, ftz=ftz), kind, 2)


def _with_xored_sign(op: str, name: str, a: Any, b: Any, *, nan: bool, ftz: bool) -> Any:
    """`.xorsign.abs`: the extremum of the magnitudes with the product's sign (PTX ISA, "min", "max")."""
    magnitudes = (numerics.arith("abs", name, x) for x in (a, b))
    y = numerics.arith(op, name, *magnitudes, nan=nan, ftz=ftz)
    negative = np.signbit(a) ^ np.signbit(b)
    return np.where(negative & ~np.isnan(y), -y, y)


@instruction("neg", "abs")
def sign(d: Decoder) -> None:
    kind, op = d.type, d.parts[0]
    if kind not in FLOATS:
        integer.negative(d)
        return
    ftz = d.has("ftz")
    d.only(kind)
    element = _ELEMENT.get(kind, kind)
    on_values(d, lambda a: numerics.arith(op, element, a, ftz=ftz), kind, 1)


@instruction("copysign")
def copysign(d: Decoder) -> None:
    d.only(d.type)
    on_values(d, lambda a, b: np.copysign(b, a), d.type, 2)


@instruction("testp")
def testp(d: Decoder) -> None:
    kind = d.type
    test = d.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    tiny = np.finfo(_NUMPY[kind]).tiny

    def run(x: Any) -> Any:
        normal = np.isfinite(x) & (np.abs(x) >= tiny)
        return {
            "finite": np.isfinite(x),
            "infinite": np.isinf(x),
            "number": ~np.isnan(x),
            "notanumber": np.isnan(x),
            "normal": normal,
            "subnormal": np.isfinite(x) & ~normal & (x != 0),
        }[test]

    function(d, run, "pred", kind)
