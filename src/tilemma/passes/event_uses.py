"""Uses of events: the operations of a block on each event, and the instances and threads that execute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from tilemma.errors import Span
from tilemma.ir.expr import Index
from tilemma.ir.generations import TriggerSite, slots_of
from tilemma.ir.tile import Copy, DeclareEvent, Kernel, Parallel, TriggerEvent, WaitEvent
from tilemma.ir.types import Event, EventRef
from tilemma.passes.scope import count, kind
from tilemma.passes.threads import Node, Tree, distinct
from tilemma.records import record


@record(frozen=False, slots=False)
class Uses:
    """The operations of a block on one event."""

    declared: Node
    triggers: list[Node] = field(default_factory=list)
    waits: list[Node] = field(default_factory=list)
    copies: list[Node] = field(default_factory=list)

    @property
    def event(self) -> Event:
        assert isinstance(self.declared.op, DeclareEvent)
        return self.declared.op.event

    def refs(self) -> Iterator[tuple[Node, EventRef, Span | None]]:
        """Every operation on the event, what it names, and its place."""
        for node in (*self.triggers, *self.waits, *self.copies):
            assert isinstance(node.op, (TriggerEvent, WaitEvent, Copy)) and node.op.event is not None
            yield node, node.op.event, node.op.span


def event_uses(tree: Tree) -> dict[str, Uses]:
    """The uses of each event that the block declares, by its name."""
    found = {n.op.event.name: Uses(n) for n in tree.walk() if isinstance(n.op, DeclareEvent)}
    for node in tree.walk():
        match node.op:
            case TriggerEvent(event=ref):
                found[ref.event.name].triggers.append(node)
            case WaitEvent(event=ref):
                found[ref.event.name].waits.append(node)
            case Copy(event=EventRef() as ref):
                found[ref.event.name].copies.append(node)
    return found


def blocks_of_clusters(kernel: Kernel) -> dict[tuple[Index, ...], int]:
    """The indices of each `parallel` of blocks inside a cluster -> the number of blocks of the cluster."""
    return {
        op.indices: count(op) or 1
        for cluster in kernel.body
        if isinstance(cluster, Parallel) and kind(cluster) == "cluster"
        for op in cluster.body
        if isinstance(op, Parallel)
    }


def instances(node: Node) -> int:
    """The number of instances of the innermost level that reach ``node``."""
    body = node.parent
    part = body.partition(len(body.chain))
    return len(distinct(part[part >= 0])[0]) if body.chain else int(body.mask.any())


def threads(node: Node) -> int:
    """The number of threads that reach ``node``."""
    return int(node.parent.mask.sum())


def instance_threads(node: Node, tree: Tree) -> int:
    """The number of threads of an instance of the innermost level around ``node``."""
    chain = node.parent.chain
    if not chain:
        return tree.threads
    level = chain[-1].op.level if isinstance(chain[-1].op, Parallel) else None
    assert level is not None
    return level.threads


def whole(node: Node, tree: Tree) -> bool:
    """Whether the instances of the innermost level that get to ``node`` do so with all their threads."""
    body = node.parent
    depth = len(body.chain)
    part = body.partition(depth)
    sizes = distinct(part[part >= 0])[1]
    return body.uniform(depth) and bool((sizes == instance_threads(node, tree)).all())


def blocks_reached(trigger: Node, blocks: int) -> int:
    """The number of blocks whose triggers at this place arrive on an event; ``blocks``: those of the cluster."""
    return blocks if isinstance(trigger.op, TriggerEvent) and trigger.op.cluster else 1


def trigger_sites(u: Uses, come: list[int]) -> list[TriggerSite]:
    """The triggers of an event, with ``come`` arrivals at each."""
    found: list[TriggerSite] = []
    for node, n in zip(u.triggers, come, strict=True):
        assert isinstance(node.op, TriggerEvent)
        players = None
        if node.role is not None:
            players = frozenset(np.flatnonzero(node.role.inner[0].mask).tolist())
        found.append(TriggerSite(players, slots_of(node.op.event), n))
    return found
