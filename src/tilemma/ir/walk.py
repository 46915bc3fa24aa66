"""Visiting and rebuilding tile operations without knowing their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tilemma.ir.effects import Effect, element_reads, name_of, touches
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, field_names, substitute, trips, value_of
from tilemma.ir.tile import Apply, Body, Break, Continue, For, FragmentRef, Kernel, Op, Parallel, While
from tilemma.ir.types import EventRef, View
from tilemma.records import replace

_O = TypeVar("_O", bound=Op)


def bodies(op: Op) -> list[tuple[str, Body]]:
    """The nested bodies of ``op`` with the names of their fields."""
    names = type(op).body_fields
    return [(name, getattr(op, name)) for name in names] if names else []


def walk(body: Body) -> Iterator[Op]:
    """Every operation of ``body``, in program order, an operation before those inside it."""
    waiting = list(reversed(body))
    while waiting:
        op = waiting.pop()
        yield op
        if names := type(op).body_fields:
            for name in reversed(names):
                waiting += reversed(getattr(op, name))


def jumps(loop: For | While) -> bool:
    """Whether a `Break` or `Continue` of ``loop`` itself may end one of its iterations early."""
    waiting = list(loop.body)
    while waiting:
        op = waiting.pop()
        if isinstance(op, (Break, Continue)):
            return True
        if not isinstance(op, (For, While)):
            waiting += (x for _, inner in bodies(op) for x in inner)
    return False


def trip_count(loop: For) -> int | None:
    """The number of iterations of ``loop``; None where its bounds are not constants."""
    start, stop, step = value_of(loop.start), value_of(loop.stop), value_of(loop.step)
    return None if start is None or stop is None or not step else trips(start, stop, step)


def with_fields(op: _O, changes: Mapping[str, Any]) -> _O:
    """``op`` with the values of some of its fields replaced; itself where there are none."""
    return replace(op, **changes) if changes else op


def with_bodies(op: Op, f: Callable[[Body], Body]) -> Op:
    """``op`` with ``f`` applied to each body inside it; itself where that changes none."""
    if not type(op).body_fields:
        return op
    changes = {name: new for name, inner in bodies(op) if (new := f(inner)) is not inner}
    return with_fields(op, changes)


def rewrite(body: Body, f: Callable[[Op], Op | Body]) -> Body:
    """``body`` with ``f`` applied to every operation, innermost first; ``f`` may return several or none."""
    out: list[Op] = []
    for op in body:
        if type(op).body_fields:
            op = with_bodies(op, lambda inner: rewrite(inner, f))
        result = f(op)
        if isinstance(result, tuple):
            out.extend(result)
        else:
            out.append(result)
    if len(out) == len(body) and all(new is old for new, old in zip(out, body, strict=True)):
        return body
    return tuple(out)


def rewrite_blocks(kernel: Kernel, f: Callable[[Parallel], Op]) -> Kernel:
    """``kernel`` with ``f`` applied to each parallel of blocks: each is a CTA's whole program."""

    def settle(op: Op) -> Op:
        if isinstance(op, Parallel) and op.level is not None and op.level.kind == "block":
            return f(op)
        return with_bodies(op, settled)

    def settled(body: Body) -> Body:
        new = tuple([settle(op) for op in body])
        return body if all(a is b for a, b in zip(body, new, strict=True)) else new

    return replace(kernel, body=settled(kernel.body))


def map_expressions(op: Op, f: Callable[[Expr], Expr]) -> Op:
    """``op`` with ``f`` applied to each expression it holds itself, those in its views included."""

    def mapped(v: Any) -> Any:
        if isinstance(v, Expr):
            return f(v)
        if isinstance(v, View):
            return v.map(f)
        if isinstance(v, FragmentRef):
            return replace(v, index=tuple(f(i) for i in v.index)) if v.index else v
        if isinstance(v, EventRef) and (v.slot is not None or v.order is not None):
            return replace(
                v, slot=None if v.slot is None else f(v.slot), order=None if v.order is None else f(v.order)
            )
        if isinstance(v, tuple) and v and not isinstance(v[0], Op):
            new = tuple(mapped(x) for x in v)
            return v if all(a is b for a, b in zip(v, new, strict=True)) else new
        return v

    changes: dict[str, Any] = {}
    for name in _own_fields(op):
        v = getattr(op, name)
        if type(v) not in _PLAIN and (new := mapped(v)) is not v:
            changes[name] = new
    return with_fields(op, changes)


_OWN: dict[type[Op], tuple[str, ...]] = {}


def _own_fields(op: Op) -> tuple[str, ...]:
    """The fields that may hold expressions: not those that hold operations."""
    kind = type(op)
    if kind not in _OWN:
        _OWN[kind] = tuple(n for n in field_names(op) if n not in kind.body_fields and n != "span")
    return _OWN[kind]


def substituted(body: Body, table: dict[str, Expr]) -> Body:
    """``body`` with the indices, scalars and variables named in ``table`` replaced in all its expressions."""
    return rewrite(body, lambda op: map_expressions(op, lambda e: substitute(e, table)))


def expressions(op: Op) -> tuple[Expr, ...]:
    """The expressions that ``op`` holds itself (not those inside it), in the order of `map_expressions`."""
    try:
        return op._parts
    except AttributeError:
        values = [getattr(op, name) for name in _own_fields(op)]
        found = tuple([e for v in values if type(v) not in _PLAIN for e in _held(v)])
        object.__setattr__(op, "_parts", found)
        return found


# The types of fields that hold no expression.
_PLAIN = frozenset({str, int, float, bool, type(None)})


def _held(v: Any) -> Iterator[Expr]:
    if isinstance(v, Expr):
        yield v
    elif isinstance(v, View):
        yield from v.expressions()
    elif isinstance(v, FragmentRef):
        yield from v.index
    elif isinstance(v, EventRef):
        yield from (x for x in (v.slot, v.order) if x is not None)
    elif isinstance(v, tuple) and v and not isinstance(v[0], Op):
        for x in v:
            yield from _held(x)


def views(op: Op) -> Iterator[View]:
    """The views among the fields of ``op``."""
    return (x.what for x in touches(op) if isinstance(x.what, View))


def touched(op: Op) -> Iterator[View]:
    """Its `views`, and those of the elements that its expressions read."""
    yield from views(op)
    yield from (x.view for x in element_reads(op) if isinstance(x, Element))


def reads_visited(op: Apply) -> bool:
    """Whether the body reads the elements that it visits, or others of their tile."""
    read = (x for inner in walk(op.body) for x in element_reads(inner))
    return any(isinstance(x, FragmentElement) and x.fragment == op.fragment.name for x in read)


def declarations(kernel: Kernel) -> dict[str, Op]:
    """Name of a buffer, fragment, event or variable -> the operation that declares it."""
    found = ((x, op) for op in walk(kernel.body) for x in touches(op) if Effect.DECLARE in x.effect)
    return {name_of(x.what): op for x, op in found if x.name != "future" and not isinstance(x.what, Index)}
