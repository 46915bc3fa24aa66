"""What happens to an accumulator before it is stored, in the language: scale, addend, bias, activation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilemma as tm


@dataclass(frozen=True, slots=True)
class Addends:
    """What the epilogue reads besides the accumulator: parameters of the kernel that calls it."""

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
) -> None:
    """acc = activation(alpha * acc + beta * c + bias), where ``acc`` stands at (row, column) of ``batch``.

    Beyond the edges c and bias read as zero, and what comes of it is never stored.
    """
    if not (scale or addend or bias or activation):
        return
    for i, j in tm.apply(acc):
        acc[i, j] = combine(acc[i, j], batch, row + i, column + j, use, scale, addend, bias, activation)


def combine(
    x: Any, batch: Any, row: Any, column: Any, use: Addends, scale: bool, addend: bool, bias: str, activation: str
) -> Any:
    """activation(alpha * x + beta * c + bias) for the element ``x`` at (row, column) of ``batch``."""
    if scale:
        x = x * use.alpha
    if addend:
        x = x + use.beta * use.c[batch, row, column].astype("f32")
    if bias:
        x = x + use.bias[column if bias == "columns" else row].astype("f32")
    return activate(x, activation)


# log2 of the probability that a normal variable exceeds z, 0 <= z <= 6, fitted so that the probability is off by
# less than 2^-22; beyond 6 it is below 2^-29.  (`math.gelu` is closer to the last bit and takes twice as long.)
_TAIL = (-0.9999997, -1.151122, -0.45906034, -0.05296525, 0.0077543021, -6.5856782e-4, 1.916999e-5)


def _tail(x: Any) -> Any:
    """The probability that a normal variable exceeds |x|."""
    z = tm.math.min(tm.math.fabs(x), 6.0)
    power = _TAIL[-1]
    for coefficient in reversed(_TAIL[:-1]):
        power = tm.math.fma(power, z, coefficient)
    return tm.math.exp2(power)


def activate(x: Any, activation: str) -> Any:
    """``activation`` of a scalar; NaN stays NaN."""
    if activation:
        # An expression is computed wherever it is used: once is enough.
        x = tm.var(x)
    if activation == "relu":
        return tm.select(x < 0.0, 0.0, x)
    if activation == "gelu":
        tail = tm.var(_tail(x))
        return x * tm.select(x < 0.0, tail, 1.0 - tail)
    if activation == "silu":
        return x * tm.math.sigmoid(x)
    return x
