"""Compilation of statements to Python closures, and the context of a statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilemma.errors import Span
from tilemma.ir import walk
from tilemma.ir.effects import assigned, declared, overwritten_views, read_views, rotated
from tilemma.ir.expr import Expr, Var, depends_on
from tilemma.ir.tile import Copy, If, Kernel, Op, Parallel, SetElement
from tilemma.ir.types import Level, Space, View
from tilemma.passes.scope import Dependence
from tilemma.records import record
from tilemma.targets.cpu.access import Access
from tilemma.targets.cpu.exchange import Meetings
from tilemma.targets.cpu.expressions import INSTANCE, Evaluate, Expressions, Frame, Names
from tilemma.targets.cpu.perturbation import Perturbation
from tilemma.targets.cpu.tasks import Coroutine, Rendezvous

BREAK, CONTINUE = "break", "continue"  # results of a statement that leaves the loop, or its current iteration


class Step(NamedTuple):
    """A compiled statement: ``run(frame)`` executes it, or (``blocking``) returns the coroutine that does."""

    run: Callable[[Frame], Any]
    blocking: bool = False
    span: Span | None = None


@record(slots=False)
class Scope:
    """The position of a statement in the program.

    ``lanes``: many lanes execute it as one (a `: thread` level, or `Apply`).  ``siblings``: the innermost
    `Parallel` of which several instances run at the same time, ``around`` all of them, outermost first, and
    ``roles`` the `InThreads` inside it.
    """

    level: Level | None = None
    lanes: bool = False
    siblings: Parallel | None = None
    around: tuple[Parallel, ...] = ()
    roles: tuple[int, ...] = ()
    fragment: Any = None


@dataclass
class Compiler:
    """Compiles a kernel's statements; the table of statements is `tilemma.targets.cpu.program`."""

    kernel: Kernel
    table: dict[type[Op], Callable[[Compiler, Any, Scope], Step]]
    collective: dict[type[Op], Callable[[Compiler, Any, Scope, Step], Step]]
    perturbation: Perturbation | None = None
    names: Names = field(default_factory=Names)
    _meetings: dict[int, Meetings] = field(default_factory=dict)
    _dependence: Dependence | None = None

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.names, self, self.perturbation)
        self.swaps = any(map(rotated, walk.walk(self.kernel.body)))
        # Copies that not all siblings may issue.
        self.conditional = {
            id(x) for op in walk.walk(self.kernel.body) if isinstance(op, If) for x in walk.walk((op,))
        }
        for op in walk.walk(self.kernel.body):
            if isinstance(op, Parallel):
                inside = list(walk.walk(op.body))
                own = {x.name for o in inside for x in declared(o) if isinstance(x, Var)}
                self.names.diverging.update({x.name for o in inside for x in assigned(o)} - own)

    def compile(self, op: Op, scope: Scope) -> Step:
        step = self.table[type(op)](self, op, scope)
        if scope.lanes and type(op) in self.collective:
            step = self.collective[type(op)](self, op, scope, step)
        alone = isinstance(op, SetElement) and any(id(op) in self.meetings(p).apart for p in scope.around)
        if not alone and (levels := rendezvous_levels(op, scope)):
            step = with_rendezvous(step, self.slot("buffer", overwritten_views(op)[0].base.name), levels)
        elif isinstance(op, Copy) and id(op) not in self.conditional and (levels := joint_levels(op, scope)):
            step = joint(step, levels)
        depths = (d for d, p in enumerate(scope.around) if id(op) in self.meetings(p).before)
        if (depth := next(depths, None)) is not None:
            step = after_rendezvous(step, scope.around[depth:])
        return step if step.span is not None else step._replace(span=op.span)

    def meetings(self, siblings: Parallel) -> Meetings:
        """The places where the instances of ``siblings`` exchange elements of shared buffers."""
        found = self._meetings.get(id(siblings))
        if found is None:
            if self._dependence is None:
                self._dependence = Dependence(self.kernel.body)
            found = self._meetings[id(siblings)] = Meetings(siblings, self._dependence)
        return found

    def value(self, e: Expr) -> Evaluate:
        return self.expressions.compile(e)

    def access(self, view: View) -> Access:
        return Access(view, self.expressions)

    def element(self, view: View) -> Evaluate:
        return self.access(view).element

    def fragment_element(self, e: Any) -> Evaluate:
        from tilemma.targets.cpu.element_work import fragment_element

        return fragment_element(self, e)

    def slot(self, kind: str, name: str) -> int:
        return self.names.slot(kind, name)


