"""Traced scalars: indices, dimensions, elements and the expressions over them."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from tilemma import dtypes
from tilemma.arithmetic import integers
from tilemma.arithmetic.convert import real
from tilemma.dtypes import DType, promote
from tilemma.errors import described
from tilemma.ir.builder import Builder, element_type
from tilemma.ir.checks import checked_constant, checked_division, checked_fit, checked_index, checked_scalar
from tilemma.ir.constructs import KINDS, OPERANDS
from tilemma.ir.expr import BinaryOp, Call, Const, Element, Expr, Select, Unary, Var, binary, const, value_of
from tilemma.ir.mathematics import composed
from tilemma.ir.ranges import interval
from tilemma.ir.refusals import NotConstant, SideEffect, WrongValue
from tilemma.ir.tiles import Bounded, describe, scalar
from tilemma.ir.types import View
from tilemma.lang.operators import Operators, in_place
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import bounded_size, builder, same, trace


class Value(Operators):
    """A run-time scalar.  Arithmetic and comparison build expressions.

    It keeps the value that it had when Python evaluated it, even if the variable or element is written later.
    """

    article: ClassVar[str] = "a value that is only known when the kernel runs"

    __slots__ = ("_bounded", "_expr", "_moment")

    def __init__(self, e: Expr | Bounded) -> None:
        self._bounded = e if isinstance(e, Bounded) else None
        self._expr = e.value if isinstance(e, Bounded) else bounded_size(e)
        running = trace()
        self._moment = None if running is None else running.builder.point()

    @property
    def expr(self) -> Expr:
        e = same(self._expr, self._moment)
        if e is not self._expr:
            self._expr, self._bounded = e, None
        return e

    @property
    def bounded(self) -> Bounded | None:
        """The value with its upper bound, for those that have one."""
        return self._bounded if self.expr is self._expr else None

    @property
    def dtype(self) -> DType:
        return self._expr.type

    def place(self) -> View | None:
        """The element that the value was read from."""
        return self._expr.view if isinstance(self._expr, Element) else None

    @property
    def last(self) -> Value:
        """The largest value that this index can have, ``k(-1)`` in Croqtile."""
        bounded = self.bounded
        if bounded is None:
            raise refused("index", ".last", f"`{self}`, which has no upper bound")
        return Value(bounded.last)

    def __call__(self, index: int) -> Value:
        if index != -1:
            raise WrongValue(
                caller_span(),
                what="`index(...)`",
                got=f"{index}",
                wanted="-1: `k(-1)` is the last value of an index",
                fix_text="write k(-1) or k.last",
            )
        return self.last

    def astype(self, name: str | DType) -> Value:
        """The value converted to another element type, as stores convert."""
        dtype, span = element_type(name, caller_span()), caller_span()
        return Value(Builder.converted(checked_fit(self.expr, dtype, span), dtype))

    def _binary(self, op: BinaryOp, other: Any, swap: bool = False) -> Any:
        if isinstance(other, Operators) and not isinstance(other, Value):
            return NotImplemented
        e = operand(other, _SIGNS.get(op, op))
        a, b = (e, self.expr) if swap else (self.expr, e)
        return Value(combine(op, a, b))

    def __neg__(self) -> Value:
        return Value(Unary("neg", self.expr))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return Value(composed("abs", [self.expr]))

    def __invert__(self) -> Value:
        e = self.expr
        if e.type.is_float:
            raise WrongValue(
                caller_span(),
                what="`~`",
                got=f"a value of {e.type}",
                wanted="an integer, or a condition",
                fix_text="compare first: `~(x > 0)`",
            )
        return Value(Unary("lnot" if e.type.kind == "bool" else "not", e))

    def __pow__(self, n: Any) -> Any:
        if isinstance(n, int) and 0 <= n <= 8:
            e: Expr = Const(1.0 if self.dtype.is_float else 1, self.dtype)
            for i in range(n):
                e = self.expr if i == 0 else binary("mul", e, self.expr)
            return Value(e)
        if isinstance(n, Operators) and not isinstance(n, Value):
            return NotImplemented
        base, exponent = with_one_type(self.expr, operand(n, "**"))
        return Value(Call("pow", (as_float(base), as_float(exponent))))

    def __getitem__(self, i: Any) -> NoReturn:
        raise WrongValue(
            caller_span(), what="`[...]`", got="a scalar", wanted="a tile", fix_text="index the tile it came from"
        )

    def __setitem__(self, i: Any, value: Any) -> NoReturn:
        raise WrongValue(
            caller_span(),
            what="`[...] =`",
            got="a scalar",
            wanted="a tile",
            fix_text="assign the element of the tile: `x[i, j] = value`",
        )

    def __str__(self) -> str:
        return describe(self._expr)

    def __repr__(self) -> str:
        return f"<traced {describe(self._expr)}: {self._expr.type}>"


_SIGNS: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "div": "/", "mod": "%", "and": "&", "or": "|",
    "xor": "^", "shl": "<<", "shr": ">>", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_BITS = ("and", "or", "xor", "shl", "shr")


def combine(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """``a op b`` with Python's meaning: true division, a remainder with the divisor's sign, `&` of conditions."""
    a, b = with_one_type(a, b)
    both = promote(a.type, b.type)
    if op == "div" and not both.is_float:
        raise WrongValue(
            caller_span(),
            what="`/`",
            got="two integers, for which Python's `/` means a float",
            wanted="`//` for whole numbers, or a float operand",
            fix_text="write `//`, or convert one operand with `.astype('f32')`",
        )
    if op in _BITS:
        if both.is_float:
            raise WrongValue(
                caller_span(),
                what=f"`{_SIGNS[op]}`",
                got=f"values of {a.type} and {b.type}",
                wanted="integers, or conditions",
                fix_text="use `*` and `/`, or convert with `.astype('s32')`",
            )
        if a.type.kind == b.type.kind == "bool" and op in ("and", "or", "xor"):
            logical: dict[str, BinaryOp] = {"and": "land", "or": "lor", "xor": "ne"}
            return binary(logical[op], a, b)
    checked_division(op, a, b, caller_span())
    if op == "mod":
        return _modulo(a, b, both)
    return binary(op, a, b)


def _modulo(a: Expr, b: Expr, both: DType) -> Expr:
    """Python's ``%``, which takes the sign of the divisor."""
    if both.is_float:
        r = binary("mod", a, b)
        zero = Const(0.0, both)
        other = binary("land", binary("ne", r, zero), binary("ne", binary("lt", r, zero), binary("lt", b, zero)))
        return Select(other, binary("add", r, b), r)
    if both.kind != "uint" and (interval(a)[0] < 0 or interval(b)[0] < 0):
        return binary("floormod", a, b)
    return binary("mod", a, b)


