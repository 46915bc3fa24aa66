"""Expressions built with C's rules: literals take a type, constants are computed, sizes are bounded."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.arithmetic.convert import real
from tilemma.croqtile.reader import Reader
from tilemma.dtypes import DType, boolean
from tilemma.errors import Span
from tilemma.ir.builder import Builder
from tilemma.ir.checks import checked_constant, checked_division, checked_fit
from tilemma.ir.expr import BinaryOp, Call, Cast, Const, Expr, Select, binary, children, promote
from tilemma.ir.ranges import interval
from tilemma.ir.refusals import ExpressionTooLarge, WrongValue

MAX_OPERATIONS = 1000
MAX_EXPRESSION_DEPTH = 100

BINARY: dict[str, BinaryOp] = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "&": "and", "|": "or", "^": "xor",
    "<<": "shl", ">>": "shr", "==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge",
    "&&": "land", "||": "lor",
}  # fmt: skip


def _measured(known: dict[int, tuple[Expr, int, int]], e: Expr) -> tuple[int, int]:
    """(operations, depth) of ``e``, both cut off beyond the limits; parts are counted wherever they are used."""
    stack: list[tuple[Expr, bool]] = [(e, False)]
    while stack:
        x, ready = stack.pop()
        if id(x) in known:
            continue
        below = list(children(x))
        if not ready:
            stack.append((x, True))
            stack.extend((c, False) for c in below if id(c) not in known)
            continue
        parts = [known[id(c)] for c in below]
        size = min(1 + sum(p[1] for p in parts), 10 * MAX_OPERATIONS)
        known[id(x)] = (x, size, 1 + max((p[2] for p in parts), default=0))
    return known[id(e)][1:]


def is_large(r: Reader, e: Expr) -> bool:
    """Whether ``e`` has so many operations that a `mutable` scalar keeps its value, even if it never changes."""
    return _measured(r.sizes, e)[0] > MAX_OPERATIONS // 10


def checked(r: Reader, e: Expr, span: Span) -> Expr:
    """``e`` when its constants fit and it is not too large."""
    checked_fit(e, e.type if isinstance(e, Const) else dtypes.s32, span)
    size, depth = _measured(r.sizes, e)
    if size > MAX_OPERATIONS or depth > MAX_EXPRESSION_DEPTH:
        where = f", nested at most {MAX_EXPRESSION_DEPTH} deep"
        raise ExpressionTooLarge(span, limit=MAX_OPERATIONS, where=where)
    return e


def converted(r: Reader, e: Expr, dtype: DType, span: Span) -> Expr:
    """``e`` as ``dtype``, in a C++ function by C++'s rules; ConstantOverflow for an integer constant that does not
    fit."""
    if r.calls:
        return as_cpp(r, e, dtype, span)
    checked_fit(e, dtype, span)
    return checked(r, Builder.converted(e, dtype), span)


def held(r: Reader, e: Expr, dtype: DType, span: Span) -> Expr:
    """As `converted`, for a value that no store converts: ConstantValue for a constant that ``dtype`` has not."""
    return converted(r, e if r.calls else checked_constant(e, dtype, span), dtype, span)


def as_cpp(r: Reader, e: Expr, dtype: DType, span: Span) -> Expr:
    """``e`` as ``dtype`` by C++'s rules: an integer modulo 2 to the width, a float cut towards zero.

    This language's own conversion stops at the limits of an integer type, and rounds.
    """
    if e.type.is_float and dtype.is_integer:
        e = Select(binary("lt", e, Const(0.0, e.type)), Call("ceil", (e,)), Call("floor", (e,)))
    elif e.type.is_integer and dtype.is_integer and dtype != boolean:
        e = _wrapped(e, dtype)
    checked_fit(e, dtype, span)
    return checked(r, Builder.converted(e, dtype), span)


def _wrapped(e: Expr, dtype: DType) -> Expr:
    """The integer ``e`` modulo 2 to the width of ``dtype``."""
    low, high = interval(e)
    least, most = integers.bounds(dtype)
    if isinstance(e, Const) and isinstance(e.value, int):
        return Const(integers.wrap(e.value, dtype), dtype)
    if least <= low and high <= most:
        return e
    wide = e if e.type.bits == 64 else Cast(e, dtypes.s64)
    if dtype.bits == 64:
        return _other_sign(wide, dtype)
    part: Expr = binary("and", wide, Const((1 << dtype.bits) - 1, wide.type))
    if dtype.kind == "int":
        sign = Const(1 << (dtype.bits - 1), dtypes.s64)
        part = binary("sub", binary("xor", Builder.converted(part, dtypes.s64), sign), sign)
    return Cast(part, dtype)


def _other_sign(e: Expr, dtype: DType) -> Expr:
    """The 64 bits of ``e`` as the 64-bit type of the other sign."""
    top, rest = integers.bounds(dtypes.s64)[0], integers.bounds(dtypes.s64)[1]
    below = Cast(binary("and", e, Const(rest, e.type)), dtype)
    if dtype == dtypes.s64:
        return Select(binary("gt", e, Const(rest, e.type)), binary("add", below, Const(top, dtype)), below)
    return Select(binary("lt", e, Const(0, e.type)), binary("or", below, Const(-top, dtype)), below)


def like(literal: Expr, beside: Expr, span: Span) -> Expr:
    """A literal takes the type of the other operand, if C would compute with that.

    Integers join floats; an unsuffixed float (f64 by its type) joins narrower floats, as in ``x * 2.0``.
    ConstantValue for one that this type cannot hold.
    """
    if not isinstance(literal, Const) or not literal.literal or isinstance(literal.value, bool):
        return literal
    if isinstance(beside, Const):
        return literal
    if beside.type.is_float and (literal.dtype.is_integer or literal.dtype == dtypes.f64):
        checked_constant(literal, beside.type, span)
        return Const(real(literal.value, beside.type), beside.type, True)
    both = beside.type.is_integer and literal.dtype.is_integer
    fits = both and integers.fits(literal.value, beside.type)
    return Const(literal.value, beside.type, True) if fits else literal


def combine(r: Reader, sign: str, a: Expr, b: Expr, span: Span) -> Expr:
    """``a sign b`` with C's meaning of the sign."""
    op = BINARY[sign]
    a, b = like(a, b, span), like(b, a, span)
    floats = a.type.is_float or b.type.is_float
    if floats and op in ("and", "or", "xor", "shl", "shr"):
        raise WrongValue(
            span,
            what=f"`{sign}`",
            got="a float",
            wanted="integers on both sides",
            fix_text="convert with `__to<s32>(x)`",
        )
    if not floats:
        checked_division(op, a, b, span)
        if isinstance(a, Const) and isinstance(b, Const) and a.literal and b.literal:
            t = promote(a.dtype, b.dtype)
            checked(r, Const(integers.exact(op, t)(int(a.value), int(b.value)), t), span)
        if op == "div" and interval(a)[0] >= 0 and interval(b)[0] >= 0:
            op = "floordiv"
    return checked(r, binary(op, a, b), span)
