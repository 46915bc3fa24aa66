"""`tm.math`: the math library on traced scalars.

Arguments are floats; integers count as f32.  16- and 8-bit floats are computed in f32 and rounded once.
"""

from __future__ import annotations

from typing import Any

from tilemma.dtypes import DType, promote
from tilemma.ir.builder import Builder
from tilemma.ir.constructs import checked_division
from tilemma.ir.expr import Call, Const, Expr, binary
from tilemma.lang.registers import Elementwise, Fragment
from tilemma.lang.scalars import Value, as_float, operand
from tilemma.lang.spans import caller_span
from tilemma.lang.tracing import WrongOperand, builder


class Function:
    """One function of the library: called with scalars; with a register tile it works on every element."""

    def __init__(self, name: str, arguments: int, doc: str) -> None:
        self.name, self.arguments = name, arguments
        self.__name__, self.__doc__ = name, doc

    def __call__(self, *args: Any) -> Any:
        builder(f"math.{self.name}")
        if len(args) != self.arguments:
            wanted = f"{self.arguments} argument{'s' if self.arguments > 1 else ''}"
            raise WrongOperand(
                caller_span(),
                what=f"math.{self.name}",
                got=f"{len(args)} arguments",
                wanted=wanted,
                fix_text=f"write `math.{self.name}({', '.join('abc'[: self.arguments])})`",
            )
        if len(args) == 1 and isinstance(args[0], (Fragment, Elementwise)):
            return args[0].map(self)
        return Value(self._expression([operand(a, f"math.{self.name}") for a in args]))

    def _expression(self, args: list[Expr]) -> Expr:
        return Call(self.name, tuple(as_float(a) for a in _with_one_type(args)))

    def __repr__(self) -> str:
        return f"<tilemma math.{self.name}: {self.__doc__}>"


class _Extreme(Function):
    def _expression(self, args: list[Expr]) -> Expr:
        a, b = _with_one_type(args)
        return binary("min" if self.name == "min" else "max", a, b)


class _Align(Function):
    def _expression(self, args: list[Expr]) -> Expr:
        a, b = args
        if not (a.type.is_integer and b.type.is_integer):
            raise WrongOperand(
                caller_span(),
                what=f"math.{self.name}",
                got=f"values of {a.type} and {b.type}",
                wanted="integers",
                fix_text="convert with `.astype('s32')`",
            )
        checked_division("floordiv", a, b, caller_span())
        return binary("mul", binary("cdiv" if self.name == "alignup" else "floordiv", a, b), b)


def _with_one_type(args: list[Expr]) -> list[Expr]:
    """Python's numbers take the type of the values they stand beside."""
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
    """A Python number as one of ``kind``, without a rounding to another type before."""
    if kind.is_float and not isinstance(number.value, bool):
        return Const(float(number.value), kind)
    return Builder.converted(number, kind)


acos = Function("acos", 1, "arc cosine")
asin = Function("asin", 1, "arc sine")
atan = Function("atan", 1, "arc tangent")
atan2 = Function("atan2", 2, "angle of the point (b, a)")
ceil = Function("ceil", 1, "rounded up")
cos = Function("cos", 1, "cosine")
cosh = Function("cosh", 1, "hyperbolic cosine")
exp = Function("exp", 1, "e ** a")
exp2 = Function("exp2", 1, "2 ** a")
exp2_ftz = Function("exp2_ftz", 1, "2 ** a, or 0 where that is below 2 ** -126; the fastest exponential")
expm1 = Function("expm1", 1, "e ** a - 1")
fabs = Function("fabs", 1, "magnitude")
floor = Function("floor", 1, "rounded down")
fma = Function("fmaf", 3, "a * b + c, rounded once")
gelu = Function("gelu", 1, "a times the normal distribution's probability below a")
isfinite = Function("isfinite", 1, "1 where neither infinite nor NaN, else 0")
log = Function("log", 1, "natural logarithm")
log1p = Function("log1p", 1, "log(1 + a)")
log2 = Function("log2", 1, "logarithm of base 2")
max = _Extreme("max", 2, "the larger; a number rather than NaN")
min = _Extreme("min", 2, "the smaller; a number rather than NaN")
pow = Function("pow", 2, "a ** b")
rcp = Function("frcp_rn", 1, "1 / a, rounded to nearest")
round = Function("round", 1, "to the nearest integer, halves away from 0")
rsqrt = Function("rsqrt", 1, "1 / sqrt(a)")
sigmoid = Function("sigmoid", 1, "1 / (1 + exp(-a))")
sign = Function("sign", 1, "-1, 0 or 1")
sin = Function("sin", 1, "sine")
sinh = Function("sinh", 1, "hyperbolic sine")
softplus = Function("softplus", 1, "log(1 + exp(a))")
sqrt = Function("sqrt", 1, "square root")
tan = Function("tan", 1, "tangent")
tanh = Function("tanh", 1, "hyperbolic tangent")
alignup = _Align("alignup", 2, "a rounded up to a multiple of b")
aligndown = _Align("aligndown", 2, "a rounded down to a multiple of b")

FUNCTIONS = {name: f for name, f in list(globals().items()) if isinstance(f, Function)}

__all__ = [*FUNCTIONS]
