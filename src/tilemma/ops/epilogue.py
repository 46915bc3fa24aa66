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
    acc: Any, batch: Any, row: Any, column: Any, use: Addends, scale: bool, addend: bool, bias: str, activation: str
) -> None:
    """acc = activation(alpha * acc + beta * c + bias), where ``acc`` stands at (row, column) of ``batch``.

    Beyond the edges c and bias read as zero, and what comes of it is never stored.
    """
    if not (scale or addend or bias or activation):
        return
    for i, j in tm.apply(acc):
        x = acc[i, j]
        if scale:
            x = x * use.alpha
        if addend:
            x = x + use.beta * use.c[batch, row + i, column + j].astype("f32")
        if bias:
            x = x + use.bias[column + j if bias == "columns" else row + i].astype("f32")
        acc[i, j] = activate(x, activation)


def activate(x: Any, activation: str) -> Any:
    """``activation`` of a scalar; NaN stays NaN."""
    if activation == "relu":
        return tm.select(x < 0.0, 0.0, x)
    if activation == "gelu":
        return tm.math.gelu(x)
    if activation == "silu":
        return x * tm.math.sigmoid(x)
    return x
