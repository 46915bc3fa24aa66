"""Overlap of strided arrays: whether two share memory, decided exactly from addresses and strides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import ArrayRef

# NumPy's solver gives up after this many steps; two-dimensional views need far fewer.
_WORK: Any = 100_000


def overlaps_itself(ref: ArrayRef) -> bool:
    """Whether two elements of ``ref`` have one address; for more than two real dimensions True if unproven.

    Two dimensions (m, s) and (n, t): i*s = j*t first at i = t/g, j = s/g with g = gcd(s, t), so elements
    collide exactly if t/g < m and s/g < n.
    """
    if ref.is_empty:
        return False
    dims = sorted((abs(s), n) for n, s in zip(ref.shape, ref.strides, strict=True) if n > 1)
    if any(stride == 0 for stride, _ in dims):
        return True
    reach = 0
    for stride, extent in dims:
        if stride <= reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    if len(dims) == 2:
        (s, m), (t, n) = dims
        g = math.gcd(s, t)
        return t // g < m and s // g < n
    return True


class _Addresses:
    """An array object for NumPy's overlap solver, which never reads its elements."""

    def __init__(self, ref: ArrayRef) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (ref.pointer, True),
            "shape": ref.shape,
            "strides": tuple(s * ref.itemsize for s in ref.strides),
            "typestr": f"|V{ref.itemsize}",
            "version": 3,
        }


def overlap(a: ArrayRef, b: ArrayRef) -> bool:
    """Whether an element of ``a`` and one of ``b`` share a byte on the same device."""
    if a.device != b.device:
        return False
    (a_low, a_high), (b_low, b_high) = a.span(), b.span()
    if a_low == a_high or b_low == b_high or a_high <= b_low or b_high <= a_low:
        return False
    try:
        return bool(np.shares_memory(np.asarray(_Addresses(a)), np.asarray(_Addresses(b)), _WORK))
    except np.exceptions.TooHardError:
        return True
