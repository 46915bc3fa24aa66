"""`tm.math`: the math library on traced scalars and register tiles.

Arguments are floats; integers count as f32.  16- and 8-bit floats are computed in f32 and rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilemma.dtypes import DType, promote
from tilemma.ir import constructs
from tilemma.ir.builder import Builder
from tilemma.ir.checks import checked_constant, checked_division
from tilemma.ir.expr import Call, Const, Expr, binary
from tilemma.ir.mathematics import COMPOSED, composed
from tilemma.ir.refusals import WrongArity, WrongValue
from tilemma.lang.namespaces import Namespace
from tilemma.lang.registers import Elementwise, Fragment, elementwise
from tilemma.lang.scalars import Value, as_float, operand, refused
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import builder
from tilemma.lang.views import MemoryExpression, MemoryOperators


class Function:
    """One function of the library: of scalars, or of every element of register tiles."""

    def __init__(self, name: str, row: constructs.Function) -> None:
        self.name, self.operation, self.arguments = name, row.operation, row.arguments
        self.__name__, self.__doc__ = name, row.meaning

    def __call__(self, *args: Any, **others: Any) -> Any:
        builder(f"math.{self.name}")
        form = f"tm.math.{self.name}({', '.join('abc'[: self.arguments])})"
        if others:
            raise WrongValue(
                caller_span(),
                what=f"`tm.math.{self.name}`",
                got=f"an argument `{next(iter(others))}`",
                wanted=f"{self.arguments} arguments without a name" if self.arguments > 1 else "one argument",
                fix_text=f"write `{form}`",
            )
        if len(args) != self.arguments:
            raise WrongArity(
                caller_span(), what=f"tm.math.{self.name}", got=len(args), want=str(self.arguments), form=form
            )
        if any(isinstance(a, (Fragment, Elementwise)) for a in args):
            return elementwise(self, *args)
        if any(isinstance(a, MemoryOperators) for a in args):
            return MemoryExpression(self, *args)
        return Value(self._expression([operand(a, f"math.{self.name}") for a in args]))

    def _expression(self, args: list[Expr]) -> Expr:
        return Call(self.operation, tuple(as_float(a) for a in _with_one_type(args)))

    def __repr__(self) -> str:
        return f"<tilemma math.{self.name}: {self.__doc__}>"


class _Composed(Function):
    def _expression(self, args: list[Expr]) -> Expr:
        return composed(self.name, _with_one_type(args))


class _Align(Function):
    def _expression(self, args: list[Expr]) -> Expr:
        a, b = args
        for x in args:
            if not x.type.is_integer:
                raise refused("integer", f"math.{self.name}", f"a value of type {x.type}")
        checked_division("floordiv", a, b, caller_span())
        return binary("mul", binary("cdiv" if self.name == "alignup" else "floordiv", a, b), b)


def _with_one_type(args: list[Expr]) -> list[Expr]:
    """Python numbers take the type of the other operands."""
    typed = [a for a in args if not isinstance(a, Const)]
    if not typed:
        return args
    kind = typed[0].type
    for a in typed[1:]:
        kind = promote(kind, a.type)
    if any(isinstance(a, Const) and a.type.is_float for a in args) and not kind.is_float:
        return args
    return [_typed(a, kind) if isinstance(a, Const) else a for a in args]


def _typed(number: Const, kind: DType) -> Expr:
    """A Python number as one of ``kind``, without a rounding to another type before; ConstantValue for one that
    ``kind`` cannot hold."""
    if kind.is_float and not isinstance(number.value, bool):
        checked_constant(number, kind, caller_span())
        return Const(float(number.value), kind)
    return Builder.converted(number, kind)


_CLASSES: dict[str, type[Function]] = {
    **dict.fromkeys(COMPOSED, _Composed),
    "alignup": _Align,
    "aligndown": _Align,
}


class MathNamespace(Namespace):
    """The functions of the table in `ir.constructs`."""

    _spelled = "tm.math"
    _forms = "`tm.math.exp(x)`, or another function of docs/language.md"

    def __init__(self) -> None:
        table = constructs.FUNCTIONS.items()
        self.__dict__.update({name: _CLASSES.get(name, Function)(name, row) for name, row in table})

    if TYPE_CHECKING:  # the functions are entries of a table

        def __getattr__(self, name: str) -> Function: ...


math = MathNamespace()
