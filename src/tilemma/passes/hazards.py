"""Which accesses of a block may meet out of order: a walk over its operations with what is still pending.

The state holds, for every access so far, whether it has finished (cp.async and wgmma run on after their
statement), whether its writer has executed a proxy fence, and across which barriers it has been carried.
Loops are walked twice, so that what one turn leaves pending meets the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilemma.ir.expr import Var, trips, value_of
from tilemma.ir.expr import walk as parts
from tilemma.ir.tile import (
    Barrier,
    Break,
    Continue,
    Copy,
    For,
    If,
    InThreads,
    Load,
    SwapFutures,
    TriggerEvent,
    WaitEvent,
    WaitFuture,
    While,
)
from tilemma.ir.types import Space
from tilemma.passes.accesses import Access, Accesses, role_of
from tilemma.passes.pending import Made, Pending, State, carry, join, replace, synchronise
from tilemma.passes.rotation import Rotations
from tilemma.passes.scope import WARP
from tilemma.passes.threads import Block, Bools, Ints, Node, Tree
from tilemma.records import record


@record(slots=False)
class Hazard:
    """``later`` may meet ``pending`` too early.

    ``pairs``: the instances (of the earlier, of the later access) that need a barrier between them; ``wait``:
    the earlier access may still be running; ``fence``: its data has not been passed to the async proxy.
    """

    pending: Pending
    later: Access
    pairs: Bools
    wait: bool
    fence: bool

    @property
    def barrier(self) -> bool:
        return bool(self.pairs.any())

    def __str__(self) -> str:
        x, y = self.pending.access, self.later
        words = {
            (True, True): "write after write",
            (True, False): "read after write",
            (False, True): "write after read",
        }
        return f"{words[x.write, y.write]} of {y.resource}"


class Walk:
    """Finds hazards.  ``aliases``: pairs of buffers that lie at the same place in memory."""

    def __init__(self, tree: Tree, accesses: Accesses, aliases: frozenset[frozenset[str]] = frozenset()) -> None:
        self._tree = tree
        self._accesses = accesses
        self._aliases = aliases
        self._rotations = Rotations(tree.block.body)
        # Events and the roles that wait for them: which slot a wait is for is the program's business.
        self._waited_for = {
            (n.op.event.event.name, id(role_of(n))) for n in tree.walk() if isinstance(n.op, WaitEvent)
        }
        self._triggered_by: dict[str, set[int]] = {}
        for n in tree.walk():
            if isinstance(n.op, TriggerEvent):
                self._triggered_by.setdefault(n.op.event.event.name, set()).add(id(role_of(n)))
        self._proxies = any(a.proxy == "async" for n in tree.walk() for a in accesses.of(n))
        # How many groups may stay open at each wait for futures, and the copies that some wait has met.
        self.waits: dict[int, int] = {}
        self.awaited: set[int] = set()
        self._left: State = {}
        self._walked: dict[tuple[tuple[Node, ...], tuple[Pending, ...]], tuple[State, list[State]]] = {}
        self._made: Made = {}
        self._begun: dict[Access, Pending] = {}
        # What no hazard was found for, of what is pending and who comes later.
        self._safe: set[tuple[Pending, Access]] = set()
        # Pairs of accesses, with the loops between them, that never meet.
        self._apart: set[tuple[int, int, frozenset[str]]] = set()
        self._crossed: dict[tuple[Node, int, int], Bools] = {}

    def hazards(self) -> Iterator[Hazard]:
        """All hazards in program order, those of a loop's second turn after those of its first."""
        state: State = {}
        yield from self._body(self._tree.root, state, [])
        self._left = state

    def unfinished(self) -> list[Access]:
        """The accesses by cp.async and wgmma that may still be running when the block ends."""
        for _ in self.hazards():
            pass
        return [p.access for p in self._left.values() if not p.done and p.access.agent in ("cp.async", "wgmma")]

    # ---- control -----------------------------------------------------------------------------------------

    def _body(self, body: Block, state: State, exits: list[State]) -> Iterator[Hazard]:
        """Walks ``body``, changing ``state``; ``exits`` collects what leaves the loop around early.

        The tree is edited and walked again, many times: what an operation without hazards made of a state, it
        makes of it again as long as nothing inside it is edited.
        """
        for node in body.nodes:
            key = tuple(node.subtree()), tuple(state.values())
            known = self._walked.get(key)
            if known is not None:
                after, left = known
                replace(state, after)
                exits += left
                continue
            clean, earlier = True, len(exits)
            for hazard in self._node(node, state, exits):
                clean = False
                yield hazard
            if clean:
                self._walked[key] = dict(state), exits[earlier:]

    def _node(self, node: Node, state: State, exits: list[State]) -> Iterator[Hazard]:
        op = node.op
        if isinstance(op, (For, While)):
            yield from self._loop(node, state)
            return
        for a in self._accesses.of(node):
            yield from self._meet(a, state)
        if _stores_by_tma(node):
            for key, p in list(state.items()):
                if p.access.agent == "bulk" and p.reaches(node.parent):
                    state[key] = p.but(newer=p.newer + 1)
        for a in self._accesses.of(node):
            self._begin(a, state)
        if isinstance(op, (If, InThreads)):
            branches = [dict(state) for _ in node.inner]
            for inner, branch in zip(node.inner, branches, strict=True):
                yield from self._body(inner, branch, exits)
            replace(state, join([state, *branches] if len(branches) < 2 else branches, self._made))
        elif isinstance(op, (Break, Continue)):
            exits.append(dict(state))
        elif node.inner:
            for inner in node.inner:
                yield from self._body(inner, state, exits)
        elif isinstance(op, SwapFutures):
            self._rotate(op, state)
        elif isinstance(op, WaitFuture):
            self._wait(node, op, state)
        elif isinstance(op, (TriggerEvent, WaitEvent)):
            self._event(node, op, state)
        else:
            synchronise(node, state, self._made)
            if isinstance(op, Barrier):
                self._forget(node, state)

    def _forget(self, barrier: Node, state: State) -> None:
        """Drops what a barrier of all the block's threads keeps every later access behind.

        What is still running stays, what the async proxy may read, and what it may overwrite while no fence stands
        between.  So do all where buffers share memory: roles that do are not ordered by barriers.
        """
        assert barrier.part is not None
        if self._aliases or barrier.part.min() < 0 or barrier.part.min() != barrier.part.max():
            return
        for key, p in list(state.items()):
            unfenced = p.access.proxy == "generic" and barrier not in p.fenced_barriers
            stays = self._proxies and (p.access.write or unfenced)
            if p.done and barrier in p.barriers and not stays:
                del state[key]

    def _event(self, node: Node, op: TriggerEvent | WaitEvent, state: State) -> None:
        """A wait ends the loads by TMA that complete the event.

        One for an event that other roles trigger is their answer to what this role has told them before: it
        keeps all who wait behind that.
        """
        name, role = op.event.event.name, id(role_of(node))
        answer = isinstance(op, WaitEvent) and role not in self._triggered_by.get(name, {role})
        for key, p in state.items():
            new = self._made.get((p, node))
            if new is None:
                new = p
                if isinstance(op, TriggerEvent):
                    if p.done and not p.told and p.reaches(node.parent):
                        new = p.but(told=True)
                elif p.access.event == name:
                    new = p if p.done else p.end(node)
                    new = new if node in new.barriers else new.but(barriers=new.barriers | {node})
                elif answer and p.told:
                    fenced = p.fenced_barriers | {node} if p.fenced else p.fenced_barriers
                    new = p.but(barriers=p.barriers | {node}, fenced_barriers=fenced)
                self._made[p, node] = new
            state[key] = new

    def _rotating(self, loop: Node) -> int:
        """Further turns after which every name of a rotation has stood for every buffer."""
        swaps = [n.op for n in self._tree.walk(loop.inner[0]) if isinstance(n.op, SwapFutures)]
        return max((len(s.futures) - 1 for s in swaps), default=0)

    def _rotate(self, op: SwapFutures, state: State) -> None:
        """The second name's buffer and handle become the first's, .., the first's the last's."""
        names: dict[str | None, str] = {}
        for old in (self._rotations.buffers(op), op.futures):
            names |= dict(zip(old, (old[-1], *old[:-1]), strict=True))
        moved = [
            p.but(resource=names.get(p.resource, p.resource), future=names.get(p.future, p.future))
            for p in state.values()
        ]
        replace(state, {p.key: p for p in moved})

    def _wait(self, node: Node, op: WaitFuture, state: State) -> None:
        for key, p in list(state.items()):
            if p.future in op.futures and not p.done:
                self.waits[id(node)] = min(p.newer, self.waits.get(id(node), p.newer))
                self.awaited.add(id(p.access))
                state[key] = p.end(node)

    def _loop(self, node: Node, state: State) -> Iterator[Hazard]:
        name = node.op.index.name if isinstance(node.op, For) else f"while {id(node)}"
        before = dict(state)
        exits: list[State] = []
        turn = dict(state)
        ends = []
        for _ in range(2 + self._rotating(node)):
            yield from self._head(node, turn)
            if isinstance(node.op, While):
                exits.append(dict(turn))
            early: list[State] = []
            yield from self._body(node.inner[0], turn, early)
            exits += early
            ends.append(turn)
            turn = join([turn, *early], self._made)
            turn = {p.key: p for p in (carry(p, name, node, self._made) for p in turn.values())}
        if isinstance(node.op, While):
            # It ends at its condition, which is evaluated once more than its body.
            yield from self._head(node, turn)
            replace(state, join([turn, *exits], self._made))
            return
        turns = _trips(node.op)
        out = [ends[-1]] if turns is not None and turns >= len(ends) else [*ends]
        replace(state, join([*out, *exits, *([] if turns else [before])], self._made))

    def _head(self, node: Node, state: State) -> Iterator[Hazard]:
        """The accesses of a loop's condition or bounds."""
        for a in self._accesses.of(node):
            yield from self._meet(a, state)
            self._begin(a, state)

    def _begin(self, a: Access, state: State) -> None:
        if a not in self._begun:
            self._begun[a] = Pending.of(a)
        state[self._begun[a].key] = self._begun[a]

    # ---- conflicts ---------------------------------------------------------------------------------------

    def _meet(self, later: Access, state: State) -> Iterator[Hazard]:
        resource, aliases = later.resource, self._aliases
        for pending in list(state.values()):
            if pending.resource != resource and (
                not aliases or frozenset((pending.resource, resource)) not in aliases
            ):
                continue
            key = id(pending.access), id(later), pending.carried
            if key in self._apart or (pending, later) in self._safe:
                continue
            if pending.resource == resource and pending.access.elsewhere(later):
                if not aliases:
                    self._apart.add(key)
                continue
            hazard = self._conflict(pending, later)
            if hazard is None:
                self._safe.add((pending, later))
            else:
                yield hazard

    def _conflict(self, pending: Pending, later: Access) -> Hazard | None:
        x, y = pending.access, later
        key = id(x), id(y), pending.carried
        if not (x.write or y.write) or (x.atomic and y.atomic) or x.release:
            self._apart.add(key)
            return None
        aliased = pending.resource != y.resource
        if x.node is y.node and not pending.carried:
            self._apart.add(key)
            return None
        roles = x.role, y.role
        if roles[0] is not roles[1] and None not in roles:
            # Only the program's events order roles, and they know nothing of buffers that share memory.
            if aliased:
                everything = np.ones((len(x.start), len(y.start)), dtype=bool)
                return Hazard(pending, y, everything, not pending.done, False)
            if not self._aliases:
                self._apart.add(key)
            return None
        if x.private and x.agent == y.agent == "wgmma":
            self._apart.add(key)
            return None
        awaited = (x.event, id(roles[1])) in self._waited_for
        trusted = not pending.done and not aliased and awaited and not _same_slot(pending, y)
        if trusted or _ordered_by_events(x, y):
            return None
        pairs, mapped = self._overlap(x, y, pending.carried, aliased)
        if not pairs.any():
            if not aliased:
                self._apart.add(key)
            return None
        wait = not pending.done
        if x.private:
            return Hazard(pending, y, np.zeros_like(pairs), True, False) if wait else None
        # Also where a copy by TMA overwrites what threads have read: nothing else keeps it behind them.
        fence = x.proxy == "generic" and y.proxy == "async"
        bad = np.zeros_like(pairs) if mapped and not fence else pairs
        if not (mapped and not fence):
            for barrier in pending.fenced_barriers if fence else pending.barriers:
                bad = bad & ~self._met(barrier, x, y)
            if x.threads == y.threads == 1 and not fence:
                bad = bad & (x.start[:, None] != y.start[None, :])
            if x.threads == 32 and not x.write and _by_ldmatrix(x.node):
                # ldmatrix is `.sync`: whoever is past it knows that all of the warp has executed it.
                bad = bad & ~(_within(y, x) & (y.threads <= 32))
            if y.release == "each" and not fence:
                bad = np.zeros_like(bad)
            if y.release == "warp":
                # A warp answers for itself: its lanes have to be together, and have passed their data on.
                behind = pending.fenced_barriers if fence else pending.barriers
                bad = np.zeros_like(bad) if behind or (x.agent == "wgmma" and not fence) else pairs & _shares(x, y)
        if not bad.any() and not wait:
            return None
        return Hazard(pending, y, bad, wait, fence and not pending.fenced)

    def _overlap(self, x: Access, y: Access, carried: frozenset[str], aliased: bool) -> tuple[Bools, bool]:
        if aliased:
            return np.ones((len(x.start), len(y.start)), dtype=bool), False
        return self._accesses.overlap(x, y, carried)

    def _met(self, barrier: Node, x: Access, y: Access) -> Bools:
        key = barrier, id(x), id(y)
        if key not in self._crossed:
            self._crossed[key] = _met(barrier, x, y)
        return self._crossed[key]


