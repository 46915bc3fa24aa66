"""Dataflow state of the hazard analysis: the pending accesses at a program point, with their progress.

The transfer function of each synchronisation operation, and the join of states where paths meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tilemma.ir.expr import Binary, Expr, Index, value_of
from tilemma.ir.ranges import wraps
from tilemma.ir.tile import (
    Barrier,
    BulkWait,
    CopyCommit,
    CopyWait,
    For,
    MmaCommit,
    MmaWait,
    ProxyFence,
    While,
)
from tilemma.passes.threads import Block, Node
from tilemma.records import record
from tilemma.targets.ptx.passes.aliasing import Access, loop_name

# An access by its identity, the loops that carry it into a later iteration, and its resource.
Key = tuple[int, frozenset[str], str]


@record(slots=False, eq=False)
class Pending:
    """An access that may conflict with later ones.  Accesses are compared by identity: states are dictionaries
    with them as keys.

    ``resource`` and ``future``: the present names of its buffer and its handle, after the rotations since.
    ``newer``: how many groups of the same kind (of cp.async, of TMA stores, of wgmma) the same threads have
    certainly closed since its own.  ``ended``: the wait that ended it, ``ended_in``: the loops it had been carried
    by then.
    ``carried``: the loops (by index name) that carry it into a later iteration.  ``barriers``: those crossed since
    it finished; ``fenced_barriers``: those crossed since its writer's proxy fence; ``barriers_crossed``:
    those crossed before its completion.  ``signalled_writers`` and ``signalled_readers``: its threads have since
    triggered an event that lets another role write, or read, the same buffer.  ``acknowledgements``: waits, since
    then, for events of a role that reads it.  ``left``: the condition under which the instances that made it have
    left an iteration or a loop in which others go on.
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
    barriers_crossed: tuple[Node, ...] = ()
    newer: int = 0
    ended: Node | None = None
    ended_in: frozenset[str] = frozenset()
    signalled_writers: bool = False
    signalled_readers: bool = False
    acknowledgements: frozenset[Node] = frozenset()
    left: Node | None = None

    def evolve(self, **changes: Any) -> Pending:
        """`dataclasses.replace`, without its checks: states are copied thousands of times."""
        new: Pending = object.__new__(Pending)
        object.__setattr__(new, "__dict__", {**self.__dict__, **changes})
        return new

    def carry(self, loop: str) -> Pending:
        """The access, carried into the next iteration of ``loop``."""
        carried = self.carried | {loop}
        return self.evolve(carried=carried, key=(self.key[0], carried, self.resource))

    def rename(self, names: dict[str | None, str]) -> Pending:
        """The access with its buffer and its handle renamed by ``names``."""
        resource = names.get(self.resource, self.resource)
        future = names.get(self.future, self.future)
        return self.evolve(resource=resource, future=future, key=(self.key[0], self.carried, resource))

    def reaches(self, body: Block) -> bool:
        """Whether all threads that execute the access reach ``body``."""
        known = self.access.reached
        if id(body) not in known:
            known[id(body)] = bool((body.mask | ~self.access.executing).all())
        return known[id(body)]

    def end(self, wait: Node) -> Pending:
        """The access has finished at ``wait``: only later barriers order other threads after it."""
        return self.evolve(done=True, barriers_crossed=(), ended=wait, ended_in=self.carried)

    @staticmethod
    def of(access: Access) -> Pending:
        """The state of ``access`` when it is issued."""
        key = id(access), frozenset[str](), access.resource
        return Pending(key, access, access.resource, access.future, done=access.agent == "thread")


# Never changed: each operation makes another.
State = dict[Key, Pending]


