"""The math library."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import checked, like
from tilemma.croqtile.operands import arguments, integer, plain
from tilemma.croqtile.reader import Reader, defines
from tilemma.croqtile.values import Value
from tilemma.ir.builder import Builder
from tilemma.ir.constructs import checked_division
from tilemma.ir.expr import Call, Const, Expr, binary

# Functions of the math library: name -> number of arguments.
MATH: dict[str, int] = {
    "acos": 1, "asin": 1, "atan": 1, "atan2": 2, "ceil": 1, "cos": 1, "cosh": 1, "exp": 1, "exp2f": 1,
    "exp2_ftz": 1, "expm1": 1, "fabs": 1, "fmaf": 3, "frcp_rn": 1, "floor": 1, "gelu": 1, "isfinite": 1, "log": 1,
    "log1p": 1, "pow": 2, "round": 1, "rsqrt": 1, "sigmoid": 1, "sign": 1, "sin": 1, "sinh": 1,
    "softplus": 1, "sqrt": 1, "tan": 1, "tanh": 1,
}  # fmt: skip


@defines(*(f"__{name}" for name in MATH))
def math(r: Reader, node: ast.Call, name: str) -> Value:
    values = _values(r, node, name, MATH[name.removeprefix("__")])
    double = any(v.type == dtypes.f64 and not isinstance(v, Const) for v in values)
    return checked(r, Call(name.removeprefix("__"), tuple(_as_float(v, double) for v in values)), node.span)


@defines("__min", "__max")
def extreme(r: Reader, node: ast.Call, name: str) -> Value:
    a, b = _values(r, node, name, 2)
    return checked(r, binary("min" if name == "__min" else "max", like(a, b), like(b, a)), node.span)


@defines("__alignup", "__aligndown")
def align(r: Reader, node: ast.Call, name: str) -> Value:
    a, b = (integer(r, x, f"`{name}`") for x in arguments(node, name, 2, f"{name}(a, b)"))
    checked_division("floordiv", a, b, node.span)
    whole = binary("cdiv" if name == "__alignup" else "floordiv", a, b)
    return checked(r, binary("mul", whole, b), node.span)


def _values(r: Reader, node: ast.Call, name: str, count: int) -> list[Expr]:
    args = arguments(node, name, count, f"{name}({', '.join('abc'[:count])})")
    return [plain(r, x, f"`{name}`") for x in args]


def _as_float(e: Expr, double: bool) -> Expr:
    """Arguments of the math library are floats; integers become f32, a literal beside an f64 stays one."""
    if double and isinstance(e, Const) and e.dtype == dtypes.f64:
        return e
    if e.type.is_float and not (isinstance(e, Const) and e.dtype == dtypes.f64):
        return e
    return Builder.converted(e, dtypes.f32) if not e.type.is_float or isinstance(e, Const) else e
