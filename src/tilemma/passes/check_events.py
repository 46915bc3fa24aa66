"""Legality of events on every target: places, subscripts, slots, counts, and waits that no trigger can satisfy.

The checks hold for all shapes and all data, because they look at operations, constants and intervals.  They also
cover kernels in which data decides control, and branches that few shapes execute.  They do not count generations:
`_check_progress` runs each loop for one iteration and ignores slots.  The event simulation (docs/architecture.md)
counts generations, and so finds errors in the number and order of triggers, but only for the shapes that it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilemma.errors import CompileError, Note, spelled
from tilemma.ir import tile
from tilemma.ir.expr import Expr, Index, Var, const, substitute, value_of, walk
from tilemma.ir.generations import Disagreement, arrivals, slots_of
from tilemma.ir.ranges import interval
from tilemma.ir.tiles import describe
from tilemma.ir.walk import walk as operations
from tilemma.passes.decision import Decision
from tilemma.passes.event_uses import (
    Uses,
    blocks_of_clusters,
    blocks_reached,
    event_uses,
    instances,
    threads,
    trigger_sites,
)
from tilemma.passes.scope import Dependence, blocks, kind, sites
from tilemma.passes.simplify import replaced
from tilemma.passes.slot_values import first_values, increases_without_bound, values_taken
from tilemma.passes.threads import Block, Node, Tree
from tilemma.records import record


class EventPlace(CompileError):
    code = "event-place"
    found = "`{event}` is declared {where}"
    expected = "events at the block's own level: they keep their generations for the whole kernel"
    fix = "move the declaration to the top of the `parallel ... : block`"
    python_fix = 'move the declaration to the top of the `for ... in parallel(..., level="block"):`'


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


class EventCount(CompileError):
    code = "event-count"
    found = "`{event}` is triggered by {here} threads here and by {there} elsewhere"
    expected = (
        "the sites of one role to be reached by the same instances, and each slot by the same roles: "
        "a generation is complete when all of them have triggered"
    )
    fix = "let the same instances trigger it everywhere, or declare `event<n>` with the threads that count"
    python_fix = (
        "let the same instances trigger it everywhere, or declare `event(threads=n)` with the threads that count"
    )


class EventThreads(CompileError):
    code = "event-threads"
    found = "`{event}` counts {want} threads, and {have} trigger it"
    expected = "triggers by as many threads as complete a generation"
    fix = "declare `event<{have}>`, or leave the count out: then every instance that triggers counts"
    python_fix = (
        "declare `event(threads={have})`, or leave the count out: then every instance that triggers counts"
    )


class EventNeverAwaited(CompileError):
    code = "event-never-waited-for"
    found = "copies complete `{event}`, and nothing waits for it"
    expected = "a `wait` before their data is used, and before the kernel ends"
    fix = "write `wait {event}`, or make the copies synchronous"
    python_fix = "write `wait({event})`, or make the copies synchronous"


@record(slots=False)
class CheckEvents:
    """Refuses events that no target can execute; the bodies of branches that are never taken are not checked."""

    def run(self, kernel: tile.Kernel, log: list[Decision]) -> tile.Kernel:
        """Raises EventPlace, EventSubscript, EventSlot, EventWaiters, EventThreads, EventCount,
        EventNeverTriggered, EventNeverAwaited or EventStuck."""
        if not any(isinstance(op, tile.DeclareEvent) for op in operations(kernel.body)):
            return kernel
        folded = replace(kernel, body=replaced(kernel.body, {}))
        _check_places(folded.body)
        dependence, clustered = Dependence(folded.body), blocks_of_clusters(folded)
        for block in blocks(folded):
            tree = Tree(block, dependence)
            uses = event_uses(tree)
            for u in uses.values():
                _check_subscripts(u, block.body)
                _check_waiters(u)
                _check_counts(u, clustered.get(block.indices, 1))
                _check_triggered(u)
                _check_every_slot(u)
                if u.copies and not u.waits:
                    raise EventNeverAwaited(u.copies[0].op.span, event=u.event.name)
            _check_progress(tree, uses)
        return kernel


def _check_places(body: tile.Body) -> None:
    for site in sites(body):
        if isinstance(site.op, tile.DeclareEvent):
            where = _misplaced(site.parents)
            if where:
                raise EventPlace(site.op.span, event=site.op.event.name, where=where)


def _misplaced(parents: tuple[tile.Op, ...]) -> str:
    """The place of the declaration of an event with ``parents``; empty if it is at its block's own level."""
    at = next((i for i, p in enumerate(parents) if isinstance(p, tile.Parallel) and kind(p) == "block"), None)
    if at is None:
        return "outside every block"
    inside = set(map(type, parents[at + 1 :]))
    return "inside a loop" if inside & {tile.For, tile.While} else "inside an `if`" if tile.If in inside else ""


