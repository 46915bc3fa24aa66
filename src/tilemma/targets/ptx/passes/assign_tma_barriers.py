"""TMA barrier assignment: the event (mbarrier) that each load by TMA completes.

It is the event that the program names, the event of a trigger that follows the load's future, or a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from tilemma.errors import CompileError
from tilemma.ir import tile as t
from tilemma.ir.effects import rotated
from tilemma.ir.expr import Element, Expr, FragmentElement, Index, Var, const
from tilemma.ir.expr import walk as expressions_in
from tilemma.ir.types import Event, EventRef
from tilemma.ir.walk import rewrite, rewrite_blocks, walk
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Site, sites
from tilemma.records import record
from tilemma.targets.ptx import tensor_copies


class MulticastApart(CompileError):
    code = "multicast-apart"
    found = "a synchronous `.multicast` into `{dst}` that the blocks of the cluster may not reach together"
    expected = "a place that all threads of all blocks reach equally often: they wait for each other there"
    fix = "move it out of the role, the inner level or the branch, or guard `{dst}` by events: `tma.copy.async<e>`"
    python_fix = "move it out of the role, the inner level or the branch, or guard `{dst}` by events: `async_=e`"


@record(slots=False)
class AssignTmaBarriers:
    """Assigns an event to every load by TMA, and turns waits for the load's future into waits for the event.

    Futures that swaps exchange share a ring of events; a variable holds the slot of each name and rotates with it.
    """

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises MulticastApart."""
        signalled = {f for op in walk(kernel.body) if isinstance(op, t.TriggerEvent) for f in op.after}
        for site in sites(kernel.body):
            if isinstance(site.op, t.Copy) and _in_step(site.op) and site.op.future not in signalled:
                _check_in_step(site)
        return rewrite_blocks(kernel, lambda block: _Binding(block).bound())


def _in_step(op: t.Copy) -> bool:
    """A multicast without an event: nothing tells a block that the others have read what it overwrites."""
    return op.plan is not None and bool(op.plan.peers) and op.event is None


def _check_in_step(site: Site) -> None:
    """MulticastApart unless all threads of all blocks of the cluster reach the copy equally often."""
    assert isinstance(site.op, t.Copy)
    parents = site.parents[site.parents.index(site.block) + 1 :] if site.block is not None else ()
    loops = {p.index.name for p in parents if isinstance(p, t.For)}

    def uniform(e: Expr) -> bool:
        """Whether ``e`` has one value in all threads of the cluster."""
        return not any(
            isinstance(x, (Var, Element, FragmentElement)) or (isinstance(x, Index) and x.name not in loops)
            for x in expressions_in(e)
        )

    for p in parents:
        control = (p.start, p.stop, p.step) if isinstance(p, t.For) else (p.cond,) if isinstance(p, t.If) else None
        if control is None or not all(map(uniform, control)):
            raise MulticastApart(site.op.span, dst=site.op.dst.base.name)


def by_tma(op: t.Op) -> bool:
    """Whether ``op`` is a load by TMA."""
    return isinstance(op, t.Copy) and op.plan is not None and op.plan.engine == "tma" and tensor_copies.is_load(op)


