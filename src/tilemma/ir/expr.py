"""Scalar expressions of the tile IR: integers over indices and dimensions, and the values of element work.

Expressions are frozen and compare by structure; names are unique within a kernel.  Index arithmetic is
``s32``: a launch refuses dimensions of 2**31 or more, and element offsets are widened when they are formed.
The functions (`add`, `mul`, `cdiv`, ...) fold constants and drop neutral operands; use them, not the classes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from math import copysign
from typing import TYPE_CHECKING, Any, Literal

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.ir.types import View

INDEX = dtypes.s32

ARITHMETIC = ("add", "sub", "mul", "floordiv", "cdiv", "div", "mod", "min", "max")
BITWISE = ("and", "or", "xor", "shl", "shr")
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("land", "lor")
BinaryOp = Literal[
    "add", "sub", "mul", "floordiv", "cdiv", "div", "mod", "min", "max",
    "and", "or", "xor", "shl", "shr",
    "eq", "ne", "lt", "le", "gt", "ge", "land", "lor",
]  # fmt: skip
UnaryOp = Literal["neg", "not", "lnot"]


class Parted:
    """Room in a record that never changes for what it is made of, once somebody asked; no field of it."""

    __slots__ = ("_parts",)
    _parts: tuple[Expr, ...]


class _Typed(Parted):
    """Room for its type too, which is that of all its terms."""

    __slots__ = ("_type",)
    _type: DType


@record
class Expr(_Typed):
    """Base of all scalar expressions; ``type`` is the element type of the value."""

    @property
    def type(self) -> DType:
        known: DType | None = getattr(self, "_type", None)
        if known is None:
            known = self._find_type()
            object.__setattr__(self, "_type", known)
        return known

    def _find_type(self) -> DType:
        raise AssertionError(f"{type(self).__name__} has no type")


def same_number(a: float, b: float) -> bool:
    """Whether the numbers are equal and, where they are 0, of one sign."""
    return a is b or (a == b and (a != 0 or copysign(1, a) == copysign(1, b)))


@record
class Const(Expr):
    value: int | float | bool
    dtype: DType = INDEX

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and self.dtype == other.dtype and same_number(self.value, other.value)

    @property
    def type(self) -> DType:
        return self.dtype


@record
class Dim(Expr):
    """A run-time dimension named in parameter types; at least 0."""

    name: str

    @property
    def type(self) -> DType:
        return INDEX


@record
class Scalar(Expr):
    """A scalar parameter of the kernel."""

    name: str
    dtype: DType

    @property
    def type(self) -> DType:
        return self.dtype


@record
class Index(Expr):
    """The index of a parallel level or of a loop; 0 <= index < extent.

    ``extent`` is what ``#p`` gives.  It does not take part in comparison: the name is the identity.
    """

    name: str
    extent: Expr

    @property
    def type(self) -> DType:
        return INDEX


@record
class Var(Expr):
    """The current value of a mutable scalar."""

    name: str
    dtype: DType

    @property
    def type(self) -> DType:
        return self.dtype


@record
class Binary(Expr):
    """``a op b``.  floordiv rounds down, div and mod truncate toward zero as C's do, cdiv rounds up."""

    op: BinaryOp
    a: Expr
    b: Expr

    def _find_type(self) -> DType:
        if self.op in COMPARISON or self.op in LOGICAL:
            return dtypes.boolean
        if self.op in ("and", "or", "xor") and self.a.type.kind == self.b.type.kind == "bool":
            return dtypes.boolean
        return promote(self.a.type, self.b.type)


@record
class Unary(Expr):
    op: UnaryOp
    a: Expr

    def _find_type(self) -> DType:
        if self.op == "lnot" or self.a.type.kind == "bool":
            return dtypes.boolean
        return promote(self.a.type, self.a.type)


@record
class Select(Expr):
    cond: Expr
    a: Expr
    b: Expr

    def _find_type(self) -> DType:
        return self.a.type if self.a.type == self.b.type else promote(self.a.type, self.b.type)


@record
class Cast(Expr):
    """``a`` converted to ``dtype``: to nearest even, saturating as stores do."""

    a: Expr
    dtype: DType

    @property
    def type(self) -> DType:
        return self.dtype


@record
class Element(Expr):
    """The value of one element: ``view`` has no axes left, its offsets are the element's coordinates."""

    view: View

    @property
    def type(self) -> DType:
        return self.view.base.dtype


@record
class FragmentElement(Expr):
    """Inside `Apply`: the value that ``fragment`` (tile ``index`` of it, for an array) holds at the element being
    visited."""

    fragment: str
    indices: tuple[Expr, ...]
    dtype: DType
    index: tuple[Expr, ...] = ()

    @property
    def type(self) -> DType:
        return self.dtype


@record
class Call(Expr):
    """A function of the math library, ``name`` without its leading underscores (``exp``, ``rsqrt``)."""

    name: str
    args: tuple[Expr, ...]

    def _find_type(self) -> DType:
        t = self.args[0].type
        for a in self.args[1:]:
            t = promote(t, a.type)
        return t


