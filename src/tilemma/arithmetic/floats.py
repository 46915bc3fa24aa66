"""Floats as the language defines them: IEEE 754, each operation rounded once to the type of its operands.

`docs/language.md` (*Floats*) states the rules for users:

- ``add``, ``sub``, ``mul``, ``div``, ``sqrt``, ``frcp_rn`` and ``fmaf`` are the exact result, rounded to nearest,
  ties to even.
- ``mod`` is C's fmod, which is exact: the remainder of the quotient rounded towards zero, with the sign of the
  dividend.  ``floordiv`` and ``cdiv`` are the exact quotient rounded down or up to an integer, then to the type.
- ``min`` and ``max`` give the number where one operand is NaN, and -0 is less than +0.
- Division by 0 gives an infinity or NaN and does not trap.  The payload of NaN results is not defined.
- The other functions of the library have an error bound on GPU targets (`tilemma.targets.ptx.lower.mathlib`); here
  they are evaluated in float64 and rounded once.

Functions take and give NumPy arrays (or scalars) of the carrier: float32 for all types of up to 32 bits, float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic.convert import Array, constant, rounded
from tilemma.dtypes import DType

Function = Callable[..., Any]

BINARY = ("add", "sub", "mul", "div", "floordiv", "cdiv", "mod", "min", "max")
# Functions of the library that every target evaluates to the last bit.
EXACT_FUNCTIONS = frozenset(
    {*("fabs", "abs", "ceil", "floor", "round", "sign", "isfinite", "min", "max"), *("sqrt", "frcp_rn", "fmaf")}
)


@cache
def binary(op: str, t: DType) -> Callable[[Any, Any], Any]:
    """``a op b`` on carriers of ``t``, of which one or both may be arrays."""
    f = _OPERATIONS[op]
    exact = op in ("min", "max") or (op == "mod" and t.floating.nan)
    if t in (dtypes.f32, dtypes.f64) or exact:
        return f
    # 24 bits hold the result of two operands of up to 11 closely enough: rounding twice is rounding once.
    return lambda a, b: _narrowed(f(a, b), t)


def _narrowed(x: Any, t: DType) -> Any:
    y = np.asarray(x)
    return rounded(y.reshape(-1), dtypes.f32, t).reshape(y.shape)


def minimum(a: Any, b: Any) -> Any:
    """The smaller; a number rather than NaN, -0 rather than +0."""
    y = np.fmin(a, b)
    return np.where((y == 0) & (np.signbit(a) | np.signbit(b)) & (a == b), -np.abs(y), y)


def maximum(a: Any, b: Any) -> Any:
    """The larger; a number rather than NaN, +0 rather than -0."""
    y = np.fmax(a, b)
    return np.where((y == 0) & ~(np.signbit(a) & np.signbit(b)) & (a == b), np.abs(y), y)


def floor_quotient(a: Any, b: Any) -> Any:
    """The exact quotient rounded down to an integer, then to the type; IEEE's quotient where it is not finite."""
    quotient = np.asarray(a / b)
    low = np.floor(quotient)
    # The floor of the rounded quotient is wrong where the rounding reached an integer, and where a quotient has
    # more digits than the type.
    limit = 2.0**22 if low.dtype == np.float32 else 2.0**51
    small = np.abs(quotient) <= limit
    finite = np.isfinite(a) & np.isfinite(b) & (np.asarray(b) != 0)
    doubtful = finite & ~(small & ((quotient != low) | (np.fmod(a, b) == 0)))
    if not doubtful.any():
        return low
    kind = dtypes.f32 if low.dtype == np.float32 else dtypes.f64
    out = np.array(low)
    xs, ys = np.broadcast_arrays(a, b)
    for i in np.ndindex(out.shape):
        if doubtful[i]:
            whole = Fraction(float(xs[i])) // Fraction(float(ys[i]))
            out[i] = constant(whole, kind) if whole else math.copysign(0.0, quotient[i])
    return out


def ceil_quotient(a: Any, b: Any) -> Any:
    """The exact quotient rounded up to an integer, then to the type."""
    return -floor_quotient(-a, b)


_OPERATIONS: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": floor_quotient,
    "cdiv": ceil_quotient,
    "mod": np.fmod,
    "min": minimum,
    "max": maximum,
}


# ---- the math library ------------------------------------------------------------------------------------------


def _exp2_ftz(x: Any) -> Any:
    y = np.exp2(x)
    return y * (y >= 2.0**-126)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + _erf(x / math.sqrt(2.0)))


def _round(x: Any) -> Any:
    """To the nearest integer, halves away from 0."""
    whole = np.trunc(x)
    return np.copysign(np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole), x)


def _sign(x: Any) -> Any:
    return np.where(x == 0, 0.0, np.where(np.isnan(x), x, np.copysign(1.0, x)))


def power(x: Any, y: Any) -> Any:
    """C's pow (C23, F.10.4.4), whose cases of zeros and -infinity some versions of NumPy do not have."""
    odd = np.abs(np.fmod(y, 2.0)) == 1.0
    grows = np.isinf(x) == (y > 0)
    special = ((x == 0) | (x == -np.inf)) & (y != 0) & ~np.isnan(y)
    end = np.where(grows, np.inf, 0.0) * np.where(odd & np.signbit(x), -1.0, 1.0)
    return np.where(special, end, np.power(np.where(special, 1.0, x), y))


def fused(t: DType) -> Function:
    """``a * b + c`` with one rounding: for narrower types in float64, rounded to odd, so that theirs decides."""
    return _fused_doubles if t.bits == 64 else _odd_fused


def _odd_fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of numbers with at most 24 digits, whose product is exact."""
    product = a * b
    out = np.asarray(product + c)
    # The error of the sum (Knuth's TwoSum); NaN where something is infinite or NaN.
    rest = out - product
    miss = (product - (out - rest)) + (c - rest)
    even = (out.view(np.int64) & 1) == 0
    return np.where((np.abs(miss) > 0) & even, np.nextafter(out, np.where(miss > 0, np.inf, -np.inf)), out)


def _fused_doubles(a: Array, b: Array, c: Array) -> Array:
    out = np.asarray(np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, a * b + c))
    # An infinity, NaN or a zero product: the result of the plain expression is correct.
    exact = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    for i in np.ndindex(out.shape):
        if exact[i]:
            total = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
            out[i] = _nearest_double(total) if total else 0.0
    return out


def _nearest_double(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


# Name -> function on float64.
LIBRARY: dict[str, Function] = {
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp2f": np.exp2,
    "exp2_ftz": _exp2_ftz,
    "expm1": np.expm1,
    "fabs": np.abs,
    "abs": np.abs,
    "fmaf": fused(dtypes.f64),
    "frcp_rn": lambda a: 1.0 / a,
    "floor": np.floor,
    "gelu": _gelu,
    "isfinite": np.isfinite,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "max": maximum,
    "min": minimum,
    "pow": power,
    "round": _round,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sigmoid": lambda a: 1.0 / (1.0 + np.exp(-a)),
    "sign": _sign,
    "silu": lambda a: a / (1.0 + np.exp(-a)),
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": lambda a: np.logaddexp(0.0, a),
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def call(name: str, t: DType) -> Function:
    """The library's ``name`` on carriers of ``t``; the result is one."""
    f = fused(t) if name == "fmaf" else LIBRARY[name]

    def evaluate(*args: Any) -> Any:
        wide = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in args))
        y = np.asarray(f(*wide), np.float64)
        return rounded(y.reshape(-1), dtypes.f64, t).reshape(y.shape)

    return evaluate
