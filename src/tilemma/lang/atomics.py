"""`tm.atomic`: one element read, changed and written in one step."""

from __future__ import annotations

from typing import Any

from tilemma.ir.constructs import AtomicName
from tilemma.lang.namespaces import Namespace
from tilemma.lang.scalars import Value, article, operand_as, refuse_effect, refused
from tilemma.lang.tracing import builder, trace


def _atomic(name: AtomicName, place: Any, value: Any, compare: Any = None) -> Value:
    what = f"atomic.{name}"
    b = builder(what)
    running = trace()
    assert running is not None
    view = place.place() if isinstance(place, Value) else None
    if view is None:
        raise refused(
            "element",
            what,
            "a value that is not an element" if isinstance(place, Value) else article(place),
            f"write `{what}(x[i, j], value)`",
        )
    refuse_effect(running.pure, f"`{view.base.name}`")
    given = [None if x is None else operand_as(x, view.dtype, what) for x in (value, compare)]
    assert given[0] is not None
    old = b.atomic(name, view, given[0], given[1])
    assert old is not None
    return Value(old)


class AtomicNamespace(Namespace):
    """`atomic.add(x[i, j], v)` and its siblings; each gives the old value."""

    _spelled = "atomic"
    _forms = "`atomic.add(x[i, j], v)`, or another of its functions"

    def add(self, place: Any, value: Any) -> Value:
        return _atomic("add", place, value)

    def sub(self, place: Any, value: Any) -> Value:
        return _atomic("sub", place, value)

    def exch(self, place: Any, value: Any) -> Value:
        return _atomic("exch", place, value)

    def min(self, place: Any, value: Any) -> Value:
        return _atomic("min", place, value)

    def max(self, place: Any, value: Any) -> Value:
        return _atomic("max", place, value)

    def and_(self, place: Any, value: Any) -> Value:
        return _atomic("and", place, value)

    def or_(self, place: Any, value: Any) -> Value:
        return _atomic("or", place, value)

    def xor(self, place: Any, value: Any) -> Value:
        return _atomic("xor", place, value)

    def cas(self, place: Any, expected: Any, value: Any) -> Value:
        """``value`` is written if the element equals ``expected``."""
        return _atomic("cas", place, value, expected)


atomic = AtomicNamespace()
