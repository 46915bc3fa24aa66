"""Barriers that keep all threads which wait for an event in step with those on which its next generation depends.

A wait distinguishes its generation from the next one by one bit, the mbarrier's parity.  So each thread
has to be past its wait for generation g before generation g + 1 completes.  A thread that arrives itself, for the
event or for one that leads to it through the waits and triggers of roles, delays that generation by its own lag,
if each generation needs such an arrival: one in front of a loop delays only the first of them.  Where one elected
thread arrives for others, these have to be past their waits before it does.

Seen so, a wait reads the event and an arrival that leads to the event's next generation writes it: the walk over
hazards finds the arrivals that may come too early, and barriers are placed as they are for memory.
"""

from __future__ import annotations

import numpy as np

from tilemma.errors import CompileError, Note
from tilemma.ir import tile as t
from tilemma.ir.expr import Binary, Expr, value_of
from tilemma.ir.types import WARP, EventRef
from tilemma.ir.walk import rewrite_blocks, walk
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Bools, Ints, Node, Tree, distinct
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.passes.aliasing import Access, distance
from tilemma.targets.ptx.passes.event_dependences import EventDependences
from tilemma.targets.ptx.passes.hazards import Walk
from tilemma.targets.ptx.passes.insert_sync import number_barriers
from tilemma.targets.ptx.passes.place_sync import BarrierNotUniform, BarrierPartialWarp, pruned, resolve


class EventWaitersApart(CompileError):
    code = "event-waiters-apart"
    found = "some threads wait for `{event}` here, and others go on to its next generation without them"
    expected = (
        "between two waits, all waiting threads take part in a trigger or a barrier that the next generation "
        "depends on"
    )
    fix = "let the same threads of a role wait and trigger, or make those that only wait a role of their own"


@record(slots=False)
class OrderEventWaits:
    """Inserts barriers between waits for an event and the arrivals that lead to the event's next generation."""

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        """Raises EventWaitersApart or TooManyBarriers."""
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: self._block(block, dependence, log))

    def _block(self, block: t.Parallel, dependence: Dependence, log: list[Decision]) -> t.Op:
        if not any(isinstance(op, t.WaitEvent) for op in walk(block.body)):
            return block
        tree = Tree(block, dependence)
        accesses = EventAccesses(tree)
        walker = Walk(tree, accesses)
        try:
            kept = pruned(walker, resolve(walker))
        except (BarrierNotUniform, BarrierPartialWarp) as e:
            raise EventWaitersApart(e.span, event=e.facts["name"], notes=e.notes) from None
        if not kept:
            return block
        number_barriers(tree)
        text = f"{len(kept)} barriers keep those that wait for events in step with those that trigger"
        log.append(Decision("sync", described(block), text, {"Barrier": len(kept)}, span=block.span))
        return tree.rebuilt()


