"""What is pending at a place of a block: every access so far with how far it has got.

State by state: what an operation does to it, and what is left of several where ways meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilemma.ir.tile import Barrier, BulkWait, CopyCommit, CopyWait, MmaCommit, MmaWait, ProxyFence
from tilemma.passes.accesses import Access
from tilemma.passes.threads import Block, Node
from tilemma.records import record

# An access by its number, the loops into whose next turn it has come, and its resource.
Key = tuple[int, frozenset[str], str]


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

    key: Key
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

    def but(self, **changes: Any) -> Pending:
        """`dataclasses.replace`, without its checks: states are copied thousands of times."""
        new: Pending = object.__new__(Pending)
        object.__setattr__(new, "__dict__", {**self.__dict__, **changes})
        return new

    def carry(self, loop: str) -> Pending:
        """In the next turn of ``loop``."""
        carried = self.carried | {loop}
        return self.but(carried=carried, key=(self.key[0], carried, self.resource))

    def rename(self, names: dict[str | None, str]) -> Pending:
        """With its buffer and its handle called as ``names`` says."""
        resource = names.get(self.resource, self.resource)
        future = names.get(self.future, self.future)
        return self.but(resource=resource, future=future, key=(self.key[0], self.carried, resource))

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
        key = id(access), frozenset[str](), access.resource
        return Pending(key, access, access.resource, access.future, done=access.agent == "thread")


# Never changed: each operation makes another.
State = dict[Key, Pending]


class Histories:
    """What becomes of accesses, each step worked out once: the same history is the same object in every walk."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Pending] = {}
        self._begun: dict[Access, Pending] = {}
        self._steps: dict[Node, _Steps] = {}
        self._joined: dict[tuple[Pending, Pending], Pending] = {}

    def begin(self, accesses: Iterable[Access], state: State) -> State:
        """``state`` with ``accesses`` as they have just begun."""
        for a in accesses:
            p = self._begun.get(a)
            if p is None:
                p = self._begun[a] = self._one(Pending.of(a))
            state = {**state, p.key: p}
        return state

    def after(self, node: Node, state: State, step: Callable[[Pending], Pending]) -> State:
        """``state`` after ``step`` for all in it: the one step that ``node`` ever takes."""
        steps = self._steps.get(node)
        if steps is None:
            steps = self._steps[node] = _Steps(step, self._one)
        after = [steps[p] for p in state.values()]
        return {p.key: p for p in after}

    def join(self, states: Iterable[State]) -> State:
        """What may be pending after any of ``states``: an access is only as safe as where it is least so."""
        first, *others = states
        out = dict(first)
        for s in others:
            for key, p in s.items():
                q = out.get(key)
                if q is p:
                    continue
                if q is not None:
                    new = self._joined.get((p, q))
                    p = self._joined[p, q] = self._one(_worse(p, q)) if new is None else new
                out[key] = p
        return out

    def _one(self, p: Pending) -> Pending:
        return self._known.setdefault(tuple(p.__dict__.values()), p)


class _Steps(dict[Pending, Pending]):
    def __init__(self, step: Callable[[Pending], Pending], one: Callable[[Pending], Pending]) -> None:
        super().__init__()
        self._step, self._one = step, one

    def __missing__(self, p: Pending) -> Pending:
        new = self._step(p)
        found = self[p] = p if new is p else self._one(new)
        return found


def _worse(p: Pending, q: Pending) -> Pending:
    return Pending(
        p.key,
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


# Whose accesses an operation is about; the others concern everyone's.
_CONCERNS = {CopyCommit: "cp.async", CopyWait: "cp.async", MmaCommit: "wgmma", MmaWait: "wgmma", BulkWait: "bulk"}
SYNCHRONISING = (Barrier, ProxyFence, *_CONCERNS)


def synchronise(p: Pending, node: Node) -> Pending:
    """The effect of a synchronisation operation on what is pending."""
    agent = _CONCERNS.get(type(node.op))
    concerned = (agent is None or p.access.agent == agent) and p.reaches(node.parent)
    return _after(p, node) if concerned else p


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