def python_number(x: Any) -> bool | int | float | None:
    """``x`` as a Python number, for any object that converts to one (NumPy scalars do); None for other objects."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    if isinstance(x, numbers.Integral):
        return int(x)
    if isinstance(x, (numbers.Real, np.generic)) and not isinstance(x, (np.str_, np.bytes_, np.complexfloating)):
        try:
            return float(x)
        except (TypeError, ValueError):
            return None
    return None


def constant(x: bool | int | float) -> Const:
    """A Python number as a constant: s32 where it fits, s64 or u64 beyond, f32 for floats."""
    if isinstance(x, bool) or not isinstance(x, int):
        return Const(x, const(x).dtype, True)
    for kind in (dtypes.s32, dtypes.s64, dtypes.u64):
        if integers.fits(x, kind):
            return Const(x, kind, True)
    raise WrongValue(
        caller_span(),
        what="`arithmetic`",
        got=f"an integer of {x.bit_length()} bits",
        wanted="integers of at most 64 bits",
        fix_text="use a float",
    )


def operand(x: Any, what: str) -> Expr:
    """``x`` as an expression; WrongValue for objects that are not numbers."""
    if isinstance(x, Value):
        return x.expr
    n = python_number(x)
    if n is None:
        raise KINDS["scalar"].refused(f"`{what}`", article(x), caller_span())
    return constant(n)


def operand_as(x: Any, dtype: DType, what: str) -> Expr:
    """As `operand`, for a value of type ``dtype``: a Python float is converted with a single rounding."""
    e = operand(x, what)
    if dtype.is_float and not isinstance(x, Value) and isinstance(e, Const) and isinstance(e.value, float):
        return Const(e.value, dtype)
    return e


def _literal(e: Expr, beside: Expr) -> Expr:
    """A Python number takes the type of the other operand, if that represents it exactly."""
    if isinstance(e, Const) and e.literal and not isinstance(beside, Const) and not isinstance(e.value, bool):
        if beside.type.is_float:
            checked_constant(e, beside.type, caller_span())
            return Const(real(e.value, beside.type), beside.type, True)
        if beside.type.is_integer and isinstance(e.value, int) and integers.fits(e.value, beside.type):
            return Const(e.value, beside.type, True)
    return e


def with_one_type(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Both operands, a Python number among them with the type of the other."""
    return _literal(a, b), _literal(b, a)


def as_float(e: Expr) -> Expr:
    """Arguments of the math library are floats; integers become f32."""
    return e if e.type.is_float else Builder.converted(e, dtypes.f32)


class Variable(Value):
    """A mutable scalar: `var(e)`.  ``x.set(e)`` or ``x += e`` changes it; a read gives its present value."""

    __slots__ = ("var",)

    def __init__(self, var: Var) -> None:
        super().__init__(var)
        self.var = var

    @property
    def expr(self) -> Expr:
        running = trace()
        if running is not None and self._moment is not None and not running.builder.is_open(self._moment):
            return super().expr  # raises LeftItsBlock
        return self.var

    def set(self, value: Any) -> None:
        self._assign(operand_as(value, self.dtype, f"{self.var.name}.set"), "set")

    def _assign(self, e: Expr, what: str) -> None:
        b = builder(what)
        if running := trace():
            refuse_effect(running.pure, f"`{self.var.name}`")
        self.expr  # noqa: B018 (raises where the variable is gone)
        checked_scalar(e, self.dtype, self.var.name, b.span)
        b.assign(self.var, e)

    def _update(self, op: BinaryOp, o: Any) -> Variable:
        self._assign(combine(op, self.expr, operand(o, f"{_SIGNS[op]}=")), f"{_SIGNS[op]}=")
        return self

    __iadd__ = in_place("add")
    __isub__ = in_place("sub")
    __imul__ = in_place("mul")
    __ifloordiv__ = in_place("floordiv")
    __itruediv__ = in_place("div")
    __imod__ = in_place("mod")
    __iand__ = in_place("and")
    __ior__ = in_place("or")
    __ixor__ = in_place("xor")
    __ilshift__ = in_place("shl")
    __irshift__ = in_place("shr")


