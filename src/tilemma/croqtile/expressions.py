"""Scalar expressions: syntax to IR, constants computed, sizes bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, cast

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.arithmetic.convert import real
from tilemma.croqtile import ast
from tilemma.croqtile.refusals import (
    ExpressionTooLarge,
    NotBuiltYet,
    NotConstant,
    SideEffect,
    WrongArity,
    WrongValue,
)
from tilemma.croqtile.values import Mutable, Scalar, SpanValue, TupleValue, Value, kind
from tilemma.croqtile.words import FOREIGN_TYPES
from tilemma.dtypes import DType
from tilemma.errors import Span
from tilemma.ir.builder import Builder, element_type
from tilemma.ir.constructs import checked_division, checked_fit
from tilemma.ir.expr import (
    BinaryOp,
    Call,
    Const,
    Expr,
    Select,
    Unary,
    UnaryOp,
    binary,
    children,
    const,
    promote,
    value_of,
)
from tilemma.ir.ranges import interval
from tilemma.ir.tiles import Bounded, describe, scalar
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

MAX_OPERATIONS = 1000
MAX_EXPRESSION_DEPTH = 100
MAX_TUPLE = 16

_BINARY: dict[str, BinaryOp] = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "&": "and", "|": "or", "^": "xor",
    "<<": "shl", ">>": "shr", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
    "&&": "land", "||": "lor",
}  # fmt: skip

# Functions of the math library: name -> number of arguments.
MATH: dict[str, int] = {
    "acos": 1, "asin": 1, "atan": 1, "atan2": 2, "ceil": 1, "cos": 1, "cosh": 1, "exp": 1, "exp2f": 1,
    "exp2_ftz": 1, "expm1": 1, "fabs": 1, "fmaf": 3, "frcp_rn": 1, "floor": 1, "gelu": 1, "isfinite": 1, "log": 1,
    "log1p": 1, "pow": 2, "round": 1, "rsqrt": 1, "sigmoid": 1, "sign": 1, "sin": 1, "sinh": 1,
    "softplus": 1, "sqrt": 1, "tan": 1, "tanh": 1,
}  # fmt: skip
_INTEGER = {"min": 2, "max": 2, "alignup": 2, "aligndown": 2}
BUILTINS = ("cdiv", "select", *(f"__{n}" for n in (*MATH, *_INTEGER)))


@record(frozen=False, eq=False)
class Measure:
    """Operations and depth of expressions, shared parts counted where they are used."""

    known: dict[int, tuple[Expr, int, int]] = field(default_factory=dict)

    def of(self, e: Expr) -> tuple[int, int]:
        """(operations, depth), both cut off beyond the limits."""
        found = self.known.get(id(e))
        if found is not None:
            return found[1], found[2]
        size, depth = 1, 0
        stack: list[tuple[Expr, bool]] = [(e, False)]
        while stack:
            x, ready = stack.pop()
            if id(x) in self.known:
                continue
            below = list(children(x))
            if not ready:
                stack.append((x, True))
                stack.extend((c, False) for c in below if id(c) not in self.known)
                continue
            parts = [self.known[id(c)] for c in below]
            size = min(1 + sum(p[1] for p in parts), 10 * MAX_OPERATIONS)
            depth = 1 + max((p[2] for p in parts), default=0)
            self.known[id(x)] = (x, size, depth)
        return self.known[id(e)][1], self.known[id(e)][2]


class Expressions:
    """The scalar part of a `Reader`; names and members are resolved by the reader."""

    reader: Reader

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.measure = Measure()

    # ---- results -----------------------------------------------------------------------------------------

    def checked(self, e: Expr, span: Span) -> Expr:
        """``e`` when its constants fit and it is not too large."""
        checked_fit(e, e.type if isinstance(e, Const) else dtypes.s32, span)
        size, depth = self.measure.of(e)
        if size > MAX_OPERATIONS or depth > MAX_EXPRESSION_DEPTH:
            raise ExpressionTooLarge(span, limit=MAX_OPERATIONS, depth=MAX_EXPRESSION_DEPTH)
        return e

    def converted(self, e: Expr, dtype: DType, span: Span) -> Expr:
        """``e`` as ``dtype``; ConstantOverflow for an integer constant that does not fit."""
        checked_fit(e, dtype, span)
        return self.checked(Builder.converted(e, dtype), span)

    def scalar(self, node: ast.Expr, what: str = "an operation") -> Scalar:
        """An index or expression; WrongValue for anything else."""
        value = self.reader.contraction.element_of(self.reader.value(node), node)
        if isinstance(value, Mutable):
            return value.var
        if isinstance(value, (Bounded, Expr)):
            return value
        if isinstance(value, (TupleValue, SpanValue)):
            items = value.items if isinstance(value, TupleValue) else value.dims
            if len(items) == 1:
                return items[0]
        raise WrongValue(
            node.span,
            what=what,
            got=kind(value),
            wanted="a scalar: an index, a dimension, a number, an element `x.at(i, j)`",
            fix_text="take an element or a member of it",
        )

    def plain(self, node: ast.Expr, what: str = "an operation") -> Expr:
        return scalar(self.scalar(node, what))

    def integer(self, node: ast.Expr, what: str) -> Expr:
        e = self.plain(node, what)
        if not e.type.is_integer:
            raise WrongValue(
                node.span,
                what=what,
                got=f"a value of type {e.type.name}",
                wanted="an integer",
                fix_text="use an integer, or convert: `__to<s32>(x)`",
            )
        return e

    def constant(self, node: ast.Expr, what: str) -> int:
        """An integer known when compiled; NotConstant."""
        e = self.integer(node, what)
        v = value_of(e)
        if v is None:
            raise NotConstant(node.span, what=what, text=describe(e))
        return v

    def condition(self, node: ast.Expr, what: str) -> Expr:
        """A truth value: numbers count as true when they are not 0."""
        e = self.plain(node, what)
        return e if e.type.kind == "bool" else binary("ne", e, self.like(Const(0, literal=True), e))

    @staticmethod
    def like(literal: Expr, beside: Expr) -> Expr:
        """A literal takes the type of what it stands beside, where that is what C would compute with.

        Integers join floats; an unsuffixed float (f64 by the letter) joins narrower floats, as in ``x * 2.0``.
        """
        if not isinstance(literal, Const) or not literal.literal or isinstance(literal.value, bool):
            return literal
        if isinstance(beside, Const):
            return literal
        if beside.type.is_float and (literal.dtype.is_integer or literal.dtype == dtypes.f64):
            return Const(real(literal.value, beside.type), beside.type, True)
        both = beside.type.is_integer and literal.dtype.is_integer
        fits = both and integers.fits(literal.value, beside.type)
        return Const(literal.value, beside.type, True) if fits else literal

    # ---- operators ---------------------------------------------------------------------------------------

    def binary(self, node: ast.Binary) -> Value:
        if node.op == "#":
            return self._compose(node)
        if node.op.startswith("#"):
            return self._on_bound(node)
        if node.op in ("&&", "||"):
            a = self.condition(node.a, f"`{node.op}`")
            with self.reader.without_effects(f"the right side of `{node.op}`"):
                b = self.condition(node.b, f"`{node.op}`")
            return self.checked(binary(_BINARY[node.op], a, b), node.span)
        left, right = self.reader.value(node.a), self.reader.value(node.b)
        if isinstance(left, (TupleValue, SpanValue)) or isinstance(right, (TupleValue, SpanValue)):
            return self._elementwise(node, left, right)
        a, b = self.plain_value(left, node.a, f"`{node.op}`"), self.plain_value(right, node.b, f"`{node.op}`")
        return self.arithmetic(node.op, a, b, node.span)

    def plain_value(self, value: Value, node: ast.Expr, what: str) -> Expr:
        value = self.reader.contraction.element_of(value, node)
        if isinstance(value, Mutable):
            return value.var
        if isinstance(value, (Bounded, Expr)):
            return scalar(value)
        raise WrongValue(
            node.span,
            what=what,
            got=kind(value),
            wanted="scalars on both sides",
            fix_text="use an element `x.at(i, j)`; register tiles take part in `mc = mc + x` where `mc` is one",
        )

    def arithmetic(self, sign: str, a: Expr, b: Expr, span: Span) -> Expr:
        """``a sign b`` with C's meaning of the sign."""
        op = _BINARY[sign]
        a, b = self.like(a, b), self.like(b, a)
        floats = a.type.is_float or b.type.is_float
        if floats and op in ("and", "or", "xor", "shl", "shr", "mod"):
            raise WrongValue(
                span,
                what=f"`{sign}`",
                got="a float",
                wanted="integers on both sides",
                fix_text="convert with `__to<s32>(x)`",
            )
        if not floats:
            checked_division(op, a, b, span)
            if isinstance(a, Const) and isinstance(b, Const):
                t = promote(a.dtype, b.dtype)
                self.checked(Const(integers.exact(op, t)(int(a.value), int(b.value)), t), span)
            if op == "div" and interval(a)[0] >= 0 and interval(b)[0] >= 0:
                op = "floordiv"
        return self.checked(binary(op, a, b), span)

    def _compose(self, node: ast.Binary) -> Value:
        parts = []
        for side in (node.a, node.b):
            value = self.scalar(side, "`#`")
            if not isinstance(value, Bounded):
                raise WrongValue(
                    side.span,
                    what="`#`",
                    got=f"`{describe(value)}`, which has no upper bound",
                    wanted="indices of `parallel`, `foreach` or `with` on both sides",
                    fix_text="write the arithmetic out: `a * n + b`",
                )
            parts.append(value)
        made = parts[0].compose(parts[1])
        self.checked(made.value, node.span)
        self.checked(made.extent, node.span)
        return made

    def _on_bound(self, node: ast.Binary) -> Value:
        index = self.scalar(node.a, f"`{node.op}`")
        if not isinstance(index, Bounded):
            raise WrongValue(
                node.a.span,
                what=f"`{node.op}`",
                got=f"`{describe(index)}`, which has no upper bound",
                wanted="an index on the left side",
                fix_text=f"use `{node.op[1]}` on plain numbers",
            )
        amount = self.integer(node.b, f"`{node.op}`")
        return Bounded(index.value, self.arithmetic(node.op[1], index.extent, amount, node.span))

    def _elementwise(self, node: ast.Binary, left: Value, right: Value) -> Value:
        """Arithmetic on shapes and tuples; the result is a shape when the left side is one."""
        shape = isinstance(left, SpanValue) or isinstance(right, SpanValue)
        a, b = self._items(left, node.a, node.op), self._items(right, node.b, node.op)
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
        items = tuple(self.arithmetic(node.op, x, y, node.span) for x, y in zip(xs, ys, strict=True))
        return SpanValue(items) if shape else TupleValue(items)

    def _items(self, value: Value, node: ast.Expr, op: str) -> tuple[Expr, ...]:
        if isinstance(value, SpanValue):
            return value.dims
        if isinstance(value, TupleValue):
            return tuple(scalar(i) for i in value.items)
        return (self.plain_value(value, node, f"`{op}`"),)

    def unary(self, node: ast.Unary) -> Value:
        if node.op == "&":
            raise NotBuiltYet(
                node.span, what="taking an address (`&`)", fix_text="pass the tile or element itself"
            )
        if node.op == "!":
            e = self.condition(node.operand, "`!`")
            if isinstance(e, Const):
                return const(not e.value)
            return self.checked(Unary("lnot", e), node.span)
        e = self.plain(node.operand, f"`{node.op}`")
        if node.op == "~" and not e.type.is_integer:
            raise WrongValue(
                node.span, what="`~`", got=e.type.name, wanted="an integer", fix_text="use `!` for conditions"
            )
        if isinstance(e, Const) and not isinstance(e.value, bool):
            value = -e.value if node.op == "-" else ~int(e.value)
            return self.checked(Const(value, e.dtype, e.literal), node.span)
        op: UnaryOp = "neg" if node.op == "-" else "not"
        return self.checked(Unary(op, e), node.span)

    def ternary(self, cond: ast.Expr, a: ast.Expr, b: ast.Expr, span: Span) -> Value:
        c = self.condition(cond, "a condition")
        if isinstance(c, Const):
            return self.scalar(a if c.value else b, "`?:`")
        with self.reader.without_effects("a branch of `?:`"):
            x, y = self.plain(a, "`?:`"), self.plain(b, "`?:`")
        return self.checked(Select(c, self.like(x, y), self.like(y, x)), span)

    def step(self, node: ast.Step) -> Expr:
        """``++i`` now, ``i++`` after the statement."""
        name = node.target
        binding = self.reader.scopes.find(name.text) if isinstance(name, ast.Name) else None
        if binding is None or not isinstance(binding.value, Mutable) or not binding.value.mutable:
            raise WrongValue(
                node.span,
                what="`++`" if node.sign > 0 else "`--`",
                got="something that is not a mutable scalar",
                wanted="a scalar declared `mutable`",
                fix_text="declare it: `mutable int i = 0;`",
            )
        self.reader.effect(node.span, "`++`" if node.sign > 0 else "`--`")
        var = binding.value.var
        new = binary("add", var, Builder.converted(const(node.sign), var.dtype))
        if node.before:
            self.reader.b.assign(var, new)
        else:
            self.reader.afterwards.append((var, new))
        return var

    # ---- functions ---------------------------------------------------------------------------------------

    def call(self, name: str, node: ast.Call) -> Value:
        """A built-in function; the reader has made sure that ``name`` is one."""
        if name == "cdiv":
            a, b = (self.integer(x, "`cdiv`") for x in self._exactly(node, name, 2, "cdiv(a, b)"))
            checked_division("cdiv", a, b, node.span)
            return self.checked(binary("cdiv", a, b), node.span)
        if name == "select":
            cond, x, y = self._exactly(node, name, 3, "select(cond, a, b)")
            return self.select(cond, x, y, node.span)
        bare = name.removeprefix("__")
        count = _INTEGER.get(bare) or MATH[bare]
        args = self._exactly(node, name, count, f"{name}({', '.join('abc'[:count])})")
        if bare in ("alignup", "aligndown"):
            a, b = (self.integer(x, f"`{name}`") for x in args)
            checked_division("floordiv", a, b, node.span)
            whole = binary("cdiv" if bare == "alignup" else "floordiv", a, b)
            return self.checked(binary("mul", whole, b), node.span)
        values = [self.plain(x, f"`{name}`") for x in args]
        if bare in ("min", "max"):
            a, b = self.like(values[0], values[1]), self.like(values[1], values[0])
            return self.checked(binary(cast(BinaryOp, bare), a, b), node.span)
        double = any(v.type == dtypes.f64 and not isinstance(v, Const) for v in values)
        return self.checked(Call(bare, tuple(self._as_float(v, double) for v in values)), node.span)

    @staticmethod
    def _as_float(e: Expr, double: bool) -> Expr:
        """Arguments of the math library are floats; integers become f32, a literal beside an f64 stays one."""
        if double and isinstance(e, Const) and e.dtype == dtypes.f64:
            return e
        if e.type.is_float and not (isinstance(e, Const) and e.dtype == dtypes.f64):
            return e
        return Builder.converted(e, dtypes.f32) if not e.type.is_float or isinstance(e, Const) else e

    def select(self, cond: ast.Expr, a: ast.Expr, b: ast.Expr, span: Span) -> Value:
        c = self.condition(cond, "`select`")
        if isinstance(c, Const):
            return self.reader.value(a if c.value else b)
        x, y = self.reader.value(a), self.reader.value(b)
        scalars = (Bounded, Expr, Mutable)
        if not isinstance(x, scalars) or not isinstance(y, scalars):
            raise NotBuiltYet(
                span,
                what="`select` between tiles or futures by a run-time condition",
                fix_text="use `if`, or an array of tiles with a run-time subscript",
            )
        return self.ternary(cond, a, b, span)

    def _exactly(self, node: ast.Call, name: str, count: int, form: str) -> Sequence[ast.Expr]:
        if len(node.args) != count:
            raise WrongArity(node.span, what=name, got=len(node.args), want=str(count), form=form)
        return node.args

    def convert(self, node: ast.Convert) -> Value:
        if node.dtype.startswith('"'):
            raise NotBuiltYet(
                node.span, what='a conversion to a host type (`__to<"...">`)', fix_text="name an element type"
            )
        e = self.plain(node.operand, "`__to`")
        return self.converted(e, self.element_type(node.dtype, node.span), node.span)

    @staticmethod
    def element_type(name: str, span: Span) -> DType:
        if name in FOREIGN_TYPES:
            raise NotBuiltYet(
                span, what=f"the element type `{name}`", fix_text="use one of 4, 8, 16, 32 or 64 bits"
            )
        return element_type(name, span)


def guard_effects(stack: Sequence[str], span: Span, what: str) -> None:
    """SideEffect when an effect stands where none may."""
    if stack:
        raise SideEffect(span, what=what, where=stack[-1])
