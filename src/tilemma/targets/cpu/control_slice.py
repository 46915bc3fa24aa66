"""The control slice of a kernel: its events, the control flow around them, and the values on which both depend.

Tiles, elements and fragments are removed.  A copy remains if an event counts it.  A collective write to shared
memory remains as a rendezvous of the sibling instances.  A buffer remains as the subscripts of its copies.
The event simulation runs the slice in the reference executor.  `Unknown` is raised if data or a scalar parameter
decides which instance waits for which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from tilemma.errors import Span
from tilemma.forking import cached_property
from tilemma.ir import tile as t
from tilemma.ir import walk
from tilemma.ir.effects import Execution, Order, Reads, assigned, declared, read_views, received
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, Scalar, Var, binary, const, depends_on, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.types import BLOCK, Level, View
from tilemma.records import record
from tilemma.targets.cpu.control import inferred_level
from tilemma.targets.cpu.steps import Scope, rendezvous_levels


@record
class Iteration(t.Op):
    """The start of an iteration of loop number ``loop`` of the kernel."""

    execution: ClassVar[Execution] = Execution.INSTANCE
    order: ClassVar[Order] = Order.CONTROL
    loop: int


@record
class SiblingBarrier(t.Op):
    """A barrier of sibling instances, at the outermost enclosing level from number ``depth`` on that has some."""

    execution: ClassVar[Execution] = Execution.INSTANCE
    order: ClassVar[Order] = Order.THREADS
    depth: int


@record
class Subscripts(t.Op):
    """Check that each view selects an existing copy of its buffer."""

    execution: ClassVar[Execution] = Execution.INSTANCE
    views: Reads[tuple[View, ...]]


class Unknown(Exception):
    """The waits depend on values that are not known before the kernel runs.

    ``reason`` names these values, and ``span`` the place.
    """

    def __init__(self, reason: str, span: Span | None) -> None:
        super().__init__(reason)
        self.reason, self.span = reason, span


def control_slice(kernel: t.Kernel) -> t.Kernel:
    """The part of ``kernel`` on which its waits depend, for one block (or one cluster) of each grid.

    Raises Unknown if data or a scalar parameter decides the waits.
    """
    return replace(kernel, body=_Reduced(list(_sites(kernel.body, (), Scope()))).body(kernel.body))


@record(slots=False, eq=False)
class _Site:
    """An operation, the enclosing control, its scope in the reference executor, and the level it introduces."""

    op: t.Op
    around: tuple[t.Op, ...]
    scope: Scope
    level: Level | None


def _sites(body: t.Body, around: tuple[t.Op, ...], scope: Scope) -> Iterator[_Site]:
    for op in body:
        inner, level = scope, None
        if isinstance(op, t.Parallel):
            level = inferred_level(op, scope)
            alone = level.kind == "group" and all(value_of(i.extent) == 1 for i in op.indices)
            if level.kind == "block":
                inner = Scope(BLOCK)
            elif level.kind == "group" and not alone:
                inner = replace(scope, level=level, siblings=op, around=(*scope.around, op))
            else:
                inner = replace(scope, level=level, lanes=level.kind == "thread")
        yield _Site(op, around, scope, level)
        if not isinstance(op, t.Apply):
            for _, nested in walk.bodies(op):
                yield from _sites(nested, (*around, op), inner)


def _followed(op: t.Op) -> tuple[Expr, ...]:
    """The expressions that ``op`` evaluates in the control slice."""
    match op:
        case t.Parallel():
            return tuple(i.extent for i in op.indices)
        case t.For():
            return op.start, op.stop, op.step
        case t.If() | t.While() | t.InThreads() | t.Assert():
            return (op.cond,)
        case t.Declare() | t.Assign():
            return (op.value,)
        case t.WaitEvent(event=ref) | t.TriggerEvent(event=ref) | t.Copy(event=ref) if ref is not None:
            return tuple(e for e in (ref.slot, ref.order) if e is not None)
    return ()


def _changed(op: t.Op) -> str | None:
    """The variable that ``op`` assigns."""
    return next((x.name for x in (*declared(op), *assigned(op)) if isinstance(x, Var)), None)


class _Reduced:
    """The operations that remain in the slice, and their replacements."""

    def __init__(self, sites: list[_Site]) -> None:
        self.sites = sites
        self.unknown: dict[str, str] = {}  # values that are not known before the kernel runs, and the reason
        self.left: dict[int, str] = {}  # loops with an unknown number of iterations, and the reason
        self._find_unknown()
        self.kept: set[int] = set()
        self.needed: set[str] = set()  # names of indices and variables
        self._find_kept()
        self.levels = {id(s.op): s.level for s in sites if s.level is not None}
        self.loops = 0

    # -- unknown values ---------------------------------------------------------------------------------------

    def _why(self, *expressions: Expr) -> str | None:
        """The reason why one of ``expressions`` is not known; None if all are known."""
        for x in [x for e in expressions for x in parts(e)]:
            match x:
                case Element():
                    return f"elements of `{x.view.base.name}` decide"
                case FragmentElement():
                    return f"elements of `{x.fragment}` decide"
                case Scalar():
                    return f"the parameter `{x.name}` decides"
                case Var() | Index() if x.name in self.unknown:
                    return self.unknown[x.name]
        return None

    def _why_there(self, around: tuple[t.Op, ...]) -> str | None:
        """The reason why the number of executions inside ``around`` is not known; None if it is known."""
        found = (self.left.get(id(op)) or self._why(*_followed(op)) for op in around)
        return next((why for why in found if why), None)

    def _find_unknown(self) -> None:
        before = -1
        while before != (before := len(self.unknown) + len(self.left)):
            for s in self.sites:
                op = s.op
                if (name := _changed(op)) is not None and name not in self.unknown:
                    why = self._why_there(s.around) or self._why(*_followed(op))
                    why = next((f"elements of `{v.base.name}` decide" for v in read_views(op)), why)
                    if received(op):
                        why = why or f"`{name}`, a value of other lanes, decides"
                    if why:
                        self.unknown[name] = why
                elif isinstance(op, (t.For, t.Parallel)) and (why := self._why(*_followed(op))):
                    for i in op.indices if isinstance(op, t.Parallel) else (op.index,):
                        self.unknown[i.name] = why
                elif isinstance(op, (t.Break, t.Continue)):
                    inner = max(n for n, p in enumerate(s.around) if isinstance(p, (t.For, t.While)))
                    if why := self._why_there(s.around[inner + 1 :]):
                        self.left[id(s.around[inner])] = why
                elif isinstance(op, t.Apply):
                    inside = {_changed(x) for x in walk.walk(op.body)} - {None}
                    self.unknown |= {n: f"elements of `{op.fragment.name}` decide" for n in inside if n}

    # -- operations that remain -------------------------------------------------------------------------------

    @cached_property
    def rendezvous_sites(self) -> dict[int, int]:
        """Collective writes with a rendezvous of siblings, and the depth of its outermost level."""
        found = {}
        for s in self.sites:
            if levels := rendezvous_levels(s.op, s.scope):
                found[id(s.op)] = next(d for d, p in enumerate(s.scope.around) if p is levels[0])
        return found

    @cached_property
    def subscripts(self) -> dict[int, tuple[View, ...]]:
        """Operations, and their views that select a copy of a buffer by a known value."""
        found = {}
        for s in self.sites:
            views = (v for v in walk.views(s.op) if v.base.copies and v.slot is not None)
            counted = tuple(v for v in views if v.slot is not None and value_of(v.slot) is None)
            known = tuple(v for v in counted if v.slot is not None and not self._why(v.slot))
            if known and not s.scope.lanes and not self._why_there(s.around):
                found[id(s.op)] = known
        return found

    def _find_kept(self) -> None:
        for s in self.sites:
            if self._synchronises(s):
                if why := self._why_there((*s.around, s.op)):
                    raise Unknown(why, s.op.span)
                self._keep(s)
            elif id(s.op) in self.subscripts or self._allows(s):
                self._keep(s)
        before = -1
        while before != (before := len(self.kept)):
            for s in self.sites:
                loops = (p for p in s.around if isinstance(p, (t.For, t.While)))
                leaves = isinstance(s.op, (t.Break, t.Continue)) and any(id(p) in self.kept for p in loops)
                if id(s.op) not in self.kept and (leaves or _changed(s.op) in self.needed):
                    self._keep(s)
        self._check_clusters()

    def _allows(self, s: _Site) -> bool:
        """Whether ``s`` is an assertion on known values: it restricts the shapes with which the program runs."""
        return isinstance(s.op, t.Assert) and not s.scope.lanes and not self._why_there((*s.around, s.op))

    def _check_clusters(self) -> None:
        """Refuse operations on other blocks that differ between the blocks of a cluster.

        The reference executor runs these blocks one after the other.
        """
        inside = [s for s in self.sites if s.around and s.level is not None and s.level.kind == "block"]
        ranks = {i.name for s in inside if isinstance(s.op, t.Parallel) for i in s.op.indices}
        for s in self.sites if ranks & self.needed else ():
            goes = isinstance(s.op, t.TriggerEvent) and s.op.cluster
            if goes or (isinstance(s.op, t.Copy) and s.op.multicast):
                raise Unknown("the place in a cluster decides", s.op.span)

    def _synchronises(self, s: _Site) -> bool:
        """Whether threads wait at ``s``, or ``s`` ends a wait."""
        match s.op:
            case t.DeclareEvent() | t.WaitEvent() | t.TriggerEvent():
                return True
            case t.Sync():
                return s.op.what == "barrier" and s.scope.siblings is not None
            case t.InThreads():
                return not s.op.asynchronous and s.scope.siblings is not None
            case t.Copy() if s.op.event is not None:
                return True
            case t.For() | t.While():
                # The loop may wait for a value that another thread writes.
                return id(s.op) in self.left or (isinstance(s.op, t.While) and self._why(s.op.cond) is not None)
        return id(s.op) in self.rendezvous_sites

    def _keep(self, s: _Site) -> None:
        for op in (*s.around, s.op):
            if id(op) not in self.kept:
                self.kept.add(id(op))
                slots = (v.slot for v in self.subscripts.get(id(op), ()) if v.slot is not None)
                for e in (*_followed(op), *slots):
                    self.needed |= {x.name for x in parts(e) if isinstance(x, (Var, Index))}

    # -- replacements -----------------------------------------------------------------------------------------

    def body(self, ops: t.Body) -> t.Body:
        return tuple(new for op in ops if id(op) in self.kept for new in self._reduced(op))

    def _reduced(self, op: t.Op) -> Iterator[t.Op]:
        match op:
            case t.Parallel():
                yield self._parallel(op)
            case t.For() | t.While():
                yield from self._loop(op)
            case t.If() | t.InThreads():
                yield walk.with_bodies(op, self.body)
            case t.TriggerEvent():
                yield replace(op, after=())
            case (
                t.Declare()
                | t.Assign()
                | t.Assert()
                | t.Break()
                | t.Continue()
                | t.DeclareEvent()
                | t.WaitEvent()
                | t.Sync()
            ):
                yield op
            case _:
                yield from self._data(op)

    def _loop(self, op: t.For | t.While) -> Iterator[t.Op]:
        body = self.body(op.body)
        if isinstance(op, t.For) and (value_of(op.step) or 0) > 0 and self._repeats_subscripts(op.index, body):
            yield t.If(binary("lt", op.start, op.stop), body)
            return
        self.loops += 1
        yield replace(op, body=(Iteration(self.loops, span=op.span), *body))

    @staticmethod
    def _repeats_subscripts(index: Index, body: t.Body) -> bool:
        """Whether ``body`` only checks subscripts, with the same values in every iteration over ``index``."""
        views = [v for x in body if isinstance(x, Subscripts) for v in x.views]
        follows = any(v.slot is not None and depends_on(v.slot, {index.name}) for v in views)
        return not follows and all(isinstance(x, Subscripts) for x in body)

    def _data(self, op: t.Op) -> Iterator[t.Op]:
        depth = self.rendezvous_sites.get(id(op))
        rendezvous = () if depth is None else (SiblingBarrier(depth, span=op.span),)
        if id(op) in self.subscripts:
            yield Subscripts(self.subscripts[id(op)], span=op.span)
        yield from rendezvous
        if isinstance(op, t.Copy) and op.event is not None:
            yield replace(op, asynchronous=True, future=None, after=())
        yield from rendezvous

    def _parallel(self, op: t.Parallel) -> t.Parallel:
        """Keep one block of independent blocks; the blocks of a cluster may differ in control."""
        level, indices = self.levels[id(op)], op.indices
        if level.kind in ("cluster", "block"):
            apart = level.kind == "block" and all(value_of(i.extent) is not None for i in indices)
            independent = not (apart and any(i.name in self.needed for i in indices))
            indices = tuple(replace(i, extent=const(1)) for i in indices) if independent else indices
        return replace(op, indices=indices, body=self.body(op.body), level=level)
