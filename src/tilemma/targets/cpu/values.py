"""Numbers as the language defines them: conversion, rounding, wrap-around.

Values are held in a *carrier*: float32 for every float of 32 bits or fewer (always on the type's own grid),
float64 for f64, Python integers (NumPy arrays of the type itself for many lanes at once), bool.
Arithmetic on a float narrower than 32 bits is done in float32 and rounded once, which is exact rounding for
+, -, *, / and sqrt since 24 >= 2 p + 2 for p = 11 (f16) and 8 (bf16).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilemma import dtypes
from tilemma.dtypes import DType

Array = NDArray[Any]
Value = Any  # int, bool, np.float32, np.float64, or an array of them over lanes


@cache
def carrier(t: DType) -> np.dtype[Any]:
    """The NumPy type that values of ``t`` are computed in."""
    if t.is_float:
        return np.dtype(np.float64) if t.bits == 64 else np.dtype(np.float32)
    if t.kind in ("bool", "bits"):
        return np.dtype(np.bool_)
    return np.dtype(np.int8 if t.name == "s4" else np.uint8 if t.name == "u4" else t.numpy)


@cache
def integer_range(t: DType) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    if t.kind == "int":
        return -(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1
    if t.kind == "uint":
        return 0, (1 << t.bits) - 1
    return 0, 1


@cache
def largest_finite(t: DType) -> float:
    limits: Any = ml_dtypes.finfo
    return float(limits(t.numpy).max)


def wrap(x: int, t: DType) -> int:
    """``x`` modulo 2**bits, as two's complement has it."""
    low, high = integer_range(t)
    if low <= x <= high:
        return x
    x &= (1 << t.bits) - 1
    return x - (1 << t.bits) if x > high else x


def to_tf32(x: Array) -> Array:
    """float32 values rounded to tf32's 10 bits of mantissa, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def read_tf32(x: Array) -> Array:
    """What tensor cores see of a 32-bit register: its upper 19 bits (PTX ISA, alternate formats)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def load(x: Array, t: DType) -> Array:
    """Stored elements as values (a new array unless the type is its own carrier)."""
    return x.astype(carrier(t), copy=False)


def store(x: Array, source: DType, target: DType) -> Array:
    """Values of type ``source`` as elements of ``target``.

    To nearest even; f16 and bf16 overflow to infinity; fp8 and integers saturate, NaN becomes integer 0.
    """
    if target.is_float:
        if target.bits == 8 and (source.is_float or source.bits > 8):
            limit = largest_finite(target)
            x = np.clip(x.astype(np.float64 if source.bits == 64 else np.float32, copy=False), -limit, limit)
        if target.name == "tf32" and source.name != "tf32":
            return to_tf32(x.astype(np.float32, copy=False))
        if source.bits == 64 and source.is_float and target.name in ("bf16", "f8_e4m3", "f8_e5m2"):
            x = to_odd_float32(x)
        return x.astype(target.numpy, copy=False)
    if target.kind in ("bool", "bits"):
        return np.not_equal(x, 0)
    low, high = integer_range(target)
    if source.is_float:
        wide = np.rint(np.nan_to_num(x.astype(np.float64, copy=False), nan=0.0, posinf=np.inf, neginf=-np.inf))
        inside = np.clip(wide, float(low), float(high))
        # float(2**63 - 1) is 2**63: convert what fits, then put the exact limit in place.
        exact = np.where(inside >= float(high), 0.0, inside).astype(carrier(target))
        return np.where(inside >= float(high), np.array(high, carrier(target)), exact).astype(target.numpy)
    s_low, s_high = integer_range(source)
    if low <= s_low and s_high <= high:
        return x.astype(target.numpy, copy=False)
    fitting_low, fitting_high = max(low, s_low), min(high, s_high)
    return np.clip(x, fitting_low, fitting_high).astype(carrier(target)).astype(target.numpy, copy=False)


def to_odd_float32(x: Array) -> Array:
    """float64 as float32, rounded to odd, so that a second rounding to fewer bits is right."""
    near = x.astype(np.float32)
    toward = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    inexact = np.isfinite(x) & (toward.astype(np.float64) != x)
    odd = toward.view(np.uint32) | np.uint32(1)
    result: Array = np.where(inexact, odd.view(np.float32), toward)
    return result


def rounded(x: Array, source: DType, target: DType) -> Array:
    """Values of ``source`` converted to values of ``target``, as a store and a load would."""
    return x if source == target else load(store(x, source, target), target)


def from_element(x: Any, t: DType) -> Value:
    """One stored element as a scalar value."""
    if t.is_float:
        return np.float64(x) if t.bits == 64 else np.float32(x)
    return bool(x) if t.kind in ("bool", "bits") else int(x)


def converted(x: Value, source: DType, target: DType) -> Value:
    """A scalar or lane array converted as stores convert."""
    if source == target:
        return x
    if isinstance(x, np.ndarray):
        return rounded(x, source, target)
    low, high = integer_range(target) if target.is_integer else (0, 0)
    if source.is_integer and target.is_integer:
        return min(max(x, low), high)
    boxed = store(np.asarray(x, carrier(source)).reshape(1), source, target)
    return from_element(boxed[0], target)


def promoted(x: Value, source: DType, target: DType) -> Value:
    """An operand converted to the type of an operation: as C does it, integers wrap."""
    if source == target:
        return x
    if isinstance(x, np.ndarray):
        return x.astype(carrier(target)) if not target.is_float else rounded(x, source, target)
    if target.is_integer:
        return wrap(int(x), target)
    return converted(x, source, target)


def scalar_value(x: Any, t: DType) -> Value:
    """A host number as a value of type ``t``; integers out of range are for the caller to refuse."""
    if t.is_float:
        source = dtypes.f64
        return converted(np.float64(x), source, t)
    return bool(x) if t.kind == "bool" else int(x)
