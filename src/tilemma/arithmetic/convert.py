"""Conversions between element types, each with a single rounding.

To floats: to nearest, ties to even; f16, bf16, tf32, f32 and f64 become infinite beyond their range, 8-bit
floats stop at their largest number.  To integers: a float is rounded to the nearest integer, ties to even, an
integer keeps its value, and either stops at the ends of the type; NaN becomes 0.  To bool: whether it is not 0.

Arrays hold values in the *carrier* of their type: float64 for f64, float32 for every other float, the type's own
NumPy integers, bool.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma import dtypes
from tilemma.arithmetic.integers import bounds, saturate
from tilemma.arithmetic.lanes import numpy_type
from tilemma.dtypes import DType

Array = NDArray[Any]


@cache
def carrier(t: DType) -> np.dtype[Any]:
    """The NumPy type that values of ``t`` are computed in."""
    if t.is_float:
        return np.dtype(np.float64) if t.bits == 64 else np.dtype(np.float32)
    return numpy_type(t)


def store(x: Array, source: DType, target: DType) -> Array:
    """Values of type ``source`` as elements of ``target``, in its NumPy type."""
    if target.kind in ("bool", "bits"):
        return np.not_equal(x, 0)
    with np.errstate(over="ignore", invalid="ignore"):
        if target.is_float:
            return _to_float(x, source, target)
        return _float_to_integer(x, target) if source.is_float else _integer_to_integer(x, source, target)


def load(x: Array, t: DType) -> Array:
    """Stored elements as values (a new array unless the type is its own carrier)."""
    return x.astype(carrier(t), copy=False)


def rounded(x: Array, source: DType, target: DType) -> Array:
    """Values of ``source`` converted to values of ``target``, as a store and a load would."""
    return x if source == target else load(store(x, source, target), target)


def constant(value: int | float | bool, target: DType) -> int | float | bool:
    """An integer constant of any size as ``target``."""
    if target.kind in ("bool", "bits"):
        return value != 0
    if isinstance(value, float):
        out = rounded(np.array([value]), dtypes.f64, target)[0]
        return float(out) if target.is_float else int(out)
    if not target.is_float:
        return saturate(int(value), target)
    if target.bits == 64:
        return _as_double(int(value))
    return float(rounded(np.array([_as_odd_double(int(value))]), dtypes.f64, target)[0])


def real(value: int | float, target: DType) -> float:
    """A number as the value of a constant of the float type ``target``.

    The value may have more bits than the type: the constant is rounded where it is used, and only there.
    """
    bounded = min(max(value, -(1 << 1023)), 1 << 1023) if isinstance(value, int) else value
    exact = float(bounded)
    return exact if isinstance(value, float) or exact == value else float(constant(value, target))


def _as_double(n: int) -> float:
    try:
        return float(n)
    except OverflowError:
        return float("inf") if n > 0 else -float("inf")


def _as_odd_double(n: int) -> float:
    """``n`` rounded to odd: its upper 53 bits, the last one set where others are lost."""
    size = abs(n)
    lost = max(0, size.bit_length() - 53)
    kept = size >> lost
    if kept << lost != size:
        kept |= 1
    return _as_double((kept << lost) * (1 if n >= 0 else -1))


def _to_float(x: Array, source: DType, target: DType) -> Array:
    if source == target or (source.is_float and source.bits <= 32 and target.name in ("f32", "f64")):
        return x.astype(target.numpy, copy=False)
    if not source.is_float:
        if target.name in ("f32", "f64"):
            return x.astype(target.numpy)
        x = _integers_as_doubles(x, source)
    if target.floating.saturates:
        limit = target.floating.largest
        x = np.clip(x, -limit, limit)
        x = x if target.floating.nan else np.where(np.isnan(x), x.dtype.type(limit), x)
    if target.name in ("f32", "f16"):  # NumPy rounds doubles to these itself, once
        return x.astype(target.numpy, copy=False)
    single = to_odd_float32(x) if x.dtype == np.float64 else x.astype(np.float32, copy=False)
    return to_tf32(single) if target.name == "tf32" else single.astype(target.numpy)


def _integers_as_doubles(x: Array, source: DType) -> Array:
    """Integers (bools too) as float64, exactly, or rounded to odd: good for one rounding to 40 bits or fewer."""
    if source.bits < 64:
        return x.astype(np.float64)
    negative = x < 0
    size = np.where(negative, -x, x).astype(np.uint64)
    low = size & np.uint64(0x7FF)
    odd = (size & ~np.uint64(0x7FF)) | np.where(low != 0, np.uint64(0x800), np.uint64(0))
    doubles = np.where(size >= np.uint64(1 << 53), odd, size).astype(np.float64)
    return np.where(negative, -doubles, doubles)


def to_odd_float32(x: Array) -> Array:
    """float64 as float32, rounded to odd, so that a second rounding to fewer bits is right."""
    near = x.astype(np.float32)
    toward = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    inexact = np.isfinite(x) & (toward.astype(np.float64) != x)
    odd = toward.view(np.uint32) | np.uint32(1)
    result: Array = np.where(inexact, odd.view(np.float32), toward)
    return result


def to_tf32(x: Array) -> Array:
    """float32 values rounded to tf32's 10 bits of mantissa, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), up.view(np.float32), x)


def _float_to_integer(x: Array, target: DType) -> Array:
    low, high = bounds(target)
    wide = np.rint(np.nan_to_num(x.astype(np.float64, copy=False), nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = np.clip(wide, float(low), float(high))
    # float(2**63 - 1) is 2**63: convert what fits, then put the exact limit in place.
    over = inside >= float(high)
    exact = np.where(over, 0.0, inside).astype(carrier(target))
    return np.where(over, np.array(high, carrier(target)), exact).astype(target.numpy)


def _integer_to_integer(x: Array, source: DType, target: DType) -> Array:
    (low, high), (least, greatest) = bounds(target), bounds(source)
    if low <= least and greatest <= high:
        return x.astype(target.numpy, copy=False)
    return (
        np.clip(x, max(low, least), min(high, greatest)).astype(carrier(target)).astype(target.numpy, copy=False)
    )
