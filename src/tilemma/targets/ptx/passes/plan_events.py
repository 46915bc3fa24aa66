"""Planning of events (mbarriers): arrival counts, and the transaction bytes that triggers and copies expect."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import numpy as np

from tilemma.errors import CompileError, Note
from tilemma.ir.expr import Dim, Expr, Index, Scalar, Var, binary, const, substitute, value_of, walk
from tilemma.ir.generations import Disagreement, TriggerSite, arrivals, credits, slots_of
from tilemma.ir.tile import (
    Arriving,
    Assign,
    Copy,
    DeclareEvent,
    For,
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
from tilemma.passes.decision import Decision
from tilemma.passes.scope import WARP, Dependence, count, kind
from tilemma.passes.unsupported import NotBuilt
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.passes.check_events import Uses, check_progress, check_triggered, check_uses
from tilemma.targets.ptx.passes.threads import Node, Tree, distinct
from tilemma.targets.ptx.target import Target


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
class PlanEvents:
    """Fills `DeclareEvent.arrivals`, `TriggerEvent.count`, `CopyPlan.counted` and `TriggerEvent.bytes`.

    One elected thread arrives for each instance that triggers; with ``event<n>`` each thread, unless whole
    instances make up the n.  The arrivals of several roles add up; a credit outside them arrives with the count of
    a whole generation (`tilemma.ir.generations`).
    """

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises EventCount, EventNeverTriggered, EventStuck, EventSlot, EventSubscript, EventWaiters
        or NotBuilt."""
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
        events = [op for op in operations(block.body) if isinstance(op, DeclareEvent)]
        if events and Target.of(self.arch).number < 80:
            remedy = "use synchronous copies, or compile for sm_80 or later"
            raise NotBuilt(events[0].span, what="an event (an mbarrier)", arch=self.arch, remedy=remedy)
        if not events:
            return block
        tree = Tree(block, dependence)
        uses = _uses(tree)
        accesses = Accesses(tree)
        for name, u in uses.items():
            check_uses(u, block.body)
            counted = _counted_threads(u, blocks, tree, accesses) or _arrivals(u, blocks, tree, accesses)
            check_triggered(u, counted.total)
            self._check_together(u)
            if u.copies and not u.waits:
                raise EventNeverAwaited(u.copies[0].op.span, event=name)
            assert isinstance(u.declared.op, DeclareEvent)
            u.declared.op = replace(u.declared.op, arrivals=max(counted.total, 1), by=counted.by)
            for site, weight in counted.counts:
                assert isinstance(site.op, TriggerEvent)
                site.op = replace(site.op, count=weight)
            slots, n = u.declared.op.event.slots, counted.total
            each = ", one for each warp" if counted.by == "warp" else ""
            text = f"{n} arrival{'s' if n != 1 else ''} a generation{each}, {max(1, slots)} mbarriers"
            log.append(Decision("events", name, text, {"arrivals": n, "slots": slots}))
        check_progress(tree, uses)
        _warn_skipped_generations(uses, log)
        _count_bytes(tree, uses)
        return tree.rebuilt()

    def _check_together(self, u: Uses) -> None:
        """Loads that alone complete an event are counted: all instances have to execute them equally often."""
        alone = not u.triggers or any(t.op.span == c.op.span for t in u.triggers for c in u.copies)
        for node in u.copies if alone else ():
            if instances(node) > 1 and node.parent.varying:
                what = "a load by TMA that some instances run more often than others"
                remedy = "let an event that each instance triggers count it, or load for all of them at once"
                raise NotBuilt(node.op.span, what=what, arch=self.arch, remedy=remedy)


# ---- uses and counts ---------------------------------------------------------------------------------------


def _uses(tree: Tree) -> dict[str, Uses]:
    found: dict[str, Uses] = {}
    for node in tree.walk():
        if isinstance(node.op, DeclareEvent):
            found[node.op.event.name] = Uses(node)
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
    """How many instances of the innermost level reach ``node``."""
    body = node.parent
    part = body.partition(len(body.chain))
    return len(distinct(part[part >= 0])[0]) if body.chain else int(body.mask.any())


def threads(node: Node) -> int:
    """How many threads reach ``node``."""
    return int(node.parent.mask.sum())


