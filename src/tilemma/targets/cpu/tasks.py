"""Scheduling: instances of scopes as coroutines, asynchronous copies, events.

A coroutine yields a `Wait`.  The scheduler resumes the coroutines that can proceed.  If none can, it completes one
of the rendezvous or one of the copies in flight, in an order that a seed decides.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tilemma.errors import Note, Span, TilemmaError
from tilemma.ir.tile import Parallel
from tilemma.ir.tiles import written
from tilemma.records import record
from tilemma.targets.cpu.faults import Deadlock, EventOverrun, EventTwice, UnwaitedCopy, within
from tilemma.targets.cpu.registers import Threads
from tilemma.targets.cpu.storage import Storage

Coroutine = Generator["Wait", None, Any]


class Wait:
    """The condition that a coroutine waits for; ``since``: the number of event steps that preceded it
    (`Block.clocks`)."""

    span: Span | None = None
    since = 0

    def ready(self) -> bool:
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """A description of the waiting instance, for errors."""
        return {}


@record(slots=False, eq=False)
class Siblings:
    """The instances of one `Parallel` that run at the same time."""

    op: Parallel


class Rendezvous(Wait):
    """All siblings in the same role reach a rendezvous (or end); ``round`` is then the same object for all.

    ``reach``: whose siblings, where it is not the waiter's own: with each all that it has started.
    """

    def __init__(self, reach: Siblings | None = None) -> None:
        self.reach = reach
        self.round: object = None

    def ready(self) -> bool:
        return self.round is not None

    def describe(self) -> str:
        return "a barrier"


class Join(Wait):
    """The instances started here have all ended."""

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks

    def ready(self) -> bool:
        return all(t.done for t in self.tasks)

    def describe(self) -> str:
        return "its inner instances"


class ClusterBarrier(Wait):
    """All threads of the cluster's blocks are at the barrier."""

    passed = False

    def ready(self) -> bool:
        return self.passed

    def describe(self) -> str:
        return "the other blocks of its cluster"


class Generation(Wait):
    """Generation ``number`` of one slot of an event has completed."""

    def __init__(self, ring: Ring, slot: int, number: int) -> None:
        self.ring, self.slot, self.number = ring, slot, number

    def ready(self) -> bool:
        return self.ring.done[self.slot] > self.number

    @property
    def place(self) -> str:
        return self.ring.place(self.slot)

    def describe(self) -> str:
        r, s = self.ring, self.slot
        late = f", {r.landing[s]} copies under way" if r.landing[s] else ""
        return f"generation {self.number} of {self.place} ({r.arrived[s]} of {r.expected} triggers{late})"

    def facts(self) -> dict[str, Any]:
        arrived = self.ring.arrived[self.slot]
        return {"event": self.ring.name, "place": self.place, "generation": self.number, "arrived": arrived}


@record
class Arrival:
    """The arrivals of a trigger: its role, the threads of the role, or all threads of a credit."""

    role: frozenset[int] | None
    threads: int
    credit: bool


class Ring:
    """The run-time state of an event: for each slot the completed generations, and the progress of the current
    one.

    Triggers count threads, as barriers do.  ``expected`` 0: no trigger in the program, the copies bound to
    the event complete its generations, ``copies`` of them each.
    """

    def __init__(self, name: str, slots: int, expected: int, copies: int, ready: bool) -> None:
        n = max(1, slots)
        self.name, self.subscripted, self.slots = name, slots > 0, n
        self.by_copies = expected == 0
        self.expected = copies if self.by_copies else expected
        self.done = [int(ready)] * n
        self.arrived: list[int | Fraction] = [0] * n
        self.landing = [0] * n
        self.clocks = [0] * n  # of the last triggering instance (`Block.clocks`)
        self.seen: dict[tuple[Threads, int], int] = {}
        # The triggers by identity, and for each slot how many threads of each role have arrived.
        self.sites: dict[int, Arrival] = {}
        self.by_role: list[dict[frozenset[int] | None, int]] = [{} for _ in range(n)]

    def check_slot(self, slot: int) -> int:
        return within(self.name, slot, self.slots)

    def trigger(self, slot: int, threads: int, arrival: Arrival | None = None) -> None:
        """``threads`` arrive; a credit's arrive with the part of a whole generation that is theirs."""
        if arrival is not None and arrival.credit:
            self.arrived[slot] += Fraction(self.expected * threads, arrival.threads)
        else:
            self.arrived[slot] += threads
        if arrival is not None and arrival.role is not None:
            came = self.by_role[slot]
            came[arrival.role] = came.get(arrival.role, 0) + threads
            if came[arrival.role] > arrival.threads:
                raise EventTwice(event=self.place(slot))
        if self.arrived[slot] > self.expected:
            raise EventTwice(event=self.place(slot))
        self._advance(slot)

    def place(self, slot: int) -> str:
        return f"{self.name}[{slot}]" if self.subscripted else self.name

    def bind(self, slot: int) -> None:
        self.landing[slot] += 1

    def completed(self, slot: int) -> None:
        self.landing[slot] -= 1
        if self.by_copies:
            self.arrived[slot] += 1
        self._advance(slot)

    def _advance(self, slot: int) -> None:
        if self.arrived[slot] == self.expected and not self.landing[slot]:
            self.done[slot] += 1
            self.arrived[slot] = 0
            self.by_role[slot].clear()

    def wait(self, threads: Threads, slot: int, number: int | None) -> Generation:
        """The wait of ``threads`` for their next generation of ``slot``, or for generation ``number``."""
        if number is None:
            number = self.seen.get((threads, slot), 0)
        self.seen[threads, slot] = number + 1
        if self.done[slot] > number + 1:
            raise EventOverrun(event=self.name, done=self.done[slot] - 1, seen=number)
        return Generation(self, slot, number)

    def check_left(self, span: Span | None) -> None:
        """At the end no slot may be more than one generation ahead of the instance that has waited for it most."""
        for slot, done in enumerate(self.done):
            seen = max((n for (_, s), n in self.seen.items() if s == slot), default=done)
            if done > seen + 1:
                raise EventOverrun(span, event=self.name, done=done - 1, seen=seen)