class EventAccesses(Accesses):
    """A wait as a read of the event, an arrival that leads to the event's next generation as a write of it.

    The instances of a read are the warps that wait and do not arrive themselves; those of a write are the threads
    that arrive.
    """

    def __init__(self, tree: Tree) -> None:
        """Raises EventWaitersApart."""
        self.tree = tree
        self._found: dict[int, list[Access]] = {}
        self._pairs: dict[tuple[int, int], Bools] = {}
        nodes = tree.walk()
        self._by = {n.op.event.name: n.op.by for n in nodes if isinstance(n.op, t.DeclareEvent)}
        self._dependences = EventDependences.of(nodes)
        signals, leads = self._dependences.signals, self._dependences.may
        for wait in nodes:
            if isinstance(wait.op, t.WaitEvent) and not _alone(wait):
                name = wait.op.event.event.name
                sites = [n for n, event in signals if n.role is wait.role and name in leads[event]]
                direct = [n for n, event in signals if event == name]
                if all(n.role is wait.role for n in direct):
                    # Every chain to the event ends in an arrival of the role's own.
                    sites = direct
                if sites:
                    self._wait(wait, name, sites)

    def overlap(self, x: Access, y: Access, carried: frozenset[str], advanced: frozenset[str]) -> Bools:
        """The warps of a wait ``x`` for which the arrivals ``y`` have to wait."""
        pairs = self._pairs.get((id(x), id(y)))
        if pairs is None or _other_slot(x, y, carried):
            return np.zeros((len(x.start), len(y.start)), dtype=bool)
        return pairs

    def same_mapping(self, x: Access, y: Access, carried: frozenset[str]) -> bool:
        """False: each warp waits for itself."""
        return False

    def _wait(self, wait: Node, name: str, sites: list[Node]) -> None:
        mask = wait.parent.mask
        arriving = np.zeros_like(mask)
        for site in sites:
            if self._dependences.delays(site, _event_of(site), wait):
                arriving |= self._arriving(site)
        lagging = distinct(np.flatnonzero(mask & ~arriving) // WARP * WARP)[0]
        if not len(lagging):
            return
        whole = all(bool(mask[s : s + WARP].all()) and s + WARP <= len(mask) for s in lagging.tolist())
        read = Access(wait, name, None, False, "thread", lagging, WARP)
        self._found.setdefault(id(wait), []).append(read)
        met = np.zeros(len(lagging), dtype=bool)
        represented = np.zeros(len(lagging), dtype=bool)
        for site in sites:
            represented |= np.isin(_instance(site, lagging), _instance(site, self._starts_of(site)))
        for site in sites:
            start = self._starts_of(site)
            own = _instance(site, lagging)[:, None] == _instance(site, start)[None, :]
            pairs = np.where(represented[:, None], own, True) & mask[start][None, :]
            if pairs.any():
                write = Access(site, name, None, True, "thread", start, 1, release="elected")
                self._found.setdefault(id(site), []).append(write)
                self._pairs[id(read), id(write)] = pairs
                met |= pairs.any(axis=1)
        looped = any(isinstance(a.op, (t.For, t.While)) for a in wait.ancestors())
        if not whole or (looped and not met.all()):
            notes = [Note("the next generation depends on this", site.op.span) for site in sites[:1]]
            raise EventWaitersApart(wait.op.span, event=name, notes=notes)

    def _arriving(self, site: Node) -> Bools:
        """The threads whose own progress delays the arrivals at ``site``: those of a warp progress together."""
        warps = distinct(self._starts_of(site) // WARP * WARP)[0]
        return np.isin(np.arange(self.tree.threads) // WARP * WARP, warps)

    def _starts_of(self, site: Node) -> Ints:
        """The threads that arrive at ``site``."""
        body = site.parent
        by = self._by.get(_event_of(site), "instance") if isinstance(site.op, t.TriggerEvent) else "instance"
        if by == "thread":
            return np.flatnonzero(body.mask)
        part = body.warps() if by == "warp" else body.partition(len(body.chain))
        return distinct(part[part >= 0])[0]


def _other_slot(wait: Access, arrival: Access, carried: frozenset[str]) -> bool:
    """Whether the two certainly use different slots of one event, no loop having gone on in between."""
    mine, its = wait.node.op, arrival.node.op
    assert isinstance(mine, t.WaitEvent) and isinstance(its, (t.TriggerEvent, t.Copy)) and its.event is not None
    numbers = [_number_of(ref) for ref in (mine.event, its.event)]
    if carried or mine.event.event.name != its.event.event.name or numbers[0] is None or numbers[1] is None:
        return False
    ahead = distance(wait, numbers[0], arrival, numbers[1])
    return ahead is not None and ahead % mine.event.event.slots != 0


def _number_of(ref: EventRef) -> Expr | None:
    """The number whose remainder is the slot."""
    match ref.slot:
        case Binary(op="floormod" | "mod", a=number, b=b) if value_of(b) == ref.event.slots:
            return number
    return ref.order


def _alone(node: Node) -> bool:
    """Whether one elected thread does this."""
    return node.role is not None and isinstance(node.role.op, t.InThreads) and node.role.op.solo


def _event_of(site: Node) -> str:
    """The event on which the trigger or copy ``site`` arrives."""
    assert isinstance(site.op, (t.TriggerEvent, t.Copy)) and site.op.event is not None
    return site.op.event.event.name


def _instance(site: Node, threads: Ints) -> Ints:
    """The first thread of the innermost instance at ``site`` for each of ``threads``."""
    starts = site.parent.starts
    return starts[-1][threads] if starts else np.zeros_like(threads)
