"""The threads that execute an operation: enclosing operations, thread numbering, and dependences of values.

Inside a block, instance i of a parallel of level L covers threads [i * L.threads, (i + 1) * L.threads) of the
instance around it, i counted row-major over the indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, touched_as, variables_set
from tilemma.ir.expr import Expr, Index, Var, value_of, walk
from tilemma.ir.types import WARP, View
from tilemma.ir.walk import bodies, expressions
from tilemma.records import record


@record
class Site:
    """An operation and the operations around it, outermost first."""

    op: t.Op
    parents: tuple[t.Op, ...]

    @property
    def parallels(self) -> tuple[t.Parallel, ...]:
        return tuple(p for p in self.parents if isinstance(p, t.Parallel))

    @property
    def block(self) -> t.Parallel | None:
        return next((p for p in self.parallels if kind(p) == "block"), None)

    @property
    def inner(self) -> tuple[t.Parallel, ...]:
        """The parallels below the block, outermost first."""
        return tuple(p for p in self.parallels if p.level is not None and p.level.depth > 1)

    @property
    def group(self) -> t.Parallel | None:
        """The innermost parallel of a group level: its threads execute a collective statement here together."""
        return next((p for p in reversed(self.parallels) if kind(p) == "group"), None)


def kind(p: t.Parallel) -> str:
    return p.level.kind if p.level is not None else ""


def sites(body: t.Body, parents: tuple[t.Op, ...] = ()) -> Iterator[Site]:
    """Every operation with its enclosing operations, in program order."""
    for op in body:
        yield Site(op, parents)
        for _, inner in bodies(op):
            yield from sites(inner, (*parents, op))


def blocks(kernel: t.Kernel) -> Iterator[t.Parallel]:
    """The parallels of level block: one launch each."""
    return (s.op for s in sites(kernel.body) if isinstance(s.op, t.Parallel) and kind(s.op) == "block")


def count(p: t.Parallel) -> int | None:
    """The number of instances, if it is a constant."""
    values = [value_of(i.extent) for i in p.indices]
    return None if any(v is None for v in values) else prod(v for v in values if v is not None)


def span_threads(p: t.Parallel) -> int:
    """The threads that all instances of a group or thread level take together."""
    n = count(p)
    assert n is not None and p.level is not None, p
    return n * p.level.threads


def block_threads(block: t.Parallel) -> int:
    """Threads of a block: the most that one of its parallels takes, in whole warps, at least one warp.

    A level inside a group names the group's own lanes or warps and adds none.
    """

    def most(body: t.Body) -> int:
        found = 0
        for op in body:
            if isinstance(op, t.Parallel):
                found = max(found, span_threads(op))
            else:
                found = max([found, *(most(inner) for _, inner in bodies(op))])
        return found

    return max(WARP, -(-most(block.body) // WARP) * WARP)


def names(e: Expr) -> set[str]:
    """The indices and variables that ``e`` mentions."""
    try:
        return set(e._names)
    except AttributeError:
        found = {x.name for x in walk(e) if type(x) is Index or type(x) is Var}
        object.__setattr__(e, "_names", frozenset(found))
        return found


class Dependence:
    """Which indices each value depends on, variables seen through.

    A variable depends on its assigned values and on the control flow around each assignment, up to its
    declaration: control flow around that is around each use as well.  An atomic operation's old value is one for
    all threads of the instance that executes it, and another one in each instance; in the body of an `Apply` it is
    another one in each thread (`MEMORY`).
    """

    MEMORY = "memory"

    def __init__(self, body: t.Body) -> None:
        direct: dict[str, set[str]] = {}
        # How many of the operations around its declaration, of those in ``around``, enclose each variable.
        depth: dict[str, int] = {}

        def visit(body: t.Body, around: tuple[set[str], ...], instance: set[str]) -> None:
            for op in body:
                if isinstance(op, t.Declare):
                    depth[op.var.name] = len(around)
                for v in variables_set(op):
                    from_memory = any(isinstance(x, View) for x in touched_as(op, Effect.READ))
                    terms = {n for e in expressions(op) if e is not v for n in names(e)}
                    inner = around[depth.get(v.name, 0) :]
                    direct.setdefault(v.name, set()).update(instance if from_memory else terms, *inner)
                within = instance
                if isinstance(op, t.Parallel):
                    within = instance | {i.name for i in op.indices}
                elif isinstance(op, t.Apply):
                    within = {self.MEMORY}
                below: tuple[set[str], ...] | None = None
                for _, inner_body in bodies(op):
                    below = (*around, control(op)) if below is None else below
                    visit(inner_body, below, within)

        visit(body, (), set())
        grown = True
        while grown:
            grown = False
            for reached in direct.values():
                size = len(reached)
                reached.update(*[direct[n] for n in reached if n in direct])
                grown |= len(reached) > size
        self._of = direct

    def of(self, e: Expr) -> set[str]:
        """Names of all indices (and variables) that ``e`` depends on."""
        return self.closure(names(e))

    def closure(self, found: set[str]) -> set[str]:
        """``found`` and the dependences of the variables among them."""
        return found.union(*(self._of.get(n, set()) for n in found))


def control(op: t.Op) -> set[str]:
    """The names that decide whether and how often the body of ``op`` runs."""
    match op:
        case t.If(cond=c) | t.InThreads(cond=c):
            return names(c)
        case t.For(start=a, stop=b, step=c):
            found = names(a) | names(b) | names(c)
        case t.While(cond=c):
            found = names(c)
        case _:
            return set()
    return found | _exits(op.body)[0]


def _exits(body: t.Body) -> tuple[set[str], bool]:
    """The names that decide whether the loop with this body is left, or one of its iterations ended, early.

    Also whether anything in the body does that.
    """
    found: set[str] = set()
    leaves = False
    for op in body:
        if isinstance(op, (t.For, t.While)):
            continue
        leaves |= isinstance(op, (t.Break, t.Continue))
        for _, inner in bodies(op):
            inside, jumps = _exits(inner)
            if jumps:
                leaves = True
                found |= inside | names(op.cond) if isinstance(op, (t.If, t.InThreads)) else inside
    return found, leaves
