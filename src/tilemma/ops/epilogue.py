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


def activate(x: Any, activation: str) -> Any:
    """``activation`` of a scalar; NaN stays NaN."""
    if activation == "relu":
        return tm.select(x < 0.0, 0.0, x)
    if activation == "gelu":
        return tm.math.gelu(x)
    if activation == "silu":
        return x * tm.math.sigmoid(x)
    return x
