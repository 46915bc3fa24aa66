"""Functions of scalars, and the bounds of indices."""

from __future__ import annotations

from typing import Any

from tilemma.ir.constructs import ConstantDivision, checked_division
from tilemma.ir.expr import Select
from tilemma.ir.expr import cdiv as _cdiv
from tilemma.ir.tiles import Bounded, scalar
from tilemma.lang import spans
from tilemma.lang.scalars import (
    Value,
    article,
    boolean,
    integer,
    number,
    operand,
    python_number,
    unwrap,
    whole,
    with_one_type,
)
from tilemma.lang.tracing import WrongOperand, builder
from tilemma.lang.views import TileValue


def compose(a: Any, b: Any) -> Value:
    """``a # b``: a * #b + b, bounded by #a * #b."""
    builder("compose")
    outer, inner = integer(a, "compose"), integer(b, "compose")
    if not isinstance(outer, Bounded) or not isinstance(inner, Bounded):
        raise WrongOperand(
            spans.caller_span(),
            what="compose",
            got="a value without an upper bound",
            wanted="two indices",
            fix_text="compose indices of parallel levels and loops",
        )
    return Value(outer.compose(inner))


def ubound(p: Any) -> Any:
    """``#p``: the number of values that index ``p`` takes."""
    x = number(p, "ubound")
    if not isinstance(x, Bounded):
        raise WrongOperand(
            spans.caller_span(),
            what="ubound",
            got="a value without an upper bound",
            wanted="an index",
            fix_text="take the bound of an index of a parallel level or a loop",
        )
    return unwrap(x.extent)


def cdiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded up; works on Python ints too."""
    x, y = python_number(a), python_number(b)
    if isinstance(x, int) and isinstance(y, int):
        if y == 0:
            raise ConstantDivision(spans.caller_span(), what="a division by zero")
        return -(-x // y)
    builder("cdiv")
    dividend, divisor = with_one_type(scalar(whole(a, "cdiv")), scalar(whole(b, "cdiv")))
    checked_division("cdiv", dividend, divisor, spans.caller_span())
    return unwrap(_cdiv(dividend, divisor))


def select(cond: Any, x: Any, y: Any) -> Value:
    """``x`` where ``cond`` holds, else ``y``; only that one is evaluated."""
    builder("select")
    for v in (x, y):
        if isinstance(v, TileValue):
            raise WrongOperand(
                spans.caller_span(),
                what="select",
                got=article(v),
                wanted="two scalars",
                fix_text="use `if_`, or an array of tiles with a run-time subscript",
            )
    a, b = with_one_type(operand(x, "select"), operand(y, "select"))
    return Value(Select(boolean(cond, "select"), a, b))
