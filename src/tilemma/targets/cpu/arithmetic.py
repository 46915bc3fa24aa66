"""Operators and the math library on values: one function for scalars, one for arrays over lanes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.targets.cpu.faults import DivisionByZero, NotInReference
from tilemma.targets.cpu.values import Value, carrier, rounded, store, wrap

Function = Callable[..., Any]


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _shift_left(bits: int) -> Callable[[int, int], int]:
    return lambda a, b: a << b if 0 <= b < bits else 0


def _shift_right(bits: int) -> Callable[[int, int], int]:
    return lambda a, b: a >> b if 0 <= b < bits else (-1 if a < 0 else 0)


def _divisor(f: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def checked(a: int, b: int) -> int:
        if b == 0:
            raise DivisionByZero()
        return f(a, b)

    return checked


_COMPARE: dict[str, Function] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@cache
def scalar_binary(op: str, t: DType) -> Callable[[Any, Any], Any]:
    """``op`` on two scalars already promoted to ``t``."""
    if op in _COMPARE:
        compare = _COMPARE[op]
        return lambda a, b: bool(compare(a, b))
    if t.is_float:
        f = lane_binary(op, t)
        kind = np.float64 if t.bits == 64 else np.float32
        return lambda a, b: kind(f(a, b))
    table: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "floordiv": _divisor(lambda a, b: a // b),
        "cdiv": _divisor(lambda a, b: -(-a // b)),
        "div": _divisor(_trunc_div),
        "mod": _divisor(lambda a, b: a - b * _trunc_div(a, b)),
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "shl": _shift_left(t.bits),
        "shr": _shift_right(t.bits),
    }
    f = table[op]
    if t.kind in ("bool", "bits"):
        return lambda a, b: bool(f(int(a), int(b)))
    if op in ("mod", "min", "max", "and", "or", "xor", "shr"):
        return f
    if t == dtypes.s32:  # index arithmetic: the range check inline, since it nearly always holds

        def index(a: int, b: int) -> int:
            r: int = f(a, b)
            return r if -0x80000000 <= r <= 0x7FFFFFFF else wrap(r, t)

        return index
    return lambda a, b: wrap(f(a, b), t)


def _lane_trunc_div(a: Any, b: Any) -> Any:
    """By way of the floor: the absolute value of the least integer would overflow."""
    return a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


def _lane_shift(f: Function, t: DType, over: Function) -> Function:
    def shift(a: Any, b: Any) -> Any:
        inside = (b >= 0) & (b < t.bits)
        # One type for both: u64 with s64 would go through float64.
        beyond = np.asarray(over(a)).astype(carrier(t))
        return np.where(inside, f(a, np.where(inside, b, 0).astype(carrier(t))), beyond)

    return shift


@cache
def lane_binary(op: str, t: DType) -> Callable[[Any, Any], Any]:
    """``op`` on values of which one at least is an array over lanes, both promoted to ``t``.

    Integers wrap as their NumPy type does; the caller has seen to divisors of zero.
    """
    if op in _COMPARE:
        return _COMPARE[op]
    if t.is_float:
        table: dict[str, Function] = {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "div": np.divide,
            "floordiv": lambda a, b: np.floor(a / b),
            "cdiv": lambda a, b: np.ceil(a / b),
            "mod": np.fmod,
            "min": np.fmin,
            "max": np.fmax,
        }
        f = table[op]
        if t in (dtypes.f32, dtypes.f64):
            return f
        return lambda a, b: rounded(np.atleast_1d(f(a, b)), dtypes.f32, t).reshape(np.broadcast(a, b).shape)
    lanes: dict[str, Function] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floordiv": np.floor_divide,
        "cdiv": lambda a, b: a // b + (a % b != 0),
        "div": _lane_trunc_div,
        "mod": lambda a, b: a - b * _lane_trunc_div(a, b),
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "shl": _lane_shift(np.left_shift, t, lambda a: 0),
        "shr": _lane_shift(np.right_shift, t, lambda a: np.where(np.asarray(a) < 0, -1, 0)),
    }
    g = lanes[op]
    if t.kind in ("bool", "bits"):
        return lambda a, b: np.asarray(g(np.asarray(a, np.int8), np.asarray(b, np.int8))) != 0
    kind = carrier(t)
    return lambda a, b: np.asarray(g(_array(a, kind), _array(b, kind))).astype(kind, copy=False)


def _array(x: Any, kind: np.dtype[Any]) -> Any:
    return x if isinstance(x, np.ndarray) else kind.type(x)


def unary(op: str, t: DType) -> Callable[[Any], Any]:
    """neg, not (bitwise; logical for bool) and lnot on scalars and arrays; bool counts as not zero."""
    if op == "lnot" or (op == "not" and t.kind in ("bool", "bits")):
        return lambda a: np.logical_not(a) if isinstance(a, np.ndarray) else not a
    if op == "not":
        return lambda a: ~a if isinstance(a, np.ndarray) else wrap(~a, t)
    if t.is_float or t.kind in ("bool", "bits"):
        return lambda a: -a if t.is_float else a
    return lambda a: -a if isinstance(a, np.ndarray) else wrap(-a, t)


def _exp2_ftz(x: Any) -> Any:
    y = np.exp2(x)
    return y * (y >= 2.0**-126)


def _erf_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))


def _align_up(a: Any, b: Any) -> Any:
    return -(-a // b) * b


def _align_down(a: Any, b: Any) -> Any:
    return a // b * b


# Each is evaluated in float64 and rounded once to the type of its result.
MATH: dict[str, tuple[int, Function]] = {
    "acos": (1, np.arccos),
    "asin": (1, np.arcsin),
    "atan": (1, np.arctan),
    "atan2": (2, np.arctan2),
    "ceil": (1, np.ceil),
    "cos": (1, np.cos),
    "cosh": (1, np.cosh),
    "exp": (1, np.exp),
    "exp2": (1, np.exp2),
    "exp2f": (1, np.exp2),
    "exp2_ftz": (1, _exp2_ftz),
    "expm1": (1, np.expm1),
    "fabs": (1, np.abs),
    "abs": (1, np.abs),
    "fmaf": (3, lambda a, b, c: a * b + c),
    "frcp_rn": (1, lambda a: 1.0 / a),
    "floor": (1, np.floor),
    "gelu": (1, _erf_gelu),
    "isfinite": (1, np.isfinite),
    "log": (1, np.log),
    "log2": (1, np.log2),
    "log1p": (1, np.log1p),
    "max": (2, np.fmax),
    "min": (2, np.fmin),
    "pow": (2, np.power),
    "round": (1, lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a)),
    "rsqrt": (1, lambda a: 1.0 / np.sqrt(a)),
    "sigmoid": (1, lambda a: 1.0 / (1.0 + np.exp(-a))),
    "sign": (1, np.sign),
    "sin": (1, np.sin),
    "sinh": (1, np.sinh),
    "softplus": (1, lambda a: np.logaddexp(0.0, a)),
    "sqrt": (1, np.sqrt),
    "tan": (1, np.tan),
    "tanh": (1, np.tanh),
    "alignup": (2, _align_up),
    "aligndown": (2, _align_down),
}


def call(name: str, t: DType) -> Callable[..., Value]:
    """The math function ``name`` on arguments already promoted to ``t``; its result has type ``t``."""
    if name not in MATH:
        raise NotInReference(what=f"the function `{name}`")
    _, f = MATH[name]
    if t.is_integer:
        return _integer_call(name, f, t)

    def evaluate(*args: Any) -> Value:
        y = np.asarray(f(*(np.asarray(a, np.float64) for a in args)), np.float64)
        out = rounded(y.reshape(-1), dtypes.f64, t).reshape(y.shape)
        return out if any(isinstance(a, np.ndarray) for a in args) else carrier(t).type(out[()])

    return evaluate


def _integer_call(name: str, f: Function, t: DType) -> Callable[..., Value]:
    exact = {"min": "min", "max": "max"}.get(name)
    if exact is not None:
        scalar, lanes = scalar_binary(exact, t), lane_binary(exact, t)
        return lambda a, b: lanes(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else scalar(a, b)

    def evaluate(*args: Any) -> Value:
        y = f(*args) if name.startswith("align") else f(*(np.asarray(a, np.float64) for a in args))
        if any(isinstance(a, np.ndarray) for a in args):
            return store(np.asarray(y, np.float64), dtypes.f64, t)
        return int(store(np.asarray([y], np.float64), dtypes.f64, t)[0])

    return evaluate