def _same_slot(pending: Pending, y: Access) -> bool:
    """Whether ``y`` certainly uses the slot that a load by TMA is still filling."""
    x = pending.access
    if x.view is None or y.view is None:
        return False
    slots = x.view.slot, y.view.slot
    if None in slots:
        return True
    steady = not any(isinstance(e, Var) for s in slots if s is not None for e in parts(s))
    return steady and slots[0] == slots[1] and not pending.carried


def _ordered_by_events(x: Access, y: Access) -> bool:
    """Whether the program's own waits and triggers are all that orders ``x`` before ``y``.

    A load by TMA is awaited by whoever needs its data, and its slot given back by whoever used it; two stores
    by TMA to one array are the program's business as two stores by threads are.
    """
    if x.agent == "tma":
        return y.agent == "tma" or bool(y.release) or x.view is None or x.view.base.space is Space.GLOBAL
    return x.agent == y.agent == "bulk" and x.write and y.write


def _met(barrier: Node, x: Access, y: Access) -> Bools:
    """For which instances ``barrier`` (or the wait for an event) keeps ``y`` behind ``x``."""
    if isinstance(barrier.op, WaitEvent):
        mask = barrier.parent.mask
        last = len(mask) - 1
        waited = np.array([bool(mask[s : min(s + y.threads, last + 1)].all()) for s in y.start.tolist()])
        return np.broadcast_to(waited[None, :], (len(x.start), len(y.start)))
    assert barrier.part is not None
    return joined(barrier.part, x, y)