class StateInterner:
    """Interns pending accesses and memoises each transfer step, so that equal states are the same objects."""

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
        out = {p.key: p for p in after}
        return out if len(out) == len(after) else self.join([{p.key: p} for p in after])

    def join(self, states: Iterable[State]) -> State:
        """The join of ``states``: an access is as safe as in the state in which it is least safe."""
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
        tuple(n for n in p.barriers_crossed if n in q.barriers_crossed),
        min(p.newer, q.newer),
        p.ended if p.done and q.done and p.ended is q.ended else None,
        p.ended_in if p.ended is q.ended else frozenset(),
        p.signalled_writers and q.signalled_writers,
        p.signalled_readers and q.signalled_readers,
        p.acknowledgements & q.acknowledgements,
        p.left if p.left is q.left else None,
    )


# Operations about the accesses of some threads only; the others concern all threads.
_CONCERNS = {CopyCommit: "cp.async", CopyWait: "cp.async", MmaCommit: "wgmma", MmaWait: "wgmma", BulkWait: "bulk"}
SYNCHRONISING = (Barrier, ProxyFence, *_CONCERNS)


def synchronise(p: Pending, node: Node) -> Pending:
    """The effect of a synchronisation operation on pending accesses."""
    agent = _CONCERNS.get(type(node.op))
    concerned = (agent is None or p.access.agent == agent) and p.reaches(node.parent)
    return _after(p, node) if concerned else p


def _after(p: Pending, node: Node) -> Pending:
    match node.op:
        case Barrier():
            return _cross(p, node)
        case ProxyFence() if p.done and not p.fenced:
            return p.evolve(fenced=True)
        case CopyCommit():
            return p.evolve(committed=True, newer=p.newer + p.committed)
        case MmaCommit() if not p.done:
            return p.evolve(committed=True, newer=p.newer + p.committed)
        case CopyWait(pending=n) if p.committed and p.newer >= n and not p.done:
            return p.end(node)
        case MmaWait(pending=n) if p.committed and p.newer >= n and not p.done:
            return p.end(node)
        case BulkWait(pending=n, complete=complete) if p.newer >= n and not p.done:
            return p.end(node) if complete or not p.access.write else p
    return p


def _cross(p: Pending, barrier: Node) -> Pending:
    if not p.done:
        return p.evolve(barriers_crossed=(*p.barriers_crossed, barrier))
    barriers = p.barriers | {barrier}
    if p.fenced:
        if barrier in p.barriers and barrier in p.fenced_barriers:
            return p
        return p.evolve(barriers=barriers, fenced_barriers=p.fenced_barriers | {barrier})
    if p.access.write:
        return p.evolve(barriers=barriers, barriers_crossed=(*p.barriers_crossed, barrier))
    return p if barrier in p.barriers else p.evolve(barriers=barriers)


def skipping(node: Node, state: State) -> State:
    """The state behind a loop that runs no iteration.

    A loop up to the index of an enclosing one, or to a multiple of it, runs in each but the first iteration of
    that: no access of an earlier iteration gets past it.
    """
    op = node.op
    stop = _multiplied(op.stop) if isinstance(op, For) else None
    around = next((n for n in node.ancestors() if isinstance(n.op, For) and n.op.index.name == stop), None)
    if around is None or not isinstance(op, For) or not isinstance(around.op, For):
        return state
    start, first, step = value_of(op.start), value_of(around.op.start), value_of(around.op.step)
    if start is None or first is None or first < max(start, 0) or (step or 0) < 1:
        return state

    def outermost(p: Pending) -> Node | None:
        loops = (n for n in p.access.node.ancestors() if isinstance(n.op, (For, While)))
        return next((n for n in reversed(list(loops)) if loop_name(n) in p.carried), None)

    return {key: p for key, p in state.items() if outermost(p) is not around}


def _multiplied(e: Expr) -> str | None:
    """The name of the index of which ``e`` is a positive multiple."""
    if isinstance(e, Binary) and e.op == "mul" and not wraps(e):
        for a, b in ((e.a, e.b), (e.b, e.a)):
            if (value_of(b) or 0) > 0:
                e = a
                break
    return e.name if isinstance(e, Index) else None
