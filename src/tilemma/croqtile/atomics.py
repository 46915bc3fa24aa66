"""Atomic operations on elements."""

from __future__ import annotations

from tilemma.croqtile import ast
from tilemma.croqtile.operands import arguments, plain
from tilemma.croqtile.reader import Reader, defines
from tilemma.croqtile.values import kind
from tilemma.ir.constructs import ATOMICS, KINDS, AtomicName
from tilemma.ir.expr import Element, Expr

_OPERATIONS: dict[str, AtomicName] = {f"__atomic_{name}": name for name in ATOMICS}


@defines(*_OPERATIONS, effect=True)
def atomic(r: Reader, node: ast.Call, name: str, used: bool = True) -> Expr | None:
    """Emit ``__atomic_add(x.at(i), v)``; the old value, where it is ``used``."""
    operation = _OPERATIONS[name]
    count = 3 if operation == "cas" else 2
    form = f"{name}(x.at(i), {'expected, ' if count == 3 else ''}value)"
    arguments(node, name, count, form)
    r.effect(node.span, f"`{name}`")
    place = r.value(node.args[0])
    if not isinstance(place, Element):
        raise KINDS["element"].refused(f"`{name}`", kind(place), node.args[0].span, f"write `{form}`")
    values = [plain(r, a, f"`{name}`") for a in node.args[1:]]
    compare = values[0] if count == 3 else None
    return r.b.atomic(operation, place.view, values[-1], compare, used=used)
