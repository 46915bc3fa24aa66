"""Program points of a kernel under construction, and the writes since each of them.

An expression that reads a variable or memory is evaluated where it is used.  Names of the Python front end hold
values, so it records the point of each read.  If the value is used after a write, it is stored at that point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, Order, touched_as, written
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, Var, children, walk, with_operands
from tilemma.ir.walk import walk as operations
from tilemma.records import record


@record(eq=False)
class ProgramPoint:
    """Before operation ``index`` of ``body``; ``repeats`` are the loops open there."""

    body: list[t.Op]
    index: int
    count: int
    repeats: tuple[int, ...]


def reads(e: Expr) -> frozenset[str]:
    """Names of the variables, buffers and register tiles that ``e`` reads."""
    found = set()
    for x in walk(e):
        match x:
            case Var():
                found.add(x.name)
            case Element():
                found.add(x.view.base.name)
            case FragmentElement():
                found.add(x.fragment)
    return frozenset(found)


def leaves(e: Expr) -> list[Expr]:
    """The reads in ``e`` that are not part of the address of another read: variables and elements."""
    if isinstance(e, (Var, Element, FragmentElement)):
        return [e]
    return [x for c in children(e) for x in leaves(c)]


def replaced(e: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """``e`` with parts replaced, and folded again."""
    if e in table:
        return table[e]
    return e if isinstance(e, Index) else with_operands(e, lambda x: replaced(x, table))


@record(frozen=False, slots=False)
class WriteLog:
    """Which names the operations so far have written, by number of the last one that did."""

    count: int = 0
    written: dict[str, int] = field(default_factory=dict)
    # The last operation after which other threads' writes may be seen.
    met: int = -1
    # (count, body, index, how many) of operations put in at an earlier point.
    insertions: list[tuple[int, list[t.Op], int, int]] = field(default_factory=list)

    def note(self, op: t.Op) -> None:
        """Record that ``op`` was emitted; the operations inside it have been recorded before."""
        self.count += 1
        for name in writes(op):
            self.written[name] = self.count
        if sees_other_threads(op):
            self.met = self.count

    def insert(self, point: ProgramPoint, ops: Sequence[t.Op]) -> None:
        """Put ``ops`` where ``point`` was taken."""
        at = point.index
        for count, body, index, n in self.insertions:
            if body is point.body and count > point.count and index <= at:
                at += n
        point.body[at:at] = ops
        for op in ops:
            self.note(op)
        self.insertions.append((self.count, point.body, at, len(ops)))

    def emitted(self, since: int) -> int:
        """The operations after the first ``since``, without those that `insert` put in."""
        return self.count - since - sum(n for count, *_, n in self.insertions if count > since)

    def changed(self, names: frozenset[str], since: int, memory: bool) -> bool:
        """Whether one of ``names`` may have another value than after ``since`` operations."""
        if memory and self.met > since:
            return True
        return any(self.written.get(n, -1) > since for n in names)


def writes(op: t.Op) -> tuple[str, ...]:
    """Names that ``op`` writes; of an `Apply`, whose body is one operation to the operations around it, all
    inside."""
    inside = operations(op.body) if isinstance(op, t.Apply) else ()
    return (*written(op), *(name for inner in inside for name in written(inner)))


def sees_other_threads(op: t.Op) -> bool:
    """Whether other threads' writes may be seen after ``op``."""
    ordered = getattr(op, "order", None) is Order.THREADS
    return ordered or isinstance(op, t.InThreads) or bool(touched_as(op, Effect.ACQUIRE))