def rendezvous_levels(op: Op, scope: Scope) -> tuple[Parallel, ...]:
    """The levels, outermost first, whose siblings synchronise around a collective write to shared memory.

    The data of a synchronous copy is visible to all threads after the statement, which can be observed where
    another statement of the same siblings accesses the buffer.  Siblings that write to the same place synchronise
    too, so that their values can be compared.
    """
    views = [v for v in overwritten_views(op) if v.base.space is Space.SHARED]
    if not views or (isinstance(op, Copy) and op.asynchronous):
        return ()
    return next((scope.around[d:] for d, p in enumerate(scope.around) if _seen_by(p, op, views[0], scope)), ())


def _seen_by(siblings: Parallel, op: Op, view: View, scope: Scope) -> bool:
    indices = {i.name for i in siblings.indices}
    if not scope.lanes and not any(depends_on(x, indices) for x in view.expressions()):
        return True
    if isinstance(op, SetElement):
        return False
    used = (v for x in walk.walk(siblings.body) if x is not op for v in (*read_views(x), *overwritten_views(x)))
    return any(v.base.name == view.base.name for v in used)


def after_rendezvous(step: Step, levels: tuple[Parallel, ...]) -> Step:
    """``step`` after a rendezvous of the siblings at the outermost of ``levels`` that has some."""

    def coroutine(f: Frame) -> Coroutine:
        reach = f[INSTANCE].siblings_at(levels)
        if reach is not None:
            yield Rendezvous(reach)
        return (yield from step.run(f)) if step.blocking else step.run(f)

    return Step(coroutine, True, step.span)


def with_rendezvous(step: Step, slot: int, levels: tuple[Parallel, ...]) -> Step:
    """``step``, a write to the buffer in ``slot``, with a rendezvous before and after it of the siblings at the
    outermost of ``levels`` that has some."""

    def coroutine(f: Frame) -> Coroutine:
        reach = f[INSTANCE].siblings_at(levels)
        if reach is None:
            step.run(f)
            return
        before = Rendezvous(reach)
        yield before
        f[slot].write_concurrently(before.round, lambda: step.run(f))
        yield Rendezvous(reach)

    return Step(coroutine, True, step.span)


def joint_levels(op: Copy, scope: Scope) -> tuple[Parallel, ...]:
    """The levels, outermost first, whose siblings issue one asynchronous copy together: neither its source nor its
    destination depends on their indices."""
    if op.plan is not None or op.future is None or op.event is not None or scope.lanes:
        return ()
    if op.dst.base.space is not Space.SHARED:
        return ()
    places = [*op.src.expressions(), *op.dst.expressions()]
    for d, p in enumerate(scope.around):
        indices = {i.name for i in p.indices}
        if not any(depends_on(x, indices) for x in places):
            return scope.around[d:]
    return ()


def joint(step: Step, levels: tuple[Parallel, ...]) -> Step:
    """``step``, an asynchronous copy, after a rendezvous of the siblings that issue it: what they did before, they
    did before the copy began, and it runs once."""

    def coroutine(f: Frame) -> Coroutine:
        instance = f[INSTANCE]
        reach = instance.siblings_at(levels)
        if reach is None:
            step.run(f)
            return
        before = Rendezvous(reach)
        yield before
        instance.block.round = before.round
        try:
            step.run(f)
        finally:
            instance.block.round = None

    return Step(coroutine, True, step.span)