_FLOAT_RANK = {"f8_e5m2": 0, "f8_e4m3": 0, "bf16": 1, "f16": 1, "tf32": 2, "f32": 3, "f64": 4}


def promote(a: DType, b: DType) -> DType:
    """The type of an arithmetic result: C's rules, with the floats f8 < f16, bf16 < tf32 < f32 < f64.

    Integers narrower than 32 bits count as s32.  f16 with bf16 gives f32: neither holds the other's values.
    """
    if (a is b or a == b) and (a.kind == "float" or (a.kind in ("int", "uint") and a.bits >= 32)):
        return a
    if a.is_float or b.is_float:
        if not a.is_float:
            return b
        if not b.is_float:
            return a
        ra, rb = _FLOAT_RANK[a.name], _FLOAT_RANK[b.name]
        return dtypes.f32 if ra == rb else (a if ra > rb else b)
    bits = max(a.bits, b.bits, 32)
    unsigned = (a.kind == "uint" and a.bits == bits) or (b.kind == "uint" and b.bits == bits)
    return dtypes.dtype(f"{'u' if unsigned else 's'}{bits}")


def const(value: int | float | bool, dtype: DType | None = None) -> Const:
    if dtype is None:
        dtype = dtypes.boolean if isinstance(value, bool) else INDEX if isinstance(value, int) else dtypes.f32
    return Const(value, dtype)


