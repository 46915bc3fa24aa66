"""Sizes for which a kernel's own assertions hold, found by a search next to given ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Dim, Expr
from tilemma.ir.expr import walk as parts
from tilemma.ir.usage import is_size, size
from tilemma.launch import Size, evaluate

# The largest extent that the search tries.
_LARGEST = 4096

Sizes = dict[str, int]


def _conditions(e: Expr) -> Iterator[Expr]:
    """The conditions that hold exactly if ``e`` does."""
    if isinstance(e, Binary) and e.op == "land":
        yield from _conditions(e.a)
        yield from _conditions(e.b)
    else:
        yield e


def _assertions(kernel: t.Kernel) -> list[tuple[Size, tuple[str, ...], str]]:
    """The conditions on sizes, the dimensions in each, and the message of its assertion."""
    asserts = [op for op in kernel.body if isinstance(op, t.Assert) and is_size(op.cond)]
    return [(size(e), _dimensions(e), op.message) for op in asserts for e in _conditions(op.cond)]


def _dimensions(e: Expr) -> tuple[str, ...]:
    return tuple(dict.fromkeys(x.name for x in parts(e) if isinstance(x, Dim)))


def _holds(cond: Size, values: Mapping[str, Any]) -> bool:
    try:
        return bool(evaluate(cond, values))
    except ArithmeticError:
        return False


def failing(kernel: t.Kernel, sizes: Mapping[str, int], scalars: Mapping[str, Any]) -> str | None:
    """The message of an assertion that does not hold for ``sizes``; None if all do."""
    values = {**scalars, **sizes}
    return next((message for cond, _, message in _assertions(kernel) if not _holds(cond, values)), None)


def fitted(kernel: t.Kernel, sizes: Sizes, scalars: Mapping[str, Any], free: Collection[str]) -> Sizes | None:
    """``sizes`` changed such that the kernel's assertions about sizes hold; None if none were found.

    Each condition changes at most one dimension, and each dimension changes once: rather one of ``free`` than
    another, and to the smallest extent of at least 2.
    """
    changed: set[str] = set()
    conditions = [(cond, names) for cond, names, _ in _assertions(kernel)]
    while True:
        wrong = [x for x in conditions if not _holds(x[0], {**scalars, **sizes})]
        if not wrong:
            return sizes
        cond, names = wrong[0]
        found = [
            (name not in free, extent < 2, extent, name)
            for name in names
            if name in sizes and name not in changed
            for extent in _nearest(cond, name, {**scalars, **sizes})
        ]
        if not found:
            return None
        *_, extent, name = min(found)
        changed.add(name)
        sizes = {**sizes, name: extent}


def _nearest(cond: Size, name: str, values: Mapping[str, Any]) -> Iterator[int]:
    """The next larger and the next smaller extent of ``name`` for which ``cond`` holds."""
    now = values[name]
    for extents in (range(now + 1, _LARGEST + 1), range(now - 1, 0, -1)):
        yield from (x for x in [next((x for x in extents if _holds(cond, {**values, name: x})), None)] if x)
