"""Rehearsal: the events of a kernel, run when it is compiled, for a few shapes and without any data.

Its skeleton runs in the reference executor: every instance is a coroutine, until all have ended or nobody can
move.  Shapes are chosen so that each ring is gone round more than twice, and loops around that take more than two
turns.  Where nothing is known before the kernel runs, nothing is said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tilemma.errors import CompileError, Note, Span
from tilemma.ir import walk
from tilemma.ir.expr import Dim, Index, Var, trips
from tilemma.ir.expr import walk as parts
from tilemma.ir.tile import Body, Copy, DeclareEvent, For, Kernel, Op, Parallel, TriggerEvent, WaitEvent, While
from tilemma.records import record
from tilemma.targets.cpu import control, elements, lanes, sync
from tilemma.targets.cpu.expressions import INSTANCE, Frame
from tilemma.targets.cpu.faults import Deadlock, EventOverrun, NotInReference, ProgramFault, SlotOutside, within
from tilemma.targets.cpu.registers import Threads
from tilemma.targets.cpu.skeleton import Meet, Subscripts, Turn, Unknown, skeleton
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.tasks import Block, Coroutine, Instance, Rendezvous, Task, schedule

# Turns of loops that the rehearsals of a kernel take together: some 15 us each.
TURNS = 2000
# No dimension is larger: more tiles than blocks that stay, on any GPU.
LARGEST = 1 << 15


class EventDeadlock(CompileError):
    code = "event-deadlock"
    found = "with {shape}, nobody can go on: {waiting}"
    expected = Deadlock.expected
    fix = "{remedy}"


class EventAhead(CompileError):
    code = "event-ahead"
    found = "with {shape}, {what}"
    expected = EventOverrun.expected
    fix = EventOverrun.fix


class CopyBeyond(CompileError):
    code = "copy-beyond"
    found = "with {shape}, this takes {what}"
    expected = SlotOutside.expected
    fix = SlotOutside.fix


@record
class Rehearsal:
    """``shapes`` with which the events were seen to come to their end; ``reason``: why there are none."""

    shapes: tuple[Mapping[str, int], ...] = ()
    reason: str = ""
    span: Span | None = None

    def __str__(self) -> str:
        if not self.shapes:
            return f"not rehearsed: {self.reason}"
        return f"rehearsed for {' and for '.join(map(named, self.shapes[-2:]))}: no deadlock"


def named(shape: Mapping[str, int]) -> str:
    """``M = 64, N = 1``."""
    return ", ".join(f"{n} = {v}" for n, v in shape.items()) or "its fixed shape"


def rehearse(kernel: Kernel) -> Rehearsal:
    """Run the events of ``kernel``.

    ``kernel`` is tile IR as a front end gives it, before passes put barriers in.  Raises EventDeadlock, EventAhead
    or CopyBeyond where it comes to nothing with a shape that its assertions allow.
    """
    try:
        reduced = skeleton(kernel)
        stage = _Stage(reduced)
    except Unknown as e:
        return Rehearsal(reason=f"{e.reason} who waits for whom", span=e.span)
    except NotInReference as e:
        return Rehearsal(reason=e.message, span=e.span)
    done: list[Mapping[str, int]] = []
    reason = ""
    shapes = deque(stage.shapes())
    while shapes:
        shape = shapes.popleft()
        try:
            short = stage.perform(shape)
            done.append(shape)
        except (Deadlock, EventOverrun, SlotOutside) as fault:
            raise _refusal(fault, shape, reduced) from None
        except (ProgramFault, NotInReference) as fault:
            short, reason = False, reason or f"with {named(shape)}, {fault.message}"
        except _TooLong:
            reason = reason or f"with {named(shape)} they take more than {TURNS} turns of loops"
            break
        if short and not shapes and max(shape.values(), default=LARGEST) < LARGEST:
            shapes.append({n: 2 * v for n, v in shape.items()})
        if not short and len(done) > 1:
            break
    return Rehearsal(tuple(done), reason)


class _TooLong(Exception):
    """The rehearsal has taken all the turns it may."""


# ---- the stage: the skeleton, compiled ----------------------------------------------------------------------


class _Turns:
    """``left`` for all rehearsals; ``taken`` in this one, by each instance in each loop."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.taken: dict[tuple[int, Threads], int] = {}

    def begin(self, loop: int, threads: Threads) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooLong
        self.taken[loop, threads] = self.taken.get((loop, threads), 0) + 1


