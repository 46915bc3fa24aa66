"""Numbers at the edges of each element type, and rounding by its definition, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from tilemma import dtypes
from tilemma.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

# Bits of precision, least exponent of a normal number, largest number (IEEE 754; OCP floats of 8, 6 and 4 bits).
FORMATS: dict[str, tuple[int, int, Fraction]] = {
    "f64": (53, -1022, Fraction(2) ** 1024 - Fraction(2) ** 971),
    "f32": (24, -126, Fraction(2) ** 128 - Fraction(2) ** 104),
    "tf32": (11, -126, Fraction(2) ** 128 - Fraction(2) ** 117),
    "f16": (11, -14, Fraction(65504)),
    "bf16": (8, -126, Fraction(2) ** 128 - Fraction(2) ** 120),
    "f8_e4m3": (4, -6, Fraction(448)),
    "f8_e5m2": (3, -14, Fraction(57344)),
    "f6_e2m3": (4, 0, Fraction(15, 2)),
    "f6_e3m2": (3, -2, Fraction(28)),
    "f4_e2m1": (2, 0, Fraction(6)),
}
FLOATS = [t for t in dtypes.BY_NAME.values() if t.is_float]
INTEGERS = [t for t in dtypes.BY_NAME.values() if t.is_integer and t.bits >= 8]


def limits(t: DType) -> tuple[int, int]:
    return (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.kind == "int" else (0, (1 << t.bits) - 1)


def whole(x: Fraction) -> int:
    """The nearest integer, the even one of two."""
    below = x.numerator // x.denominator
    part = x - below
    return below + (part > Fraction(1, 2) or (part == Fraction(1, 2) and below % 2 == 1))


def exponent(x: Fraction) -> int:
    """e where 2**e <= |x| < 2**(e + 1)."""
    e = x.numerator.bit_length() - x.denominator.bit_length() if x > 0 else exponent(-x)
    return e if Fraction(2) ** e <= abs(x) else e - 1


def nearest(x: Fraction, t: DType, sign: float = 1.0) -> float:
    """``x`` rounded to the float type ``t``, ties to even; a zero has the sign of ``sign``.

    Floats of a byte stop at their largest number, the others become infinite from half a unit beyond it.
    """
    if not x:
        return float(np.copysign(0.0, sign))
    precision, least, largest = FORMATS[t.name]
    unit = Fraction(2) ** (max(exponent(x), least) - precision + 1)
    y = whole(x / unit) * unit
    negative = x < 0
    if abs(y) > largest:
        end = float(largest) if t.bits == 8 else float("inf")
        return -end if negative else end
    return float(np.copysign(float(abs(y)), -1.0 if negative else 1.0))


def float_edges(t: DType) -> list[float]:
    """Zeros, subnormals, powers of two and their neighbours, halves, the ends of integer types, infinity, NaN."""
    precision, least, largest = FORMATS[t.name]
    tiny = Fraction(2) ** (least - precision + 1)
    unit = Fraction(2) ** (1 - precision)
    found = [Fraction(0), tiny, 2 * tiny, 3 * tiny, Fraction(2) ** least - tiny, Fraction(2) ** least, largest]
    for e in (-60, -24, -14, -2, -1, 0, 1, 2, 3, 6, 10, 15, 23, 24, 31, 32, 52, 53, 62, 63, 64, 100):
        power = Fraction(2) ** e
        found += [power, power * (1 + unit), power * (1 - unit / 2), power * Fraction(3, 2)]
    found += [Fraction(2 * n + 1, 2) for n in range(5)] + [Fraction(n) for n in (3, 5, 7, 10, 127, 129, 255, 257)]
    for other in FORMATS.values():  # halfway between two numbers of another type, and next to it
        for e in (0, 7):
            half = Fraction(2) ** e * (1 + Fraction(2) ** -other[0])
            found += [half, half + unit * 2**e, half - unit * 2**e, half + Fraction(2) ** (e - other[0] + 1)]
        found += [other[2], other[2] * (1 + Fraction(2) ** -(other[0] + 1)), Fraction(2) ** (other[1] - other[0])]
    kept = {nearest(x, t) for x in found}
    numbers = sorted(x for x in kept if x < float("inf"))
    return [*numbers, *(-x for x in numbers), float("inf"), -float("inf"), float("nan")]


def integer_edges(t: DType) -> list[int]:
    """The ends of all types, and what lies halfway between numbers of the floats, next to it too."""
    low, high = limits(t)
    found = {0, 1, 2, 3, 5, 100}
    for other in INTEGERS:
        found.update(limits(other))
    for precision in (3, 4, 8, 11, 24, 53):
        for e in range(precision, t.bits + 1):
            half = (1 << e) + (1 << e - precision)
            found |= {half, half + (1 << e - precision + 1), 1 << e}
    near = {x + d for x in found for d in (-1, 0, 1)}
    return sorted(x for x in near | {-x for x in near} if low <= x <= high)


def edges(t: DType) -> Array:
    """Numbers at the edges, in the NumPy type of ``t``."""
    if t.kind == "bool":
        return np.array([False, True])
    if t.is_float:
        with np.errstate(over="ignore"):
            return np.array(float_edges(t), np.float64).astype(t.numpy)
    return np.array(integer_edges(t), t.numpy)


def drawn(t: DType, seed: int, count: int) -> Array:
    """Random bit patterns of ``t``, and numbers of ordinary size."""
    rng = np.random.default_rng(seed)
    if t.kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    patterns: Array = np.frombuffer(rng.bytes(count * t.bytes), f"u{t.bytes}")
    if t.name == "tf32":
        patterns = patterns & np.uint32(0xFFFFE000)
    if t.is_float and t.bits == 8:
        patterns = patterns & patterns.dtype.type((2 << t.floating.sign) - 1)
    values = patterns.view(t.numpy).copy()
    with np.errstate(all="ignore"):
        values[::2] = (rng.standard_normal(count) * 50).astype(t.numpy)[::2]
        return values if t.name != "tf32" else (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def same(a: Array, b: Array) -> Array:
    """Whether the bits agree; any NaN is as good as another."""
    bits = f"u{a.dtype.itemsize}"
    equal = a.view(bits) == b.view(bits)
    if a.dtype.kind in "iub":
        return equal
    with np.errstate(all="ignore"):
        return equal | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))
