"""Planning of events (mbarriers): arrival counts, and the transaction bytes that triggers and copies expect."""

from __future__ import annotations

from dataclasses import replace

from tilemma.errors import CompileError, Note
from tilemma.ir.expr import Dim, Expr, Index, Scalar, Var, binary, const, substitute, value_of, walk
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

# A waiter keeps the parities of a ring's slots in one register.
_LARGEST_RING = 32


class EventCount(CompileError):
    code = "event-count"
    found = "`{event}` is triggered by {here} instances here and by {there} elsewhere"
    expected = "the same number at every trigger: a generation is complete when that many have triggered"
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
    """Fills `DeclareEvent.arrivals`, `CopyPlan.counted` and `TriggerEvent.bytes`.

    One elected thread arrives for each instance that triggers; with ``event<n>`` each thread, unless whole
    instances make up the n.
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
            check_uses(u, block.body)
            width = _together(u, tree)
            arrivals = _arrivals(u, blocks, width)
            check_triggered(u, arrivals)
            self._check_together(u)
            if u.copies and not u.waits:
                raise EventNeverAwaited(u.copies[0].op.span, event=name)
            assert isinstance(u.declared.op, DeclareEvent)
            if u.declared.op.event.slots > _LARGEST_RING:
                remedy = f"use at most {_LARGEST_RING} slots, or `.at(order)`"
                what = f"a ring of {u.declared.op.event.slots} events"
                raise NotBuilt(u.declared.op.span, what=what, arch=self.arch, remedy=remedy)
            warps = 1 if width == 1 else _warps_each(u, tree, accesses)
            arrivals *= warps
            by: Arriving = "thread" if width == 1 else "warp" if warps > 1 else "instance"
            u.declared.op = replace(u.declared.op, arrivals=max(arrivals, 1), by=by)
            slots = u.declared.op.event.slots
            each = f", one for each of {warps} warps" if warps > 1 else ""
            text = (
                f"{arrivals} arrival{'s' if arrivals != 1 else ''} a generation{each}, {max(1, slots)} mbarriers"
            )
            log.append(Decision("events", name, text, {"arrivals": arrivals, "slots": slots}))
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


def _arrivals(u: Uses, blocks: int, width: int | None) -> int:
    """How many instances trigger a generation, those of all ``blocks`` of the cluster for `trigger.cluster`; of
    counted threads, ``width`` arrive as one."""
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
        # Declared for one block; a trigger of the whole cluster comes from as many threads of each.
        counts = [(op.event.threads // (width or 1) * _reach(t, blocks), t) for t in u.triggers]
        return _one_count(op.event.name, counts)
    if not u.triggers:
        return sum(instances(n) for n in u.copies)
    counts = [(instances(n) * _reach(n, blocks), n) for n in u.triggers]
    return _one_count(op.event.name, [c for c in counts if c[0]] or counts)


def _reach(trigger: Node, blocks: int) -> int:
    """How many blocks' triggers at this place arrive on an event."""
    return blocks if isinstance(trigger.op, TriggerEvent) and trigger.op.cluster else 1


def _one_count(event: str, counts: list[tuple[int, Node]]) -> int:
    """What all of ``counts``, an arrival count and the trigger it is of, say.  Raises EventCount."""
    first, where = counts[0]
    for n, node in counts[1:]:
        if n != first:
            note = Note(f"triggered by {first} here", where.op.span)
            raise EventCount(node.op.span, event=event, here=n, there=first, notes=[note])
    return first


def _warps_each(u: Uses, tree: Tree, accesses: Accesses) -> int:
    """How many warps of an instance arrive: all where they have accesses of their own behind them, else 1.

    One arrival crosses a cluster for each instance: arrivals elsewhere are dear, a barrier at home is not.
    """
    op = u.declared.op
    assert isinstance(op, DeclareEvent)
    if any(isinstance(t.op, TriggerEvent) and t.op.cluster for t in u.triggers):
        return 1
    if not any(_releases_accesses(t, tree, accesses) for t in u.triggers):
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
