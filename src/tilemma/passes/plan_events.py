"""Events: how many arrivals complete a generation, whose bytes count, and what can never happen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tilemma.errors import CompileError, Note, Span
from tilemma.ir.expr import Var, interval, value_of, walk
from tilemma.ir.tile import (
    Assign,
    Body,
    Copy,
    DeclareEvent,
    For,
    If,
    InThreads,
    Kernel,
    Op,
    Parallel,
    TriggerEvent,
    WaitEvent,
    While,
)
from tilemma.ir.types import EventRef, Space
from tilemma.ir.walk import rewrite_blocks
from tilemma.ir.walk import walk as operations
from tilemma.passes.accesses import Accesses, role_of
from tilemma.passes.decision import Decision
from tilemma.passes.scope import WARP, Dependence, count, kind
from tilemma.passes.take_turns import grows_for_good
from tilemma.passes.threads import Block, Node, Tree, distinct
from tilemma.passes.unsupported import NotBuilt

# A waiter keeps the parities of a ring's slots in one register.
_LARGEST_RING = 32


class EventCount(CompileError):
    code = "event-count"
    found = "`{event}` is triggered by {here} instances here and by {there} elsewhere"
    expected = "the same number at every trigger: a generation is complete when that many have triggered"
    fix = "let the same instances trigger it everywhere, or declare `event<n>` with the threads that count"


class EventThreads(CompileError):
    code = "event-threads"
    found = "`{event}` counts {want} threads, and {have} trigger it"
    expected = "triggers by as many threads as complete a generation"
    fix = "declare `event<{have}>`, or leave the count out: then every instance that triggers counts"


class EventNeverTriggered(CompileError):
    code = "event-never-triggered"
    found = "`{event}` is waited for, but nothing triggers it"
    expected = "a `trigger`, or an asynchronous copy bound to it"
    fix = "trigger it where what is waited for has happened{ready}"


class EventNeverAwaited(CompileError):
    code = "event-never-waited-for"
    found = "copies complete `{event}`, and nothing waits for it"
    expected = "a `wait` before their data is used, and before the kernel ends"
    fix = "write `wait {event}`, or make the copies synchronous"


class EventStuck(CompileError):
    code = "event-stuck"
    found = "nobody can get past this wait for `{event}`: {reason}"
    expected = "a first generation that does not depend on the wait itself"
    fix = "declare `{event}` with `= ready`, or trigger each of its slots once before the loop"


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


class EventPlace(CompileError):
    code = "event-place"
    found = "`{event}` is declared {where}"
    expected = "events at the block's own level: they keep their generations for the whole kernel"
    fix = "move the declaration to the top of the `parallel ... : block`"


class EventWaiters(CompileError):
    code = "event-waiters"
    found = "threads wait for `{event}` as members of {first} and of {second}"
    expected = "one level at which a thread counts its generations of an event"
    fix = "wait at one of the two levels only"


@dataclass
class _Uses:
    """What the block does with one event."""

    declared: Node
    triggers: list[Node] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)
    copies: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class PlanEvents:
    """Fills `DeclareEvent.arrivals`, `CopyPlan.counted` and `TriggerEvent.bytes`.

    One elected thread arrives for each instance that triggers; with ``event<n>`` each thread.
    """

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises EventCount, EventNeverTriggered, EventStuck, EventSlot, EventSubscript, EventPlace,
        EventWaiters or NotBuilt."""
        clustered = {
            op.indices: count(op) or 1
            for cluster in kernel.body
            if isinstance(cluster, Parallel) and kind(cluster) == "cluster"
            for op in cluster.body
            if isinstance(op, Parallel)
        }
        dependence = Dependence(kernel.body)
        return rewrite_blocks(
            kernel, lambda block: self._events(block, clustered.get(block.indices, 1), dependence, log)
        )

    def _events(self, block: Parallel, blocks: int, dependence: Dependence, log: list[Decision]) -> Op:
        if not any(isinstance(op, DeclareEvent) for op in operations(block.body)):
            return block
        tree = Tree(block, dependence)
        uses = _uses(tree)
        accesses = Accesses(tree)
        for name, u in uses.items():
            _check_place(u)
            _check_subscripts(u, block.body)
            _check_waiters(u)
            arrivals = _arrivals(u, blocks)
            _check_triggered(u, arrivals)
            self._check_together(u)
            if u.copies and not u.waits:
                raise EventNeverAwaited(u.copies[0].op.span, event=name)
            assert isinstance(u.declared.op, DeclareEvent)
            if u.declared.op.event.slots > _LARGEST_RING:
                remedy = f"use at most {_LARGEST_RING} slots, or `.at(order)`"
                what = f"a ring of {u.declared.op.event.slots} events"
                raise NotBuilt(u.declared.op.span, what=what, arch=self.arch, remedy=remedy)
            warps = _warps_each(u, tree, accesses)
            arrivals *= warps
            u.declared.op = replace(u.declared.op, arrivals=max(arrivals, 1), by_warp=warps > 1)
            slots = u.declared.op.event.slots
            each = f", one for each of {warps} warps" if warps > 1 else ""
            text = (
                f"{arrivals} arrival{'s' if arrivals != 1 else ''} a generation{each}, {max(1, slots)} mbarriers"
            )
            log.append(Decision("events", name, text, {"arrivals": arrivals, "slots": slots}))
        _check_progress(tree, uses)
        _note_passed_by(uses, log)
        _count_bytes(tree, uses)
        return tree.rebuilt()

    def _check_together(self, u: _Uses) -> None:
        """What completes an event of the compiler's own is counted: all instances do it equally often."""
        alone = not u.triggers or any(t.op.span == c.op.span for t in u.triggers for c in u.copies)
        for node in u.copies if alone else ():
            if instances(node) > 1 and node.parent.varying:
                what = "a load by TMA that some instances run more often than others"
                remedy = "let an event that each instance triggers count it, or load for all of them at once"
                raise NotBuilt(node.op.span, what=what, arch=self.arch, remedy=remedy)