def _by_ldmatrix(node: Node) -> bool:
    return isinstance(node.op, Load) and node.op.plan is not None and node.op.plan.method == "ldmatrix"


def _within(y: Access, x: Access) -> Bools:
    """Whether each instance of ``y`` is among the threads of each instance of ``x``."""
    inside: Bools = (x.start[:, None] <= y.start[None, :]) & (y.start[None, :] < x.start[:, None] + x.threads)
    return inside


def _shares(x: Access, y: Access) -> Bools:
    """Whether each instance of ``x`` and the warp that each of ``y`` answers for have a thread in common."""
    first, last = x.start[:, None], x.start[:, None] + x.threads
    shared: Bools = (first < y.start[None, :] + WARP) & (y.start[None, :] < last)
    return shared


def joined(part: Ints, x: Access, y: Access) -> Bools:
    """For which instances of ``x`` and ``y`` a barrier with this partition joins all threads of both."""
    cx, cy = _class(part, x), _class(part, y)
    met: Bools = (cx[:, None] == cy[None, :]) & (cx >= 0)[:, None]
    return met


def _class(part: Ints, a: Access) -> Ints:
    """The class of each instance; -1 for one that is not wholly in a class."""
    if a.threads == 1:
        return part[a.start]
    members = part[np.minimum(a.start[:, None] + np.arange(a.threads)[None, :], len(part) - 1)]
    return np.where((members == members[:, :1]).all(axis=1), members[:, 0], -1)


def _trips(op: For | While | object) -> int | None:
    if not isinstance(op, For):
        return None
    start, stop, step = value_of(op.start), value_of(op.stop), value_of(op.step)
    return None if start is None or stop is None or not step else trips(start, stop, step)


def _stores_by_tma(node: Node) -> bool:
    op = node.op
    return (
        isinstance(op, Copy)
        and op.plan is not None
        and op.plan.engine == "tma"
        and op.dst.base.space is Space.GLOBAL
    )
