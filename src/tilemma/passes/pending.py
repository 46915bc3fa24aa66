"""What is pending at a place of a block: every access so far with how far it has got.

State by state: what an operation does to it, and what is left of several where ways meet.
"""

from __future__ import annotations

from typing import Any

from tilemma.ir.tile import Barrier, BulkWait, CopyCommit, CopyWait, MmaCommit, MmaWait, ProxyFence
from tilemma.passes.accesses import Access
from tilemma.passes.threads import Block, Node
from tilemma.records import record


@record(slots=False, eq=False)
class Pending:
    """An access that later ones may meet.  Two are told apart by identity: states of them are dictionaries' keys.

    ``resource`` and ``future``: what its buffer and its handle are called now, after the swaps since.
    ``newer``: how many groups of the same kind (of cp.async, of TMA stores) the same threads have certainly
    closed since its own.  ``ended``: the wait that ended it, ``ended_in``: the loops it had been carried by then.
    ``carried``: the loops (by index name) into whose next turn it has come.  ``barriers``: those crossed since
    it finished; ``fenced_barriers``: those crossed since its writer's proxy fence; ``missed``: those crossed
    before, where a wait or a fence would have made them count.  ``told``: its threads have triggered an event
    since.
    """

    access: Access
    resource: str
    future: str | None = None
    carried: frozenset[str] = frozenset()
    committed: bool = False
    done: bool = True
    fenced: bool = False
    barriers: frozenset[Node] = frozenset()
    fenced_barriers: frozenset[Node] = frozenset()
    missed: tuple[Node, ...] = ()
    newer: int = 0
    ended: Node | None = None
    ended_in: frozenset[str] = frozenset()
    told: bool = False

    @property
    def key(self) -> tuple[int, frozenset[str], str]:
        return id(self.access), self.carried, self.resource

    def but(self, **changes: Any) -> Pending:
        """`dataclasses.replace`, without its checks: states are copied thousands of times."""
        new: Pending = object.__new__(Pending)
        object.__setattr__(new, "__dict__", {**self.__dict__, **changes})
        return new

    def reaches(self, body: Block) -> bool:
        """Whether the threads that answer for the access all get to ``body``."""
        known = self.access.reached
        if id(body) not in known:
            known[id(body)] = bool(body.mask[self.access.start].all())
        return known[id(body)]

    def end(self, wait: Node) -> Pending:
        """The access has finished at ``wait``: barriers crossed before do not count, those to come do."""
        return self.but(done=True, missed=(), ended=wait, ended_in=self.carried)

    @staticmethod
    def of(access: Access) -> Pending:
        """``access`` as it has just begun."""
        return Pending(access, access.resource, access.future, done=access.agent == "thread")


State = dict[tuple[int, frozenset[str], str], Pending]
# What became of a pending access at an operation, or where it met another of its kind: worked out once, so that
# the same history is the same object in every walk.
Made = dict[tuple[Pending, Node | Pending], Pending]


def carry(p: Pending, name: str, loop: Node, made: Made) -> Pending:
    new = made.get((p, loop))
    if new is None:
        on = name not in p.carried and loop in p.access.around
        new = made[p, loop] = p.but(carried=p.carried | {name}) if on else p
    return new


def join(states: list[State], made: Made) -> State:
    """What may be pending after any of ``states``: an access is only as safe as where it is least so."""
    out = dict(states[0]) if states else {}
    for s in states[1:]:
        for key, p in s.items():
            q = out.get(key)
            if q is None or q is p:
                out[key] = p
                continue
            new = made.get((p, q))
            if new is None:
                new = made[p, q] = _worse(p, q)
            out[key] = new
    return out


def _worse(p: Pending, q: Pending) -> Pending:
    if p.__dict__ == q.__dict__:
        return q
    return Pending(
        p.access,
        p.resource,
        p.future if p.future == q.future else None,
        p.carried,
        p.committed and q.committed,
        p.done and q.done,
        p.fenced and q.fenced,
        p.barriers & q.barriers,
        p.fenced_barriers & q.fenced_barriers,
        tuple(n for n in p.missed if n in q.missed),
        min(p.newer, q.newer),
        p.ended if p.done and q.done and p.ended is q.ended else None,
        p.ended_in if p.ended is q.ended else frozenset(),
        p.told and q.told,
    )


def replace(state: State, new: State) -> None:
    state.clear()
    state.update(new)


# Whose accesses an operation is about; the others concern everyone's.
_CONCERNS = {CopyCommit: "cp.async", CopyWait: "cp.async", MmaCommit: "wgmma", MmaWait: "wgmma", BulkWait: "bulk"}


def synchronise(node: Node, state: State, made: Made) -> None:
    """The effect of a synchronisation operation on what is pending."""
    op = node.op
    if not isinstance(op, (Barrier, ProxyFence, CopyCommit, CopyWait, MmaCommit, MmaWait, BulkWait)):
        return
    agent, body = _CONCERNS.get(type(op)), node.parent
    for key, p in state.items():
        if agent is not None and p.access.agent != agent:
            continue
        new = made.get((p, node))
        if new is None:
            new = made[p, node] = _after(p, node) if p.reaches(body) else p
        state[key] = new


def _after(p: Pending, node: Node) -> Pending:
    match node.op:
        case Barrier():
            return _cross(p, node)
        case ProxyFence() if p.done and not p.fenced:
            return p.but(fenced=True)
        case CopyCommit():
            return p.but(committed=True, newer=p.newer + p.committed)
        case MmaCommit() if not p.committed:
            return p.but(committed=True)
        case CopyWait(pending=n) if p.committed and p.newer >= n and not p.done:
            return p.end(node)
        case MmaWait(pending=0) if p.committed and not p.done:
            return p.end(node)
        case BulkWait(pending=n, complete=complete) if p.newer >= n and not p.done:
            return p.end(node) if complete or not p.access.write else p
    return p


def _cross(p: Pending, barrier: Node) -> Pending:
    if not p.done:
        return p.but(missed=(*p.missed, barrier))
    barriers = p.barriers | {barrier}
    if p.fenced:
        if barrier in p.barriers and barrier in p.fenced_barriers:
            return p
        return p.but(barriers=barriers, fenced_barriers=p.fenced_barriers | {barrier})
    if p.access.write:
        return p.but(barriers=barriers, missed=(*p.missed, barrier))
    return p if barrier in p.barriers else p.but(barriers=barriers)
