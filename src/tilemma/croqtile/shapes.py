"""Shapes (`mdspan`) and tuples (`ituple`)."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import checked, combine
from tilemma.croqtile.operands import as_tile, constant, scalar_of, scalar_value, scalars_of
from tilemma.croqtile.reader import Reader, nodes_in, reads
from tilemma.croqtile.storage import snapshot
from tilemma.croqtile.values import Scalar, SpanValue, TupleValue, Value, kind
from tilemma.ir.expr import Expr, const, mul
from tilemma.ir.refusals import WrongArity, WrongValue
from tilemma.ir.tiles import scalar


@reads(ast.Paren)
def paren(r: Reader, node: ast.Paren) -> Value:
    if r.bases and isinstance(node.inner, ast.Int):
        return dimension(r, r.bases[-1], (node.inner,), node)
    return r.value(node.inner)


@reads(ast.Count)
def count(r: Reader, node: ast.Count) -> Expr:
    value = r.value(node.operand)
    dims: Sequence[Expr]
    if isinstance(value, SpanValue):
        dims = value.dims
    else:
        dims = as_tile(r, value, node.operand, "`|...|`").shape
    total: Expr = const(1)
    for d in dims:
        total = mul(total, d)
    return checked(r, total, node.span)


@reads(ast.Tuple)
def tuple_value(r: Reader, node: ast.Tuple) -> Value:
    if node.of is None:
        return TupleValue(tuple(scalars_of(r, node.items, "a tuple")))
    base = r.value(node.of)
    if not isinstance(base, (TupleValue, SpanValue)):
        raise WrongValue(
            node.of.span,
            what="`{...}`",
            got=kind(base),
            wanted="a tuple or a shape",
            fix_text="name one before `{`",
        )
    items = base.items if isinstance(base, TupleValue) else base.dims
    return TupleValue(derived(r, items, node.items, "a tuple"))


@reads(ast.SpanList)
def span_list(r: Reader, node: ast.SpanList) -> SpanValue:
    return SpanValue(tuple(scalar(x) for x in scalars_of(r, node.items, "a shape")))


def shape_of(r: Reader, node: ast.Expr, what: str) -> SpanValue:
    """A shape: ``[a, b]``, another shape, arithmetic on one."""
    value = r.value(node)
    if isinstance(value, TupleValue):
        return SpanValue(tuple(scalar(i) for i in value.items))
    if not isinstance(value, SpanValue):
        raise WrongValue(
            node.span, what=what, got=kind(value), wanted="a shape", fix_text="write `[a, b]`, or `x.span`"
        )
    return value


def elementwise(r: Reader, node: ast.Binary, left: Value, right: Value) -> Value:
    """Arithmetic on shapes and tuples; the result is a shape when the left side is one."""
    shape = isinstance(left, SpanValue) or isinstance(right, SpanValue)
    a, b = _items(r, left, node.a, node.op), _items(r, right, node.b, node.op)
    if len(a) > 1 and len(b) > 1 and len(a) != len(b):
        raise WrongValue(
            node.span,
            what=f"`{node.op}`",
            got=f"{len(a)} elements and {len(b)}",
            wanted="the same number on both sides, or one number",
            fix_text="make the tuples equally long",
        )
    n = max(len(a), len(b))
    xs, ys = (list(x) * n if len(x) == 1 else list(x) for x in (a, b))
    items = tuple(combine(r, node.op, x, y, node.span) for x, y in zip(xs, ys, strict=True))
    return SpanValue(items) if shape else TupleValue(items)


def _items(r: Reader, value: Value, node: ast.Expr, op: str) -> tuple[Expr, ...]:
    if isinstance(value, SpanValue):
        return value.dims
    if isinstance(value, TupleValue):
        return tuple(scalar(i) for i in value.items)
    return (scalar(scalar_value(r, value, node, f"`{op}`")),)


def dimension(r: Reader, items: Sequence[Scalar], args: Sequence[ast.Expr], node: ast.Expr) -> Scalar:
    """``s(i)``: element number i of a shape or tuple."""
    if len(args) != 1:
        raise WrongArity(node.span, what="s(i)", got=len(args), want="one", form="s(0)")
    i = constant(r, args[0], "the number of a dimension")
    if not -len(items) <= i < len(items) or (i < 0 and len(items) != 1):
        raise WrongValue(
            args[0].span,
            what="the number of a dimension",
            got=str(i),
            wanted=f"0 to {len(items) - 1}",
            fix_text="dimensions are counted from 0",
        )
    return items[i]


def derived(r: Reader, base: Sequence[Scalar], items: Sequence[ast.Expr], what: str) -> tuple[Scalar, ...]:
    """``s [(0)/2, 4]``: a number in parentheses denotes that element of ``base``.

    Raises WrongValue where no item does: then nothing is derived from the base.
    """
    own = (x for item in items for x in nodes_in(item) if isinstance(x, ast.Paren))
    if not any(isinstance(x.inner, ast.Int) for x in own):
        raise WrongValue(
            items[0].span,
            what=f"{what} derived from another one",
            got="items that name no element of it",
            wanted="at least one of its elements, written `(0)`, `(1)`, ...",
            fix_text="write `(0)` for its first element, or leave the name before the brackets out; "
            "for one element write `t(0)`",
        )
    with r.derivation(tuple(base)):
        return tuple(scalar_of(r, i, what) for i in items)


@reads(ast.DeclareSpan)
def declare_span(r: Reader, node: ast.DeclareSpan) -> None:
    value = shape_of(r, node.value, f"`{node.name}`")
    _check_rank(node, len(value.dims))
    r.scopes.define(node.name, snapshot(r, node.name, value), node.span)


@reads(ast.DeclareTuple)
def declare_tuple(r: Reader, node: ast.DeclareTuple) -> None:
    value = r.value(node.value)
    if isinstance(value, SpanValue):
        value = TupleValue(value.dims)
    if not isinstance(value, TupleValue):
        raise WrongValue(
            node.value.span,
            what=f"`{node.name}`",
            got=kind(value),
            wanted="a tuple of integers",
            fix_text=f"write `{node.name} = {{1, 2}};`",
        )
    _check_rank(node, len(value.items))
    r.scopes.define(node.name, snapshot(r, node.name, value), node.span)


def _check_rank(node: ast.DeclareSpan | ast.DeclareTuple, found: int) -> None:
    if node.rank is not None and node.rank != found:
        raise WrongArity(
            node.value.span, what=node.name, got=found, want=f"{node.rank}, the rank declared", form=f"<{found}>"
        )
