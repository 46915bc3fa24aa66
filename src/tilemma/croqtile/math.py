"""The math library."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.croqtile import ast
from tilemma.croqtile.arithmetic import checked, like
from tilemma.croqtile.operands import arguments, integer, plain
from tilemma.croqtile.reader import Reader, defines
from tilemma.croqtile.values import Value
from tilemma.ir.builder import Builder
from tilemma.ir.checks import checked_division
from tilemma.ir.constructs import FUNCTIONS
from tilemma.ir.expr import Call, Const, Expr, binary
from tilemma.ir.mathematics import COMPOSED, composed

_FUNCTIONS = {f"__{f.operation}": f for f in FUNCTIONS.values()}


@defines(*_FUNCTIONS)
def math(r: Reader, node: ast.Call, name: str) -> Value:
    f = _FUNCTIONS[name]
    args = arguments(node, name, f.arguments, f"{name}({', '.join('abc'[: f.arguments])})")
    if f.kind == "integer":
        a, b = (integer(r, x, f"`{name}`") for x in args)
        checked_division("floordiv", a, b, node.span)
        whole = binary("cdiv" if f.operation == "alignup" else "floordiv", a, b)
        return checked(r, binary("mul", whole, b), node.span)
    values = [plain(r, x, f"`{name}`") for x in args]
    if f.operation in COMPOSED:
        typed = next((v for v in values if not isinstance(v, Const)), values[0])
        for other in values:
            typed = like(typed, other, node.span)
        return checked(r, composed(f.operation, [like(v, typed, node.span) for v in values]), node.span)
    double = any(v.type == dtypes.f64 and not isinstance(v, Const) for v in values)
    return checked(r, Call(f.operation, tuple(_as_float(v, double) for v in values)), node.span)


def _as_float(e: Expr, double: bool) -> Expr:
    """Arguments of the math library are floats; integers become f32, a literal beside an f64 stays one."""
    if double and isinstance(e, Const) and e.dtype == dtypes.f64:
        return e
    if e.type.is_float and not (isinstance(e, Const) and e.dtype == dtypes.f64):
        return e
    return Builder.converted(e, dtypes.f32) if not e.type.is_float or isinstance(e, Const) else e