# More groups than any wait leaves open.
MAX_PENDING = 64


@dataclass(eq=False)
class Transfer:
    """An asynchronous copy in flight; ``complete`` writes its data.  ``bulk``: a store by the copy engine, which
    bulk waits count.  ``others`` issue the same copy (equal ``what``): it runs once for all of them.
    ``joint``: the copies of other lanes, for which a wait for this one waits too.  ``shares``: the groups of those
    parts of its threads that have closed one by themselves, ``awaited``: the parts whose groups are complete."""

    name: str
    owner: Threads
    effect: Callable[[], None]
    needs_wait: bool
    span: Span | None = None
    bulk: bool = False
    completed: bool = False
    waited: bool = False
    group: int | None = None
    then: list[Callable[[], None]] = field(default_factory=list)
    what: object = None
    others: list[Threads] = field(default_factory=list)
    joint: list[Transfer] = field(default_factory=list)
    shares: dict[Threads, int] = field(default_factory=dict)
    awaited: set[Threads] = field(default_factory=set)

    def complete(self) -> None:
        if not self.completed:
            self.completed = True
            self.effect()
            for f in self.then:
                f()

    def bind(self, ring: Ring, slot: int) -> None:
        """Its bytes count on ``slot`` of ``ring``."""
        for x in (self, *self.joint):
            x.waited = True
            if not x.completed:
                ring.bind(slot)
                x.then.append(lambda: ring.completed(slot))


def _within(threads: Threads, others: Threads) -> bool:
    (first, count), (start, total) = threads, others
    return start <= first and first + count <= start + total


