"""Scalars: names, literals, operators, conversions."""

from __future__ import annotations

from tilemma.arithmetic import integers
from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import BINARY, checked, combine, converted
from tilemma.croqtile.functions import compose, on_bound
from tilemma.croqtile.operands import condition_of, known_type, plain, scalar_value
from tilemma.croqtile.reader import FUNCTIONS, WARP_NAMES, Reader, reads
from tilemma.croqtile.shapes import elementwise
from tilemma.croqtile.values import Mutable, SpanValue, TupleValue, Value
from tilemma.ir.builder import Builder
from tilemma.ir.expr import Const, Expr, Unary, UnaryOp, binary, const
from tilemma.ir.refusals import NotBuiltYet, WrongValue
from tilemma.ir.tiles import scalar


@reads(ast.Name)
def name(r: Reader, node: ast.Name) -> Value:
    binding = r.scopes.find(node.text)
    if binding is not None:
        return binding.value
    if node.text in WARP_NAMES:
        if r.warp[-1]:
            return const(WARP_NAMES[node.text])
        raise WrongValue(
            node.span,
            what=f"`{node.text}`",
            got="a level wider than a warp",
            wanted="warp scope: there it is 16, the extent of the four-step tile",
            fix_text=f"`#define {node.text}` with the tile's extent",
        )
    if node.text in FUNCTIONS:
        raise WrongValue(
            node.span,
            what="an expression",
            got=f"the built-in function `{node.text}`",
            wanted="a call of it",
            fix_text=f"write `{node.text}(...)`",
        )
    more = tuple(WARP_NAMES) if r.warp[-1] else ()
    raise r.scopes.unknown(node.text, node.span, more)


@reads(ast.Int)
def integer_literal(r: Reader, node: ast.Int) -> Expr:
    unsigned, long = (
        "u" in node.suffix,
        "l" in node.suffix or node.value >= 2 ** (32 if "u" in node.suffix else 31),
    )
    name = ("u" if unsigned else "s") + ("64" if long else "32")
    return Const(node.value, known_type(name, node.span), True)


@reads(ast.Float)
def float_literal(r: Reader, node: ast.Float) -> Expr:
    return Const(node.value, known_type("f32" if node.single else "f64", node.span), True)


@reads(ast.Bool)
def bool_literal(r: Reader, node: ast.Bool) -> Expr:
    return const(node.value)


@reads(ast.Inf)
def infinity(r: Reader, node: ast.Inf) -> Expr:
    return const(float("inf"))


@reads(ast.Binary)
def binary_operator(r: Reader, node: ast.Binary) -> Value:
    if node.op == "#":
        return compose(r, node)
    if node.op.startswith("#"):
        return on_bound(r, node)
    if node.op in ("&&", "||"):
        a = condition_of(r, node.a, f"`{node.op}`")
        with r.without_effects(f"the right side of `{node.op}`"):
            b = condition_of(r, node.b, f"`{node.op}`")
        return checked(r, binary(BINARY[node.op], a, b), node.span)
    left, right = r.value(node.a), r.value(node.b)
    if isinstance(left, (TupleValue, SpanValue)) or isinstance(right, (TupleValue, SpanValue)):
        return elementwise(r, node, left, right)
    a, b = (
        scalar(scalar_value(r, left, node.a, f"`{node.op}`")),
        scalar(scalar_value(r, right, node.b, f"`{node.op}`")),
    )
    return combine(r, node.op, a, b, node.span)


@reads(ast.Unary)
def unary_operator(r: Reader, node: ast.Unary) -> Value:
    if node.op == "&":
        raise NotBuiltYet(node.span, what="taking an address (`&`)", fix_text="pass the tile or element itself")
    if node.op == "!":
        e = condition_of(r, node.operand, "`!`")
        if isinstance(e, Const):
            return const(not e.value)
        return checked(r, Unary("lnot", e), node.span)
    e = plain(r, node.operand, f"`{node.op}`")
    if node.op == "~" and not e.type.is_integer:
        raise WrongValue(
            node.span, what="`~`", got=e.type.name, wanted="an integer", fix_text="use `!` for conditions"
        )
    if isinstance(e, Const) and not isinstance(e.value, bool):
        value = -e.value if node.op == "-" else ~int(e.value)
        if node.op == "~" or not (e.literal or e.type.is_float):
            value = integers.wrap(int(value), e.dtype)
        return checked(r, Const(value, e.dtype, e.literal), node.span)
    op: UnaryOp = "neg" if node.op == "-" else "not"
    return checked(r, Unary(op, e), node.span)


@reads(ast.Step)
def step(r: Reader, node: ast.Step) -> Expr:
    """``++i`` now, ``i++`` after the statement."""
    name = node.target
    binding = r.scopes.find(name.text) if isinstance(name, ast.Name) else None
    if binding is None or not isinstance(binding.value, Mutable) or not binding.value.mutable:
        raise WrongValue(
            node.span,
            what="`++`" if node.sign > 0 else "`--`",
            got="something that is not a mutable scalar",
            wanted="a scalar declared `mutable`",
            fix_text="declare it: `mutable int i = 0;`",
        )
    r.effect(node.span, "`++`" if node.sign > 0 else "`--`")
    var = binding.value.var
    new = binary("add", var, Builder.converted(const(node.sign), var.dtype))
    if node.before:
        r.b.assign(var, new)
    else:
        r.afterwards.append((var, new))
    return var


@reads(ast.Convert)
def convert(r: Reader, node: ast.Convert) -> Value:
    if node.dtype.startswith('"'):
        raise NotBuiltYet(
            node.span, what='a conversion to a host type (`__to<"...">`)', fix_text="name an element type"
        )
    e = plain(r, node.operand, "`__to`")
    return converted(r, e, known_type(node.dtype, node.span), node.span)