def _together(u: Uses, tree: Tree) -> int | None:
    """How many of the threads that an event counts arrive as one: those of an instance, where whole instances of
    one size trigger it and so many threads are some of them; None where it does not count threads."""
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if op.event.threads is None:
        return None
    widths = {_instance_threads(t, tree) if _whole(t, tree) else 1 for t in u.triggers}
    width = widths.pop() if len(widths) == 1 else 1
    return 1 if op.event.threads % width else width


def _whole(node: Node, tree: Tree) -> bool:
    """Whether the instances of the innermost level that get to ``node`` do so with all their threads."""
    body = node.parent
    depth = len(body.chain)
    part = body.partition(depth)
    sizes = distinct(part[part >= 0])[1]
    return body.uniform(depth) and bool((sizes == _instance_threads(node, tree)).all())


@record
class Counted:
    """The arrivals of an event that counts instances, from all ``blocks`` for `trigger.cluster`."""

    total: int
    by: Arriving = "instance"
    counts: tuple[tuple[Node, int], ...] = ()


def _counted_threads(u: Uses, blocks: int, tree: Tree, accesses: Accesses) -> Counted | None:
    """The arrivals of an event that counts threads; None for others."""
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    want = op.event.threads
    if want is None:
        return None
    have = sum(threads(n) for n in u.triggers)
    if have < want:
        span = u.triggers[0].op.span if u.triggers else op.span
        raise EventThreads(span, event=op.event.name, want=want, have=have)
    for site in u.triggers:
        # More threads at once complete several generations, or less than a whole one; where threads differ,
        # those that trigger may be fewer than those that get there.
        if threads(site) > want and not site.parent.varying:
            raise EventThreads(site.op.span, event=op.event.name, want=want, have=threads(site))
    # Declared for one block; for a trigger of the whole cluster, the same number of threads of each block arrives.
    reaches = [_reach(t, blocks) for t in u.triggers]
    for reach, site in zip(reaches, u.triggers, strict=True):
        if reach != reaches[0]:
            note = Note(f"triggered by {want * reaches[0]} here", u.triggers[0].op.span)
            raise EventCount(
                site.op.span, event=op.event.name, here=want * reach, there=want * reaches[0], notes=[note]
            )
    width = _together(u, tree) or 1
    total = want // width * (reaches[0] if reaches else 1)
    if width > WARP and _warps_arrive(u, tree, accesses):
        return Counted(total * (width // WARP), "warp")
    return Counted(total, "thread" if width == 1 else "instance")


def _arrivals(u: Uses, blocks: int, tree: Tree, accesses: Accesses) -> Counted:
    """The arrivals of an event that counts instances; `trigger.cluster` arrives from all ``blocks``."""
    if not u.triggers:
        return Counted(sum(instances(n) for n in u.copies))
    _one_count(u, blocks, tree)
    each = [1] * len(u.triggers)
    by: Arriving = "instance"
    if _warps_arrive(u, tree, accesses) or _sizes_differ(u):
        each = [max(1, _instance_threads(t, tree) // WARP) for t in u.triggers]
        by = "warp" if max(each) > 1 else "instance"
    if by == "warp" and any(_instance_threads(t, tree) < WARP for t in u.triggers):
        what = "an event triggered by lanes and by groups"
        raise NotBuilt(u.declared.op.span, what=what, arch="PTX", remedy="let a group trigger it")
    come = [instances(t) * _reach(t, blocks) * n for t, n in zip(u.triggers, each, strict=True)]
    found = _sites(u, come)
    total = arrivals(found)
    given = [n if credit else total for n, credit in zip(come, credits(found), strict=True) if n]
    # A credit of n arrivals counts as a whole generation: all counts are scaled such that n divides it.
    whole = lcm(total, *given)
    counts = [
        (t, whole // (n if credit else total))
        for t, n, credit in zip(u.triggers, come, credits(found), strict=True)
        if n
    ]
    return Counted(whole, by, tuple((t, n) for t, n in counts if n > 1))


def _sites(u: Uses, come: list[int]) -> list[TriggerSite]:
    found: list[TriggerSite] = []
    for node, n in zip(u.triggers, come, strict=True):
        assert isinstance(node.op, TriggerEvent)
        players = None
        if node.role is not None:
            players = frozenset(np.flatnonzero(node.role.inner[0].mask).tolist())
        found.append(TriggerSite(players, slots_of(node.op.event), n))
    return found


def _one_count(u: Uses, blocks: int, tree: Tree) -> None:
    """Raises EventCount where the threads that trigger at different places do not make up the same generations."""
    assert isinstance(u.declared.op, DeclareEvent)
    try:
        arrivals(_sites(u, [threads(t) * _reach(t, blocks) for t in u.triggers]))
    except Disagreement as e:
        note = Note(f"triggered by {e.there} here", u.triggers[e.other].op.span)
        raise EventCount(
            u.triggers[e.site].op.span,
            event=u.declared.op.event.name,
            here=e.here,
            there=e.there,
            notes=[note],
        ) from None


def _reach(trigger: Node, blocks: int) -> int:
    """How many blocks' triggers at this place arrive on an event."""
    return blocks if isinstance(trigger.op, TriggerEvent) and trigger.op.cluster else 1


def _warps_arrive(u: Uses, tree: Tree, accesses: Accesses) -> bool:
    """Whether each warp of an instance arrives: those that have accesses of their own behind them.

    One arrival crosses a cluster for each instance: arrivals elsewhere are dear, a barrier at home is not.
    """
    if any(isinstance(t.op, TriggerEvent) and t.op.cluster for t in u.triggers):
        return False
    return any(_releases_accesses(t, tree, accesses) for t in u.triggers)


def _sizes_differ(u: Uses) -> bool:
    """Whether groups of several sizes make up the same number of threads, so that warps have to be counted."""
    try:
        arrivals(_sites(u, [instances(t) for t in u.triggers]))
    except Disagreement:
        return True
    return False


def _instance_threads(node: Node, tree: Tree) -> int:
    chain = node.parent.chain
    if not chain:
        return tree.threads
    level = chain[-1].op.level if isinstance(chain[-1].op, Parallel) else None
    assert level is not None
    return level.threads


def _releases_accesses(trigger: Node, tree: Tree, accesses: Accesses) -> bool:
    """Whether the triggering threads have accessed, other than by TMA, buffers that the waiting threads will
    access."""
    released = {a.resource: a.write for a in accesses.of(trigger) if a.release}
    return any(
        a.resource in released and (a.write or released[a.resource])
        for n in tree.walk()
        if n.role is trigger.role
        for a in accesses.of(n)
        if not a.release and a.agent not in ("tma", "bulk")
    )


def _warn_skipped_generations(uses: dict[str, Uses], log: list[Decision]) -> None:
    """Warns of waits by order that skip generations: a phase parity only distinguishes consecutive generations."""
    for name, u in uses.items():
        for node in u.waits:
            assert isinstance(node.op, WaitEvent)
            order = node.op.event.order
            loops = [a for a in node.ancestors() if isinstance(a.op, (For, While))]
            if order is not None and (_counted_twice(order, loops) or _leaps(order, [n.op for n in loops])):
                text = "waits skip generations: another event has to order the waiting threads after those"
                log.append(Decision("events", name, text, warning=True, span=node.op.span))
                break


def _counted_twice(order: Expr, loops: list[Node]) -> bool:
    """Whether ``order`` depends on variables that the ``loops``, innermost first, change in several places."""
    counters = {x.name for x in walk(order) if isinstance(x, Var)}
    around = loops[-1].inner[0].nodes if loops else []
    changes = [
        op for n in around for op in operations((n.op,)) if isinstance(op, Assign) and op.var.name in counters
    ]
    return len(changes) > 1


def _leaps(order: Expr, loops: list[Op]) -> bool:
    """Whether ``order``, which the innermost loop increments, is discontinuous in the next iteration of the loop
    around it: evaluated with one sample value for each run-time quantity."""
    match loops[:2]:
        case [For() as inner, For() as outer] if value_of(inner.step) == 1:
            pass
        case _:
            return False
    parts = [x for e in (order, inner.start, inner.stop, outer.step) for x in walk(e)]
    unknown = dict.fromkeys(x.name for x in parts if isinstance(x, (Index, Dim, Scalar)))
    now: dict[str, Expr] = {name: const(1000 + 611 * i) for i, name in enumerate(unknown)}
    then = now | {outer.index.name: substitute(binary("add", outer.index, outer.step), now)}
    last = substitute(binary("sub", inner.stop, 1), now)
    first = substitute(inner.start, then)
    ends = value_of(substitute(order, now | {inner.index.name: last}))
    begins = value_of(substitute(order, then | {inner.index.name: first}))
    return ends is not None and begins is not None and begins != ends + 1


# ---- bytes -------------------------------------------------------------------------------------------------


def _count_bytes(tree: Tree, uses: dict[str, Uses]) -> None:
    """Add the bytes of TMA loads to the expected count of the trigger that follows them in the same body."""
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
