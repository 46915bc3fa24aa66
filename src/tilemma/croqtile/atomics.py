"""Atomic operations on elements."""

from __future__ import annotations

from typing import cast

from tilemma.croqtile import ast
from tilemma.croqtile.operands import arguments, plain
from tilemma.croqtile.reader import Reader, defines
from tilemma.croqtile.refusals import WrongValue
from tilemma.ir.builder import AtomicName
from tilemma.ir.expr import Element, Expr

_OPERATIONS = ("add", "sub", "exch", "min", "max", "and", "or", "xor", "cas")
ATOMICS = tuple(f"__atomic_{o}" for o in _OPERATIONS)


@defines(*ATOMICS)
def atomic(r: Reader, node: ast.Call, name: str, used: bool = True) -> Expr | None:
    """Emit ``__atomic_add(x.at(i), v)``; the old value, where it is ``used``."""
    operation = name.removeprefix("__atomic_")
    count = 3 if operation == "cas" else 2
    form = f"{name}(x.at(i), {'expected, ' if count == 3 else ''}value)"
    arguments(node, name, count, form)
    r.effect(node.span, f"`{name}`")
    place = r.value(node.args[0])
    if not isinstance(place, Element):
        raise WrongValue(
            node.args[0].span,
            what=f"`{name}`",
            got="something that is not an element",
            wanted="an element of a shared or global array",
            fix_text=f"write `{form}`",
        )
    values = [plain(r, a, f"`{name}`") for a in node.args[1:]]
    compare = values[0] if count == 3 else None
    return r.b.atomic(cast(AtomicName, operation), place.view, values[-1], compare, used=used)
