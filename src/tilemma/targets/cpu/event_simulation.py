"""Event simulation: the control and the events of a kernel run for a few shapes, without data, at compile time.

The reference executor runs the kernel's control slice (`control_slice`): every instance is a coroutine, and the
simulation ends when all have ended or none can proceed.  The shapes are chosen such that each ring is filled more
than twice and each loop around such a loop runs more iterations than the largest ring has slots.

The simulation counts generations and slots exactly, so it finds deadlocks, overruns and wrong numbers of triggers
that the static checks of events (docs/architecture.md) cannot find.  It is bounded: it does not see other shapes,
more than one block or cluster, or kernels in which data or a scalar parameter decides the waits.  Copies complete
when they are issued, so it finds no data races.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from tilemma.errors import CompileError, Note, Span, spelled
from tilemma.ir import walk
from tilemma.ir.expr import Dim, Index, Var, trips
from tilemma.ir.expr import walk as parts
from tilemma.ir.tile import Body, Copy, DeclareEvent, For, Kernel, Op, Parallel, TriggerEvent, WaitEvent, While
from tilemma.records import record
from tilemma.targets.cpu import control, elements, faults, lanes, sync
from tilemma.targets.cpu.control_slice import Iteration, SiblingBarrier, Subscripts, Unknown, control_slice
from tilemma.targets.cpu.expressions import INSTANCE, Frame
from tilemma.targets.cpu.registers import Threads
from tilemma.targets.cpu.steps import Compiler, Scope, Step
from tilemma.targets.cpu.tasks import Block, Coroutine, Instance, Rendezvous, Task, run_cluster

# Loop iterations in all simulations of a kernel together; one takes about 15 us.
ITERATIONS = 2000
# The largest dimension.  It gives more tiles than any GPU has resident blocks.
LARGEST = 1 << 15


class EventDeadlock(CompileError):
    code = "event-deadlock"
    found = "with {shape}, no thread can continue: {waiting}"
    expected = faults.Deadlock.expected
    fix = "{remedy}"


class EventAhead(CompileError):
    code = "event-ahead"
    found = "with {shape}, {what}"
    expected = "{rule}"
    fix = "{remedy}"


class CopyBeyond(CompileError):
    code = "copy-beyond"
    found = "with {shape}, this takes {what}"
    expected = faults.SlotOutside.expected
    fix = faults.SlotOutside.fix


@record
class EventSimulation:
    """``shapes``: those for which the simulation reached the end; ``reason``: why there is none."""

    shapes: tuple[Mapping[str, int], ...] = ()
    reason: str = ""
    span: Span | None = None

    def __str__(self) -> str:
        if not self.shapes:
            return f"not simulated: {self.reason}"
        return f"simulated for {' and for '.join(map(named, self.shapes[-2:]))}: no deadlock"


def named(shape: Mapping[str, int]) -> str:
    """``M = 64, N = 1``."""
    return ", ".join(f"{n} = {v}" for n, v in shape.items()) or "its fixed shape"


def simulate_events(kernel: Kernel) -> EventSimulation:
    """Run the events of ``kernel``.

    ``kernel`` is tile IR as a front end gives it, before passes put barriers in.  Raises EventDeadlock, EventAhead
    or CopyBeyond if the simulation fails for a shape that the kernel's assertions allow.
    """
    try:
        reduced = control_slice(kernel)
        simulator = _Simulator(reduced)
    except Unknown as e:
        return EventSimulation(reason=f"{e.reason} the waits", span=e.span)
    except faults.NotInReference as e:
        return EventSimulation(reason=e.message, span=e.span)
    done: list[Mapping[str, int]] = []
    reason = ""
    shapes = deque(simulator.shapes())
    while shapes:
        shape = shapes.popleft()
        try:
            short = simulator.run(shape)
            done.append(shape)
        except (faults.Deadlock, faults.EventOverrun, faults.EventTwice, faults.SlotOutside) as fault:
            raise _refusal(fault, shape, reduced) from None
        except (faults.ProgramFault, faults.NotInReference) as fault:
            short, reason = False, reason or f"with {named(shape)}, {fault.message}"
        except _TooLong:
            reason = reason or f"with {named(shape)} they take more than {ITERATIONS} loop iterations"
            break
        if short and not shapes and max(shape.values(), default=LARGEST) < LARGEST:
            shapes.append({n: 2 * v for n, v in shape.items()})
        if not short and len(done) > 1:
            break
    return EventSimulation(tuple(done), reason)


class _TooLong(Exception):
    """The simulations exceed the bound on iterations."""


# ---- the control slice, compiled ------------------------------------------------------------------------------


class _Iterations:
    """Loop iterations: ``left`` for all simulations, ``taken`` in this one by each instance in each loop."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.taken: dict[tuple[int, Threads], int] = {}

    def begin(self, loop: int, threads: Threads) -> None:
        self.left -= 1
        if self.left < 0:
            raise _TooLong
        self.taken[loop, threads] = self.taken.get((loop, threads), 0) + 1


def iteration(c: Compiler, op: Iteration, scope: Scope) -> Step:
    at = c.slot("output", "iterations")
    return Step(lambda f: f[at].begin(op.loop, f[INSTANCE].threads))


def sibling_barrier(c: Compiler, op: SiblingBarrier, scope: Scope) -> Step:
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
            faults.within(name, slot(f), copies)

    return Step(run)