def refuse_effect(pure: bool, what: str) -> None:
    """WrongValue where a condition that is evaluated again and again changes something."""
    if pure:
        raise SideEffect(caller_span(), what=f"a change of {what}", where="the condition of `while_`")


def number(x: Any, what: str) -> Bounded | Expr:
    """``x`` as a bounded value or an expression; WrongValue for other objects."""
    if isinstance(x, Value):
        bounded = x.bounded
        return bounded if bounded is not None else x.expr
    return operand(x, what)


def integer(x: Any, what: str) -> Bounded | Expr:
    """As `number`, an index or extent: these are s32, other integers are converted."""
    n = whole(x, what)
    e = scalar(n)
    if e.type == dtypes.s32:
        return n
    checked_index(e, f"`{what}`", caller_span())
    return Builder.converted(e, dtypes.s32)


def whole(x: Any, what: str) -> Bounded | Expr:
    """As `number`, of an integer type."""
    n = number(x, what)
    kind = scalar(n).type
    if not kind.is_integer:
        raise refused("integer", what, f"`{describe(scalar(n))}`, of type {kind}")
    return n


def boolean(x: Any, what: str) -> Expr:
    """``x`` as a condition: numbers count as true where they are not 0."""
    if not isinstance(x, Value) and python_number(x) is None:
        raise refused("condition", what, article(x))
    e = operand(x, what)
    return e if e.type.kind == "bool" else binary("ne", e, Const(0.0 if e.type.is_float else 0, e.type))


def python_int(x: Any, what: str) -> int:
    """``x`` as a Python integer, a compile-time constant."""
    n = python_number(x)
    if isinstance(n, int) and not isinstance(n, bool):
        return n
    if isinstance(x, Value) and (known := value_of(x.expr)) is not None:
        return known
    if isinstance(x, Value) and x.dtype.is_integer:
        raise NotConstant(caller_span(), what=f"`{what}`", text=str(x))
    raise WrongValue(
        caller_span(),
        what=f"`{what}`",
        got=f"`{x}`" if isinstance(x, Value) else article(x),
        wanted="an integer known when compiled",
        fix_text="pass a number, or a compile-time keyword of the kernel",
    )


def constant_operand(x: Any, name: str) -> int:
    """``x`` as the operand ``name`` of the table in `ir.constructs`."""
    return OPERANDS[name].checked(constant_value(x, name), caller_span())


def constant_operands(xs: Sequence[Any], name: str) -> tuple[int, ...]:
    """The values of an operand that may be given several times."""
    return OPERANDS[name].checked_all([constant_operand(x, name) for x in xs], caller_span())


def constant_value(x: Any, name: str) -> int:
    """``x`` as an integer constant, whether or not the operand ``name`` admits it."""
    about = OPERANDS[name]
    n = python_number(x)
    if isinstance(n, int) and not isinstance(n, bool):
        return n
    if isinstance(x, (Value, Variable)):
        e = scalar(number(x, about.python))
        if (known := value_of(e)) is not None and e.type.is_integer:
            return known
        if e.type.is_integer:
            raise NotConstant(caller_span(), what=f"`{about.python}`", text=describe(e))
        raise about.refused(f"a value of type {e.type}", caller_span(), "an integer")
    raise about.refused(article(x) if n is None else repr(n), caller_span(), "an integer")


def flag(x: Any, what: str, *others: str) -> bool:
    """``x`` as True or False, which 1 and 0 are too; ``others``: what else the parameter may be."""
    known = python_number(x)
    if known in (0, 1):
        return bool(known)
    fix = f"write `{what}=True`, or leave it out"
    wanted = "True or False" + "".join(f", or {other!r}" for other in others)
    got = described(x) if isinstance(x, (str, int, float)) else article(x)
    raise WrongValue(caller_span(), what=f"`{what}=`", got=got, wanted=wanted, fix_text=fix)


def refused(kind: str, what: str, x: Any, fix: str | None = None) -> WrongValue:
    """The error if ``what`` got ``x`` for an operand of that kind of `ir.constructs`."""
    return KINDS[kind].refused(f"`{what}`", x if isinstance(x, str) else article(x), caller_span(), fix)


def article(x: Any) -> str:
    """A description of ``x``."""
    text = x.article if hasattr(type(x), "article") else None
    return text if isinstance(text, str) else f"a Python {type(x).__name__}"


def unwrap(e: Expr) -> Any:
    """``e`` for the user: a Python int if its value is a constant."""
    known = value_of(e)
    return known if known is not None else Value(e)
