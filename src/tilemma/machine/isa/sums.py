"""Sums of floating-point products, as the tensor cores of an H200 compute them.

The ISA leaves the order and the intermediate rounding of the sum open.  `bench/proof_sums.py` compares these rules
with the hardware, bit for bit (docs/machine.md).  An instruction adds its products in steps along K:

    D = step(products of the last ``terms`` columns, ... step(products of the first ``terms`` columns, C))

One step takes exact products and the accumulator.  The largest exponent is the accumulator's, or the sum of the
exponents of two factors, each factor with a significand of 1 up to 2.  All addends are cut, toward zero, to
multiples of 2^(largest exponent - ``fraction``).  Their sum is exact.  It is rounded to the accumulator's type:
for f32 toward zero to ``kept`` bits after the point, for f16 to nearest even.  A zero is positive.

An mma.sync of 8-bit floats is a sequence on this GPU: its operands become f16, the sum starts at zero, with the
columns k of which k % 4 < 2 first, and is added to C rounded to nearest.  Products of f64 are a chain of fused
multiply-adds along K.  m8n8k4 of f16 is made of multiply-adds of the CUDA cores (`quad_pairs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from ..native import library
from . import numerics, sparse

Array = npt.NDArray[Any]
Kind = Literal["mma", "wgmma"]
# Below every exponent of a product: that of an addend which is zero.
_NONE = -500
# Products held at a time where the sum is made of arrays: the caches' size.
_AT_ONCE = 1 << 15


@dataclass(frozen=True, slots=True)
class Rule:
    """``terms``: products of one step; ``fraction``: bits kept below the largest exponent; ``kept``: bits of the
    sum after the point, or None for one that is rounded to f16; ``apart``: C is added at the end."""

    terms: int
    fraction: int
    kept: int | None = 23
    apart: bool = False


def rule(kind: Kind, a_type: str, d_type: str, depth: int) -> Rule | None:
    """The rule for operands of ``a_type`` and ``depth`` stored columns of A; None for f64 and integers."""
    a, d = dtype(a_type), dtype(d_type)
    if d.name not in ("f32", "f16") or not a.is_float or a.bits == 64:
        return None
    kept = 23 if d.name == "f32" else None
    if a.bits == 8:
        if kind == "mma":
            return Rule(depth // 2, 25, kept, apart=True)
        return Rule(32, 13, None if kept is None else 13)
    return Rule(8 if a.name == "tf32" else 16, 25, kept)


def multiply(
    kind: Kind,
    a: Array,
    b: Array,
    c: Array,
    a_type: str,
    b_type: str,
    d_type: str,
    columns: Array | None = None,
    **options: Any,
) -> Array:
    """``a`` [..., m, k] by ``b`` [..., K, n] onto ``c`` [..., m, n], as ``d_type``.

    ``columns`` [m, k]: the column of K of each stored element of a sparse A.  ``options`` as in
    `numerics.product`.
    """
    found = rule(kind, a_type, d_type, a.shape[-1])
    if found is not None:
        return product(a, b, c, a_type, b_type, d_type, found, columns)
    if columns is not None:
        return sparse.sparse_mma(a, columns, b, c, a_type, b_type, d_type, **options)
    return numerics.product(a, b, c, a_type, b_type, d_type, **options)


def product(
    a: Array, b: Array, c: Array, a_type: str, b_type: str, d_type: str, r: Rule, columns: Array | None = None
) -> Array:
    """As `multiply`, by one rule."""
    with np.errstate(all="ignore"):
        x, y, held = (v.astype(np.float64) for v in (a, b, c))
        if _compiled(x, y, held, a_type, b_type, d_type, r, columns):
            return _typed(held, d_type)
        if columns is None and _is_exact(x, y, held, r):
            return _typed(x @ y + held, d_type)
        # The axis of the products comes first: [terms, ..., m, n].
        exponents = _exponents(x, a_type), _exponents(y, b_type)
        left = [np.ascontiguousarray(np.moveaxis(v, -1, 0))[..., None] for v in (x, exponents[0])]
        if columns is None:
            right = [np.ascontiguousarray(np.moveaxis(v, -2, 0))[..., None, :] for v in (y, exponents[1])]
        else:
            # Row i of A meets the rows of B that its metadata names.
            right = [np.moveaxis(v[..., columns.T, :], -3, 0) for v in (y, exponents[1])]
        depth = x.shape[-1]
        order = np.arange(depth)
        if r.apart:
            order = np.concatenate([order[order % 4 < 2], order[order % 4 >= 2]])
            left, right = ([v[order] for v in part] for part in (left, right))
        total = np.zeros_like(held) if r.apart else held
        for first in range(0, depth, r.terms):
            part = slice(first, first + r.terms)
            total = _step([v[part] for v in left], [v[part] for v in right], total, d_type, r)
        if r.apart:
            total = _rounded(total + held, d_type, None)
        return _typed(total, d_type)


def quad_pairs(a: Array, b: Array, c: Array, d_type: str) -> Array:
    """The products of m8n8k4 of f16, [..., m, 4] by [..., 4, n] onto ``c``, as computed from sm_80 on.

    All steps are operations of f32 that round to nearest.  Onto f32: a chain of fused multiply-adds from zero
    along K, and C is added to it.  Onto f16: the first two products are added to C, then the last two, and the sum
    is rounded to f16.
    """
    with np.errstate(all="ignore"):
        x, y, held = (v.astype(np.float32) for v in (a, b, c))

        def chained(columns: range, total: Array) -> Array:
            for k in columns:
                total = numerics.arith(
                    "fma", "f32", *np.broadcast_arrays(x[..., k, None], y[..., None, k, :], total)
                )
            return total

        if dtype(d_type).name == "f32":
            zero = np.zeros_like(held)
            return numerics.arith("add", "f32", held, chained(range(4), zero))
        # -0 is the addend that changes no product.
        nothing = np.full_like(held, -0.0)
        for first in (0, 2):
            held = numerics.arith("add", "f32", held, chained(range(first, first + 2), nothing))
        return _typed(held, d_type)


# Columns of B, and stored columns of A, that ``sums.c`` has room for.
_MOST_N, _MOST_DEPTH = 256, 1024


def _compiled(
    x: Array, y: Array, held: Array, a_type: str, b_type: str, d_type: str, r: Rule, columns: Array | None
) -> bool:
    """Whether the compiled library has put the result into ``held``, as `product` computes it otherwise."""
    native = library.loaded()
    (m, depth), (height, n), batch = x.shape[-2:], y.shape[-2:], held.shape[:-2]
    if native is None or n > _MOST_N or n % 8 or depth > _MOST_DEPTH:
        return False
    if not held.flags.c_contiguous or not held.size:
        return False
    x, y = (
        np.ascontiguousarray(v if v.shape[:-2] == batch else np.broadcast_to(v, (*batch, *v.shape[-2:])))
        for v in (x, y)
    )
    rows = 0
    if columns is not None:
        columns = np.ascontiguousarray(np.broadcast_to(columns, x.shape), np.int64)
        rows = columns.ctypes.data
    shape, order, largest = _shape(
        held.size // (m * n), m, n, depth, height, r, *(dtype(t).name for t in (a_type, b_type, d_type))
    )
    scratch = np.empty(depth + height * n, np.int32)
    native.sum_products(
        shape.ctypes.data, x.ctypes.data, y.ctypes.data, held.ctypes.data, rows, order.ctypes.data,
        scratch.ctypes.data, largest,
    )  # fmt: skip
    return True


@cache
def _shape(
    batch: int, m: int, n: int, depth: int, height: int, r: Rule, a: str, b: str, d: str
) -> tuple[Array, Array, float]:
    """The ``Product`` of ``sums.c``, the order of the columns, and the largest number of D."""
    kept = -1 if r.kept is None else r.kept
    lowest = [dtype(t).floating.lowest for t in (a, b, d)]
    shape = [batch, m, n, depth, height, r.terms, r.fraction, kept, r.apart, d == "f16", *lowest]
    order = np.arange(depth, dtype=np.int32)
    if r.apart:
        order = np.concatenate([order[order % 4 < 2], order[order % 4 >= 2]])
    return np.array(shape, np.int64), order, dtype(d).floating.largest


def _typed(x: Array, d_type: str) -> Array:
    return numerics._canonical(x.astype(dtype(d_type).numpy), dtype(d_type).name)


def _exponents(x: Array, name: str) -> Array:
    """The exponents of values for significands of 1 up to 2; those of subnormal numbers, the lowest exponent."""
    bits = np.ascontiguousarray(x).view(np.int64) >> 52 & 0x7FF
    found: Array = np.maximum(bits - 1023, dtype(name).floating.lowest).astype(np.int16)
    found[bits == 0] = _NONE
    return found


def _is_exact(x: Array, y: Array, held: Array, r: Rule) -> bool:
    """Whether all values are integers, and too small for any sum to lose a bit."""
    limit = 2.0 ** min(r.fraction, 10 if r.kept is None else r.kept)
    largest = [float(np.abs(v).max(initial=0)) for v in (x, y, held)]
    if not largest[0] * largest[1] * x.shape[-1] + largest[2] < limit:
        return False
    return all(bool((np.rint(v) == v).all()) for v in (x, y, held)) and not (r.apart and bool(held.any()))


def _step(left: list[Array], right: list[Array], total: Array, d_type: str, r: Rule) -> Array:
    """The sum of the products of one step and ``total``, rounded.  Factors and exponents: [terms, ..., m, n]."""
    (x, at_x), (y, at_y) = left, right
    small = total.size * len(x) <= _AT_ONCE
    largest = _exponents(total, d_type)
    if small:
        largest = np.maximum(largest, (at_x + at_y).max(0))
    else:
        sums = np.empty_like(largest)
        for k in range(len(x)):
            np.maximum(largest, np.add(at_x[k], at_y[k], out=sums), out=largest)
    largest = np.maximum(largest, _NONE).astype(np.int32)
    scale = _power(r.fraction - largest)
    found = np.trunc(total * scale)
    if small:
        found += np.trunc(x * y * scale).sum(0)
    else:
        addend = np.empty_like(found)
        for k in range(len(x)):
            np.multiply(x[k], y[k], out=addend)
            np.multiply(addend, scale, out=addend)
            found += np.trunc(addend, out=addend)
    rounded = _rounded(found * _power(largest - r.fraction), d_type, r.kept)
    if np.isfinite(found).all():
        return rounded
    # Infinities and NaN follow IEEE 754.
    special = total + (x * y).sum(0)
    return np.where(np.isfinite(special), rounded, special)


def _power(exponent: Array) -> Array:
    """2 ** ``exponent``, of normal numbers of f64."""
    found: Array = ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
    return found


def _rounded(x: Array, d_type: str, kept: int | None) -> Array:
    """``x`` rounded to the accumulator's type, as float64: toward zero to ``kept`` bits, or to nearest."""
    f = dtype(d_type).floating
    if kept is None:
        nearest: Array = x.astype(dtype(d_type).numpy).astype(np.float64) + 0.0
        return nearest
    unit = np.maximum((x.view(np.int64) >> 52 & 0x7FF) - 1023, f.lowest) - kept
    found: Array = np.trunc(x * _power(-unit)) * _power(unit) + 0.0
    over = np.abs(found) > f.largest
    return np.where(over, np.copysign(np.inf, found), found) if over.any() else found
