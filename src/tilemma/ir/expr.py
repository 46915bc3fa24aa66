"""Scalar expressions of the tile IR: integers over indices and dimensions, and the values of element work.

Expressions are frozen and compare by structure; names are unique within a kernel.  Index arithmetic is
``s32``, which wraps: a launch refuses dimensions of 2**31 or more, and element offsets are widened when they are
formed.
The functions (`add`, `mul`, `cdiv`, ...) fold constants and drop neutral operands; use them, not the classes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator
from dataclasses import field, fields, replace
from math import copysign
from typing import TYPE_CHECKING, Any, Literal

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.dtypes import DType
from tilemma.dtypes import promote as promote
from tilemma.records import record

if TYPE_CHECKING:
    from tilemma.ir.types import View

INDEX = dtypes.s32

ARITHMETIC = ("add", "sub", "mul", "floordiv", "cdiv", "div", "mod", "floormod", "min", "max")
BITWISE = ("and", "or", "xor", "shl", "shr")
COMPARISON = ("eq", "ne", "lt", "le", "gt", "ge")
LOGICAL = ("land", "lor")
BinaryOp = Literal[
    "add", "sub", "mul", "floordiv", "cdiv", "div", "mod", "floormod", "min", "max",
    "and", "or", "xor", "shl", "shr",
    "eq", "ne", "lt", "le", "gt", "ge", "land", "lor",
]  # fmt: skip
UnaryOp = Literal["neg", "not", "lnot"]


class Parted:
    """A lazily computed attribute of a frozen record, which is not one of its fields."""

    __slots__ = ("_parts",)
    _parts: tuple[Expr, ...]


class _Typed(Parted):
    """Room for its type too, which is that of all its terms, for the names in it and the bounds on its value, and
    for whether a substitution has found it folded."""

    __slots__ = ("_folded", "_names", "_range", "_type")
    _folded: bool
    _names: frozenset[str]
    _type: DType
    _range: tuple[int, int]


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


class _OfDtype:
    """Expressions whose type is their field ``dtype``."""

    __slots__ = ()
    dtype: DType

    @property
    def type(self) -> DType:
        return self.dtype


def same_number(a: float, b: float) -> bool:
    """Whether the numbers are equal and, where they are 0, of one sign."""
    return a is b or (a == b and (a != 0 or copysign(1, a) == copysign(1, b)))


@record
class Const(_OfDtype, Expr):
    """A constant.  ``literal``: a number of the program's text, which takes the type of the other operand."""

    value: int | float | bool
    dtype: DType = INDEX
    literal: bool = field(default=False, compare=False, repr=False)

    def __eq__(self, other: object) -> bool:
        return type(other) is Const and self.dtype == other.dtype and same_number(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.value)


@record
class Dim(Expr):
    """A run-time dimension named in parameter types; at least 0."""

    name: str

    @property
    def type(self) -> DType:
        return INDEX


@record
class Scalar(_OfDtype, Expr):
    """A scalar parameter of the kernel."""

    name: str
    dtype: DType


@record
class Index(Expr):
    """The index of a parallel level or of a loop.

    ``extent`` is what ``#p`` gives; 0 <= index < extent.  ``limits``: where the bounds of a loop may leave the
    extent, first <= index < last instead.  ``checked``: the launch checks that the bounds of its loop do not wrap.
    ``start``: that of its loop, where it is an expression; the index is not below it.
    """

    name: str
    extent: Expr
    limits: tuple[Expr, Expr] | None = field(default=None, compare=False, repr=False)
    checked: bool = field(default=False, compare=False, repr=False)
    start: Expr | None = field(default=None, compare=False, repr=False)

    def __hash__(self) -> int:
        # Its extent, an expression of its own, says little more.
        return hash(self.name)

    @property
    def type(self) -> DType:
        return INDEX

    @property
    def source_name(self) -> str:
        """The name in the program; ``name`` tells indices of the same name apart."""
        return self.name.partition(".")[0]


@record
class Var(_OfDtype, Expr):
    """The current value of a mutable scalar."""

    name: str
    dtype: DType


@record
class Binary(Expr):
    """``a op b``.  floordiv rounds down, div and mod truncate toward zero as C's do, cdiv rounds up.

    floormod is the remainder of floordiv: see `tilemma.arithmetic.integers`.
    """

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
        if self.op == "lnot" or (self.op == "not" and self.a.type.kind == "bool"):
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
class Cast(_OfDtype, Expr):
    """``a`` converted to ``dtype``: to nearest even, saturating as stores do."""

    a: Expr
    dtype: DType


@record
class Element(Expr):
    """The value of one element: ``view`` has no axes left, its offsets are the element's coordinates."""

    view: View

    @property
    def type(self) -> DType:
        return self.view.base.dtype


