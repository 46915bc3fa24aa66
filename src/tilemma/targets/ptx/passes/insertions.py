"""The inserted waits, fences and barriers of a decided kernel, each with the dependences that it serves.

They are found in the decided IR, not recorded by the passes: an operation serves the dependences that the hazard
analysis reports when it is left out.  Waits for events, which order roles, are outside of that analysis: their
dependences are those between the accesses of the roles that trigger and of the role that waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from tilemma.errors import Span
from tilemma.ir import tile as t
from tilemma.ir.synchronisation import SYNC_NAMES
from tilemma.ir.types import Space
from tilemma.ir.walk import walk
from tilemma.passes.scope import Dependence, blocks
from tilemma.passes.threads import Node, Tree
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.passes.aliasing import Access
from tilemma.targets.ptx.passes.hazards import Hazard, Walk
from tilemma.targets.ptx.passes.order_event_waits import EventAccesses, EventWaitersApart

# What a program writes for each operation that synchronises.
_WRITTEN: Mapping[type[t.Op], tuple[type[t.Op], ...]] = {
    t.Barrier: (t.Sync,),
    t.Sync: (t.Sync,),
    t.CopyWait: (t.WaitFuture,),
    t.MmaWait: (t.MmaWait, t.WaitFuture),
    t.WaitEvent: (t.WaitEvent, t.WaitFuture),
}
_AGENTS = {"thread": "the threads", "tma": "a TMA load", "bulk": "a TMA store"}
# The dependences of one operation that are listed.
MOST = 8


@record
class Side:
    """One access of a dependence: a "write", "read" or "use" of ``resource`` by ``agent``, at ``span``."""

    access: str
    resource: str
    agent: str
    span: Span | None = None

    def __str__(self) -> str:
        by = f" by {self.agent}" if self.agent else ""
        return f"{self.access}{by}{_line(self.span)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "access": self.access,
            "buffer": self.resource,
            "agent": self.agent,
            "at": None if self.span is None else str(self.span),
        }


@record
class Served:
    """``earlier`` has to be over before ``later``; ``proxy``: its data passes to the async proxy."""

    earlier: Side
    later: Side
    proxy: bool = False

    def __str__(self) -> str:
        name, other = self.earlier.resource, self.later.resource
        where = f"`{name}`: " if name == other else f"`{name}`, `{other}`: "
        passed = ", across proxies" if self.proxy else ""
        return f"{where}{self.earlier} before {self.later}{passed}"

    def to_json(self) -> dict[str, Any]:
        return {"earlier": self.earlier.to_json(), "later": self.later.to_json(), "proxy": self.proxy}


@record(eq=False)
class Insertion:
    """An inserted operation; ``number`` is its position in `walk` of the kernel's body, -1 for what lowering adds.

    ``reason``: a rule that it follows, where that is not an order of accesses.
    """

    number: int
    op: t.Op | None
    name: str
    detail: str
    serves: tuple[Served, ...]
    reason: str = ""

    @property
    def span(self) -> Span | None:
        return None if self.op is None else self.op.span

    def __str__(self) -> str:
        why = [str(s) for s in self.serves[:2]]
        more = len(self.serves) - len(why)
        text = "; ".join([*why, *([f"{more} more"] if more > 0 else [])]) or self.reason
        return f"{self.name}{self.detail}: {text}"

    def to_json(self) -> dict[str, Any]:
        return {
            "operation": self.name,
            "detail": self.detail.strip(" ,"),
            "at": None if self.span is None else str(self.span),
            "serves": [s.to_json() for s in self.serves],
            "reason": self.reason,
        }


def insertions(kernel: t.Kernel, source: t.Kernel) -> tuple[Insertion, ...]:
    """The inserted synchronisation of ``kernel``, decided from ``source``, in program order."""
    written = {(kind, op.span) for op in walk(source.body) for kind, by in _WRITTEN.items() if isinstance(op, by)}
    dependence = Dependence(kernel.body)
    starts = {id(op): i + 1 for i, op in enumerate(walk(kernel.body))}
    clusters = (op for op in walk(kernel.body) if isinstance(op, t.Parallel) and op.drained)
    drained = {id(block) for cluster in clusters for block in cluster.body}
    found: list[Insertion] = []
    for block in blocks(kernel):
        analysis = _Analysis(Tree(block, dependence))
        found += analysis.added_by_lowering(id(block) in drained)
        inserted = [
            (starts[id(block)] + i, node)
            for i, node in enumerate(analysis.nodes)
            if type(node.op) in SYNC_NAMES
            and (node.op.span is None or (type(node.op), node.op.span) not in written)
        ]
        # A pass may have duplicated an operation: its copies are inserted for one reason.
        serves: dict[int, dict[Served, None]] = {}
        for _, node in inserted:
            serves.setdefault(id(node.op), {}).update(dict.fromkeys(analysis.served(node)))
        for number, node in inserted:
            op, served = node.op, tuple(islice(serves[id(node.op)], MOST))
            found.append(
                Insertion(number, op, SYNC_NAMES[type(op)], _detail(op), served, analysis.reason(node, served))
            )
    return tuple(found)


class _Analysis:
    """The hazards of one block, with and without each operation."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.nodes = tree.walk()
        self.accesses = Accesses(tree)
        self._walks = [Walk(tree, self.accesses), *self._of_aliases()]
        self._events = self._of_events()
        self._walks += self._events
        # The hazards that remain with all operations in place: a role's order that only its own rules give.
        self._known = [set(map(_key, w.hazards())) for w in self._walks]

    def _of_aliases(self) -> list[Walk]:
        """The walk over pairs of buffers that lie at the same place in memory."""
        spans = {}
        for n in self.nodes:
            if isinstance(n.op, t.Alloc) and n.op.buffer.space is Space.SHARED and n.op.offset is not None:
                assert n.op.layout is not None
                spans[n.op.buffer.name] = n.op.offset, n.op.offset + n.op.layout.size * max(1, n.op.buffer.copies)
        pairs = frozenset(
            frozenset((a, b))
            for a, (first, end) in spans.items()
            for b, (start, last) in spans.items()
            if a != b and first < last and start < end
        )
        names = frozenset[str]().union(*pairs)
        return [Walk(self.tree, self.accesses.only(lambda a: a.resource in names), pairs)] if pairs else []

    def _of_events(self) -> list[Walk]:
        """The walk over the generations of events."""
        if not any(isinstance(n.op, t.WaitEvent) for n in self.nodes):
            return []
        try:
            return [Walk(self.tree, EventAccesses(self.tree))]
        except EventWaitersApart:
            return []

    # ---- operations of the tree --------------------------------------------------------------------------

    def served(self, node: Node) -> Iterator[Served]:
        """The dependences that ``node`` serves."""
        op = node.op
        if isinstance(op, t.WaitEvent):
            yield from self._across_roles(node, op)
            return
        if isinstance(op, t.MmaFence):
            yield from self._registers(node)
            return
        where = node.parent.nodes
        at = where.index(node)
        del where[at]
        try:
            for walk_, known in zip(self._walks, self._known, strict=True):
                yield from (_served(h, walk_ in self._events) for h in walk_.hazards() if _key(h) not in known)
        finally:
            where.insert(at, node)

    def reason(self, node: Node, serves: tuple[Served, ...]) -> str:
        """The rule that ``node`` follows where it serves no pair of accesses."""
        if serves:
            return ""
        match node.op:
            case t.MmaFence():
                return "the first wgmma of a warpgroup needs one (PTX ISA, wgmma.fence)"
            case t.MmaCommit():
                return "the group that a wait for the multiplies counts"
            case t.CopyCommit():
                return "the group that a wait for the copies counts"
            case t.BulkWait():
                return "the block's shared memory has to be read before the threads go on or end"
            case t.MmaWait():
                return f"the multiplies have read {self._released(node)} before the trigger that releases it"
            case t.CopyWait():
                return "no copy may be under way when the block ends"
            case t.Barrier() | t.Sync():
                return "one thread arrives for all, which have to be behind their accesses before"
        return ""

    def _released(self, node: Node) -> str:
        """The buffers that the multiplies in front of a wait read."""
        around = node.parent.nodes[: node.parent.nodes.index(node)]
        inside = [n for top in around for n in top.subtree()]
        names = {
            a.resource for n in inside if isinstance(n.op, t.Mma) for a in self.accesses.of(n) if not a.private
        }
        return ", ".join(f"`{name}`" for name in sorted(names)) or "their operands"

    def _across_roles(self, wait: Node, op: t.WaitEvent) -> Iterator[Served]:
        name = op.event.event.name
        triggers = [n for n in self.nodes if isinstance(n.op, t.TriggerEvent) and n.op.event.event.name == name]
        roles = {n.role for n in triggers if n.role is not wait.role}
        every = [a for n in self.nodes for a in self.accesses.of(n) if _of_memory(a)]
        earlier = [a for a in every if a.event == name or (a.role in roles and roles)]
        later = [a for a in every if a.role is wait.role and a.node is not wait and a.event != name]
        for x in earlier:
            for y in later:
                if x.resource == y.resource and (x.write or y.write):
                    proxy = x.proxy == "generic" and y.proxy == "async"
                    yield Served(_side(x), _side(y), proxy)

    def _registers(self, fence: Node) -> Iterator[Served]:
        """The accesses of threads to the registers of the multiplies behind ``fence``."""
        behind = fence.parent.nodes[fence.parent.nodes.index(fence) :]
        uses: dict[str, Access] = {}
        for top in behind:
            if isinstance(top.op, t.MmaCommit):
                break
            for n in top.subtree():
                for a in self.accesses.of(n):
                    if a.private and a.agent == "wgmma":
                        uses.setdefault(a.resource, a)
        for n in self.nodes:
            for a in self.accesses.of(n):
                if a.private and a.agent == "thread" and a.resource in uses and a.role is uses[a.resource].role:
                    yield Served(_side(a), _side(uses[a.resource]))

    # ---- what lowering adds ------------------------------------------------------------------------------

    def added_by_lowering(self, drained: bool) -> Iterator[Insertion]:
        """The initialisation of mbarriers and the barriers of clusters (`lower/launches`, `lower/events`);
        ``drained``: of blocks that end without a barrier."""
        events = [n.op.event.name for n in self.nodes if isinstance(n.op, t.DeclareEvent)]
        copies = [n.op for n in self.nodes if isinstance(n.op, t.Copy) and n.op.plan is not None]
        remote = any(c.plan is not None and c.plan.peers for c in copies)
        remote = remote or any(isinstance(n.op, t.TriggerEvent) and n.op.cluster for n in self.nodes)
        by_tma = any(c.event is not None and c.plan is not None and c.plan.engine == "tma" for c in copies)
        if events:
            found = Side("initialisation", ", ".join(events), "one thread")
            used = Side("use", found.resource, "other threads" + (", blocks" if remote else ""))
            if by_tma or remote:
                seen = Side("use", found.resource, "TMA" if by_tma else "other blocks")
                yield Insertion(-1, None, "mbarrier fence", "", (Served(found, seen, by_tma),))
            name = "cluster barrier" if remote else "barrier"
            yield Insertion(-1, None, name, " at the start", (Served(found, used),))
        if remote and not drained:
            reason = "a block does not end while others of its cluster use its shared memory"
            yield Insertion(-1, None, "cluster barrier", " at the end", (), reason)
        if any(c.plan is not None and c.plan.in_step for c in copies):
            reason = "all blocks have read the buffer before one overwrites it for all"
            yield Insertion(-1, None, "cluster barrier", " before a multicast", (), reason)