class Block:
    """One CTA: its shared memory, the copies in flight, and the coroutines that execute it.  ``launched``: its
    threads."""

    def __init__(self, pool: dict[str, Storage], seed: int, launched: int = 32) -> None:
        self.pool, self.launched = pool, launched
        self.fresh: set[str] = set()
        self.transfers: list[Transfer] = []
        self.rings: list[tuple[Ring, Span | None]] = []
        # For each owner the numbers of the newest groups it closed, counted over the block.
        self.groups: dict[Threads, deque[int]] = {}
        self.closed = 0
        self.stores: list[Transfer] = []
        # The rendezvous after which siblings issue a copy together, and the copies that followed the newest one.
        self.round: object = None
        self.issued: tuple[object, list[Transfer]] = (None, [])
        self.seed = seed
        self.random = random.Random(seed)
        self.tasks: list[Task] = []
        self.threads = 32
        # For each instance the length of the chain of triggers and waits that led to its position: in a deadlock,
        # the instance with the shortest chain is not blocked by another one.
        self.clocks: dict[Threads, int] = {}

    def triggers(self, threads: Threads, ring: Ring, slot: int) -> None:
        """Order the progress of ``threads`` before later waits for ``slot``."""
        now = self.clocks[threads] = self.clocks.get(threads, 0) + 1
        ring.clocks[slot] = max(ring.clocks[slot], now)

    def waited(self, threads: Threads, ring: Ring, slot: int) -> None:
        self.clocks[threads] = max(self.clocks.get(threads, 0), ring.clocks[slot]) + 1

    def launch(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)
        if self.round is not None:
            if self.issued[0] is not self.round:
                self.issued = (self.round, [])
            self.issued[1].append(transfer)
        if transfer.bulk:
            self.stores.append(transfer)

    def joined(self, what: object, threads: Threads) -> Transfer | None:
        """The copy of ``what`` that another instance has in flight, or has issued after the same rendezvous, which
        ``threads`` join; None without one."""
        together = self.issued[1] if self.round is not None and self.issued[0] is self.round else []
        for transfer in (*together, *self.transfers):
            if (
                transfer.what == what
                and (not transfer.completed or any(transfer is x for x in together))
                and threads not in (transfer.owner, *transfer.others)
            ):
                transfer.others.append(threads)
                return transfer
        return None

    def commit(self, owner: Threads) -> None:
        """Close a group of copies of ``owner``, and of its share in those of more threads."""
        for transfer in self.transfers:
            if transfer.owner == owner and transfer.group is None:
                transfer.group = self.closed
            elif transfer.group is None and _within(owner, transfer.owner):
                transfer.shares.setdefault(owner, self.closed)
        self.groups.setdefault(owner, deque(maxlen=MAX_PENDING)).append(self.closed)
        self.closed += 1

    def wait_groups(self, threads: Threads, pending: int) -> None:
        """All but the newest ``pending`` groups that ``threads`` have closed, alone or among others, complete."""
        mine = {o for o in self.groups if _within(threads, o)}
        newest = sorted(n for o in mine for n in self.groups[o])[-pending:] if pending else []
        for transfer in self.transfers:
            if transfer.owner in mine and transfer.group is not None:
                done = transfer.group not in newest
            else:
                shares = transfer.shares
                transfer.awaited |= {o for o in mine if o in shares and shares[o] not in newest}
                done = sum(n for _, n in transfer.awaited) >= min(transfer.owner[1], self.launched)
            if done:
                transfer.waited = True
                transfer.complete()
        self.transfers = [x for x in self.transfers if not x.completed]

    def wait(self, transfer: Transfer) -> None:
        for x in (transfer, *transfer.joint):
            x.waited = True
            x.complete()
        self.transfers = [x for x in self.transfers if not x.completed]

    def wait_stores(self, threads: Threads, pending: int) -> None:
        """All but the newest ``pending`` stores by the copy engine that ``threads`` have started complete."""
        first, count = threads
        mine = [x for x in self.stores if x.owner[0] < first + count and first < x.owner[0] + x.owner[1]]
        for transfer in mine[: len(mine) - pending]:
            self.wait(transfer)
            self.stores.remove(transfer)

    def complete_one(self) -> bool:
        """Complete one of the copies in flight; False when there is none."""
        waiting = [x for x in self.transfers if not x.completed]
        if not waiting:
            return False
        transfer = self.random.choice(waiting)
        transfer.complete()
        self.transfers = [x for x in self.transfers if not x.completed or (x.needs_wait and not x.waited)]
        return True

    def finish(self) -> None:
        """End the block: complete transfers in flight, refuse copies that were not waited for, and superfluous
        triggers."""
        for transfer in self.transfers:
            transfer.complete()
            if transfer.needs_wait and not transfer.waited:
                raise UnwaitedCopy(transfer.span, future=written(transfer.name))
        self.transfers.clear()
        for ring, span in self.rings:
            ring.check_left(span)


class Instance:
    """One instance of a scope: the threads that execute a statement together.

    ``siblings`` is the same object for all instances of one `Parallel` that run at the same time (None when
    there is one only); ``role`` the `InThreads` it is inside of; ``lanes`` how many lanes execute as one
    (0: it is no `: thread` level), ``broken`` those that have left the innermost loop, ``extents`` those of the
    tile whose elements are the lanes of an `apply`.
    """

    __slots__ = ("block", "broken", "extents", "indices", "lanes", "outer", "role", "siblings", "threads")

    def __init__(
        self,
        block: Block,
        threads: Threads,
        outer: Instance | None = None,
        indices: tuple[tuple[str, int], ...] = (),
        siblings: Siblings | None = None,
    ) -> None:
        self.block, self.threads, self.outer, self.indices, self.siblings = (
            block,
            threads,
            outer,
            indices,
            siblings,
        )
        self.lanes = 0
        self.extents: tuple[int, ...] = ()
        self.role: list[int] = []
        self.broken: Any = None

    def siblings_at(self, levels: tuple[Parallel, ...]) -> Siblings | None:
        """The outermost siblings among ``levels`` that this instance belongs to; None without any."""
        found, instance = None, self
        while True:
            if instance.siblings is not None and any(instance.siblings.op is p for p in levels):
                found = instance.siblings
            if instance.outer is None:
                return found
            instance = instance.outer

    def among(self, siblings: Siblings) -> Instance | None:
        """This instance or that around it which is one of ``siblings``."""
        instance: Instance | None = self
        while instance is not None and instance.siblings is not siblings:
            instance = instance.outer
        return instance

    @property
    def name(self) -> str:
        """``block_m=0, p=1``."""
        own = [f"{n}={i}" for n, i in self.indices]
        around = [self.outer.name] if self.outer is not None and self.outer.name else []
        return ", ".join(around + own)


