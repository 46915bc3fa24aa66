"""Planning of events (mbarriers): arrival counts, and the transaction bytes that triggers and copies expect."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from tilemma.ir import tile
from tilemma.ir.expr import Dim, Expr, Index, Scalar, Var, binary, const, substitute, value_of, walk
from tilemma.ir.generations import Disagreement, arrivals, credits
from tilemma.ir.types import WARP, Space
from tilemma.ir.walk import rewrite_blocks
from tilemma.ir.walk import walk as operations
from tilemma.passes.decision import Decision
from tilemma.passes.event_uses import (
    Uses,
    blocks_of_clusters,
    blocks_reached,
    event_uses,
    instance_threads,
    instances,
    trigger_sites,
    whole,
)
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Node, Tree
from tilemma.passes.unsupported import NotBuilt
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.target import Target


@record(slots=False)
class PlanEvents:
    """Fills `DeclareEvent.arrivals`, `TriggerEvent.count`, `CopyPlan.counted` and `TriggerEvent.bytes`.

    One elected thread arrives for each instance that triggers; with ``event<n>`` each thread, unless whole
    instances make up the n.  The arrivals of several roles add up; a credit outside them arrives with the count of
    a whole generation (`tilemma.ir.generations`).
    """

    arch: str

    def run(self, kernel: tile.Kernel, log: list[Decision]) -> tile.Kernel:
        """Raises NotBuilt."""
        clustered, dependence = blocks_of_clusters(kernel), Dependence(kernel.body)
        return rewrite_blocks(
            kernel, lambda block: self._events(block, clustered.get(block.indices, 1), dependence, log)
        )

    def _events(self, block: tile.Parallel, blocks: int, dependence: Dependence, log: list[Decision]) -> tile.Op:
        events = [op for op in operations(block.body) if isinstance(op, tile.DeclareEvent)]
        if events and Target.of(self.arch).number < 80:
            remedy = "use synchronous copies, or compile for sm_80 or later"
            raise NotBuilt(events[0].span, what="an event (an mbarrier)", arch=self.arch, remedy=remedy)
        if not events:
            return block
        tree = Tree(block, dependence)
        uses = event_uses(tree)
        accesses = Accesses(tree)
        for name, u in uses.items():
            counted = _counted_threads(u, blocks, tree, accesses) or _arrivals(u, blocks, tree, accesses)
            self._check_together(u)
            assert isinstance(u.declared.op, tile.DeclareEvent)
            u.declared.op = replace(u.declared.op, arrivals=max(counted.total, 1), by=counted.by)
            for site, weight in counted.counts:
                assert isinstance(site.op, tile.TriggerEvent)
                site.op = replace(site.op, count=weight)
            slots, n = u.declared.op.event.slots, counted.total
            each = ", one for each warp" if counted.by == "warp" else ""
            text = f"{n} arrival{'s' if n != 1 else ''} a generation{each}, {max(1, slots)} mbarriers"
            log.append(Decision("events", name, text, {"arrivals": n, "slots": slots}))
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


def _together(u: Uses, tree: Tree) -> int | None:
    """The number of counted threads that arrive as one: those of an instance, where whole instances of
    one size trigger it and so many threads are some of them; None where it does not count threads."""
    op = u.declared.op
    assert isinstance(op, tile.DeclareEvent)
    if op.event.threads is None:
        return None
    widths = {instance_threads(t, tree) if whole(t, tree) else 1 for t in u.triggers}
    width = widths.pop() if len(widths) == 1 else 1
    return 1 if op.event.threads % width else width


@record
class Counted:
    """The arrivals of an event that counts instances, from all ``blocks`` for `trigger.cluster`."""

    total: int
    by: tile.Arriving = "instance"
    counts: tuple[tuple[Node, int], ...] = ()


def _counted_threads(u: Uses, blocks: int, tree: Tree, accesses: Accesses) -> Counted | None:
    """The arrivals of an event that counts threads; None for others."""
    op = u.declared.op
    assert isinstance(op, tile.DeclareEvent)
    want = op.event.threads
    if want is None:
        return None
    reaches = [blocks_reached(t, blocks) for t in u.triggers]
    width = _together(u, tree) or 1
    total = want // width * (reaches[0] if reaches else 1)
    if width > WARP and _warps_arrive(u, tree, accesses):
        return Counted(total * (width // WARP), "warp")
    return Counted(total, "thread" if width == 1 else "instance")


def _arrivals(u: Uses, blocks: int, tree: Tree, accesses: Accesses) -> Counted:
    """The arrivals of an event that counts instances; `trigger.cluster` arrives from all ``blocks``."""
    if not u.triggers:
        return Counted(sum(instances(n) for n in u.copies))
    each = [1] * len(u.triggers)
    by: tile.Arriving = "instance"
    if _warps_arrive(u, tree, accesses) or _sizes_differ(u):
        each = [max(1, instance_threads(t, tree) // WARP) for t in u.triggers]
        by = "warp" if max(each) > 1 else "instance"
    if by == "warp" and any(instance_threads(t, tree) < WARP for t in u.triggers):
        what = "an event triggered by lanes and by groups"
        raise NotBuilt(u.declared.op.span, what=what, arch="PTX", remedy="let a group trigger it")
    come = [instances(t) * blocks_reached(t, blocks) * n for t, n in zip(u.triggers, each, strict=True)]
    found = trigger_sites(u, come)
    total = arrivals(found)
    given = [n if credit else total for n, credit in zip(come, credits(found), strict=True) if n]
    # A credit of n arrivals counts as a whole generation: all counts are scaled such that n divides it.
    generation = lcm(total, *given)
    counts = [
        (t, generation // (n if credit else total))
        for t, n, credit in zip(u.triggers, come, credits(found), strict=True)
        if n
    ]
    return Counted(generation, by, tuple((t, n) for t, n in counts if n > 1))


def _warps_arrive(u: Uses, tree: Tree, accesses: Accesses) -> bool:
    """Whether each warp of an instance arrives: those that have accesses of their own behind them.

    One arrival crosses a cluster for each instance: arrivals elsewhere are dear, a barrier at home is not.
    """
    if any(isinstance(t.op, tile.TriggerEvent) and t.op.cluster for t in u.triggers):
        return False
    return any(_releases_accesses(t, tree, accesses) for t in u.triggers)


def _sizes_differ(u: Uses) -> bool:
    """Whether groups of several sizes make up the same number of threads, so that warps have to be counted."""
    try:
        arrivals(trigger_sites(u, [instances(t) for t in u.triggers]))
    except Disagreement:
        return True
    return False


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
            assert isinstance(node.op, tile.WaitEvent)
            order = node.op.event.order
            loops = [a for a in node.ancestors() if isinstance(a.op, (tile.For, tile.While))]
            if order is not None and (_counted_twice(order, loops) or _leaps(order, [n.op for n in loops])):
                text = "waits skip generations: another event has to order the waiting threads after those"
                log.append(Decision("events", name, text, warning=True, span=node.op.span))
                break


def _counted_twice(order: Expr, loops: list[Node]) -> bool:
    """Whether ``order`` depends on variables that the ``loops``, innermost first, change in several places."""
    counters = {x.name for x in walk(order) if isinstance(x, Var)}
    around = loops[-1].inner[0].nodes if loops else []
    changes = [
        op for n in around for op in operations((n.op,)) if isinstance(op, tile.Assign) and op.var.name in counters
    ]
    return len(changes) > 1


def _leaps(order: Expr, loops: list[tile.Op]) -> bool:
    """Whether ``order``, which the innermost loop increments, is discontinuous in the next iteration of the loop
    around it: evaluated with one sample value for each run-time quantity."""
    match loops[:2]:
        case [tile.For() as inner, tile.For() as outer] if value_of(inner.step) == 1:
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
            assert isinstance(node.op, tile.Copy) and node.op.plan is not None
            if node.op.plan.engine != "tma" or node.op.dst.base.space is not Space.SHARED:
                continue
            trigger = _trigger_after(node)
            size = copy_bytes(node.op)
            if trigger is not None:
                assert isinstance(trigger.op, tile.TriggerEvent)
                trigger.op = replace(trigger.op, bytes=trigger.op.bytes + size)
            counted = "trigger" if trigger is not None else "expect" if u.triggers else "arrive"
            node.op = replace(node.op, plan=replace(node.op.plan, counted=counted))  # type: ignore[arg-type]


def copy_bytes(op: tile.Copy) -> int:
    """The bytes that a load by TMA counts on its event: those of whole boxes, zero-filled or not."""
    elements = 1
    for e in op.dst.shape:
        elements *= value_of(e) or 1
    return elements * op.dst.dtype.bits // 8


def _trigger_after(node: Node) -> Node | None:
    assert isinstance(node.op, tile.Copy) and node.op.event is not None
    nodes = node.parent.nodes
    for other in nodes[nodes.index(node) + 1 :]:
        op = other.op
        if isinstance(op, tile.TriggerEvent) and op.event == node.op.event:
            return other
        if not isinstance(op, tile.Copy) and not (
            isinstance(op, tile.TriggerEvent) and op.event.event != node.op.event.event
        ):
            return None
    return None
