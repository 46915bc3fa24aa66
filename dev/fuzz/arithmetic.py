"""Arithmetic of random programs in NumPy and Python alone, independent of the compiler."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

NUMPY: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "s64": np.int64,
    "s32": np.int32, "s16": np.int16, "s8": np.int8, "u64": np.uint64, "u32": np.uint32, "u16": np.uint16,
    "u8": np.uint8, "bool": np.bool_, "f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
NAMES = {np.dtype(t): n for n, t in NUMPY.items()}
LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
# Bits of the significand, and the exponent of the smallest normal number.
_FORMS = {
    "f64": (53, -1022), "f32": (24, -126), "f16": (11, -14), "bf16": (8, -126), "f8_e4m3": (4, -6),
    "f8_e5m2": (3, -14),
}  # fmt: skip
_RANK = {"f8_e4m3": 0, "f8_e5m2": 0, "f16": 1, "bf16": 1, "f32": 2, "f64": 3}


def name_of(x: Any) -> str:
    """The element type of a value."""
    return NAMES[x.dtype]


def promoted(a: str, b: str) -> str:
    """The type in which operands of two types meet."""
    if a in _RANK or b in _RANK:
        if a == b or a not in _RANK or b not in _RANK:
            return a if a in _RANK else b
        return "f32" if _RANK[a] == _RANK[b] else max(a, b, key=lambda t: _RANK[t])
    bits = max(int(a[1:]), int(b[1:]), 32)
    return f"{'u' if f'u{bits}' in (a, b) else 's'}{bits}"


def rounded(x: Any, t: str) -> Any:
    """The number of type ``t`` nearest to the exact value of ``x``, an integer or a float; ties to even."""
    number = int(x) if isinstance(x, np.integer) else float(x)
    kind = NUMPY[t]
    if number == 0 or not math.isfinite(number):
        return np.float64(number).astype(kind)
    if t in LARGEST and abs(number) > LARGEST[t]:
        return np.float64(math.copysign(LARGEST[t], number)).astype(kind)
    exact = Fraction(number)
    bits, least = _FORMS[t]
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    exponent -= abs(exact) < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, least) - bits + 1)
    nearest = round(exact / quantum) * quantum
    try:
        # A number beyond the type's largest becomes an infinity.
        with np.errstate(over="ignore"):
            return np.float64(float(nearest) if nearest else math.copysign(0.0, number)).astype(kind)
    except OverflowError:
        return np.float64(math.copysign(math.inf, number)).astype(kind)


def convert(x: Any, t: str) -> Any:
    """``x`` as stores convert it to ``t``."""
    kind = NUMPY[t]
    if x.dtype == kind:
        return x
    if t == "bool":
        return kind(x != 0)
    if t[0] in "su":
        if isinstance(x, np.bool_):
            return kind(int(x))
        info = np.iinfo(kind)
        if isinstance(x, np.integer):
            return kind(min(max(int(x), info.min), info.max))
        value = float(x)
        if np.isnan(value):
            return kind(0)
        if np.isinf(value):
            return kind(info.max if value > 0 else info.min)
        return kind(min(max(round(value), info.min), info.max))
    if t in LARGEST and not isinstance(x, np.bool_):
        # fp8 saturates, infinities too.
        x = np.float64(math.copysign(LARGEST[t], x)) if np.isinf(np.float64(x)) else x
        return rounded(x, t)
    if isinstance(x, np.integer) or (isinstance(x, np.float64) and t != "f64"):
        return rounded(x, t)
    return np.asarray(x).astype(kind)[()]


def meet(x: Any, t: str) -> Any:
    """An operand in the type of its operation: integers wrap, integers become the nearest float."""
    if t in _RANK:
        return convert(x, t)
    return _wrapped(int(x), NUMPY[t])


def _wrapped(n: int, kind: Any) -> Any:
    bits = np.dtype(kind).itemsize * 8
    n %= 2**bits
    return kind(n - 2**bits if n > np.iinfo(kind).max else n)


def _truncated(x: int, y: int) -> int:
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


def unary(op: str, a: Any) -> Any:
    match op:
        case "neg":
            return type(a)(-a)
        case "not":
            return ~a
        case "lnot":
            return np.bool_(not a)
        case "abs":
            return type(a)(abs(a))
    wide = {"floor": np.floor, "ceil": np.ceil, "sqrt": np.sqrt}[op](np.float64(a))
    return np.asarray(wide).astype(type(a))[()]


def binary(op: str, a: Any, b: Any) -> Any:
    kind = type(a)
    assert kind is type(b), (op, a, b)
    match op:
        case "==":
            return np.bool_(a == b)
        case "!=":
            return np.bool_(a != b)
        case "<":
            return np.bool_(a < b)
        case "<=":
            return np.bool_(a <= b)
        case ">":
            return np.bool_(a > b)
        case ">=":
            return np.bool_(a >= b)
        case "min" | "max":
            # A number rather than NaN.
            if a != a:
                return b
            if b != b:
                return a
            if a == b == 0 and np.signbit(a) != np.signbit(b):
                # The negative zero is the smaller one.
                return a if bool(np.signbit(a)) == (op == "min") else b
            return min(a, b) if op == "min" else max(a, b)
    if op in "&|^":
        table = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
        return kind(table[op](a, b))
    whole = np.issubdtype(kind, np.integer)
    if whole:
        x, y = int(a), int(b)
        bits = np.dtype(kind).itemsize * 8
        if op in ("<<", ">>"):
            # The count is unsigned; from the width on nothing but the sign is left.
            count = min(y % 2**bits, bits)
            return _wrapped(x << count if op == "<<" else x >> count, kind)
        if y == 0 and op in ("//", "cdiv", "quot", "%", "rem"):
            return kind(0)
        whole_table = {
            "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y, "//": lambda: x // y, "%": lambda: x % y,
            "cdiv": lambda: -(-x // y), "quot": lambda: _truncated(x, y), "rem": lambda: x - y * _truncated(x, y),
        }  # fmt: skip
        return _wrapped(whole_table[op](), kind)
    exact: dict[str, Any] = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}
    return np.asarray(exact[op](a, b)).astype(kind)[()]
