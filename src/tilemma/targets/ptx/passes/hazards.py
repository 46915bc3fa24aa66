"""Hazard analysis: a dataflow walk that finds pairs of accesses that may happen out of order (RAW, WAR, WAW).

The state holds, for every access so far, whether it has finished (cp.async and wgmma run on after their
statement), whether its writer has executed a proxy fence, and across which barriers it has been carried.  Where
paths meet, an access has the weaker state of the two paths.  `break` and `continue` take their
state to the end of the loop or of its iteration.  The instances that execute one have no path behind it.  Where
its condition differs between instances, the others go on, and meet the accesses of those that have left.

Loops are walked twice, so that accesses of one iteration meet those of the next.  That finds every hazard: the
state of one access does not depend on other accesses, and an operation never makes it weaker.  So an access meets
the next iteration in its weakest state, and a third walk would only repeat states that the second has covered.
Only names that rotate need more walks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from tilemma.ir import tile as t
from tilemma.ir.effects import rotated
from tilemma.ir.expr import Var
from tilemma.ir.expr import walk as parts
from tilemma.ir.ranges import Known, enters
from tilemma.ir.types import Space
from tilemma.ir.walk import trip_count
from tilemma.passes.threads import Block, Bools, Node, Tree
from tilemma.records import record
from tilemma.targets.ptx.passes import ordering
from tilemma.targets.ptx.passes.accesses import Accesses
from tilemma.targets.ptx.passes.aliasing import Access, advanced_loops, loop_name
from tilemma.targets.ptx.passes.pending import (
    SYNCHRONISING,
    Key,
    Pending,
    State,
    StateInterner,
    skipping,
    synchronise,
)


@record(slots=False)
class Hazard:
    """``later`` may conflict with ``pending``.

    ``pairs``: the instances (of the earlier, of the later access) that need a barrier between them; ``wait``:
    the earlier access may still be running; ``fence``: its data has not been passed to the async proxy;
    ``proxies``: the later access is of the async proxy.
    """

    pending: Pending
    later: Access
    pairs: Bools
    wait: bool
    fence: bool
    proxies: bool = False

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


_ORDERING = (t.Break, t.Continue, t.WaitFuture, t.TriggerEvent, t.WaitEvent, *SYNCHRONISING)

# The hazards of an operation, then the state after it; None if no path continues.
Walking = Generator[Hazard, None, State | None]
# The states at `break` and `continue`, by kind.
Exits = list[tuple[type[t.Break] | type[t.Continue], State]]


class Walk:
    """Finds hazards: between accesses to one buffer or, with ``aliases``, only between accesses to the two buffers
    of one of these pairs, which lie at the same place in memory.  ``known``: what decides whether a loop is
    entered."""

    def __init__(
        self,
        tree: Tree,
        accesses: Accesses,
        aliases: frozenset[frozenset[str]] | None = None,
        known: Known | None = None,
    ) -> None:
        self._tree, self._known_sizes = tree, known
        self._accesses = accesses
        self._aliases = aliases
        self._rotations = tree.rotations
        nodes = list(tree.walk())
        # The loops over tiles of the grid.
        self._grid = {loop_name(n) for n in nodes if isinstance(n.op, t.For) and n.op.blocks}
        # Events and the roles that wait for them: which slot a wait is for is the program's business.
        self._waited_for = {(n.op.event.event.name, id(n.role)) for n in nodes if isinstance(n.op, t.WaitEvent)}
        self._triggered_by: dict[str, set[int]] = {}
        for n in nodes:
            if isinstance(n.op, t.TriggerEvent):
                self._triggered_by.setdefault(n.op.event.event.name, set()).add(id(n.role))
        found = [a for n in nodes for a in accesses.of(n)]
        self._proxies = any(a.proxy == "async" for a in found)
        # For each buffer: the threads whose arrivals let another role access it.
        self._releasing: dict[str, Bools] = {}
        for a in found:
            if a.release:
                mask = self._releasing.setdefault(a.resource, np.zeros(tree.threads, dtype=bool))
                mask |= ordering.arriving(a)
        # How many groups may stay open at each wait for futures, and the copies that some wait has met.
        self.waits: dict[int, int] = {}
        self.awaited: set[int] = set()
        # The accesses that a later access may conflict with, or that need a wait before the block ends.
        self._accessing: dict[str, list[Access]] = defaultdict(list)
        for a in found:
            self._accessing[a.resource].append(a)
        self._relevant = {
            x for x in found if x.agent in ("cp.async", "wgmma") or self._may_conflict_with_any(x, found)
        }
        # How many names an operation rotates.
        self._rotating = {n: len(names) for n in nodes if (names := rotated(n.op))}
        # Operations without accesses that order nothing.
        self._idle = {
            n
            for n in nodes
            if not (n.inner or isinstance(n.op, _ORDERING) or n in self._rotating or accesses.of(n))
        }
        self._left: State | None = None
        self._found = 0
        self._inside: dict[Node, tuple[Node, ...]] = {}
        self._walked: dict[tuple[tuple[Node, ...], tuple[Pending, ...]], tuple[State | None, Exits]] = {}
        self._states = StateInterner()
        # The pending accesses without a hazard, by the later access.
        self._safe: dict[Access, set[Pending]] = defaultdict(set)
        self._conflicts: dict[tuple[Key, Access], tuple[Bools, bool] | None] = {}
        self._kinds: dict[Node, tuple[bool, bytes]] = {}
        # Whether a barrier of that kind orders an access before all that may conflict with it.
        self._ordered: dict[tuple[tuple[bool, bytes], Access], bool] = {}
        self._held_back: dict[tuple[tuple[bool, bytes], tuple[bytes, int], tuple[bytes, int]], Bools] = {}

    def hazards(self) -> Iterator[Hazard]:
        """All hazards in program order; those of a loop's second iteration follow those of its first."""
        self._inside.clear()
        self._left = yield from self._body(self._tree.root, {}, [])

    def unfinished(self) -> list[Access]:
        """The accesses by cp.async and wgmma that may still be running when the block ends."""
        for _ in self.hazards():
            pass
        left = (self._left or {}).values()
        return [p.access for p in left if not p.done and p.access.agent in ("cp.async", "wgmma")]

    # ---- control -----------------------------------------------------------------------------------------

    def _body(self, body: Block, state: State | None, exits: Exits) -> Walking:
        """Walks ``body``; ``exits`` collects the states of early exits from the loop, or from its iteration.

        The tree is edited and walked again many times: the result of an operation without hazards for a state is
        cached until the operation is edited.
        """
        for node in body.nodes:
            if node in self._idle:
                continue
            if state is None:
                break
            key = self._operations(node), tuple(state.values())
            known = self._walked.get(key)
            if known is None:
                found, earlier = self._found, len(exits)
                state = yield from self._node(node, state, exits)
                if self._found == found:
                    self._walked[key] = state, exits[earlier:]
            else:
                state, left = known
                exits += left
        return state

    def _operations(self, node: Node) -> tuple[Node, ...]:
        """``node`` and all inside it that is not idle."""
        known = self._inside.get(node)
        if known is None:
            found = [node]
            for body in node.inner:
                for n in body.nodes:
                    if n not in self._idle:
                        found += self._operations(n) if n.inner else (n,)
            known = self._inside[node] = tuple(found)
        return known

    def _node(self, node: Node, state: State, exits: Exits) -> Walking:
        op = node.op
        behind: State | None
        if isinstance(op, (t.For, t.While)):
            return (yield from self._loop(node, state))
        accesses = self._accesses.of(node)
        for a in accesses:
            yield from self._hazards_of(a, state)
        if _stores_by_tma(node):
            state = self._states.after(node, state, lambda p: _one_newer(p, node))
        state = self._states.begin((a for a in accesses if a in self._relevant), state)
        if isinstance(op, (t.If, t.InThreads)):
            branches: list[State | None] = [] if len(node.inner) > 1 else [state]
            before = len(exits)
            for inner in node.inner:
                branches.append((yield from self._body(inner, state, exits)))
            behind = self._joined(branches)
            if behind is None or len(exits) == before or not self._tree.diverging(node):
                return behind
            jumped = (s for _, s in exits[before:])
            left = [self._states.after(node, s, lambda p: p.evolve(left=node)) for s in jumped]
            return self._states.join([behind, *left])
        if isinstance(op, (t.Break, t.Continue)):
            exits.append((type(op), state))
            return None
        if node in self._rotating:
            names = self._renamed(op)
            state = self._states.after(node, state, lambda p: p.rename(names))
        elif isinstance(op, t.WaitFuture):
            state = {key: self._wait(node, op, p) for key, p in state.items()}
        elif isinstance(op, (t.TriggerEvent, t.WaitEvent)):
            state = self._states.after(node, state, lambda p: self._event(node, op, p))
        elif isinstance(op, SYNCHRONISING):
            state = self._states.after(node, state, lambda p: synchronise(p, node))
            if isinstance(op, t.Barrier):
                state = self._kept(node, state)
        behind = state
        for inner in node.inner:
            behind = yield from self._body(inner, behind, exits)
        return behind

    def _joined(self, states: Sequence[State | None]) -> State | None:
        """The join of ``states`` of several paths."""
        reached = [s for s in states if s is not None]
        return self._states.join(reached) if reached else None

    def _kept(self, barrier: Node, state: State) -> State:
        """``state`` without the accesses that no later access can conflict with.

        Those are finished accesses to registers, and those that ``barrier`` orders before all that may meet them.
        What threads have accessed stays while no fence stands between that and the async proxy.  So does all where
        buffers share memory: roles that do are not ordered by barriers.
        """
        if self._aliases is not None:
            return state

        def stays(p: Pending) -> bool:
            if not p.done or p.access.private:
                return not p.done
            unfenced = self._proxies and p.access.proxy == "generic" and barrier not in p.fenced_barriers
            return unfenced or barrier not in p.barriers or not self._orders_all(barrier, p.access)

        return {key: p for key, p in state.items() if stays(p)}

    def _orders_all(self, barrier: Node, x: Access) -> bool:
        """Whether ``barrier`` orders ``x`` before each access that may conflict with it, in any iteration."""
        key = self._kind(barrier), x
        assert barrier.part is not None
        if key not in self._ordered and barrier.part.min() == barrier.part.max() >= 0:
            self._ordered[key] = True  # it joins all threads of the block
        if key not in self._ordered:
            every = frozenset(loop_name(n) for n in x.around if isinstance(n.op, (t.For, t.While)))
            others = (y for name in self._rotations.group(x.resource) for y in self._accessing[name])
            found = ((y, self._instances(x, y, every, frozenset())) for y in others if self._may_conflict(x, y))
            self._ordered[key] = not any(
                conflict is not None and self._unordered(conflict[0], frozenset((barrier,)), x, y).any()
                for y, conflict in found
            )
        return self._ordered[key]

    def _event(self, node: Node, op: t.TriggerEvent | t.WaitEvent, p: Pending) -> Pending:
        """A wait ends the loads by TMA that complete the event.

        The program's events order the accesses of different roles to one buffer.  So where a trigger lets another
        role write the buffer, a wait for an event that other roles trigger orders everything that follows it after
        that write, and so after the access.  Where the other role only reads, the same holds for later writes.
        """
        if isinstance(op, t.TriggerEvent):
            return self._signal(node, p)
        name, role = op.event.event.name, id(node.role)
        if p.access.event == name:
            p = p if p.done else p.end(node)
            return p if node in p.barriers else p.evolve(barriers=p.barriers | {node})
        if role in self._triggered_by.get(name, {role}):
            return p
        if p.signalled_writers:
            fenced = p.fenced_barriers | {node} if p.fenced else p.fenced_barriers
            return p.evolve(barriers=p.barriers | {node}, fenced_barriers=fenced)
        return p.evolve(acknowledgements=p.acknowledgements | {node}) if p.signalled_readers else p

    def _signal(self, node: Node, p: Pending) -> Pending:
        if not p.done or not p.reaches(node.parent):
            return p
        releases = [a for a in self._accesses.of(node) if a.release and a.resource == p.resource]
        writers, readers = any(a.write for a in releases), bool(releases) and p.access.write
        if writers <= p.signalled_writers and readers <= p.signalled_readers:
            return p
        return p.evolve(
            signalled_writers=writers or p.signalled_writers, signalled_readers=readers or p.signalled_readers
        )

    def _renamed(self, op: t.Op) -> dict[str | None, str]:
        """The second name's buffer and handle become the first's, .., the first's the last's."""
        names: dict[str | None, str] = {}
        for old in (self._rotations.buffers(op), rotated(op)):
            names |= dict(zip(old, (old[-1], *old[:-1]), strict=True))
        return names

    def _wait(self, node: Node, op: t.WaitFuture, p: Pending) -> Pending:
        if p.future not in op.futures or p.done:
            return p
        self.waits[id(node)] = min(p.newer, self.waits.get(id(node), p.newer))
        self.awaited.add(id(p.access))
        return p.end(node)

    def _loop(self, node: Node, state: State) -> Walking:
        name = loop_name(node)
        # Walk until every rotating name has denoted every buffer.
        rotating = max([1, *(n for x, n in self._rotating.items() if x in self._inside[node])]) - 1
        # An access of an earlier run of this loop had another index: the loop carries it as well.
        pending: State | None = self._states.after(node, state, lambda p: _carried(p, name, node))
        # The states where the loop is left at its condition or by `break`, and after each walk.
        left: list[State | None] = []
        ends: list[State | None] = []
        for _ in range(2 + rotating):
            if pending is None:
                break
            pending = yield from self._head(node, pending)
            if isinstance(node.op, t.While):
                left.append(pending)
            jumps: Exits = []
            end = yield from self._body(node.inner[0], pending, jumps)
            left += [s for kind, s in jumps if kind is t.Break]
            pending = self._joined([end, *(s for kind, s in jumps if kind is t.Continue)])
            ends.append(pending)
            if pending is not None:
                pending = self._states.after(node, pending, lambda p: _carried(p, name, node))
        if isinstance(node.op, t.While):
            # It ends at its condition, which is evaluated once more than its body.
            last = None if pending is None else (yield from self._head(node, pending))
            return self._joined([last, *left])
        count = trip_count(node.op) if isinstance(node.op, t.For) else None
        out = ends[-1:] if count is not None and count >= len(ends) else ends
        entered = count or self._is_entered(node.op)
        return self._joined([*out, *left, *([] if entered else [skipping(node, state)])])

    def _is_entered(self, loop: t.Op) -> bool:
        known = self._known_sizes
        return isinstance(loop, t.For) and known is not None and enters(loop.index, loop.start, loop.stop, known)

    def _head(self, node: Node, state: State) -> Generator[Hazard, None, State]:
        """The accesses of a loop's condition or bounds."""
        for a in self._accesses.of(node):
            yield from self._hazards_of(a, state)
            state = self._states.begin((a,) if a in self._relevant else (), state)
        return state

    # ---- conflicts ---------------------------------------------------------------------------------------

    def _hazards_of(self, later: Access, state: State) -> Iterator[Hazard]:
        safe = self._safe[later]
        resources = self._conflicting_resources(later.resource)
        for pending in [p for p in state.values() if p.resource in resources and p not in safe]:
            hazard = self._conflict(pending, later)
            if hazard is None:
                safe.add(pending)
            else:
                self._found += 1
                yield hazard

    def _conflict(self, pending: Pending, later: Access) -> Hazard | None:
        key = pending.key, later
        if key not in self._conflicts:
            self._conflicts[key] = self._conflicting_instances(pending, later)
        conflict = self._conflicts[key]
        if conflict is None:
            return None
        pairs, fence = conflict
        x, y, wait = pending.access, later, not pending.done
        if ordering.in_different_roles(x, y):
            return Hazard(pending, y, pairs, wait, False)
        awaited = (x.event, id(y.role)) in self._waited_for
        if wait and self._aliases is None and awaited and not _same_slot(pending, y):
            return None
        behind = pending.fenced_barriers if fence else pending.barriers
        if y.write and not y.release and not fence:
            behind = behind | pending.acknowledgements
        if y.release == "warp":
            # A warp acknowledgements for itself: its lanes have to be together, and have passed their data on.
            apart = pairs & ~ordering.shares(x, y)
            pairs = self._unordered(apart, behind, x, y) if behind else pairs
        else:
            pairs = self._unordered(pairs, behind, x, y)
        if pending.left is not None:
            units = self._tree.units(pending.left)
            pairs = pairs & (units[x.start][:, None] != units[y.start][None, :])
        if not pairs.any() and (not wait or pending.left is not None):
            return None
        return Hazard(pending, y, pairs, wait, fence and not pending.fenced, fence)

    def _conflicting_instances(self, pending: Pending, later: Access) -> tuple[Bools, bool] | None:
        """The instances that need a barrier between them, and whether they need a fence; None where the two do
        not meet, whatever happens in between."""
        x, y = pending.access, later
        if (x.node is y.node and not pending.carried) or not self._may_conflict(x, y):
            return None
        if x.same_visit(y, pending.carried):
            return None
        if pending.carried and ordering.are_stores_by_tma(x, y):
            return None  # the tiles of different iterations are the program's business
        if self._of_another_block(pending):
            return None
        return self._instances(x, y, pending.carried, advanced_loops(x, y, pending.carried))

    def _instances(
        self, x: Access, y: Access, carried: frozenset[str], advanced: frozenset[str]
    ) -> tuple[Bools, bool] | None:
        """`_conflicting_instances`: indices in ``carried`` may have changed, those in ``advanced`` have."""
        if self._aliases is not None:
            pairs = np.ones((len(x.start), len(y.start)), dtype=bool)
        else:
            if x.disjoint(y):
                return None
            pairs = self._accesses.overlap(x, y, carried, advanced)
            if not pairs.any():
                return None
        # Also where a copy by TMA overwrites data that threads have read: only the barrier orders them.
        fence = x.proxy == "generic" and y.proxy == "async" and not x.private
        if ordering.in_different_roles(x, y):
            return pairs, False
        mapped = not fence and self._aliases is None and self._accesses.same_mapping(x, y, carried)
        if x.private or mapped:
            return np.zeros_like(pairs), fence
        if y.release == "warp" or (y.release == "each" and not fence):
            # Threads that arrive nowhere themselves have to be done before those that arrive do.
            others = pairs & ~self._all_threads_arrive(x, y)[:, None]
            if y.release == "each" or (x.agent == "wgmma" and not fence):
                return others, fence
            return others | (pairs & ordering.shares(x, y)), fence
        if y.release == "elected":
            pairs = pairs & ~ordering.arrives_itself(x, y)
        if x.threads == y.threads == 1 and not fence:
            pairs = pairs & (x.start[:, None] != y.start[None, :])
        if x.threads == 32 and not x.write and ordering.by_ldmatrix(x.node) and y.release != "elected":
            # ldmatrix is `.sync`: after it, a thread is ordered after the reads of its whole warp.  One that
            # arrives for the warp has to know that the others are past it.
            pairs = pairs & ~(ordering.within(y, x) & (y.threads <= 32))
        return pairs, fence

    def _of_another_block(self, pending: Pending) -> bool:
        """Whether it is an access to global memory by an iteration that was a block of its own in the program."""
        view = pending.access.view
        return view is not None and view.base.space is Space.GLOBAL and not self._grid.isdisjoint(pending.carried)

    def _all_threads_arrive(self, x: Access, release: Access) -> Bools:
        """Of each instance of ``x``: whether all its threads arrive somewhere to release the buffer."""
        mask = self._releasing[release.resource]
        return np.array([bool(mask[s : s + x.threads].all()) for s in x.start.tolist()])

    def _may_conflict_with_any(self, x: Access, found: list[Access]) -> bool:
        names = frozenset[str]().union(*map(self._conflicting_resources, self._rotations.group(x.resource)))
        return any(y.resource in names and self._may_conflict(x, y) for y in found)

    def _conflicting_resources(self, resource: str) -> frozenset[str]:
        """The threads whose accesses may conflict with those of ``resource``."""
        if self._aliases is None:
            return frozenset((resource,))
        return frozenset().union(*(a - {resource} for a in self._aliases if resource in a))

    def _may_conflict(self, x: Access, y: Access) -> bool:
        """Whether ``y`` may come too early after ``x``, if they are accesses to one place."""
        if not (x.write or y.write) or (x.atomic and y.atomic) or x.release:
            return False
        if ordering.in_different_roles(x, y):
            # Only the program's events order roles, and events do not cover buffers that share memory.
            return self._aliases is not None
        if x.private and (x.agent == "thread" or x.agent == y.agent == "wgmma"):
            return False
        if x.agent == y.agent == "tma" and not self._interchangeable(x, y):
            # Two buffers at one address: an event of one does not order the copy into the other.
            return True
        return not ordering.ordered_by_events(x, y)

    def _interchangeable(self, x: Access, y: Access) -> bool:
        """Whether they are accesses to one buffer, or to two whose names rotate."""
        return y.resource in self._rotations.group(x.resource)

    def _unordered(self, pairs: Bools, barriers: frozenset[Node], x: Access, y: Access) -> Bools:
        """The ``pairs`` that none of ``barriers`` orders; barriers that join the same threads are tested once."""
        seen = set()
        for barrier in barriers:
            kind = self._kind(barrier)
            if kind not in seen:
                seen.add(kind)
                key = kind, x.executors, y.executors
                if key not in self._held_back:
                    self._held_back[key] = ~ordering.ordered_by(barrier, x, y)
                pairs = pairs & self._held_back[key]
        return pairs

    def _kind(self, barrier: Node) -> tuple[bool, bytes]:
        if barrier not in self._kinds:
            threads = barrier.parent.mask if barrier.part is None else barrier.part
            self._kinds[barrier] = barrier.part is None, threads.tobytes()
        return self._kinds[barrier]


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


def _carried(p: Pending, name: str, loop: Node) -> Pending:
    return p.carry(name) if name not in p.carried and loop in p.access.around else p


def _one_newer(p: Pending, store: Node) -> Pending:
    """After another store by TMA."""
    return p.evolve(newer=p.newer + 1) if p.access.agent == "bulk" and p.reaches(store.parent) else p


def _stores_by_tma(node: Node) -> bool:
    op = node.op
    return (
        isinstance(op, t.Copy)
        and op.plan is not None
        and op.plan.engine == "tma"
        and op.dst.base.space is Space.GLOBAL
    )
