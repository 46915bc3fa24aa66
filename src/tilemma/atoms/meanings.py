"""Semantics of instructions other than ``A x B + C``, as functions of A [M, K], B [N, K] and C [M, N]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]


def saturating(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """``.satfinite``: the exact sum, limited to the range of s32."""
    total = a.astype(np.int64) @ b.astype(np.int64).T + c.astype(np.int64)
    limited: Matrix = np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)
    return limited


def differences(a: Matrix, b: Matrix, c: Matrix) -> Matrix:
    """``.xor.popc``: in how many places along K a row of A differs from a row of B, added to C."""
    x, y = a.astype(np.int64), b.astype(np.int64)
    total: Matrix = x @ (1 - y).T + (1 - x) @ y.T + c
    return total.astype(np.int32)