@record(frozen=False, slots=False)
class _Binding:
    """``events``: the new events of the block; ``refs``: the event of each load's future; ``slots``: for futures
    that swaps exchange, the variable that holds the slot of each."""

    block: t.Parallel
    events: list[t.Op] = field(default_factory=list)
    refs: dict[str, EventRef] = field(default_factory=dict)
    slots: dict[str, Var] = field(default_factory=dict)

    def bound(self) -> t.Parallel:
        ops = list(walk(self.block.body))
        triggered = {f: op.event for op in ops if isinstance(op, t.TriggerEvent) for f in op.after}
        awaited = {f for op in ops if isinstance(op, t.WaitFuture) for f in op.futures}
        loads = [op for op in ops if isinstance(op, t.Copy) and by_tma(op) and op.event is None]
        for group in _groups(ops, {op.future for op in loads}):
            self._ring(group)
            awaited |= set(group) if awaited & set(group) else set()
        self.triggered = {op.future: triggered[op.future] for op in loads if op.future in triggered}
        for op in loads:
            if op.future is None or op.future in self.triggered:
                continue
            assert op.future in awaited, "an earlier pass sees to that"
            if op.future not in self.refs:
                self.refs[op.future] = self._event(op)
        body = rewrite(self.block.body, self._bind)
        return replace(self.block, body=(*self.events, *body))

    def _event(self, op: t.Copy) -> EventRef:
        event = Event(f"{op.future or op.dst.base.name}.arrival{len(self.events)}")
        self.events.append(t.DeclareEvent(event, span=op.span))
        return EventRef(event)

    def _ring(self, group: list[str]) -> None:
        event = Event(f"{group[0]}.arrivals", len(group))
        self.events.append(t.DeclareEvent(event, span=self.block.span))
        for i, name in enumerate(group):
            var = self.slots[name] = Var(f"{name}.slot", const(0).type)
            self.events.append(t.Declare(var, const(i), span=self.block.span))
            self.refs[name] = EventRef(event, slot=var)

    def _bind(self, op: t.Op) -> t.Op | t.Body:
        match op:
            case t.TriggerEvent(after=after) if after:
                rest = tuple(f for f in after if f not in self.triggered)
                trigger = replace(op, after=())
                return (t.WaitFuture(rest, span=op.span), trigger) if rest else trigger
            case t.Copy() if by_tma(op) and op.event is None:
                return self._load(op)
            case t.WaitFuture(futures=names) if set(names) & set(self.refs):
                rest = tuple(n for n in names if n not in self.refs)
                waits: t.Body = tuple(t.WaitEvent(self.refs[n], span=op.span) for n in names if n in self.refs)
                return (*waits, replace(op, futures=rest)) if rest else waits
        if (names := rotated(op)) and set(names) <= set(self.slots):
            return (op, *self._rotation(names, op))
        return op

    def _load(self, op: t.Copy) -> t.Op | t.Body:
        if op.future in self.triggered:
            return replace(op, event=self.triggered[op.future], future=None)
        op = _stepping(op)
        if op.future is not None:
            # A copy keeps its future if swaps exchange it: `Rotations` finds the buffers of swapped names by it.
            kept = op.future if op.future in self.slots else None
            ref = self.refs[op.future]
            return replace(op, asynchronous=True, event=ref, future=kept), t.TriggerEvent(ref, span=op.span)
        ref = self._event(op)
        trigger, wait = t.TriggerEvent(ref, span=op.span), t.WaitEvent(ref, span=op.span)
        return replace(op, asynchronous=True, event=ref), trigger, wait

    def _rotation(self, names: tuple[str, ...], op: t.Op) -> Iterator[t.Op]:
        slots = [self.slots[n] for n in names]
        first = Var(f"{names[0]}.first", slots[0].dtype)
        yield t.Declare(first, slots[0], span=op.span)
        for to, source in zip(slots, (*slots[1:], first), strict=True):
            yield t.Assign(to, source, span=op.span)


def _stepping(op: t.Copy) -> t.Copy:
    return replace(op, plan=replace(op.plan, in_step=True)) if op.plan is not None and op.plan.peers else op


def _groups(ops: list[t.Op], loads: set[str | None]) -> list[list[str]]:
    """The futures of loads that swaps exchange among each other."""
    groups: list[list[str]] = []
    for op in ops:
        if (names := rotated(op)) and set(names) <= loads:
            joined = [g for g in groups if set(g) & set(names)]
            groups = [g for g in groups if g not in joined]
            groups.append(list(dict.fromkeys([*(n for g in joined for n in g), *names])))
    return groups