# ---- uses and counts ---------------------------------------------------------------------------------------


def _uses(tree: Tree) -> dict[str, _Uses]:
    found: dict[str, _Uses] = {}
    for node in tree.walk():
        if isinstance(node.op, DeclareEvent):
            found[node.op.event.name] = _Uses(node)
    for node in tree.walk():
        match node.op:
            case TriggerEvent(event=ref):
                found[ref.event.name].triggers.append(node)
            case WaitEvent(event=ref):
                found[ref.event.name].waits.append(node)
            case Copy(event=EventRef() as ref):
                found[ref.event.name].copies.append(node)
    return found


def instances(node: Node) -> int:
    """How many instances of the innermost level get to ``node``."""
    body = node.parent
    part = body.partition(len(body.chain))
    return len(distinct(part[part >= 0])[0]) if body.chain else int(body.mask.any())


def threads(node: Node) -> int:
    """How many threads get to ``node``."""
    return int(node.parent.mask.sum())


def _arrivals(u: _Uses, blocks: int) -> int:
    """How many instances trigger a generation, those of all ``blocks`` of the cluster for `trigger.cluster`."""
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if op.event.threads is not None:
        have = sum(threads(n) for n in u.triggers)
        if have < op.event.threads:
            span = u.triggers[0].op.span if u.triggers else op.span
            raise EventThreads(span, event=op.event.name, want=op.event.threads, have=have)
        for site in u.triggers:
            # More threads at once complete several generations, or less than a whole one; where threads differ,
            # those that trigger may be fewer than those that get there.
            if threads(site) > op.event.threads and not site.parent.varying:
                raise EventThreads(site.op.span, event=op.event.name, want=op.event.threads, have=threads(site))
        return op.event.threads
    if not u.triggers:
        return sum(instances(n) for n in u.copies)
    counts = [
        (instances(n) * (blocks if isinstance(n.op, TriggerEvent) and n.op.cluster else 1), n) for n in u.triggers
    ]
    counts = [c for c in counts if c[0]] or counts
    first, where = counts[0]
    for n, node in counts[1:]:
        if n != first:
            note = Note(f"triggered by {first} here", where.op.span)
            raise EventCount(node.op.span, event=op.event.name, here=n, there=first, notes=[note])
    return first