def _key(h: Hazard) -> tuple[Any, ...]:
    return id(h.pending.access), id(h.later), h.pending.carried, h.wait, h.fence


def _of_memory(a: Access) -> bool:
    return not a.private and not a.release and a.view is not None and a.view.base.space is Space.SHARED


def _served(h: Hazard, of_events: bool) -> Served:
    x, y = h.pending.access, h.later
    if of_events:
        return Served(
            Side("wait", x.resource, "", x.node.op.span), Side("next generation", y.resource, "", y.node.op.span)
        )
    return Served(_side(x), _side(y), h.fence)


def _side(a: Access) -> Side:
    resource = a.resource.removeprefix("%")
    if a.release:
        return Side("release", resource, "a trigger", a.node.op.span)
    access = "write" if a.write else "read"
    return Side(access, resource, _AGENTS.get(a.agent, a.agent), a.node.op.span)


def _line(span: Span | None) -> str:
    return "" if span is None else f" (line {span.line})"


def _detail(op: t.Op) -> str:
    match op:
        case t.Barrier(threads=n):
            return f" of {n} threads"
        case t.Sync(level=level):
            return f" of each {level}"
        case t.CopyWait(pending=n) | t.MmaWait(pending=n) | t.BulkWait(pending=n):
            return f" for all but {n}" if n else ""
        case t.WaitEvent(event=ref):
            return f" for `{ref.event.name}`"
    return ""