def turn(c: Compiler, op: Turn, scope: Scope) -> Step:
    at = c.slot("output", "turns")
    return Step(lambda f: f[at].begin(op.loop, f[INSTANCE].threads))


def meet(c: Compiler, op: Meet, scope: Scope) -> Step:
    levels = scope.around[op.depth :]

    def coroutine(f: Frame) -> Coroutine:
        reach = f[INSTANCE].siblings_at(levels)
        if reach is not None:
            yield Rendezvous(reach)

    return Step(coroutine, True)


def subscripts(c: Compiler, op: Subscripts, scope: Scope) -> Step:
    found = {(v.base.name, v.base.copies, v.slot) for v in op.views if v.slot is not None}
    checks = [(name, c.value(slot), copies) for name, copies, slot in found]

    def run(f: Frame) -> None:
        for name, slot, copies in checks:
            within(name, slot(f), copies)

    return Step(run)


def landing(c: Compiler, op: Copy, scope: Scope) -> Step:
    """A copy that lands as soon as it is started: what waits for it finds out about the rest."""
    assert op.event is not None
    place = sync.event_place(c, op.event)

    def run(f: Frame) -> None:
        ring, slot, _ = place(f)
        ring.bind(slot)
        ring.landed(slot)

    return Step(run)


TABLE: dict[type[Op], Any] = {
    **control.TABLE,
    **elements.TABLE,
    **sync.TABLE,
    Copy: landing,
    Turn: turn,
    Meet: meet,
    Subscripts: subscripts,
}


