"""Static checks of events: wrong declarations, subscripts and slots, and waits that no trigger can satisfy.

The checks hold for all shapes and all data, because they look at operations, constants and intervals.  They also
cover kernels in which data decides control, and branches that few shapes execute.  They do not count generations:
`check_progress` runs each loop for one iteration and ignores slots.  The event simulation (docs/architecture.md)
counts generations, and so finds errors in the number and order of triggers, but only for the shapes that it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from tilemma.errors import CompileError, Note, Span, spelled
from tilemma.ir.expr import Expr, Index, Var, const, substitute, value_of, walk
from tilemma.ir.generations import slots_of
from tilemma.ir.ranges import interval
from tilemma.ir.tile import Body, Copy, DeclareEvent, For, If, InThreads, Parallel, TriggerEvent, WaitEvent, While
from tilemma.ir.tiles import describe
from tilemma.ir.types import EventRef
from tilemma.records import record
from tilemma.targets.ptx.passes.threads import Block, Node, Tree
from tilemma.targets.ptx.passes.unify_ring_parity import first_values, grows_for_good, values_taken


class EventNeverTriggered(CompileError):
    code = "event-never-triggered"
    found = "`{event}` is waited for, but nothing triggers it"
    expected = "a `trigger`, or an asynchronous copy bound to it"
    fix = "trigger it after the operations that the wait is for{ready}"


class EventStuck(CompileError):
    code = "event-stuck"
    found = "no thread can pass this wait for `{event}`: {reason}"
    expected = "a first generation that does not depend on the wait itself"
    fix = "declare `{event}` with `= ready`, or trigger each of its slots once before the loop"
    python_fix = "declare `{event}` with `ready=True`, or trigger each of its slots once before the loop"


class EventSlot(CompileError):
    code = "event-slot"
    found = "`{event}[{text}]` may be slot {highest} of {slots}"
    expected = "a slot from 0 to {last}"
    fix = "take the index modulo {slots}, or use `{event}.at(order)`"


class EventSubscript(CompileError):
    code = "event-subscript"
    found = "`{event}` {what}"
    expected = "{rule}"
    fix = "{remedy}"


class EventWaiters(CompileError):
    code = "event-waiters"
    found = "threads wait for `{event}` as members of {first} and of {second}"
    expected = "one level at which a thread counts its generations of an event"
    fix = "wait at one of the two levels only"


@record(frozen=False, slots=False)
class Uses:
    """The operations of a block on one event."""

    declared: Node
    triggers: list[Node] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)
    copies: list[Node] = field(default_factory=list)


def check_uses(u: Uses, body: Body) -> None:
    """Raises EventSubscript, EventSlot or EventWaiters; ``body`` is the block's."""
    _check_subscripts(u, body)
    _check_waiters(u)


def check_triggered(u: Uses, arrivals: int) -> None:
    """Raises EventNeverTriggered; ``arrivals``: how many instances trigger a generation."""
    _check_triggered(u, arrivals)
    _check_every_slot(u)


def _name(u: Uses) -> str:
    assert isinstance(u.declared.op, DeclareEvent)
    return u.declared.op.event.name


def _refs(u: Uses) -> Iterator[tuple[Node, EventRef, Span | None]]:
    for node in (*u.triggers, *u.waits, *u.copies):
        assert isinstance(node.op, (TriggerEvent, WaitEvent, Copy)) and node.op.event is not None
        yield node, node.op.event, node.op.span


def _check_subscripts(u: Uses, body: Body) -> None:
    name = _name(u)
    for node, ref, span in _refs(u):
        slots = ref.event.slots
        if slots and ref.slot is None and ref.order is None:
            rule, remedy = "a slot of it", f"write `{name}[s]`, or `{name}.at(order)`"
            raise EventSubscript(span, event=name, what=f"is a ring of {slots} slots", rule=rule, remedy=remedy)
        if not slots and (ref.slot is not None or ref.order is not None):
            rule, remedy = (
                "the event itself",
                f"leave the subscript out, or declare `{spelled(span, f'event {name}[S]', f'{name} = event(S)')}`",
            )
            raise EventSubscript(span, event=name, what="is a single event", rule=rule, remedy=remedy)
        if ref.slot is None:
            continue
        for at in _certain_slots(node, ref.slot, body):
            if not 0 <= at < slots:
                raise EventSlot(span, event=name, text=describe(ref.slot), highest=at, slots=slots, last=slots - 1)
        variables = [x for x in walk(ref.slot) if isinstance(x, Var)]
        if variables and not grows_for_good(ref.slot, body):
            continue
        highest = interval(ref.slot)[1]
        if highest >= slots:
            shown = "beyond every slot" if value_of(ref.slot) is None and highest > 2**20 else highest
            raise EventSlot(span, event=name, text=describe(ref.slot), highest=shown, slots=slots, last=slots - 1)


def _certain_slots(node: Node, slot: Expr, body: Body) -> Iterator[int]:
    """Slots that ``node`` certainly uses, if they depend on one variable or one loop index only."""
    if any(isinstance(a.op, If) for a in node.ancestors()):
        return
    names = {x for x in walk(slot) if isinstance(x, (Var, Index))}
    for name in names if len(names) == 1 else ():
        loops = [a.op for a in node.ancestors() if isinstance(a.op, For) and a.op.index.name == name.name]
        values = values_taken(name, body) if isinstance(name, Var) else first_values(loops[0]) if loops else []
        for value in values:
            at = value_of(substitute(slot, {name.name: const(value)}))
            if at is not None:
                yield at


