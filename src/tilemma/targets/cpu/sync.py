"""Events, futures and barriers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilemma.ir import walk
from tilemma.ir.expr import Dim, Expr, Index, Scalar
from tilemma.ir.expr import walk as walk_expr
from tilemma.ir.tile import (
    Barrier,
    Body,
    BulkWait,
    Commit,
    Copy,
    CopyCommit,
    CopyWait,
    DeclareEvent,
    If,
    InThreads,
    MmaCommit,
    MmaFence,
    MmaWait,
    Op,
    Parallel,
    ProxyFence,
    SwapFutures,
    Sync,
    TriggerEvent,
    WaitEvent,
    WaitFuture,
)
from tilemma.ir.types import EventRef
from tilemma.targets.cpu.expressions import INSTANCE, MASK, Evaluate, Frame
from tilemma.targets.cpu.faults import EventCount, NotInReference
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.tasks import Block, Coroutine, Flight, Instance, Rendezvous, Ring

Path = tuple["Op | Otherwise", ...]
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


def sites(body: Body, path: Path = ()) -> Iterator[tuple[Path, Op]]:
    """Every operation with the control operations around it."""
    for op in body:
        yield path, op
        for name, inner in walk.bodies(op):
            mark = op if name != "otherwise" else Otherwise(op)
            yield from sites(inner, (*path, mark))


@dataclass(frozen=True)
class Otherwise:
    """Stands in a path for the second branch of an `If`."""

    branch: Op


def admitted(c: Compiler, path: Path) -> Callable[[Frame], int]:
    """How many threads the levels and predicates of ``path`` admit, given the frame of the event's scope.

    Predicates that depend on more than indices of levels, dimensions and arguments are taken to hold.
    """
    levels = [p for p in path if isinstance(p, Parallel)]
    groups = [p for p in levels if p.level is not None and p.level.kind == "group"]
    indices = [i for p in levels for i in p.indices]
    names = {i.name for i in indices}
    predicates: list[tuple[Evaluate, bool]] = []
    used: set[str] = set()
    for p in path:
        holder = getattr(p, "branch", p)
        if not isinstance(holder, (If, InThreads)):
            continue
        parts = list(walk_expr(holder.cond))
        if all(not isinstance(x, (Index,)) or x.name in names for x in parts) and _pure(holder.cond):
            predicates.append((c.value(holder.cond), not isinstance(p, Otherwise)))
            used |= {x.name for x in parts if isinstance(x, Index)}
    threads = groups[-1].level.threads if groups and groups[-1].level is not None else 0
    lanes = {i.name for p in levels if p not in groups for i in p.indices} if groups else set()
    looped = [i for i in indices if i.name in used or (i.name not in lanes)]
    extents = [(c.slot("scalar", i.name), c.value(i.extent)) for i in looped]
    by_lane = bool(lanes & used)

    def count(f: Frame) -> int:
        g = f.copy()
        found = 0
        for combination in itertools.product(*(range(max(0, e(f))) for _, e in extents)):
            for (slot, _), value in zip(extents, combination, strict=True):
                g[slot] = value
            found += all(bool(p(g)) == holds for p, holds in predicates)
        if not levels:
            block: Block = f[INSTANCE].block
            return found * block.threads
        return found if by_lane or not threads else found * threads

    return count


def _pure(e: Expr) -> bool:
    from tilemma.ir.expr import Binary, Cast, Const, Select, Unary

    return all(isinstance(x, (Binary, Unary, Select, Cast, Const, Index, Dim, Scalar)) for x in walk_expr(e))


def declare_event(c: Compiler, op: DeclareEvent, scope: Scope) -> Step:
    event = op.event
    slot = c.slot("event", event.name)
    triggers: list[Callable[[Frame], int]] = []
    copies: list[Callable[[Frame], int]] = []
    for path, x in sites(_scope_of(c.kernel.body, op)):
        if isinstance(x, TriggerEvent) and x.event.event.name == event.name:
            triggers.append(admitted(c, path))
        elif isinstance(x, Copy) and x.event is not None and x.event.event.name == event.name:
            copies.append(admitted(c, path))

    def run(f: Frame) -> None:
        counts = sorted({n for n in (t(f) for t in triggers) if n})
        if event.threads is None and len(counts) > 1:
            raise EventCount(op.span, event=event.name, counts=" and ".join(map(str, counts)))
        expected = event.threads or (counts[0] if counts else 0)
        bound = sum(bool(n(f)) for n in copies)
        f[slot] = Ring(event.name, event.slots, expected if triggers else 0, bound, event.ready)

    return Step(run)


def _scope_of(body: Body, op: Op) -> Body:
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


def wait_event(c: Compiler, op: WaitEvent, scope: Scope) -> Step:
    place = event_place(c, op.event)

    def coroutine(f: Frame) -> Coroutine:
        instance: Instance = f[INSTANCE]
        ring, slot, number = place(f)
        wait = ring.wait(instance.threads, slot, number)
        wait.span = op.span
        if not wait.ready():
            yield wait

    return Step(coroutine, True)


def trigger_event(c: Compiler, op: TriggerEvent, scope: Scope) -> Step:
    if op.cluster:
        raise NotInReference(op.span, what="`trigger.cluster`")
    place = event_place(c, op.event)
    after = [c.slot("future", n) for n in op.after]

    def run(f: Frame) -> None:
        instance: Instance = f[INSTANCE]
        ring, slot, _ = place(f)
        for future in after:
            flight: Flight | None = f[future]
            if flight is not None:
                flight.bind(ring, slot)
        threads = instance.threads[1] if instance.outer is not None else instance.block.threads
        if instance.lanes and f[MASK] is not None:
            threads = int(f[MASK].sum())
        ring.trigger(slot, threads)

    return Step(run)


def wait_future(c: Compiler, op: WaitFuture, scope: Scope) -> Step:
    slots = [c.slot("future", n) for n in op.futures]

    def run(f: Frame) -> None:
        for slot in slots:
            if isinstance(f[slot], Flight):
                f[INSTANCE].block.wait(f[slot])
            elif f[slot] is not None:
                f[slot].pending = None  # the accumulator of an asynchronous multiply

    return Step(run)


def swap_futures(c: Compiler, op: SwapFutures, scope: Scope) -> Step:
    """The handles move on by one name, and with them the buffers that the copies bound to them write."""
    handles = [c.slot("future", n) for n in op.futures]
    targets: dict[str, set[str]] = {n: set() for n in op.futures}
    for x in walk.walk(c.kernel.body):
        if isinstance(x, Copy) and x.future in targets:
            targets[x.future].add(x.dst.base.name)
    rings = [handles]
    if all(len(t) == 1 for t in targets.values()):
        buffers = [next(iter(targets[n])) for n in op.futures]
        if len(set(buffers)) == len(buffers):
            rings.append([c.slot("buffer", b) for b in buffers])

    def run(f: Frame) -> None:
        for slots in rings:
            values = [f[s] for s in slots]
            for s, v in zip(slots, values[1:] + values[:1], strict=True):
                f[s] = v

    return Step(run)


def sync(c: Compiler, op: Sync, scope: Scope) -> Step:
    """A barrier among siblings; within one instance everybody is in step anyway, and fences order nothing more."""
    if op.what == "fence" or scope.siblings is None:
        return Step(lambda f: None)
    if op.level is not None and op.level.kind not in ("block", "cluster"):
        return Step(lambda f: None)

    def coroutine(f: Frame) -> Coroutine:
        if f[INSTANCE].siblings is not None:
            yield Rendezvous()

    return Step(coroutine, True)


def copy_commit(c: Compiler, op: CopyCommit, scope: Scope) -> Step:
    return Step(lambda f: f[INSTANCE].block.commit(f[INSTANCE].threads))


def copy_wait(c: Compiler, op: CopyWait, scope: Scope) -> Step:
    return Step(lambda f: f[INSTANCE].block.wait_groups(f[INSTANCE].threads, op.pending))


def nothing(c: Compiler, op: Op, scope: Scope) -> Step:
    """Decisions that only say how the hardware keeps the promises which the reference keeps by itself."""
    return Step(lambda f: None)


TABLE = {
    DeclareEvent: declare_event,
    WaitEvent: wait_event,
    TriggerEvent: trigger_event,
    WaitFuture: wait_future,
    SwapFutures: swap_futures,
    Sync: sync,
    CopyCommit: copy_commit,
    CopyWait: copy_wait,
    Barrier: nothing,
    ProxyFence: nothing,
    MmaFence: nothing,
    MmaCommit: nothing,
    MmaWait: nothing,
    BulkWait: nothing,
    Commit: nothing,
}
