"""Simplification: constant folding, loops of at most one iteration, dead code and storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tilemma.ir import tile as t
from tilemma.ir.effects import old_values, variables_set
from tilemma.ir.expr import Const, Expr, Var, substitute, value_of, with_bounds
from tilemma.ir.expr import walk as parts
from tilemma.ir.walk import (
    bodies,
    expressions,
    map_expressions,
    rewrite,
    touched,
    trip_count,
    walk,
    with_bodies,
    with_fields,
)
from tilemma.passes.contraction import fragment_uses
from tilemma.passes.decision import Decision
from tilemma.records import record

# Loops of multiplies with at most this many iterations are unrolled when lowered.
_UNROLL = 16


@record(slots=False)
class Simplify:
    """Folds expressions, drops branches never taken, loops of no iteration, storage never used and register tiles
    never read, opens loops of one iteration, and marks short loops of multiplies for unrolling.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        body = _Folding({}).body(kernel.body)
        body = rewrite(body, _unroll)
        body = rewrite(body, _without_writes(_unread(body)))
        used = _used(body)
        dropped: list[str] = []

        def keep(op: t.Op) -> t.Op | t.Body:
            name = (
                op.buffer.name
                if isinstance(op, t.Alloc)
                else op.name
                if isinstance(op, t.DeclareFragment)
                else None
            )
            if name is None or name in used:
                return op
            dropped.append(name)
            return ()

        body = rewrite(body, keep)
        body = rewrite(body, _without_result(body))
        for name in dropped:
            log.append(Decision("simplify", name, "dropped: nothing uses it"))
        return replace(kernel, body=body)


def _without_result(body: t.Body) -> Callable[[t.Op], t.Op | t.Body]:
    """Atomics whose old value is never read need not return it to the other threads."""
    results = {v.name for op in walk(body) for v in old_values(op)}
    read = {x.name for op in walk(body) for e in _values(op) for x in parts(e) if isinstance(x, Var)}
    unread = results - read

    def change(op: t.Op) -> t.Op | t.Body:
        if any(v.name in unread for v in old_values(op)):
            return with_fields(op, {"result": None})
        if isinstance(op, t.Declare) and op.var.name in unread:
            return ()
        return op

    return change


def _unread(body: t.Body) -> set[str]:
    """Fragments that are only filled and loaded."""
    declared: set[str] = set()
    needed: set[str] = set()
    for op in walk(body):
        if isinstance(op, t.DeclareFragment):
            declared.add(op.name)
        needed |= {f.name for what, f in fragment_uses(op) if what not in ("fill", "load")}
    return declared - needed


def _without_writes(unread: set[str]) -> Callable[[t.Op], t.Op | t.Body]:
    return lambda op: () if isinstance(op, (t.Fill, t.Load)) and op.fragment.name in unread else op


def _values(op: t.Op) -> Iterator[Expr]:
    """The expressions that ``op`` evaluates, without its destination."""
    targets = variables_set(op)
    yield from (e for e in expressions(op) if not any(e is v for v in targets))


def replaced(body: t.Body, table: dict[str, Expr]) -> t.Body:
    """``body``, folded, with the indices in ``table`` replaced, in the bounds of inner indices too."""
    return _Folding(table).body(body)


class _Folding:
    """Folds a body with some indices replaced, each expression once."""

    def __init__(self, table: dict[str, Expr]) -> None:
        self._table = table
        self._known: dict[int, tuple[Expr, Expr]] = {}

    def expression(self, e: Expr) -> Expr:
        if id(e) not in self._known:
            self._known[id(e)] = e, substitute(e, self._table)
        return self._known[id(e)][1]

    def body(self, body: t.Body) -> t.Body:
        out: list[t.Op] = []
        for op in body:
            op = map_expressions(op, self.expression)
            match op:
                case t.If(cond=Const(value=v)):
                    out += self.body(op.then if v else op.otherwise)
                case t.For() if _single(op) is not None:
                    start = _single(op)
                    assert start is not None
                    out += _Folding({**self._table, op.index.name: start}).body(op.body)
                case t.For(start=a, stop=b) if _empty(a, b):
                    pass
                case _:
                    op = self._inside(op)
                    empty = not any(inner for _, inner in bodies(op))
                    if not (isinstance(op, (t.For, t.If, t.InThreads, t.Parallel)) and empty):
                        out.append(op)
        return tuple(out)

    def _inside(self, op: t.Op) -> t.Op:
        """``op`` with its bodies folded; an index whose bounds have changed is replaced by a new one."""
        if not isinstance(op, (t.For, t.Parallel, t.Apply)):
            return with_bodies(op, self.body)
        old = (op.index,) if isinstance(op, t.For) else op.indices
        new = tuple(with_bounds(i, self.expression) for i in old)
        if all(a is b for a, b in zip(old, new, strict=True)):
            return with_bodies(op, self.body)
        inner = _Folding({**self._table, **{i.name: i for i in new}})
        op = replace(op, index=new[0]) if isinstance(op, t.For) else replace(op, indices=new)
        return with_bodies(op, inner.body)


def _empty(start: Expr, stop: Expr) -> bool:
    a, b = value_of(start), value_of(stop)
    return a is not None and b is not None and a >= b


def _single(op: t.For) -> Expr | None:
    """The index of a loop that runs exactly once."""
    if trip_count(op) != 1 or any(isinstance(x, (t.Break, t.Continue)) for x in walk(op.body)):
        return None
    return op.start


def _unroll(op: t.Op) -> t.Op:
    if not isinstance(op, t.For) or op.unroll is not None:
        return op
    inside = [type(x) for x in walk(op.body)]
    if t.Mma not in inside or t.For in inside:
        return op
    count = trip_count(op)
    return replace(op, unroll=count) if count is not None and count <= _UNROLL else op


def _used(body: t.Body) -> set[str]:
    """The buffers and fragments that an operation other than a declaration names."""
    found: set[str] = set()
    for op in walk(body):
        if isinstance(op, (t.Alloc, t.DeclareFragment)):
            continue
        found |= {v.base.name for v in touched(op)} | {f.name for _, f in fragment_uses(op)}
    return found
