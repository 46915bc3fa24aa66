"""Numerical semantics of one matrix-multiply instruction: D = A x B + C on matrices of values, rounded to the type
of D."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic.convert import Array, carrier, rounded
from tilemma.dtypes import DType

Function = Callable[[Array, Array, Array], Array]


def product_and_sum(a: Array, b: Array, c: Array) -> Array:
    """A [M, K] times B [N, K] transposed, plus C [M, N]."""
    total: Array = a @ b.T + c
    return total


def issue(function: Function | None, a: Array, b: Array, c: Array, t: DType) -> Array:
    """D [M, N], values of ``t``, from values of A [M, K], B [N, K] and C [M, N].

    ``function`` (None: `product_and_sum`) gets floats as float64 and integers as int64.  Its result is rounded
    once, to nearest even; integers wrap.
    """
    wide = [np.ascontiguousarray(x, np.float64 if x.dtype.kind == "f" else np.int64) for x in (a, b, c)]
    if t.is_float:
        wide[2] = wide[2].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        result = (function or product_and_sum)(*wide)
    if t.is_float:
        return rounded(np.asarray(result, np.float64), dtypes.f64, t)
    return np.asarray(result).astype(np.int64).astype(carrier(t))


def tiled(
    function: Function | None, shape: tuple[int, int, int], a: Array, b: Array, c: Array, t: DType,
    order: tuple[int, ...] = (),
) -> Array:  # fmt: skip
    """D [M, N] of whole tiles of ``shape`` (M, N, K), one issue for each; K tiles in ``order``, or as they lie."""
    m, n, k = shape
    found = c.copy()
    steps = [at * k for at in order] or range(0, a.shape[1], k)
    for i in range(0, a.shape[0], m):
        for j in range(0, b.shape[0], n):
            part = found[i : i + m, j : j + n]
            for at in steps:
                part = issue(function, a[i : i + m, at : at + k], b[j : j + n, at : at + k], part, t)
            found[i : i + m, j : j + n] = part
    return found