# ---- how many triggers complete a generation ---------------------------------------------------------------


def _check_counts(u: Uses, cluster: int) -> None:
    """``cluster``: the blocks that `trigger.cluster` comes from."""
    if u.event.threads is not None:
        _check_threads(u, u.event.threads, cluster)
        return
    try:
        arrivals(trigger_sites(u, [threads(t) * blocks_reached(t, cluster) for t in u.triggers]))
    except Disagreement as e:
        raise _disagreement(u, e.here, e.there, u.triggers[e.site], u.triggers[e.other]) from None


def _check_threads(u: Uses, want: int, cluster: int) -> None:
    have = sum(threads(n) for n in u.triggers)
    if have < want:
        raise EventThreads((u.triggers or [u.declared])[0].op.span, event=u.event.name, want=want, have=have)
    for site in u.triggers:
        # More threads at once complete several generations, or less than a whole one; where threads differ,
        # those that trigger may be fewer than those that get there.
        if threads(site) > want and not site.parent.varying:
            raise EventThreads(site.op.span, event=u.event.name, want=want, have=threads(site))
    # Declared for one block; for a trigger of the whole cluster, the same number of threads of each block arrives.
    reaches = [blocks_reached(t, cluster) for t in u.triggers]
    for reach, site in zip(reaches, u.triggers, strict=True):
        if reach != reaches[0]:
            raise _disagreement(u, want * reach, want * reaches[0], site, u.triggers[0])


def _disagreement(u: Uses, here: int, there: int, site: Node, other: Node) -> EventCount:
    note = Note(f"triggered by {there} here", other.op.span)
    return EventCount(site.op.span, event=u.event.name, here=here, there=there, notes=[note])


# ---- subscripts and levels ---------------------------------------------------------------------------------


def _check_subscripts(u: Uses, body: tile.Body) -> None:
    name = u.event.name
    for node, ref, span in u.refs():
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
        highest = interval(ref.slot)[1]
        for at in _certain_slots(node, ref.slot, body):
            if not 0 <= at < slots:
                raise EventSlot(span, event=name, text=describe(ref.slot), highest=at, slots=slots, last=slots - 1)
        variables = [x for x in walk(ref.slot) if isinstance(x, Var)]
        if variables and not increases_without_bound(ref.slot, body):
            continue
        if highest >= slots:
            shown = "beyond every slot" if value_of(ref.slot) is None and highest > 2**20 else highest
            raise EventSlot(span, event=name, text=describe(ref.slot), highest=shown, slots=slots, last=slots - 1)


def _certain_slots(node: Node, slot: Expr, body: tile.Body) -> Iterator[int]:
    """Slots that ``node`` certainly uses, if they depend on one variable or one loop index only."""
    if any(isinstance(a.op, tile.If) for a in node.ancestors()):
        return
    names = {x for x in walk(slot) if isinstance(x, (Var, Index))}
    for name in names if len(names) == 1 else ():
        loops = [a.op for a in node.ancestors() if isinstance(a.op, tile.For) and a.op.index.name == name.name]
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
                raise EventWaiters(b.op.span, event=u.event.name, first=levels[0], second=levels[1], notes=notes)


def _level(node: Node) -> str:
    parallels = [p.op for p in node.parent.chain if isinstance(p.op, tile.Parallel)]
    return str(parallels[-1].level) if parallels else "the block"


# ---- waits that no trigger satisfies -----------------------------------------------------------------------


def _check_triggered(u: Uses) -> None:
    triggered = any(map(instances, u.triggers or u.copies))
    if triggered or not u.waits:
        return
    looped = [w for w in u.waits if any(isinstance(a.op, (tile.For, tile.While)) for a in w.ancestors())]
    if u.event.ready and not looped:
        return
    how = spelled(u.waits[0].op.span, "declare it `= ready`", "declare it with `ready=True`")
    ready = "" if u.event.ready else f", or {how} where its first generation is free"
    raise EventNeverTriggered((looped or u.waits)[0].op.span, event=u.event.name, ready=ready)