def _check_waiters(u: Uses) -> None:
    """Each thread counts generations at one level: waits at different levels must be in different threads."""
    for i, a in enumerate(u.waits):
        for b in u.waits[i + 1 :]:
            levels = [_level(a), _level(b)]
            if levels[0] != levels[1] and bool((a.parent.mask & b.parent.mask).any()):
                notes = [Note("the other wait", a.op.span)]
                raise EventWaiters(b.op.span, event=_name(u), first=levels[0], second=levels[1], notes=notes)


def _level(node: Node) -> str:
    parallels = [p.op for p in node.parent.chain if isinstance(p.op, Parallel)]
    return str(parallels[-1].level) if parallels else "the block"


def _check_triggered(u: Uses, arrivals: int) -> None:
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if arrivals or not u.waits:
        return
    looped = [w for w in u.waits if any(isinstance(a.op, (For, While)) for a in w.ancestors())]
    if op.event.ready and not looped:
        return
    how = spelled(u.waits[0].op.span, "declare it `= ready`", "declare it with `ready=True`")
    ready = "" if op.event.ready else f", or {how} where its first generation is free"
    raise EventNeverTriggered((looped or u.waits)[0].op.span, event=op.event.name, ready=ready)


def _check_every_slot(u: Uses) -> None:
    """Check that each slot of a wait has a trigger, if constants give the slots."""
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    slots = op.event.slots
    if slots < 2:
        return
    given: set[int] = set()
    for node in u.triggers or u.copies:
        assert isinstance(node.op, (TriggerEvent, Copy)) and node.op.event is not None
        given |= slots_of(node.op.event)
    for node in u.waits:
        looped = any(isinstance(a.op, (For, While)) for a in node.ancestors())
        assert isinstance(node.op, WaitEvent)
        ref = node.op.event
        if (op.event.ready and not looped) or any(isinstance(x, Var) for e in (ref.slot,) if e for x in walk(e)):
            continue
        missing = sorted(slots_of(ref) - given)
        if missing:
            raise EventNeverTriggered(node.op.span, event=f"{op.event.name}[{missing[0]}]", ready="")


def check_progress(tree: Tree, uses: dict[str, Uses]) -> None:
    """Run every role once, each loop for one iteration, without slots: every role must reach its end.

    A trigger that a role reaches before it is blocked counts for all slots and for all later waits.  A role that
    is blocked here is therefore blocked in every execution that enters the loops.
    """
    done = {
        name for name, u in uses.items() if isinstance(u.declared.op, DeclareEvent) and u.declared.op.event.ready
    }
    roles = [list(_steps(path)) for path in _role_paths(tree)]
    position = [0] * len(roles)
    moved = True
    while moved:
        moved = False
        for r, steps in enumerate(roles):
            while position[r] < len(steps):
                op = steps[position[r]].op
                assert isinstance(op, (WaitEvent, TriggerEvent, Copy))
                if isinstance(op, WaitEvent) and op.event.event.name not in done:
                    break
                if (
                    op.event is not None
                    and not isinstance(op, WaitEvent)
                    and (isinstance(op, TriggerEvent) or not uses[op.event.event.name].triggers)
                ):
                    done.add(op.event.event.name)
                position[r] += 1
                moved = True
    stuck = [steps[position[r]] for r, steps in enumerate(roles) if position[r] < len(steps)]
    if not stuck:
        return
    first = stuck[0]
    assert isinstance(first.op, WaitEvent)
    name = first.op.event.event.name
    behind = [n for n in stuck[1:] if n.op.span != first.op.span]
    triggers = [Note("it is triggered here, behind a wait", t.op.span) for t in uses[name].triggers]
    waits = [Note("which is stuck here", n.op.span) for n in behind[:1]]
    reason = "every trigger of it comes after a wait that is stuck itself"
    raise EventStuck(first.op.span, event=name, reason=reason, notes=[*triggers, *waits])


def _role_paths(tree: Tree) -> list[list[Node]]:
    """The nodes of each asynchronous role, and of the code outside all roles, in program order."""
    found: dict[int, list[Node]] = {}
    for node in tree.walk():
        apart = [id(b) for b in node.parent.path() if b.owner is not None and _is_role(b.owner, b)]
        found.setdefault(apart[-1] if apart else 0, []).append(node)
    return list(found.values())


def _is_role(owner: Node, body: Block) -> bool:
    """Whether ``body`` admits only some of the block's threads, and the others continue without them."""
    if isinstance(owner.op, InThreads):
        return owner.op.asynchronous
    return isinstance(owner.op, If) and not np.array_equal(body.mask, owner.parent.mask)


def _steps(nodes: list[Node]) -> Iterator[Node]:
    return (n for n in nodes if isinstance(n.op, (WaitEvent, TriggerEvent, Copy)))


__all__ = ["Uses", "check_progress", "check_triggered", "check_uses"]
