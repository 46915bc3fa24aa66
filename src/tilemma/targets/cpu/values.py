"""Conversion of numbers between element types: rounding, wrap-around.

Values are held in a *carrier*: float32 for every float of 32 bits or fewer (always on the type's own grid),
float64 for f64, Python integers (NumPy arrays of the type itself for many lanes at once), bool.
Arithmetic on a float narrower than 32 bits is done in float32 and rounded once, which is exact rounding for
+, -, *, / and sqrt since 24 >= 2 p + 2 for p = 11 (f16) and 8 (bf16).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic.convert import Array, carrier, rounded, store
from tilemma.arithmetic.integers import saturate, wrap
from tilemma.dtypes import DType

Value = Any  # int, bool, np.float32, np.float64, or an array of them over lanes


def read_tf32(x: Array) -> Array:
    """A 32-bit register as tensor cores read it: its upper 19 bits (PTX ISA, alternate formats)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


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
    if source.is_integer and target.is_integer:
        return saturate(x, target)
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
