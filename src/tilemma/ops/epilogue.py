"""The epilogue of `matmul` in the Python language: scale, addend, bias, activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilemma as tm


@dataclass(frozen=True, slots=True)
class Addends:
    """The values that the epilogue reads besides the accumulator: parameters of the kernel that calls it."""

    alpha: Any
    beta: Any
    c: Any
    bias: Any


def finish(
    acc: Any,
    batch: Any,
    row: Any,
    column: Any,
    use: Addends,
    scale: bool,
    addend: bool,
    bias: str,
    activation: str,
    near: Any = None,
) -> None:
    """acc = activation(alpha * acc + beta * c + bias), where ``acc`` lies at (row, column) of ``batch``.

    ``near``: the bias of acc's columns in shared memory.  Beyond the edges c and bias read as zero, and what comes
    of it is never stored.
    """
    if not (scale or addend or bias or activation):
        return
    for i, j in tm.apply(acc):
        add = None if near is None else near[j]
        acc[i, j] = combine(acc[i, j], batch, row + i, column + j, use, scale, addend, bias, activation, add)


def combine(
    x: Any,
    batch: Any,
    row: Any,
    column: Any,
    use: Addends,
    scale: bool,
    addend: bool,
    bias: str,
    activation: str,
    add: Any = None,
) -> Any:
    """activation(alpha * x + beta * c + bias) for the element ``x`` at (row, column) of ``batch``.

    ``add``: the bias, if it has already been read.
    """
    if scale:
        x = x * use.alpha
    if addend:
        x = x + use.beta * use.c[batch, row, column].astype("f32")
    if bias:
        add = use.bias[column if bias == "columns" else row] if add is None else add
        x = x + add.astype("f32")
    return activate(x, activation)


# log2 of the probability that a normal variable exceeds z >= 0, fitted so that the probability is off by less than
# 2^-21 (the error bound's share is 2^-19).  It keeps decreasing where the probability is negligible.
_TAIL = (-1.0000008345, -1.1510831118, -0.45927667618, -0.052538018674, 0.0073872017674, -5.1885872381e-4)


def _gelu(x: Any) -> Any:
    """x / 2 + |x| * (1 / 2 - the probability that a normal variable exceeds |x|)."""
    size = tm.math.fabs(x)
    power = _TAIL[-1]
    for coefficient in reversed(_TAIL[:-1]):
        power = tm.math.fma(power, size, coefficient)
    return tm.math.fma(size, 0.5 - tm.math.exp2_ftz(power), 0.5 * x)


def activate(x: Any, activation: str) -> Any:
    """``activation`` of a scalar; NaN stays NaN."""
    if activation:
        # An expression is computed wherever it is used: once is enough.
        x = tm.var(x)
    if activation == "relu":
        return tm.select(x < 0.0, 0.0, x)
    if activation == "gelu":
        return _gelu(x)
    if activation == "silu":
        return x * tm.math.sigmoid(x)
    return x
