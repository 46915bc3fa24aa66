"""Dependences between events (mbarriers): the arrivals that a generation of an event may, and those that it must,
depend on."""

from __future__ import annotations

from collections.abc import Iterable

from tilemma.ir.expr import binary
from tilemma.ir.ranges import interval
from tilemma.ir.tile import Copy, For, TriggerEvent, WaitEvent, While
from tilemma.passes.threads import Block, Node
from tilemma.records import record

Relation = dict[str, frozenset[str]]


@record(slots=False)
class EventDependences:
    """The signals and waits of a block.

    ``signals``: the operations that arrive for an event, with the event's name: triggers, and copies where the
    event has no trigger.  ``may``: for each event, the events whose generations may depend on its arrivals: the
    event itself, and those that a role signals which waits for one of them.  ``must``: those each further
    generation of which needs a further generation of the event.
    """

    signals: tuple[tuple[Node, str], ...]
    may: Relation
    must: Relation

    @staticmethod
    def of(nodes: list[Node]) -> EventDependences:
        signals = _signals(nodes)
        place = {id(n): i for i, n in enumerate(nodes)}

        def follows(later: Node, earlier: Node) -> bool:
            return place[id(earlier)] < place[id(later)] or bool(_loops(later) & _loops(earlier))

        waits = [(n, n.op.event.event.name) for n in nodes if isinstance(n.op, WaitEvent)]
        names = {name for _, name in signals} | {name for _, name in waits}
        may: dict[str, set[str]] = {name: set() for name in names}
        must: dict[str, set[str]] = {name: set() for name in names}
        for signalled in names:
            sites = [n for n, name in signals if name == signalled]
            roles = {id(n.role): [m for m in sites if m.role is n.role] for n in sites}
            for waited in names:
                acknowledgements = [
                    (ours, [n for n, name in waits if name == waited and n.role is ours[0].role])
                    for ours in roles.values()
                ]
                if any(follows(n, w) for ours, theirs in acknowledgements for n in ours for w in theirs):
                    may[waited].add(signalled)
                if acknowledgements and all(_each_after_one(ours, theirs) for ours, theirs in acknowledgements):
                    must[waited].add(signalled)
        return EventDependences(tuple(signals), _closure(may), _closure(must))

    def delays(self, site: Node, signalled: str, wait: Node) -> bool:
        """Whether each generation after the one that ``wait`` waits for needs a further arrival at ``site``.

        An arrival in front of a loop does not delay the generations that the loop waits for.
        """
        assert isinstance(wait.op, WaitEvent)
        return wait.op.event.event.name in self.must[signalled] and _loops(wait) <= _loops(site)


def _signals(nodes: list[Node]) -> list[tuple[Node, str]]:
    triggers = [(n, n.op.event.event.name) for n in nodes if isinstance(n.op, TriggerEvent)]
    triggered = {name for _, name in triggers}
    return triggers + [
        (n, n.op.event.event.name)
        for n in nodes
        if isinstance(n.op, Copy) and n.op.event is not None and n.op.event.event.name not in triggered
    ]


def _each_after_one(triggers: list[Node], waits: list[Node]) -> bool:
    """Whether a role executes at least one of ``waits`` for each of its ``triggers``.

    Triggers that share no loop with a wait, beside others that do, are credits: they occur once.
    """
    if not waits:
        return False
    waiting = frozenset[Node]().union(*(_loops(w) for w in waits))
    repeated = [t for t in triggers if _loops(t) & waiting]
    groups: dict[frozenset[Node], list[Node]] = {}
    for t in repeated or triggers:
        groups.setdefault(_loops(t), []).append(t)
    return all(sum(_as_often(w, ours[0]) for w in waits) >= len(ours) for ours in groups.values())


def _as_often(wait: Node, trigger: Node) -> bool:
    """Whether the iterations that execute ``trigger`` execute ``wait`` too."""
    around = list(trigger.parent.path())
    return all(body in around or _entered(body) for body in wait.parent.path())


def _entered(body: Block) -> bool:
    """Whether ``body`` is executed at least once when its operation is."""
    match body.owner:
        case None:
            return True
        case Node(op=For(start=start, stop=stop)):
            return interval(binary("sub", stop, start))[0] >= 1
        case _:
            return False


def _loops(node: Node) -> frozenset[Node]:
    return frozenset(a for a in node.ancestors() if isinstance(a.op, (For, While)))


def _closure(relation: dict[str, set[str]]) -> Relation:
    """The reflexive and transitive closure."""
    return {name: frozenset(_reached(name, relation)) for name in relation}


def _reached(first: str, relation: dict[str, set[str]]) -> Iterable[str]:
    found, left = {first}, [first]
    while left:
        for name in relation.get(left.pop(), set()) - found:
            found.add(name)
            left.append(name)
    return found
