"""The counts of `dma.pad`: constants, or computations of dimensions and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.ir.expr import Expr, add, expr, mul, sub

# Elements before the first, after the last, and between neighbours, along one axis.
Padding = tuple["int | Expr", "int | Expr", "int | Expr"]


def result_shape(
    shape: Sequence[Expr], transpose: tuple[int, ...] | None, pad: tuple[Padding, ...]
) -> tuple[Expr, ...]:
    """Extents after transposing and padding."""
    out = [shape[i] for i in transpose] if transpose is not None else list(shape)
    for i, (low, high, inner) in enumerate(pad):
        out[i] = add(add(out[i], add(low, high)), mul(sub(out[i], 1), inner))
    return tuple(out)


def padding_fields(pad: tuple[Padding, ...]) -> dict[str, Any]:
    """The fields of a `Copy` with these counts: computations are left to `specialise`."""
    if any(isinstance(n, Expr) for counts in pad for n in counts):
        return {"pad_counts": tuple(tuple(expr(n) for n in counts) for counts in pad)}
    return {"pad": pad}
