"""Functions of scalars, and the bounds of indices."""

from __future__ import annotations

from typing import Any

from tilemma.ir.checks import ConstantDivision, checked_division
from tilemma.ir.expr import Select
from tilemma.ir.expr import cdiv as _cdiv
from tilemma.ir.refusals import select_of_tiles
from tilemma.ir.tiles import Bounded, describe, scalar
from tilemma.lang import scalars, spans
from tilemma.lang.registers import Elementwise, Fragment, elementwise
from tilemma.lang.tracing import builder
from tilemma.lang.views import MemoryExpression, TileValue


def compose(a: Any, b: Any) -> scalars.Value:
    """``a # b``: a * #b + b, bounded by #a * #b."""
    builder("compose")
    return scalars.Value(_index(a, "compose").compose(_index(b, "compose")))


def ubound(p: Any) -> Any:
    """``#p``: the number of values that index ``p`` takes."""
    return scalars.unwrap(_index(p, "ubound").extent)


def _index(x: Any, what: str) -> Bounded:
    found = scalars.number(x, what)
    if not isinstance(found, Bounded):
        raise scalars.refused("index", what, f"`{describe(found)}`, which has no upper bound")
    return found


def cdiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up; works on Python ints too."""
    x, y = scalars.python_number(a), scalars.python_number(b)
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise ConstantDivision(spans.caller_span(), what="a division by zero")
        return -(-x // y)
    builder("cdiv")
    dividend, divisor = scalars.with_one_type(scalar(scalars.whole(a, "cdiv")), scalar(scalars.whole(b, "cdiv")))
    checked_division("cdiv", dividend, divisor, spans.caller_span())
    return scalars.unwrap(_cdiv(dividend, divisor))


def select(cond: Any, x: Any, y: Any) -> Any:
    """``x`` where ``cond`` holds, else ``y``; only that one is evaluated.

    With register tiles among the three it works on every element; rows [N] and columns [M, 1] in memory repeat.
    """
    b = builder("select")
    if any(isinstance(v, (Fragment, Elementwise)) for v in (cond, x, y)):
        return elementwise(select, cond, x, y)
    if isinstance(cond, MemoryExpression):
        return MemoryExpression(select, cond, x, y)
    condition = scalars.boolean(cond, "select")
    if any(isinstance(v, TileValue) for v in (x, y)):
        raise select_of_tiles(b.span)
    one, other = scalars.with_one_type(scalars.operand(x, "select"), scalars.operand(y, "select"))
    return scalars.Value(Select(condition, one, other))
