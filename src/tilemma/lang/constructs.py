"""Scalars, storage and diagnostics as Python functions."""

from __future__ import annotations

from typing import Any

from tilemma.dtypes import DType
from tilemma.errors import CompileError, described
from tilemma.ir.builder import element_type
from tilemma.ir.constructs import ConstantDivision, NotConstant, checked_division
from tilemma.ir.expr import Select
from tilemma.ir.expr import cdiv as _cdiv
from tilemma.ir.tile import ArrayParameter, Print
from tilemma.ir.tiles import Bounded, Tile, scalar
from tilemma.ir.types import Buffer, Space
from tilemma.lang import spans
from tilemma.lang.contraction import sizes_of
from tilemma.lang.control import names_of
from tilemma.lang.scalars import (
    Value,
    Variable,
    article,
    boolean,
    constant_operand,
    integer,
    number,
    operand,
    operand_as,
    python_number,
    unwrap,
    whole,
    with_one_type,
)
from tilemma.lang.tracing import WrongOperand, builder
from tilemma.lang.views import TileValue


class AssertionFails(CompileError):
    code = "traced-assertion-fails"
    found = "this assertion fails when compiled: {message}"
    expected = "a condition that holds"
    fix = "change the compile-time values it depends on"


def var(value: Any, dtype: str | DType | None = None) -> Variable:
    """A mutable scalar, of the value's type or of ``dtype``."""
    b = builder("var")
    kind = None if dtype is None else element_type(str(dtype), b.span)
    e = operand(value, "var") if kind is None else operand_as(value, kind, "var")
    if kind is not None and e.type.is_float and not kind.is_float and not isinstance(value, (int, float)):
        raise WrongOperand(
            b.span,
            what=f"var(..., '{kind}')",
            got=f"a value of {e.type}",
            wanted=f"one of {kind}",
            fix_text=f"convert it: `.astype('{kind}')`",
        )
    return Variable(b.declare(names_of(1, "x")[0], e, kind))


def _storage(space: Space, dtype: str | DType, shape: tuple[Any, ...], copies: Any, init: Any) -> TileValue:
    b = builder(space.value)
    kind = element_type(str(dtype) if isinstance(dtype, (str, DType)) else described(dtype), b.span)
    flat = [x for s in shape for x in (s if isinstance(s, (tuple, list)) else (s,))]
    sizes = [_extent(s) for s in flat]
    if not sizes:
        raise WrongOperand(
            b.span,
            what=space.value,
            got="no extents",
            wanted="an extent for each dimension",
            fix_text=f'write `{space.value}("{kind}", h, w)`; a scalar is `var(0)`',
        )
    counts = sizes_of(copies, "copies")
    total = 1
    for c in counts:
        total *= c
    value = None if init is None else operand_as(init, kind, f"{space.value}(init=)")
    name = names_of(1, space.value)[0]
    buffer = b.alloc(name, space, kind, sizes, copies=total if counts else 0, init=value, span=b.span)
    return TileValue(Tile.whole(buffer), counts)


def _extent(x: Any) -> Any:
    try:
        return constant_operand(x, "extent")
    except NotConstant:
        return integer(x, "an extent")  # the builder says which buffer it belongs to


def shared(dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = 0, init: Any = None) -> TileValue:
    """A buffer in the block's shared memory (``copies`` of it: `s[i]`); uninitialised without ``init``."""
    return _storage(Space.SHARED, dtype, shape, copies, init)


def local(dtype: str | DType, *shape: Any, copies: int | tuple[int, ...] = 0, init: Any = None) -> TileValue:
    """A buffer private to the threads that declare it."""
    return _storage(Space.LOCAL, dtype, shape, copies, init)


def global_(dtype: str | DType, *shape: Any) -> TileValue:
    """The array that the kernel returns: ``out = global_("f32", M, N)`` .. ``return out``.

    A call allocates it with the library and on the device of the first array argument.
    """
    b = builder("global_")
    kind = element_type(str(dtype), b.span)
    if b.inside_parallel:
        raise WrongOperand(
            b.span,
            what="global_",
            got="a place inside `parallel`",
            wanted="the top of the kernel: it is the array that the kernel returns",
            fix_text="move it out of `parallel`, or use `shared(...)`",
        )
    flat = [x for s in shape for x in (s if isinstance(s, (tuple, list)) else (s,))]
    extents = tuple(scalar(integer(s, "global_")) for s in flat)
    buffer = Buffer(b.fresh(names_of(1, "result")[0]), kind, extents, Space.GLOBAL)
    b.params.append(ArrayParameter(buffer, span=b.span))
    return TileValue(Tile.whole(buffer))


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


def print_(*parts: Any, end: str = "\n") -> None:
    """Print strings and values when the kernel runs, one after the other."""
    b = builder("print")
    items = [p if isinstance(p, str) else operand(p, "print") for p in parts]
    if not isinstance(end, str):
        raise WrongOperand(
            b.span, what="print(end=)", got=article(end), wanted="a string", fix_text='write `end=""`'
        )
    if end not in ("\n", ""):
        items.append(end)
    b.emit(Print(tuple(items), newline=end == "\n"))


def assert_(cond: Any, message: str = "") -> None:
    """Stop with ``message`` where ``cond`` does not hold when the kernel runs."""
    b = builder("assert_")
    e = boolean(cond, "assert_")
    known = getattr(e, "value", None)
    if known is not None:
        if not known:
            raise AssertionFails(b.span, message=message or "no message")
        return
    b.check(e, str(message))


__all__ = [
    "assert_",
    "cdiv",
    "compose",
    "global_",
    "local",
    "print_",
    "select",
    "shared",
    "ubound",
    "var",
]