class _Stage:
    """A skeleton, ready to run with any shape."""

    def __init__(self, kernel: Kernel) -> None:
        c = self.compiler = Compiler(kernel, TABLE, lanes.COLLECTIVE)
        self.body = control.body(c, kernel.body, Scope())
        shapes = [e for p in kernel.arrays for e in p.buffer.shape]
        self.dims = list(dict.fromkeys(x.name for e in shapes for x in parts(e) if isinstance(x, Dim)))
        self.turns = _Turns(TURNS)
        self.loops = list(_loops(kernel.body))
        self.compiled = [
            (loop.need, c.value(loop.op.start), c.value(loop.op.stop), c.value(loop.op.step))
            for loop in self.loops
            if isinstance(loop.op, For) and not loop.varies
        ]
        self.indices = [c.slot("scalar", i.name) for op in walk.walk(kernel.body) for i in _indices(op)]

    def frame(self, shape: Mapping[str, int]) -> Frame:
        c = self.compiler
        given = [(c.slot("dim", n), v) for n, v in shape.items()]
        turns = c.slot("output", "turns")
        f: Frame = [None] * c.names.frame_size
        f[turns] = self.turns
        for slot, value in given:
            f[slot] = value
        return f

    def perform(self, shape: Mapping[str, int]) -> bool:
        """Run the events with ``shape``; whether a loop that has no bounds to look at took too few turns.

        Raises what the reference executor does, and _TooLong.
        """
        block = Block({}, 0)
        f = self.frame(shape)
        f[INSTANCE] = instance = Instance(block, control.ALL_THREADS)
        self.turns.taken.clear()
        if self.body.blocking:
            schedule(block, Task(instance, self.body.run(f)))
        else:
            self.body.run(f)
        taken = [
            (loop.need, [n for (number, _), n in self.turns.taken.items() if number == loop.number])
            for loop in self.loops
            if loop.varies
        ]
        return any(turns and max(turns) < need for need, turns in taken)

    # -- shapes -------------------------------------------------------------------------------------------

    def shapes(self) -> Iterator[dict[str, int]]:
        """The least dimensions with which the loops turn as often as they should, as multiples of 16 (what TMA
        needs) and of 256 (what tiles are), and equal powers of 2: assertions may allow one and not another."""
        large = dict.fromkeys(self.dims, LARGEST)
        most = self._trips(large)
        needs = [min(need, n) for (need, *_), n in zip(self.compiled, most, strict=True)]

        def enough(shape: dict[str, int]) -> bool:
            return all(n >= need for n, need in zip(self._trips(shape), needs, strict=True))

        equal = next((s for n in range(15) if enough(s := dict.fromkeys(self.dims, 1 << n))), large)
        least, fewer = dict(equal), True
        while fewer:
            fewer = False
            for n, v in least.items():
                if v > 1 and enough({**least, n: v // 2}):
                    least[n], fewer = v // 2, True
        for n, high in least.items():
            low = high // 2
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if enough({**least, n: middle}) else (middle, high)
            least[n] = high
        yield {n: -(-v // 16) * 16 for n, v in least.items()}
        if self.dims:
            yield {n: -(-v // 256) * 256 for n, v in least.items()}
            yield equal

    def _trips(self, shape: Mapping[str, int]) -> list[int]:
        f = self.frame(shape)
        for slot in self.indices:
            f[slot] = 0
        return [trips(start(f), stop(f), step(f) or 1) for _, start, stop, step in self.compiled]


@record
class _Loop:
    """A loop around waits; ``varies``: what it follows changes as it runs."""

    op: For | While
    number: int
    need: int
    varies: bool


def _loops(body: Body) -> Iterator[_Loop]:
    """A loop goes round its own ring more than twice; one around that uses up all slots by one a turn."""
    largest = max((op.event.slots for op in walk.walk(body) if isinstance(op, DeclareEvent)), default=1)
    for op in walk.walk(body):
        if not isinstance(op, (For, While)) or not any(isinstance(x, WaitEvent) for x in walk.walk(op.body)):
            continue
        bounds = (op.start, op.stop, op.step) if isinstance(op, For) else (op.cond,)
        varies = any(isinstance(x, Var) for e in bounds for x in parts(e))
        first = op.body[0]
        assert isinstance(first, Turn)
        own = max((2 * n + 1 for n in _rings(op.body)), default=0)
        yield _Loop(op, first.loop, own or largest + 2, varies)


def _rings(body: Body) -> Iterator[int]:
    """The slots of the events that ``body`` uses, outside of loops of its own."""
    for op in body:
        if isinstance(op, (WaitEvent, TriggerEvent)):
            yield max(1, op.event.event.slots)
        elif not isinstance(op, (For, While)):
            for _, inner in walk.bodies(op):
                yield from _rings(inner)


def _indices(op: Op) -> tuple[Index, ...]:
    return op.indices if isinstance(op, Parallel) else (op.index,) if isinstance(op, For) else ()


# ---- what was found -----------------------------------------------------------------------------------------


def _refusal(fault: ProgramFault, shape: Mapping[str, int], kernel: Kernel) -> CompileError:
    event, notes = fault.facts.get("event"), list(fault.notes)
    triggers = (x for x in walk.walk(kernel.body) if isinstance(x, TriggerEvent))
    places = dict.fromkeys(x.span for x in triggers if x.event.event.name == event)
    notes += [Note(f"`{event}` is triggered here", span) for span in places if span is not None]
    match fault:
        case Deadlock():
            remedy = _remedy(fault)
            waiting = fault.facts["waiting"]
            return EventDeadlock(fault.span, shape=named(shape), waiting=waiting, remedy=remedy, notes=notes)
        case SlotOutside():
            return CopyBeyond(fault.span, shape=named(shape), what=fault.message, last=fault.facts["last"])
    return EventAhead(fault.span, shape=named(shape), what=fault.message, notes=notes)


def _remedy(fault: Deadlock) -> str:
    match fault.facts:
        case {"arrived": int(n), "place": str(place)} if n:
            return f"let every instance that {place} counts trigger it as often as the others do"
        case {"generation": 0, "place": str(place), "event": str(event)}:
            first = f"where its first generation is free, declare `{event}` `= ready`"
            return f"trigger `{place}` before it is waited for; {first}"
        case {"place": str(place)}:
            return f"trigger `{place}` once for each wait, in every turn that waits for it"
    return Deadlock.fix


__all__ = ["CopyBeyond", "EventAhead", "EventDeadlock", "Rehearsal", "named", "rehearse"]
