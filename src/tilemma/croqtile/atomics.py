"""Atomic operations on elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tilemma.croqtile import ast
from tilemma.croqtile.refusals import WrongArity, WrongValue
from tilemma.ir.builder import AtomicName
from tilemma.ir.expr import Element, Expr

if TYPE_CHECKING:
    from tilemma.croqtile.build import Reader

_OPERATIONS = ("add", "sub", "exch", "min", "max", "and", "or", "xor", "cas")
ATOMICS = tuple(f"__atomic_{o}" for o in _OPERATIONS)


def atomic(reader: Reader, node: ast.Call, name: str, used: bool = True) -> Expr | None:
    """Emit ``__atomic_add(x.at(i), v)``; the old value, where it is ``used``."""
    operation = name.removeprefix("__atomic_")
    count = 3 if operation == "cas" else 2
    form = f"{name}(x.at(i), {'expected, ' if count == 3 else ''}value)"
    if len(node.args) != count:
        raise WrongArity(node.span, what=name, got=len(node.args), want=str(count), form=form)
    reader.effect(node.span, f"`{name}`")
    place = reader.value(node.args[0])
    if not isinstance(place, Element):
        raise WrongValue(
            node.args[0].span,
            what=f"`{name}`",
            got="something that is not an element",
            wanted="an element of a shared or global array",
            fix_text=f"write `{form}`",
        )
    values = [reader.expressions.plain(a, f"`{name}`") for a in node.args[1:]]
    compare = values[0] if count == 3 else None
    return reader.b.atomic(cast(AtomicName, operation), place.view, values[-1], compare, used=used)
