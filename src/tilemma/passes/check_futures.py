"""Checks that every asynchronous copy is waited for on every path through the kernel, and before
another copy to the same place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from tilemma.errors import CompileError, Note, Span
from tilemma.ir import tile as t
from tilemma.ir.effects import awaited, rotated
from tilemma.ir.expr import Var
from tilemma.ir.expr import walk as parts
from tilemma.ir.types import Space, View
from tilemma.ir.walk import bodies, walk
from tilemma.passes import advice
from tilemma.passes.decision import Decision
from tilemma.records import record


class NeverWaitedFor(CompileError):
    code = "future-never-waited-for"
    found = "nothing waits for {which} to `{name}`{when}"
    expected = "a `wait` for its future, or for the event that it completes, before the kernel ends"
    fix = "name the result, `f = {engine}.copy.async ...`, and write `wait f`{where}; or leave `.async` out"
    python_fix = (
        "name the result, `f = {engine}.copy(..., async_=True)`, and write `wait(f)`{where}; "
        "or leave `async_=True` out"
    )


class NotWaitedFor(CompileError):
    code = "copy-not-waited-for"
    found = "`{name}` is used here while a copy to it may still be under way"
    expected = "a wait for the copy's {kind} `{waited}` before its data is used"
    fix = "{remedy}"


@record(slots=False)
class CheckFutures:
    """Changes nothing.  A copy under an `if` is assumed to be waited for under the same condition, as the
    conditions that
    start and await it may be the same; loops are taken to run."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises NeverWaitedFor or NotWaitedFor."""
        found = _with_rotated({f for op in walk(kernel.body) for f in awaited(op)}, kernel.body)
        for op in walk(kernel.body):
            if _starts(op) and op.future not in found:
                raise never_waited_for(op)
        _check_ways(kernel.body)
        _check_places(kernel.body)
        started: Started = {}
        _follow(kernel.body, started, certain=True)
        for copies in started.values():
            raise never_waited_for(copies[0], "the last of these asynchronous copies", where=" at the end")
        return kernel


def not_waited_for(span: Span | None, name: str, copy: t.Copy, future: str | None = None) -> NotWaitedFor:
    """``name`` is used at ``span`` while ``copy`` may still be writing it."""
    kind, waited = advice.waited_for(copy, future)
    remedy, notes = advice.for_wait(waited, span), [Note("the copy", copy.span)]
    return NotWaitedFor(span, name=name, kind=kind, waited=waited, remedy=remedy, notes=notes)


def never_waited_for(
    op: t.Copy, which: str = "this asynchronous copy", when: str = "", where: str = ""
) -> NeverWaitedFor:
    name, engine = op.dst.base.name, op.engine
    return NeverWaitedFor(op.span, name=name, which=which, when=when, where=where, engine=engine)


# ---- waits under conditions --------------------------------------------------------------------------------


def _check_ways(body: t.Body) -> None:
    """A copy started unconditionally must be waited for unconditionally, by its own name or one that rotates with
    it."""
    sure = _with_rotated(_surely_awaited(body), body)
    for op in _unconditional(body):
        if _starts(op) and op.future not in sure:
            when, where = " where the `if` around its `wait` is not taken", " outside of the `if`"
            raise never_waited_for(op, when=when, where=where)


def _with_rotated(futures: set[str], body: t.Body) -> set[str]:
    """``futures`` and those whose names rotate with one of them in ``body``."""
    for op in walk(body):
        if futures.intersection(names := rotated(op)):
            futures = futures.union(names)
    return futures


def _surely_awaited(body: t.Body) -> set[str]:
    """The futures that are waited for under all conditions in ``body``."""
    found: set[str] = set()
    for op in body:
        found |= set(awaited(op))
        inner = [_surely_awaited(b) for _, b in bodies(op)]
        found |= set.intersection(*inner) if isinstance(op, t.If) else set().union(*inner)
    return found


def _unconditional(body: t.Body) -> Iterator[t.Op]:
    for op in body:
        yield op
        if not isinstance(op, t.If):
            for _, inner in bodies(op):
                yield from _unconditional(inner)


# ---- two copies to one place -------------------------------------------------------------------------------


def _check_places(body: t.Body) -> None:
    """Between two copies to one place there must be some wait."""
    under_way: list[t.Copy] = []
    for op in body:
        if isinstance(op, t.Copy) and op.dst.base.space is Space.SHARED:
            for x in under_way if op.engine == "tma" else ():
                if _same_place(x.dst, op.dst):
                    raise not_waited_for(op.span, op.dst.base.name, x)
            if op.engine == "tma" and op.asynchronous:
                under_way.append(op)
        elif isinstance(op, t.Assign):
            under_way = [x for x in under_way if op.var not in _variables(x.dst)]
        elif any(isinstance(x, (t.WaitFuture, t.WaitEvent)) or rotated(x) for x in walk((op,))):
            under_way = []
        for _, inner in bodies(op):
            _check_places(inner)


def _same_place(x: View, y: View) -> bool:
    """Whether both are certainly the same elements."""
    return (x.base.name, x.slot, x.offsets, x.axes, x.reshape) == (
        y.base.name,
        y.slot,
        y.offsets,
        y.axes,
        y.reshape,
    )


def _variables(view: View) -> set[Var]:
    exprs = (*view.offsets, *(() if view.slot is None else (view.slot,)))
    return {v for e in exprs for v in parts(e) if isinstance(v, Var)}


# ---- the last iterations of loops -------------------------------------------------------------------------------


# The copies that each name may refer to and that have not been waited for.
Started = dict[str, tuple[t.Copy, ...]]


def _follow(body: t.Body, started: Started, certain: bool) -> None:
    """``body`` once, changing ``started``; ``certain``: it runs whenever the enclosing operations do."""
    for op in body:
        for name in awaited(op):
            started.pop(name, None)
        if names := rotated(op):
            held = [started.pop(n, ()) for n in names]
            for name, copies in zip(names, (*held[1:], held[0]), strict=True):
                if copies:
                    started[name] = copies
        match op:
            case t.Copy(future=str() as name) if certain and _starts(op):
                started[name] = (op,)
            case t.For() | t.While():
                _check_loop(op, started, certain)
            case _:
                for _, inner in bodies(op):
                    _follow(inner, started, certain and not isinstance(op, t.If))


def _check_loop(loop: t.For | t.While, started: Started, certain: bool) -> None:
    """Iterates until every name of a rotation has referred to every copy; collects the copies that may be pending
    then."""
    left: Started = {}
    for _ in range(1 + max([1, *(len(rotated(op)) for op in walk(loop.body))])):
        _follow(loop.body, started, certain)
        for name, copies in started.items():
            left[name] = tuple({id(x): x for x in (*left.get(name, ()), *copies)}.values())
    started.clear()
    started.update(left)


def _starts(op: t.Op) -> TypeGuard[t.Copy]:
    """Whether ``op`` is a copy whose completion its future signals."""
    return isinstance(op, t.Copy) and op.asynchronous and op.event is None and op.future is not None