def _check_every_slot(u: Uses) -> None:
    """Check that each slot of a wait has a trigger, if constants give the slots."""
    slots = u.event.slots
    if slots < 2:
        return
    given: set[int] = set()
    for node in u.triggers or u.copies:
        assert isinstance(node.op, (tile.TriggerEvent, tile.Copy)) and node.op.event is not None
        given |= slots_of(node.op.event)
    for node in u.waits:
        looped = any(isinstance(a.op, (tile.For, tile.While)) for a in node.ancestors())
        assert isinstance(node.op, tile.WaitEvent)
        ref = node.op.event
        if (u.event.ready and not looped) or any(isinstance(x, Var) for e in (ref.slot,) if e for x in walk(e)):
            continue
        missing = sorted(slots_of(ref) - given)
        if missing:
            raise EventNeverTriggered(node.op.span, event=f"{u.event.name}[{missing[0]}]", ready="")


def _check_progress(tree: Tree, uses: dict[str, Uses]) -> None:
    """Run every role once, each loop for one iteration, without slots and without the waits that a condition may
    leave out: every role must reach its end.

    A trigger that a role reaches before it is blocked counts for all slots and for all later waits.  A role that
    is blocked here is therefore blocked in every execution that enters the loops.
    """
    done = {name for name, u in uses.items() if u.event.ready}
    roles = [list(_steps(path)) for path in _role_paths(tree)]
    position = [0] * len(roles)
    moved = True
    while moved:
        moved = False
        for r, steps in enumerate(roles):
            while position[r] < len(steps):
                op = steps[position[r]].op
                assert isinstance(op, (tile.WaitEvent, tile.TriggerEvent, tile.Copy))
                if isinstance(op, tile.WaitEvent) and op.event.event.name not in done:
                    break
                if (
                    op.event is not None
                    and not isinstance(op, tile.WaitEvent)
                    and (isinstance(op, tile.TriggerEvent) or not uses[op.event.event.name].triggers)
                ):
                    done.add(op.event.event.name)
                position[r] += 1
                moved = True
    stuck = [steps[position[r]] for r, steps in enumerate(roles) if position[r] < len(steps)]
    if not stuck:
        return
    first = stuck[0]
    assert isinstance(first.op, tile.WaitEvent)
    name = first.op.event.event.name
    behind = [n for n in stuck[1:] if n.op.span != first.op.span]
    triggers = [Note("it is triggered here, behind a wait", t.op.span) for t in uses[name].triggers]
    waits = [Note("which is stuck here", n.op.span) for n in behind[:1]]
    reason = "every trigger of it comes after a wait that is stuck itself"
    raise EventStuck(first.op.span, event=name, reason=reason, notes=[*triggers, *waits])


def _role_paths(tree: Tree) -> list[list[Node]]:
    """The nodes of each asynchronous role, and of the code outside all roles, in program order."""
    found: dict[int | None, list[Node]] = {}
    for node in tree.walk():
        apart = [id(b) for b in node.parent.path() if b.owner is not None and _is_role(b.owner, b)]
        found.setdefault(next(reversed(apart), None), []).append(node)
    return list(found.values())


def _is_role(owner: Node, body: Block) -> bool:
    """Whether ``body`` admits only some of the block's threads, and the others continue without them."""
    if isinstance(owner.op, tile.InThreads):
        return owner.op.asynchronous
    return isinstance(owner.op, tile.If) and not np.array_equal(body.mask, owner.parent.mask)


def _steps(nodes: list[Node]) -> Iterator[Node]:
    """The steps of a role, without waits that an `if` may leave out in the first iteration."""
    return (
        n
        for n in nodes
        if isinstance(n.op, (tile.TriggerEvent, tile.Copy))
        or (isinstance(n.op, tile.WaitEvent) and not _conditional(n))
    )


def _conditional(node: Node) -> bool:
    """Whether a condition that divides no threads may leave the operation out."""
    owners = ((b.owner, b) for b in node.parent.path() if b.owner is not None)
    return any(isinstance(owner.op, tile.If) and not _is_role(owner, b) for owner, b in owners)