def _warps_each(u: _Uses, tree: Tree, accesses: Accesses) -> int:
    """How many warps of an instance arrive: all where they have accesses of their own behind them, else 1.

    One arrival crosses a cluster for each instance: arrivals elsewhere are dear, a barrier at home is not.
    """
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if any(isinstance(t.op, TriggerEvent) and t.op.cluster for t in u.triggers):
        return 1
    if op.event.threads is not None or not any(_releases_accesses(t, tree, accesses) for t in u.triggers):
        return 1
    widths = {_instance_threads(t, tree) for t in u.triggers}
    if len(widths) > 1:
        raise NotBuilt(
            op.span, what="an event triggered by groups of different sizes", arch="PTX", remedy="split it"
        )
    return max(1, widths.pop() // WARP)


def _instance_threads(node: Node, tree: Tree) -> int:
    chain = node.parent.chain
    if not chain:
        return tree.threads
    level = chain[-1].op.level if isinstance(chain[-1].op, Parallel) else None
    assert level is not None
    return level.threads


def _releases_accesses(trigger: Node, tree: Tree, accesses: Accesses) -> bool:
    """Whether the threads that trigger have touched, other than by TMA, what those who wait will touch."""
    released = {a.resource: a.write for a in accesses.of(trigger) if a.release}
    role = role_of(trigger)
    return any(
        a.resource in released and (a.write or released[a.resource])
        for n in tree.walk()
        if role_of(n) is role
        for a in accesses.of(n)
        if not a.release and a.agent not in ("tma", "bulk")
    )


# ---- what can never work -----------------------------------------------------------------------------------


def _name(u: _Uses) -> str:
    assert isinstance(u.declared.op, DeclareEvent)
    return u.declared.op.event.name


def _check_place(u: _Uses) -> None:
    for around in list(u.declared.ancestors())[1:]:
        where = {For: "inside a loop", While: "inside a loop", If: "inside an `if`"}.get(type(around.op))
        if where is not None:
            raise EventPlace(u.declared.op.span, event=_name(u), where=where)


def _refs(u: _Uses) -> Iterator[tuple[EventRef, Span | None]]:
    for node in (*u.triggers, *u.waits, *u.copies):
        assert isinstance(node.op, (TriggerEvent, WaitEvent, Copy)) and node.op.event is not None
        yield node.op.event, node.op.span


def _check_subscripts(u: _Uses, body: Body) -> None:
    from tilemma.ir.tiles import describe

    name = _name(u)
    for ref, span in _refs(u):
        slots = ref.event.slots
        if slots and ref.slot is None and ref.order is None:
            rule, remedy = "a slot of it", f"write `{name}[s]`, or `{name}.at(order)`"
            raise EventSubscript(span, event=name, what=f"is a ring of {slots} slots", rule=rule, remedy=remedy)
        if not slots and (ref.slot is not None or ref.order is not None):
            rule, remedy = "the event itself", f"leave the subscript out, or declare `{name}[S]`"
            raise EventSubscript(span, event=name, what="is a single event", rule=rule, remedy=remedy)
        if ref.slot is None:
            continue
        if any(isinstance(x, Var) for x in walk(ref.slot)) and not grows_for_good(ref.slot, body):
            continue
        highest = interval(ref.slot)[1]
        if highest >= slots:
            shown = "beyond every slot" if value_of(ref.slot) is None and highest > 2**20 else highest
            raise EventSlot(span, event=name, text=describe(ref.slot), highest=shown, slots=slots, last=slots - 1)


def _check_waiters(u: _Uses) -> None:
    """A thread counts its generations in one place: waits at different levels must be by different threads."""
    for i, a in enumerate(u.waits):
        for b in u.waits[i + 1 :]:
            levels = [_level(a), _level(b)]
            if levels[0] != levels[1] and bool((a.parent.mask & b.parent.mask).any()):
                notes = [Note("the other wait", a.op.span)]
                raise EventWaiters(b.op.span, event=_name(u), first=levels[0], second=levels[1], notes=notes)


def _level(node: Node) -> str:
    parallels = [p.op for p in node.parent.chain if isinstance(p.op, Parallel)]
    return str(parallels[-1].level) if parallels else "the block"


def _check_triggered(u: _Uses, arrivals: int) -> None:
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if arrivals or not u.waits:
        return
    looped = [w for w in u.waits if any(isinstance(a.op, (For, While)) for a in w.ancestors())]
    if op.event.ready and not looped:
        return
    ready = "" if op.event.ready else ", or declare it `= ready` where its first generation is free"
    raise EventNeverTriggered((looped or u.waits)[0].op.span, event=op.event.name, ready=ready)


def _check_progress(tree: Tree, uses: dict[str, _Uses]) -> None:
    """Run every role once, each loop for one turn, ignoring slots: everyone has to come to the end.

    What is triggered anywhere up to a role's first obstacle counts for all of its slots and for good, so what
    is found stuck here is stuck in every run that enters the loops.
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
    """Whether some of the block's threads go into ``body`` while the others go on."""
    if isinstance(owner.op, InThreads):
        return owner.op.asynchronous
    return isinstance(owner.op, If) and not np.array_equal(body.mask, owner.parent.mask)


def _steps(nodes: list[Node]) -> Iterator[Node]:
    return (n for n in nodes if isinstance(n.op, (WaitEvent, TriggerEvent, Copy)))


def _note_passed_by(uses: dict[str, _Uses], log: list[Decision]) -> None:
    """Waits by order whose numbers leave some out: an mbarrier tells a generation from the one before, no more."""
    for name, u in uses.items():
        for node in u.waits:
            assert isinstance(node.op, WaitEvent)
            order = node.op.event.order
            if order is None:
                continue
            counters = {x.name for x in walk(order) if isinstance(x, Var)}
            loops = [a for a in node.ancestors() if isinstance(a.op, (For, While))]
            around = loops[-1].inner[0].nodes if loops else []
            steps = [
                op
                for n in around
                for op in operations((n.op,))
                if isinstance(op, Assign) and op.var.name in counters
            ]
            if len(steps) > 1:
                text = "waits leave out generations: another event has to keep the waiter behind those"
                log.append(Decision("events", name, text, warning=True, span=node.op.span))
                break


# ---- bytes -------------------------------------------------------------------------------------------------


def _count_bytes(tree: Tree, uses: dict[str, _Uses]) -> None:
    """Let the trigger expect the bytes of the copies that stand before it in one body, under one name."""
    for u in uses.values():
        for node in u.copies:
            assert isinstance(node.op, Copy) and node.op.plan is not None
            if node.op.plan.engine != "tma" or node.op.dst.base.space is not Space.SHARED:
                continue
            trigger = _trigger_after(node)
            size = copy_bytes(node.op)
            if trigger is not None:
                assert isinstance(trigger.op, TriggerEvent)
                trigger.op = replace(trigger.op, bytes=trigger.op.bytes + size)
            counted = "trigger" if trigger is not None else "expect" if u.triggers else "arrive"
            node.op = replace(node.op, plan=replace(node.op.plan, counted=counted))  # type: ignore[arg-type]


def copy_bytes(op: Copy) -> int:
    """The bytes that a load by TMA counts on its event: those of whole boxes, zero-filled or not."""
    elements = 1
    for e in op.dst.shape:
        elements *= value_of(e) or 1
    return elements * op.dst.dtype.bits // 8


def _trigger_after(node: Node) -> Node | None:
    assert isinstance(node.op, Copy) and node.op.event is not None
    nodes = node.parent.nodes
    for other in nodes[nodes.index(node) + 1 :]:
        op = other.op
        if isinstance(op, TriggerEvent) and op.event == node.op.event:
            return other
        if not isinstance(op, Copy) and not (
            isinstance(op, TriggerEvent) and op.event.event != node.op.event.event
        ):
            return None
    return None


__all__ = ["PlanEvents", "copy_bytes", "instances", "threads"]
