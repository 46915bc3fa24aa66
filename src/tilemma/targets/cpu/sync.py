"""Events, futures and barriers in the reference executor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from tilemma.ir import tile as t
from tilemma.ir import walk
from tilemma.ir.expr import Binary, Cast, Const, Dim, Expr, Index, Scalar, Select, Unary
from tilemma.ir.expr import walk as walk_expr
from tilemma.ir.generations import Disagreement, TriggerSite, arrivals, credits, slots_of
from tilemma.ir.types import BLOCK, EventRef, Level
from tilemma.records import record
from tilemma.targets.cpu.control import inferred_level
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Evaluate, Frame
from tilemma.targets.cpu.faults import EventCount, NotInReference
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.tasks import (
    Arrival,
    Block,
    ClusterBarrier,
    Coroutine,
    Instance,
    Rendezvous,
    Ring,
    Transfer,
)

Path = tuple["t.Op | Otherwise", ...]
Located = Callable[[Frame], tuple[Ring, int, int | None]]


def event_place(c: Compiler, ref: EventRef) -> Located:
    """Ring, slot, and generation where the program names one (``e.at(order)``)."""
    at = c.slot("event", ref.event.name)
    if ref.order is not None:
        order = c.value(ref.order)

        def by_order(f: Frame) -> tuple[Ring, int, int | None]:
            ring: Ring = f[at]
            number: int = order(f)
            return ring, number % ring.slots, number // ring.slots

        return by_order
    slot: Evaluate = (lambda f: 0) if ref.slot is None else c.value(ref.slot)

    def by_slot(f: Frame) -> tuple[Ring, int, int | None]:
        ring: Ring = f[at]
        return ring, ring.check_slot(slot(f)), None

    return by_slot


# ---- how many triggers make a generation ------------------------------------------------------------------


def sites(body: t.Body, path: Path = ()) -> Iterator[tuple[Path, t.Op]]:
    """Every operation with the control operations around it."""
    for op in body:
        yield path, op
        for name, inner in walk.bodies(op):
            mark = Otherwise(op) if name == "otherwise" and isinstance(op, t.If) else op
            yield from sites(inner, (*path, mark))


@record(slots=False)
class Otherwise:
    """The path element of the second branch of an `If`."""

    branch: t.If


@record(slots=False)
class Admitted:
    """The instances of the innermost level that reach a statement: the first thread of each, and their number."""

    first: list[int]
    each: int

    @property
    def threads(self) -> int:
        return len(self.first) * self.each


def admitted(c: Compiler, path: Path) -> Callable[[Frame], Admitted]:
    """The instances that the levels and predicates of ``path`` admit, from the event's scope on.

    Predicates that depend on more than indices of levels, dimensions and arguments are taken to hold.  What
    does not depend on the lane is done by a group together.
    """
    groups: list[t.Parallel] = []
    threads: list[t.Parallel] = []
    for p in path:
        if isinstance(p, t.Parallel):
            (threads if _level(p).kind == "thread" else groups).append(p)
    predicates = [(x, holds) for x, holds in _predicates(path) if _pure(x)]
    names = {i.name for p in (*groups, *threads) for i in p.indices}
    predicates = [(x, holds) for x, holds in predicates if _indices(x) <= names]
    by_lane = any(_indices(x) & {i.name for p in threads for i in p.indices} for x, _ in predicates)
    tests = [(c.value(x), holds) for x, holds in predicates]
    looped = (*groups, *(threads if by_lane else ()))
    extents = [(c.slot("scalar", i.name), c.value(i.extent)) for p in looped for i in p.indices]
    sizes = [(len(p.indices), _level(p).threads if _level(p).depth > 1 else 0) for p in looped]
    lanes = [c.value(i.extent) for p in threads for i in p.indices]
    wide = _level(groups[-1]).threads if groups and _level(groups[-1]).depth > 1 else 0

    def reached(f: Frame) -> Admitted:
        g = f.copy()
        found: list[int] = []
        counts = [max(0, e(f)) for _, e in extents]
        for combination in itertools.product(*(range(n) for n in counts)):
            for (slot, _), value in zip(extents, combination, strict=True):
                g[slot] = value
            if all(bool(test(g)) == holds for test, holds in tests):
                found.append(_first_thread(combination, counts, sizes))
        if by_lane:
            return Admitted(found, 1)
        block: Block = f[INSTANCE].block
        return Admitted(found, math.prod(e(f) for e in lanes) if threads else wide or block.threads)

    return reached


def _level(p: t.Parallel) -> Level:
    return inferred_level(p, Scope(BLOCK))


def _first_thread(combination: tuple[int, ...], counts: list[int], sizes: list[tuple[int, int]]) -> int:
    """The first thread of the instance with these indices; ``sizes``: indices and threads of each level."""
    at, first = 0, 0
    for indices, threads in sizes:
        number = 0
        for value, n in zip(combination[at : at + indices], counts[at : at + indices], strict=True):
            number = number * n + value
        first += number * threads
        at += indices
    return first


def _predicates(path: Path) -> Iterator[tuple[Expr, bool]]:
    """The conditions of a path, and whether they hold on it."""
    for p in path:
        if isinstance(p, (t.If, t.InThreads)):
            yield p.cond, True
        elif isinstance(p, Otherwise):
            yield p.branch.cond, False


def _indices(e: Expr) -> set[str]:
    return {x.name for x in walk_expr(e) if isinstance(x, Index)}


def _pure(e: Expr) -> bool:
    return all(isinstance(x, (Binary, Unary, Select, Cast, Const, Index, Dim, Scalar)) for x in walk_expr(e))


def _role_path(path: Path) -> Path | None:
    """The path as far as the innermost role's body; None outside every role."""
    inside = [n for n, p in enumerate(path) if isinstance(p, t.InThreads) and p.asynchronous]
    return path[: inside[-1] + 1] if inside else None


