"""The operations of `tilemma.arithmetic.integers` on NumPy arrays, one element for each lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilemma.arithmetic.integers import COMPARISONS
from tilemma.dtypes import DType

Lanes = Any  # an array, or a scalar that all lanes share
_COMPARE: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "land": np.logical_and, "lor": np.logical_or,
}  # fmt: skip
assert _COMPARE.keys() == COMPARISONS.keys()


@cache
def numpy_type(t: DType) -> np.dtype[Any]:
    """The NumPy type that values of ``t``, no float, are computed in."""
    if t.kind in ("bool", "bits"):
        return np.dtype(np.bool_)
    return np.dtype(np.int8 if t.name == "s4" else np.uint8 if t.name == "u4" else t.numpy)


def _quotient(a: Lanes, b: Lanes, moved: Callable[[Lanes, Lanes, Lanes], Lanes] | None) -> Lanes:
    """The quotient rounded down, plus 1 where ``moved`` holds of (remainder, dividend, divisor); 0 over 0."""
    zero = b == 0
    by = np.where(zero, b.dtype.type(1), b)
    q, r = np.floor_divide(a, by), np.remainder(a, by)
    if moved is not None:
        q = q + moved(r, a, by).astype(q.dtype)
    return np.where(zero, q.dtype.type(0), q)


def _div(a: Lanes, b: Lanes) -> Lanes:
    return _quotient(a, b, lambda r, a, b: (r != 0) & ((a < 0) != (b < 0)))


def _shift(op: str, a: Lanes, b: Lanes, bits: int) -> Lanes:
    inside = (b >= 0) & (b < bits)
    count = np.where(inside, b, b.dtype.type(0))
    if op == "shl":
        return np.where(inside, np.left_shift(a, count), a.dtype.type(0))
    # The last bit that a right shift can reach is the sign (of an unsigned value: the result is 0).
    beyond = np.right_shift(a, a.dtype.type(bits - 1)) if a.dtype.kind == "i" else a.dtype.type(0)
    return np.where(inside, np.right_shift(a, count), beyond)


def _integer(op: str, a: Lanes, b: Lanes, bits: int) -> Lanes:
    match op:
        case "add" | "sub" | "mul":
            return {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op](a, b)
        case "min" | "max":
            return np.minimum(a, b) if op == "min" else np.maximum(a, b)
        case "and" | "or" | "xor":
            return {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op](a, b)
        case "floordiv":
            return _quotient(a, b, None)
        case "cdiv":
            return _quotient(a, b, lambda r, a, b: r != 0)
        case "div":
            return _div(a, b)
        case "mod":
            return np.where(b == 0, b, a - b * _div(a, b))
        case "floormod":
            return np.where(b == 0, b, np.remainder(a, np.where(b == 0, b.dtype.type(1), b)))
        case "shl" | "shr":
            return _shift(op, a, b, bits)
    raise AssertionError(op)


@cache
def binary(op: str, t: DType) -> Callable[[Lanes, Lanes], Any]:
    """``a op b`` for values of ``t``, no float, one of them at least an array; both are already promoted."""
    if op in _COMPARE:
        return _COMPARE[op]  # type: ignore[no-any-return]
    kind = numpy_type(t)
    if kind == np.bool_:
        return lambda a, b: _integer(op, np.asarray(a, np.int8), np.asarray(b, np.int8), 1) != 0

    def evaluate(a: Lanes, b: Lanes) -> Any:
        with np.errstate(over="ignore", divide="ignore"):
            found = _integer(op, np.asarray(a, kind), np.asarray(b, kind), t.bits)
        return np.asarray(found).astype(kind, copy=False)

    return evaluate