@record
class FragmentElement(_OfDtype, Expr):
    """Inside `Apply`: the value that ``fragment`` (tile ``index`` of it, for an array) holds at the element being
    visited."""

    fragment: str
    indices: tuple[Expr, ...]
    dtype: DType
    index: tuple[Expr, ...] = ()


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


def const(value: int | float | bool, dtype: DType | None = None) -> Const:
    if dtype is None:
        dtype = dtypes.boolean if isinstance(value, bool) else INDEX if isinstance(value, int) else dtypes.f32
    return Const(value, dtype)


def plain(value: Any) -> Any:
    """A compile-time value: an int for any object with `__index__`, such as a NumPy integer; others unchanged.

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
    if type(e) is Const:
        return e.value if isinstance(e.value, int) else None
    return e if isinstance(e, int) else None


def trips(start: int, stop: int, step: int) -> int:
    """The iterations of a loop from ``start`` to below ``stop``; ``len(range(...))`` refuses the largest."""
    return max(0, -(-(stop - start) // step))


def expr(e: Expr | int | float | bool) -> Expr:
    return e if isinstance(e, Expr) else const(e)


def _fold(op: BinaryOp, a: Const, b: Const) -> Const:
    """``a op b`` for two whole numbers or truth values, which are converted as operands are."""
    result, t = Binary(op, a, b).type, promote(a.dtype, b.dtype)
    if result.kind == "bool":
        t = result if a.dtype.kind == b.dtype.kind == "bool" else t
    if op in LOGICAL:
        t = dtypes.s64
    value = integers.binary(op, t)(integers.wrap(int(a.value), t), integers.wrap(int(b.value), t))
    return Const(bool(value) if result.kind == "bool" else value, result, a.literal and b.literal)


# Right operands that may be dropped if they are this number; of commutative operations left operands, too.
_NEUTRAL = {0: ("add", "sub", "shl", "shr", "or", "xor"), 1: ("mul", "floordiv", "cdiv", "div")}
_NEUTRAL_OF_FLOATS = {0: ("sub",), 1: ("mul", "div")}
_COMMUTATIVE = ("add", "or", "xor", "mul")


def binary(op: BinaryOp, a: Expr | int | float, b: Expr | int | float) -> Expr:
    """``a op b``, folded if both are integer constants or an operand is neutral."""
    a, b = expr(a), expr(b)
    if isinstance(a, Const) and isinstance(b, Const) and not (a.type.is_float or b.type.is_float):
        return _fold(op, a, b)
    va, vb = value_of(a), value_of(b)
    same = promote(a.type, b.type)
    # Of floats, -0 + 0 is 0, and a quotient by 1 is rounded to an integer.
    neutral = _NEUTRAL_OF_FLOATS if same.is_float else _NEUTRAL
    if same == a.type and vb in neutral and op in neutral[vb]:
        return a
    if same == b.type and va in neutral and op in neutral[va] and op in _COMMUTATIVE:
        return b
    if op == "mul" and 0 in (va, vb) and same.is_integer:
        return Const(0, same)
    if op in integers.DIVISIONS and 0 in (va, vb) and same.is_integer:
        return Const(0, same)
    if op in ("mod", "floormod") and vb == 1 and same.is_integer:
        return Const(0, same)
    if op == "add" and vb is not None and isinstance(a, Binary) and a.op == "add":
        inner = value_of(a.b)
        if inner is not None and same == a.type:
            return binary("add", a.a, Const(integers.wrap(inner + vb, same), same))
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
    kind = type(e)
    if isinstance(e, Binary):
        yield e.a
        yield e.b
        return
    if kind in _LEAVES:
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
    """``e`` and its subexpressions, outermost first (an index's extent is not part of it)."""
    if type(e) in _LEAVES:
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
            elif type(x) not in _LEAVES:
                stack += reversed(tuple(children(x)))
        object.__setattr__(e, "_parts", tuple(found[1:]))
        return tuple(found)


def with_operands(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """``e`` with ``f`` applied to its direct operands, those inside the view of an `Element` included, and folded
    again; the same object if nothing changes."""
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
    if type(e) is Const:
        return e
    if getattr(e, "_folded", False) and not depends_on(e, table):
        return e
    new = with_operands(e, lambda x: substitute(x, table))
    if new is e:
        object.__setattr__(e, "_folded", True)
    return new


def with_bounds(index: Index, f: Callable[[Expr], Expr]) -> Index:
    """``index`` with ``f`` applied to its extent, limits and start; the same object if nothing changes."""
    extent = f(index.extent)
    limits = None if index.limits is None else (f(index.limits[0]), f(index.limits[1]))
    same = extent is index.extent and (index.limits is None or limits == index.limits)
    return index if same else Index(index.name, extent, limits, index.checked, index.start and f(index.start))


def depends_on(e: Expr, names: Container[str]) -> bool:
    """Whether ``e`` mentions one of the ``names``."""
    return any(isinstance(x, (Index, Dim, Scalar, Var)) and x.name in names for x in walk(e))