@record(slots=False)
class TriggerPlace:
    """A trigger of the program: the threads that reach it, and its role."""

    op: t.TriggerEvent
    reached: Callable[[Frame], Admitted]
    role: Callable[[Frame], Admitted] | None

    def site(self, f: Frame) -> TriggerSite:
        role = None if self.role is None else self.role(f)
        players = None if role is None else frozenset(role.first)
        return TriggerSite(players, slots_of(self.op.event), self.reached(f).threads)


def declare_event(c: Compiler, op: t.DeclareEvent, scope: Scope) -> Step:
    event = op.event
    slot = c.slot("event", event.name)
    places: list[TriggerPlace] = []
    copies: list[Callable[[Frame], Admitted]] = []
    for path, x in sites(_scope_of(c.kernel.body, op)):
        if isinstance(x, t.TriggerEvent) and x.event.event.name == event.name:
            role = _role_path(path)
            places.append(TriggerPlace(x, admitted(c, path), None if role is None else admitted(c, role)))
        elif isinstance(x, t.Copy) and x.event is not None and x.event.event.name == event.name:
            copies.append(admitted(c, path))

    def run(f: Frame) -> None:
        found = [p.site(f) for p in places]
        if event.threads is None:
            try:
                counted = arrivals(found)
            except Disagreement as e:
                counts = " and ".join(map(str, sorted((e.here, e.there))))
                raise EventCount(op.span, event=event.name, counts=counts) from None
        # Triggers with an empty role complete nothing: copies alone complete generations if the program has no
        # trigger.
        expected = event.threads or counted or 1
        bound = sum(len(n(f).first) for n in copies)
        ring = Ring(event.name, event.slots, expected if places else 0, bound, event.ready)
        if event.threads is None:
            for place, site, credit in zip(places, found, credits(found), strict=True):
                ring.sites[id(place.op)] = Arrival(site.role, site.arrivals, credit)
        f[slot] = ring
        f[INSTANCE].block.rings.append((ring, op.span))

    return Step(run)


def _scope_of(body: t.Body, op: t.Op) -> t.Body:
    """The body that holds ``op`` directly."""
    if any(x is op for x in body):
        return body
    for x in body:
        for _, inner in walk.bodies(x):
            found = _scope_of(inner, op)
            if found:
                return found
    return ()


# ---- statements --------------------------------------------------------------------------------------------


def wait_event(c: Compiler, op: t.WaitEvent, scope: Scope) -> Step:
    place = event_place(c, op.event)

    def coroutine(f: Frame) -> Coroutine:
        instance: Instance = f[INSTANCE]
        ring, slot, number = place(f)
        wait = ring.wait(instance.threads, slot, number)
        if not wait.ready():
            wait.span, wait.since = op.span, instance.block.clocks.get(instance.threads, 0)
            yield wait
        instance.block.waited(instance.threads, ring, slot)

    return Step(coroutine, True)


def trigger_event(c: Compiler, op: t.TriggerEvent, scope: Scope) -> Step:
    # The blocks of a cluster do the same with copies of their own of what a multicast shares: each is its own
    # event's only trigger here.
    place = event_place(c, op.event)
    after = [c.slot("future", n) for n in op.after]

    def run(f: Frame) -> None:
        instance: Instance = f[INSTANCE]
        ring, slot, _ = place(f)
        for future in after:
            transfer: Transfer | None = f[future]
            if transfer is not None:
                transfer.bind(ring, slot)
        if instance.lanes:
            threads = instance.lanes if f[MASK] is None else int(f[MASK].sum())
        else:
            threads = instance.threads[1] if instance.outer is not None else instance.block.threads
        ring.trigger(slot, threads, ring.sites.get(id(op)))
        instance.block.triggers(instance.threads, ring, slot)

    return Step(run)


