"""Functions of the math library that are made of operations, the same in both front ends."""

from __future__ import annotations

from tilemma.ir.expr import Call, Const, Expr, Unary, binary

# They take values of one type, integers too.
COMPOSED = ("abs", "clamp", "max", "min", "relu")


def composed(name: str, args: list[Expr]) -> Expr:
    """The expression of a function of `COMPOSED`; ``args`` have one type."""
    a, *rest = args
    match name:
        case "relu":
            return binary("max", a, Const(0.0 if a.type.is_float else 0, a.type))
        case "clamp":
            low, high = rest
            return binary("min", binary("max", a, low), high)
        case "abs" if a.type.is_float:
            return Call("fabs", (a,))
        case "abs":
            return binary("max", a, Unary("neg", a)) if a.type.kind == "int" else a
    return binary("min" if name == "min" else "max", a, rest[0])