class Task:
    """A coroutine and the condition that it waits for."""

    def __init__(self, instance: Instance, run: Coroutine) -> None:
        self.instance, self.run = instance, run
        self.waiting: Wait | None = None
        self.done = False

    def ready(self) -> bool:
        return self.waiting is None or self.waiting.ready()

    def step(self) -> None:
        try:
            self.waiting = next(self.run)
        except StopIteration:
            self.done = True


def run_cluster(roots: list[Task]) -> None:
    """Run blocks, and the coroutines that they start (`Block.tasks`), to the end: each in turn, up to the next
    barrier of their cluster."""
    for root in roots:
        root.instance.block.tasks.append(root)
    while waiting := [root for root in roots if not _advance(root)]:
        if len(waiting) < len(roots):
            raise _deadlock(waiting[0].instance.block)
        for root in waiting:
            for task in root.instance.block.tasks:
                if isinstance(task.waiting, ClusterBarrier):
                    task.waiting.passed = True


def _advance(root: Task) -> bool:
    """Whether ``root`` has run to its end; False where all of the block is at a barrier of the cluster."""
    block = root.instance.block
    while not root.done:
        progress = False
        for task in list(block.tasks):
            if not task.done and task.ready():
                task.step()
                progress = True
        block.tasks = [t for t in block.tasks if not t.done]
        if progress:
            continue
        if all(isinstance(task.waiting, (Join, ClusterBarrier)) for task in block.tasks):
            return False
        if not _release(block) and not block.complete_one():
            raise _deadlock(block)
    return True


def _release(block: Block) -> bool:
    """Resume the siblings that have all reached a rendezvous; False when there are none.

    Those in front of a rendezvous wait for the others that are still in the part before it
    (`_precedes_rendezvous`).
    """
    # An instance that waits for instances that it has started is at their position.
    tasks = [t for t in block.tasks if not isinstance(t.waiting, Join)]
    reaches = {id(r): r for t in tasks if (r := _reach(t)) is not None}
    groups: dict[tuple[int, tuple[int, ...]], list[Task]] = {}
    for key, reach in reaches.items():
        for task in tasks:
            if (member := task.instance.among(reach)) is not None:
                groups.setdefault((key, tuple(member.role)), []).append(task)
    complete = [
        g
        for key, g in groups.items()
        if all(_reach(t) is reaches[key[0]] for t in g) and not any(_precedes_rendezvous(key, k) for k in groups)
    ]
    if not complete:
        return False
    round = object()
    for task in block.random.choice(complete):
        assert isinstance(task.waiting, Rendezvous)
        task.waiting.round = round
    return True


def _reach(task: Task) -> Siblings | None:
    """The rendezvous that ``task`` waits for."""
    return (task.waiting.reach or task.instance.siblings) if isinstance(task.waiting, Rendezvous) else None


def _precedes_rendezvous(waiting: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]) -> bool:
    """Whether ``other`` is inside an `inthreads` (a negative number) after which all of ``waiting``
    synchronise."""
    role, inside = waiting[1], other[1]
    deeper = waiting[0] == other[0] and len(inside) > len(role) and inside[: len(role)] == role
    return deeper and inside[len(role)] < 0


def _deadlock(block: Block) -> TilemmaError:
    stuck = [t for t in block.tasks if t.waiting is not None and not isinstance(t.waiting, Join)]
    named = sorted(((t.waiting, t.instance.name) for t in stuck if t.waiting), key=lambda w: w[0].since)
    waiting = "; ".join(f"{name} waits for {wait.describe()}" for wait, name in named)
    first = next((w for w, _ in named if w.span), None)
    notes = [Note(f"{n} waits here", w.span) for w, n in named if w.span and first and w.span != first.span]
    facts = first.facts() if first else {}
    return Deadlock(first.span if first else None, waiting=waiting or "no instance is left", notes=notes, **facts)