def wait_future(c: Compiler, op: t.WaitFuture, scope: Scope) -> Step:
    slots = [c.slot("future", n) for n in op.futures]

    def run(f: Frame) -> None:
        for slot in slots:
            if isinstance(f[slot], Transfer):
                f[INSTANCE].block.wait(f[slot])
            elif f[slot] is not None:
                f[slot].pending = None  # the accumulator of an asynchronous multiply

    return Step(run)


def swap_futures(c: Compiler, op: t.SwapFutures, scope: Scope) -> Step:
    """The handles move on by one name, and with them the buffers that the copies bound to them write."""
    handles = [c.slot("future", n) for n in op.futures]
    targets: dict[str, set[str]] = {n: set() for n in op.futures}
    for x in walk.walk(c.kernel.body):
        if isinstance(x, t.Copy) and x.future in targets:
            targets[x.future].add(x.dst.base.name)
        elif isinstance(x, t.Copy) and x.future is None and x.dst.base.name in targets:
            targets[x.dst.base.name].add(x.dst.base.name)  # a synchronous copy is identified by its buffer's name
    rings = [handles]
    if all(len(target) == 1 for target in targets.values()):
        buffers = [next(iter(targets[n])) for n in op.futures]
        if len(set(buffers)) == len(buffers):
            rings.append([c.slot("buffer", b) for b in buffers])

    def run(f: Frame) -> None:
        for slots in rings:
            values = [f[s] for s in slots]
            for s, v in zip(slots, values[1:] + values[:1], strict=True):
                f[s] = v

    return Step(run)


def sync(c: Compiler, op: t.Sync, scope: Scope) -> Step:
    """A barrier among siblings, or of a cluster.  Within one instance the threads run in lockstep here, and fences
    order nothing more."""
    if op.what == "barrier" and op.level is not None and op.level.kind == "cluster":
        if scope.lanes:
            raise NotInReference(op.span, what="a barrier of a cluster inside `: thread`")
        return Step(lambda f: _cluster_barrier(op), True)
    if op.what == "fence" or scope.siblings is None:
        return Step(lambda f: None)
    if op.level is not None and op.level.kind != "block":
        return Step(lambda f: None)

    def coroutine(f: Frame) -> Coroutine:
        if f[INSTANCE].siblings is not None:
            yield Rendezvous()

    return Step(coroutine, True)


def _cluster_barrier(op: t.Sync | t.Barrier) -> Coroutine:
    wait = ClusterBarrier()
    wait.span = op.span
    yield wait


def barrier(c: Compiler, op: t.Barrier, scope: Scope) -> Step:
    """A decided barrier of more threads than one instance has: siblings with that many threads in sum
    synchronise."""
    if op.cluster:
        return Step(lambda f: _cluster_barrier(op), True)
    if scope.siblings is None:
        return Step(lambda f: None)

    def coroutine(f: Frame) -> Coroutine:
        instance: Instance = f[INSTANCE]
        want = op.threads or instance.block.threads
        while instance.threads[1] < want and instance.outer is not None:
            if instance.siblings is not None and instance.outer.threads[1] >= want:
                yield Rendezvous(instance.siblings)
                return
            instance = instance.outer

    return Step(coroutine, True)


def copy_commit(c: Compiler, op: t.CopyCommit, scope: Scope) -> Step:
    return Step(lambda f: f[INSTANCE].block.commit(f[INSTANCE].threads))


def copy_wait(c: Compiler, op: t.CopyWait, scope: Scope) -> Step:
    return Step(lambda f: f[INSTANCE].block.wait_groups(f[INSTANCE].threads, op.pending))


def bulk_wait(c: Compiler, op: t.BulkWait, scope: Scope) -> Step:
    return Step(lambda f: f[INSTANCE].block.wait_stores(f[INSTANCE].threads, op.pending))


def nothing(c: Compiler, op: t.Op, scope: Scope) -> Step:
    """Decisions about synchronisation of the hardware, which the reference does not need."""
    return Step(lambda f: None)


TABLE = {
    t.DeclareEvent: declare_event,
    t.WaitEvent: wait_event,
    t.TriggerEvent: trigger_event,
    t.WaitFuture: wait_future,
    t.SwapFutures: swap_futures,
    t.Sync: sync,
    t.CopyCommit: copy_commit,
    t.CopyWait: copy_wait,
    t.Barrier: barrier,
    t.ProxyFence: nothing,
    t.MmaFence: nothing,
    t.MmaCommit: nothing,
    t.MmaWait: nothing,
    t.BulkWait: bulk_wait,
    t.Commit: nothing,
}