def completed_copy(c: Compiler, op: Copy, scope: Scope) -> Step:
    """A copy that completes when it is issued: the simulation checks events, not data."""
    assert op.event is not None
    place = sync.event_place(c, op.event)

    def run(f: Frame) -> None:
        ring, slot, _ = place(f)
        ring.bind(slot)
        ring.completed(slot)

    return Step(run)


TABLE: dict[type[Op], Any] = {
    **control.TABLE,
    **elements.TABLE,
    **sync.TABLE,
    Copy: completed_copy,
    Iteration: iteration,
    SiblingBarrier: sibling_barrier,
    Subscripts: subscripts,
}


class _Simulator:
    """A compiled control slice, which runs with any shape."""

    def __init__(self, kernel: Kernel) -> None:
        c = self.compiler = Compiler(kernel, TABLE, lanes.COLLECTIVE)
        self.body = control.body(c, kernel.body, Scope())
        shapes = [e for p in kernel.arrays for e in p.buffer.shape]
        self.dims = list(dict.fromkeys(x.name for e in shapes for x in parts(e) if isinstance(x, Dim)))
        self.iterations = _Iterations(ITERATIONS)
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
        iterations = c.slot("output", "iterations")
        f: Frame = [None] * c.names.frame_size
        f[iterations] = self.iterations
        for slot, value in given:
            f[slot] = value
        return f

    def run(self, shape: Mapping[str, int]) -> bool:
        """Run the events with ``shape``; return whether a loop with variable bounds took too few iterations.

        Raises the errors of the reference executor, and _TooLong.
        """
        block = Block({}, 0)
        f = self.frame(shape)
        f[INSTANCE] = instance = Instance(block, control.ALL_THREADS)
        self.iterations.taken.clear()
        if self.body.blocking:
            run_cluster([Task(instance, self.body.run(f))])
        else:
            self.body.run(f)
        for ring, span in block.rings:
            ring.check_left(span)
        taken = [
            (loop.need, [n for (number, _), n in self.iterations.taken.items() if number == loop.number])
            for loop in self.loops
            if loop.varies
        ]
        return any(counts and max(counts) < need for need, counts in taken)

    # -- shapes -------------------------------------------------------------------------------------------

    def shapes(self) -> Iterator[dict[str, int]]:
        """The least dimensions with enough iterations of each loop.

        They are rounded up to multiples of 16 (for TMA) and of 256 (for tiles); the last shape has equal powers
        of 2.  The kernel's assertions may allow only some of these shapes.
        """
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
    """A loop around waits; ``varies``: its bounds or condition depend on variables."""

    op: For | While
    number: int
    need: int
    varies: bool


def _loops(body: Body) -> Iterator[_Loop]:
    """The loops around waits.  A loop needs more than twice as many iterations as its ring has slots."""
    largest = max((op.event.slots for op in walk.walk(body) if isinstance(op, DeclareEvent)), default=1)
    for op in walk.walk(body):
        if not isinstance(op, (For, While)) or not any(isinstance(x, WaitEvent) for x in walk.walk(op.body)):
            continue
        bounds = (op.start, op.stop, op.step) if isinstance(op, For) else (op.cond,)
        varies = any(isinstance(x, Var) for e in bounds for x in parts(e))
        first = op.body[0]
        assert isinstance(first, Iteration)
        own = max((2 * n + 1 for n in _rings(op.body)), default=0)
        yield _Loop(op, first.loop, own or largest + 2, varies)


def _rings(body: Body) -> Iterator[int]:
    """The slots of the events in ``body``, without those in inner loops."""
    for op in body:
        if isinstance(op, (WaitEvent, TriggerEvent)):
            yield max(1, op.event.event.slots)
        elif not isinstance(op, (For, While)):
            for _, inner in walk.bodies(op):
                yield from _rings(inner)


def _indices(op: Op) -> tuple[Index, ...]:
    return op.indices if isinstance(op, Parallel) else (op.index,) if isinstance(op, For) else ()


# ---- errors --------------------------------------------------------------------------------------------------


def _refusal(fault: faults.ProgramFault, shape: Mapping[str, int], kernel: Kernel) -> CompileError:
    event, notes = fault.facts.get("event"), list(fault.notes)
    triggers = (x for x in walk.walk(kernel.body) if isinstance(x, TriggerEvent))
    places = dict.fromkeys(x.span for x in triggers if x.event.event.name == event)
    notes += [Note(f"`{event}` is triggered here", span) for span in places if span is not None]
    match fault:
        case faults.Deadlock():
            remedy = _remedy(fault)
            waiting = fault.facts["waiting"]
            return EventDeadlock(fault.span, shape=named(shape), waiting=waiting, remedy=remedy, notes=notes)
        case faults.SlotOutside():
            return CopyBeyond(fault.span, shape=named(shape), what=fault.message, last=fault.facts["last"])
    rule, remedy = fault.expected, fault.remedy
    return EventAhead(fault.span, shape=named(shape), what=fault.message, rule=rule, remedy=remedy, notes=notes)


def _remedy(fault: faults.Deadlock) -> str:
    match fault.facts:
        case {"arrived": int(n), "place": str(place)} if n:
            return f"let every instance that {place} counts trigger it as often as the others do"
        case {"generation": 0, "place": str(place), "event": str(event)}:
            free = spelled(fault.span, f"declare `{event}` `= ready`", f"declare `{event}` with `ready=True`")
            first = f"where its first generation is free, {free}"
            return f"trigger `{place}` before it is waited for; {first}"
        case {"place": str(place)}:
            return f"trigger `{place}` once for each wait, in every iteration that waits for it"
    return fault.remedy
