"""The approximate functions: ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh and the divisions.

Sources: PTX ISA, "Floating Point Instructions" and "Half Precision Floating Point Instructions", each
instruction's table of special values and its stated error.

The ISA bounds the error of these instructions and leaves the bits open.  Here each is the correctly rounded
value, so that a program differs from its result on a GPU by at most ``MAX_ERROR``; a program whose verdict
depends on more than that is wrong anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from .numerics import convert, flush

Array = npt.NDArray[Any]

# (operation, type): the ISA's bound, "relative" to the exact value, "absolute", or in "ulp", units in the
# last place of the result.
MAX_ERROR: dict[tuple[str, str], tuple[str, float]] = {
    ("rcp", "f32"): ("ulp", 1),
    ("div", "f32"): ("ulp", 2),
    ("sqrt", "f32"): ("relative", 2.0**-23),
    ("rsqrt", "f32"): ("relative", 2.0**-22.9),
    # From -2 pi to 2 pi; 2**-14.7 up to 100 pi; no bound beyond.
    ("sin", "f32"): ("absolute", 2.0**-20.5),
    ("cos", "f32"): ("absolute", 2.0**-20.5),
    # Where the argument lies in (0.5, 2); relative elsewhere.
    ("lg2", "f32"): ("absolute", 2.0**-22),
    ("ex2", "f32"): ("ulp", 2),
    ("tanh", "f32"): ("relative", 2.0**-11),
    ("ex2", "f16"): ("relative", 2.0**-9.9),
    ("ex2", "bf16"): ("relative", 2.0**-7),
    ("tanh", "f16"): ("absolute", 2.0**-10.987),
    ("tanh", "bf16"): ("relative", 2.0**-8),
}

_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def special(op: str, x: Array, name: str = "f32", *, ftz: bool = False) -> Array:
    """``op.approx{.ftz}.name``; ``op`` is rcp, sqrt, rsqrt, sin, cos, lg2, ex2 or tanh.

    ``ftz`` flushes subnormal arguments and results to zeros of their sign.  NaN results are canonical.
    """
    t = dtype(name)
    if ftz:
        x = flush(x, t.name)
    with np.errstate(all="ignore"):
        y = _FUNCTIONS[op](x.astype(np.float64))
    out = convert(y, "f64", t.name, "rn")
    return flush(out, t.name) if ftz else out


def divide(a: Array, b: Array, *, full: bool = False, ftz: bool = False) -> Array:
    """``div.approx{.ftz}.f32``, or ``div.full{.ftz}.f32``, which has no range where it fails.

    ``div.approx`` is stated for 2**-126 <= |b| <= 2**126.  Beyond that it gives a zero of the quotient's
    sign, or NaN where ``a`` is infinite (PTX ISA, div).
    """
    if ftz:
        a, b = flush(a), flush(b)
    with np.errstate(all="ignore"):
        y = a.astype(np.float64) / b.astype(np.float64)
        if not full:
            huge = np.isfinite(b) & (np.abs(b) > 2.0**126)
            y = np.where(huge, np.where(np.isinf(a), np.nan, np.copysign(0.0, y)), y)
    out = convert(y, "f64", "f32", "rn")
    return flush(out) if ftz else out