def plain(value: Any) -> Any:
    """A compile-time value: an int where it counts without being one, as NumPy's integers do, else as it is.

    `__index__` is Python's word for "exactly this integer": floats and NumPy's truth values have none.
    """
    if isinstance(value, (int, float, str)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def value_of(e: Expr | int) -> int | None:
    """The integer that ``e`` always is, or None."""
    if isinstance(e, int):
        return e
    return e.value if isinstance(e, Const) and isinstance(e.value, int) else None


def trips(start: int, stop: int, step: int) -> int:
    """How often a loop from ``start`` to below ``stop`` runs; ``len(range(...))`` refuses the largest."""
    return max(0, -(-(stop - start) // step))


def expr(e: Expr | int | float | bool) -> Expr:
    return e if isinstance(e, Expr) else const(e)


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


_FOLDED: dict[str, Callable[[int, int], int | bool]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "cdiv": lambda a, b: -(-a // b),
    "div": _trunc_div, "mod": lambda a, b: a - b * _trunc_div(a, b),
    "min": min, "max": max,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
    "shl": operator.lshift, "shr": operator.rshift,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "land": lambda a, b: bool(a) and bool(b), "lor": lambda a, b: bool(a) or bool(b),
}  # fmt: skip


def _fold(op: str, a: int, b: int) -> int | bool | None:
    if op in ("floordiv", "cdiv", "div", "mod") and b == 0:
        return None
    if op in ("shl", "shr") and not 0 <= b < 64:
        return None
    return _FOLDED[op](a, b)


def binary(op: BinaryOp, a: Expr | int | float, b: Expr | int | float) -> Expr:
    """``a op b``, folded where both are known integers and where an operand is neutral."""
    a, b = expr(a), expr(b)
    if isinstance(a, Const) and isinstance(b, Const) and not (a.type.is_float or b.type.is_float):
        folded = _fold(op, int(a.value), int(b.value))
        if folded is not None:
            return Const(folded, Binary(op, a, b).type)
    va, vb = value_of(a), value_of(b)
    same = promote(a.type, b.type)
    if same == a.type and (
        (vb == 0 and op in ("add", "sub", "shl", "shr", "or", "xor"))
        or (vb == 1 and op in ("mul", "floordiv", "cdiv", "div"))
    ):
        return a
    if same == b.type and ((va == 0 and op in ("add", "or", "xor")) or (va == 1 and op == "mul")):
        return b
    if op == "mul" and 0 in (va, vb) and same.is_integer:
        return Const(0, same)
    if op in ("floordiv", "div", "cdiv", "mod") and va == 0 and same.is_integer:
        return Const(0, same)
    if op == "mod" and vb == 1 and same.is_integer:
        return Const(0, same)
    if op == "add" and vb is not None and isinstance(a, Binary) and a.op == "add":
        inner = value_of(a.b)
        if inner is not None and same == a.type:
            return binary("add", a.a, Const(inner + vb, same))
    return Binary(op, a, b)


def add(a: Expr | int, b: Expr | int) -> Expr:
    return binary("add", a, b)


def sub(a: Expr | int, b: Expr | int) -> Expr:
    return binary("sub", a, b)


def mul(a: Expr | int, b: Expr | int) -> Expr:
    return binary("mul", a, b)


def floordiv(a: Expr | int, b: Expr | int) -> Expr:
    return binary("floordiv", a, b)


def cdiv(a: Expr | int, b: Expr | int) -> Expr:
    return binary("cdiv", a, b)


def mod(a: Expr | int, b: Expr | int) -> Expr:
    return binary("mod", a, b)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    return binary("min", a, b)


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    return binary("max", a, b)


_FIELD_NAMES: dict[type[Any], tuple[str, ...]] = {}


def field_names(x: Any) -> tuple[str, ...]:
    """The names of the fields of ``x``, a dataclass, in order."""
    known = _FIELD_NAMES.get(type(x))
    if known is None:
        known = _FIELD_NAMES[type(x)] = tuple(f.name for f in fields(x))
    return known


_LEAVES = (Const, Index, Dim, Scalar, Var)


def children(e: Expr) -> Iterator[Expr]:
    """The direct operands of ``e``, those inside the view of an `Element` included."""
    if isinstance(e, Binary):
        yield e.a
        yield e.b
        return
    if isinstance(e, _LEAVES):
        return
    if isinstance(e, Element):
        yield from e.view.expressions()
        return
    for name in field_names(e):
        v = getattr(e, name)
        if isinstance(v, Expr):
            yield v
        elif isinstance(v, tuple):
            yield from (x for x in v if isinstance(x, Expr))


def walk(e: Expr) -> tuple[Expr, ...]:
    """``e`` and all that it is made of, outermost first (an index's extent is not part of it)."""
    if isinstance(e, _LEAVES):
        return (e,)
    try:
        return (e, *e._parts)
    except AttributeError:
        found, stack = [], [e]
        while stack:
            x = stack.pop()
            found.append(x)
            known = getattr(x, "_parts", None)
            if known is not None:
                found += known
            elif not isinstance(x, _LEAVES):
                stack += reversed(tuple(children(x)))
        object.__setattr__(e, "_parts", tuple(found[1:]))
        return tuple(found)


def with_operands(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """``e`` with ``f`` applied to its direct operands, those inside the view of an `Element` included, and folded
    again; itself where that changes nothing."""
    if isinstance(e, Binary):
        new = binary(e.op, f(e.a), f(e.b))
        same = isinstance(new, Binary) and new.op == e.op and new.a is e.a and new.b is e.b
        return e if same else new
    if isinstance(e, Element):
        view = e.view.map(f)
        return e if view is e.view else Element(view)
    changes: dict[str, Any] = {}
    for name in field_names(e):
        v = getattr(e, name)
        if isinstance(v, Expr):
            if (new := f(v)) is not v:
                changes[name] = new
        elif isinstance(v, tuple) and v and isinstance(v[0], Expr):
            each = tuple(f(x) for x in v)
            if any(a is not b for a, b in zip(each, v, strict=True)):
                changes[name] = each
    return replace(e, **changes) if changes else e


def substitute(e: Expr, table: dict[str, Expr]) -> Expr:
    """``e`` with indices, dimensions, scalars and variables named in ``table`` replaced, and folded again."""
    if isinstance(e, (Index, Dim, Scalar, Var)):
        return table.get(e.name, e)
    return with_operands(e, lambda x: substitute(x, table))


def depends_on(e: Expr, names: set[str]) -> bool:
    """Whether ``e`` mentions one of the ``names``."""
    return any(isinstance(x, (Index, Dim, Scalar, Var)) and x.name in names for x in walk(e))


def interval(e: Expr, nonzero: frozenset[str] = frozenset()) -> tuple[int, int]:
    """Bounds (inclusive) on an integer expression, from the extents of its indices; wide when unknown.

    The dimensions in ``nonzero`` are at least 1.
    """
    wide = (-(2**63), 2**63)
    if isinstance(e, Const) and not e.type.is_float:
        return int(e.value), int(e.value)
    if isinstance(e, Dim):
        return int(e.name in nonzero), 2**31 - 1
    if isinstance(e, Index):
        return 0, max(0, interval(e.extent, nonzero)[1] - 1)
    if isinstance(e, Select):
        (al, ah), (bl, bh) = interval(e.a, nonzero), interval(e.b, nonzero)
        return min(al, bl), max(ah, bh)
    if not isinstance(e, Binary):
        return wide
    (al, ah), (bl, bh) = interval(e.a, nonzero), interval(e.b, nonzero)
    match e.op:
        case "add":
            return al + bl, ah + bh
        case "sub":
            return al - bh, ah - bl
        case "mul":
            products = (al * bl, al * bh, ah * bl, ah * bh)
            return min(products), max(products)
        # Dividing by 0 has no value: a divisor that may be 0 counts from 1.
        case "floordiv" | "div" if bl >= 0 and bh > 0 and al >= 0:
            return al // bh, ah // max(bl, 1)
        case "cdiv" if bl >= 0 and bh > 0 and al >= 0:
            return -(-al // bh), -(-ah // max(bl, 1))
        case "mod" if bl >= 0 and bh > 0 and al >= 0:
            return 0, min(ah, bh - 1)
        case "min":
            return min(al, bl), min(ah, bh)
        case "max":
            return max(al, bl), max(ah, bh)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "land" | "lor":
            return 0, 1
    return wide


def below(a: Expr, b: Expr, nonzero: frozenset[str] = frozenset()) -> bool:
    """Whether ``a`` is less than ``b`` for certain; the dimensions in ``nonzero`` are at least 1."""
    if isinstance(b, Binary) and b.op == "add" and a in (b.a, b.b):
        return interval(b.b if a == b.a else b.a, nonzero)[0] > 0
    return interval(a, nonzero)[1] < interval(b, nonzero)[0]
