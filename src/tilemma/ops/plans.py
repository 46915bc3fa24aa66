"""Plan selection for a call: the cost model's choice, or with ``tune=True`` the fastest measured plan
(autotuning)."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilemma.assemble import DiskCache
from tilemma.bounded import Bounded
from tilemma.errors import TilemmaError
from tilemma.fingerprint import fingerprint
from tilemma.kernels import Kernel
from tilemma.ops.candidates import ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate, hardware
from tilemma.ops.problem import Epilogue, Problem
from tilemma.ops.steps import steps
from tilemma.ops.workspace import allocate
from tilemma.runtime import PreparedLaunch, cuda_device
from tilemma.runtime.arrays import ArrayRef, describe, facts, stream_source

# Libraries that allocate what a plan needs besides the caller's arrays.
ALLOCATE = ("torch", "cupy", "jax", "tilemma", "numpy")
# How many plans are measured, in how many rounds, or in so many seconds, but not in fewer rounds than these; the
# rounds before the first that counts.
MEASURED, ROUNDS, SECONDS, FEWEST, WARMING = 10, 31, 0.4, 5, 2
# Seconds for compiling: plans that would take longer are not measured.
COMPILING = 1.5
# At most so many copies of the operands besides the caller's, and bytes of them; the alignment of each.
COPIES, SPREAD, UNIT = 11, 96 << 20, 256
# The L2 cache is emptied by a write of this many times its size, which lasts until the launches are enqueued.
FLUSH = 10
# Calls on operands that exceed the cache are repeated so often, if one is predicted to take fewer seconds: single
# launches also show how a plan starts and ends.
REPEATED, SHORT = 4, 2e-4
# Threads that wait for the assembler.
WAITING = 2
# By how much another plan has to be faster than the model's.
MARGIN = 0.03

_winners: Bounded[str, Plan] = Bounded(1024)


def usable(problem: Problem, on: Hardware) -> list[Estimate]:
    """The plans that can run for this caller, the predicted best first."""
    found = ranked(problem, on)
    if problem.lhs.library in ALLOCATE:
        return found
    return [e for e in found if e.plan.split == 1 and not e.plan.pack]


def best(problem: Problem, tune: bool = False) -> Plan:
    """The plan for a problem on a GPU; ``tune`` measures once for each kind of problem and device."""
    on = hardware(problem.out.device)
    found = usable(problem, on)
    if not tune or problem.epilogue.addend == "out" or len(found) == 1:
        # Repeated measurements would accumulate in a result that is its own addend.
        return found[0].plan
    key = kind(problem, on)
    if key not in _winners:
        _winners[key] = load_winner(key) or measured(problem, found)
        store_winner(key, _winners[key])
    return _winners[key]


def kind(problem: Problem, on: Hardware) -> str:
    """The key of a measurement: the device, the compiler, and all inputs of code and plan."""
    p = problem
    parts: list[object] = [fingerprint(), _own_sources(), repr(on), p.batch, len(p.outer), *p.shape]
    parts += [p.lhs_major, p.rhs_major]
    parts += [repr(p.epilogue), p.left.kind, p.right.kind, p.promote, p.grouped]
    for x in (p.lhs, p.rhs, p.out, p.c, p.bias, p.left.array, p.right.array, p.offsets):
        # The library decides which plans are usable: some libraries cannot allocate workspaces.
        parts.append("" if x is None else (x.library, str(x.dtype), facts(x).contiguous, facts(x).alignment))
    return DiskCache.key(*parts)


@cache
def _own_sources() -> tuple[str, ...]:
    """The library's kernels and the model that picks the plans to be measured."""
    folder = Path(__file__).parent
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.py")))


def load_winner(key: str) -> Plan | None:
    """The winner kept on disk."""
    return DiskCache("plans").read(key, _read_plan)


def _read_plan(data: bytes) -> Plan:
    fields: dict[str, Any] = json.loads(data)
    fields |= {name: tuple(fields[name]) for name in ("tile", "pack", "cluster")}
    return Plan(**fields)


def store_winner(key: str, winner: Plan) -> None:
    """Keep the winner on disk for other processes."""
    DiskCache("plans").put(key, json.dumps(asdict(winner)).encode())


def variants(found: Sequence[Estimate]) -> list[Plan]:
    """The plans worth measuring: the model's first, the next best that differ in tile, parts or cluster, the best
    of tiles that these do not have, and the first with other rasters."""
    different: dict[Any, Plan] = {}
    for p in (e.plan for e in found):
        different.setdefault((p.kernel, p.tile, p.split, p.swap, p.cluster, p.share), p)
    ordered = list(different.values())
    plans = ordered[: MEASURED - MEASURED // 2]
    tiles = {(p.tile[:2], p.swap) for p in plans}
    for p in ordered:
        if len(plans) < MEASURED and (p.tile[:2], p.swap) not in tiles:
            tiles.add((p.tile[:2], p.swap))
            plans.append(p)
    plans += [replace(plans[0], raster=r) for r in (4, 8) if plans[0].by_hand]
    plans += [replace(plans[0], by_hand=False) for _ in (0,) if plans[0].by_hand and plans[0].share]
    return list(dict.fromkeys(plans))


def measured(problem: Problem, found: Sequence[Estimate], quiet: bool = False) -> Plan:
    """The fastest of `variants`: launches for several copies of the operands, the L2 cache emptied before the
    first, in rounds that run each plan once."""
    from rich.console import Console
    from rich.progress import Progress

    stream = stream_source(problem.lhs)()
    console = Console(file=sys.stderr, quiet=quiet)
    plans = variants(found)
    with Progress(console=console, transient=True) as progress, _copied(problem) as problems:
        task = progress.add_task("measuring plans", total=len(plans) + ROUNDS)
        ready: dict[Plan, list[list[PreparedLaunch]]] = {}
        alive = []
        repeated = REPEATED if not problems and found[0].seconds < SHORT else 1
        for plan, work, launches in _compiled(problem, plans):
            alive.append(work)
            try:
                first = [launches()] * repeated
                ready[plan] = [*first, *(_launches(_calls(p, plan, work)[0]) for p in problems)]
            except TilemmaError as e:
                console.print(f"{plan}: {e.message}")
            progress.advance(task)
        times: dict[Plan, list[float]] = {p: [] for p in ready}
        if times:
            for _ in _rounds(ready, times, stream):
                progress.advance(task)
    return winner(times, found[0].plan) if times else found[0].plan


def _compiled(
    problem: Problem, plans: Sequence[Plan]
) -> Iterator[tuple[Plan, Mapping[str, Any], Callable[[], list[PreparedLaunch]]]]:
    """Plans, the arrays that they work in, and a function for their launches: the first, and those that will be
    ready within `COMPILING` seconds if they take as long as others.

    The assembler runs in processes of its own: `WAITING` plans wait for it together.  None is left running, since
    measurements would wait for its thread.
    """
    begin, longest = time.perf_counter(), 0.0
    rest, waiting = iter(plans), deque[tuple[Plan, Mapping[str, Any], float, list[Future[list[PreparedLaunch]]]]]()
    with ThreadPoolExecutor(WAITING) as pool:
        while True:
            while len(waiting) < WAITING and time.perf_counter() + longest < begin + COMPILING:
                plan = next(rest, None)
                if plan is None:
                    break
                calls, work = _calls(problem, plan)
                now = time.perf_counter()
                waiting.append((plan, work, now, [pool.submit(_launches, [call]) for call in calls]))
            if not waiting:
                return
            plan, work, started, found = waiting.popleft()
            futures.wait(found)
            longest = max(longest, time.perf_counter() - started)
            yield plan, work, partial(_together, found)


def _together(found: Sequence[Future[list[PreparedLaunch]]]) -> list[PreparedLaunch]:
    return [x for each in found for x in each.result()]


def winner(times: Mapping[Plan, Sequence[float]], first: Plan) -> Plan:
    """The fastest plan; the model's ``first`` unless another is faster by more than `MARGIN`.

    Plans are compared by the median of their ratios within rounds: clocks change from round to round.
    """
    base = times.get(first, next(iter(times.values())))
    ratios = {p: statistics.median([x / y for x, y in zip(t, base, strict=True)]) for p, t in times.items()}
    best = min(ratios, key=lambda p: ratios[p])
    return first if first in times and ratios[best] >= 1 - MARGIN else best


def _rounds(
    ready: Mapping[Plan, Sequence[Sequence[PreparedLaunch]]], times: dict[Plan, list[float]], stream: int
) -> Iterator[None]:
    """Rounds that append the time of a call by each plan to ``times``: `ROUNDS`, or fewer in `SECONDS`.

    ``ready``: for each plan its launches, for each copy of the operands.
    """
    device = next(iter(ready.values()))[0][0].device
    driver, size = device.driver, FLUSH * max(device.l2_bytes, 1)
    with device.active():
        driver.synchronize(stream)
        place = driver.allocate(size)
        try:
            start, stop = driver.event(), driver.event()
            begin = time.perf_counter()
            for number in range(-WARMING, ROUNDS):
                for plan, calls in ready.items():
                    # The write empties the cache, and keeps the device busy while the host enqueues the launches.
                    driver.fill_async(place, 0, size, stream)
                    driver.record(start, stream)
                    for launch in itertools.chain(*calls):
                        launch.start(stream)
                    driver.record(stop, stream)
                    seconds = driver.elapsed(start, stop) / len(calls)
                    if number >= 0:
                        times[plan].append(seconds)
                if number >= FEWEST - 1 and time.perf_counter() - begin > SECONDS:
                    break
                yield
        finally:
            driver.free(place)


@contextlib.contextmanager
def _copied(problem: Problem) -> Iterator[list[Problem]]:
    """``problem`` for other operands of the same shapes, whose values do not matter: as many as together exceed
    the L2 cache, at most `COPIES`, and none for large operands."""
    operands = problem.lhs, problem.rhs
    rooms = [-(-_span(x) // UNIT) * UNIT + UNIT for x in operands]
    count = min(COPIES, SPREAD // sum(rooms))
    if count < 1 or any(s < 0 for x in operands for s in x.strides):
        yield []
        return
    device = cuda_device(problem.lhs.device[1])
    with device.active():
        # Zeros: what other programs left there could be slower to multiply.
        place = device.driver.allocate_zeroed(count * sum(rooms))
    try:
        found, at = [], place
        for _ in range(count):
            moved = []
            for x, room in zip(operands, rooms, strict=True):
                moved.append(x._replace(pointer=at + x.pointer % UNIT, owner=None))
                at += room
            found.append(replace(problem, lhs=moved[0], rhs=moved[1]))
        yield found
    finally:
        with device.active():
            device.driver.free(place)


def _span(x: ArrayRef) -> int:
    """Bytes from the first element of an array to the end of its last."""
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True))) * x.dtype.bytes


_Calls = list[tuple[Kernel, tuple[Any, ...], dict[str, Any]]]


def _calls(
    problem: Problem, plan: Plan, work: Mapping[str, Any] | None = None
) -> tuple[_Calls, Mapping[str, Any]]:
    """The kernel calls of a plan for the problem's own arrays, and the arrays it works in, to be kept alive."""
    planned = transposed_product(problem) if plan.swap else problem
    work = allocate(planned, plan, problem.lhs) if work is None else work
    found = []
    for step in steps(planned, plan, {n: describe(x) for n, x in work.items()}):
        args = tuple(x._replace(writable=True) if isinstance(x, ArrayRef) else x for x in step.args)
        found.append((step.kernel, args, step.constants))
    return found, work


def _launches(calls: _Calls) -> list[PreparedLaunch]:
    return [x for kernel, args, values in calls for x in kernel.on("cuda").prepare(*args, **values)]


def prepared(problem: Problem, plan: Plan) -> tuple[list[PreparedLaunch], Any]:
    """The launches of a plan for the problem's own arrays, and the arrays it works in, to be kept alive."""
    calls, work = _calls(problem, plan)
    return _launches(calls), work


# ---- what `ops.plan` returns ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with its reasons: ``chosen`` and the ``alternatives``, each with the model's time; print it."""

    problem: str
    device: str
    chosen: Estimate
    alternatives: tuple[Estimate, ...]
    measured: bool

    def __str__(self) -> str:
        how = "measured fastest" if self.measured else "predicted fastest"
        lines = [f"{self.problem} on {self.device}", f"  {how}: {self.chosen.plan}"]
        lines.append(f"    {self.chosen.seconds * 1e6:.1f} us by the model: {self.chosen.why}")
        lines += [f"  {e.seconds * 1e6:8.1f} us  {e.plan}: {e.why}" for e in self.alternatives]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return asdict(self)


def report(problem: Problem, tune: bool = False, count: int = 6) -> Report:
    """The plan of ``problem``, with the ``count`` best alternatives that differ in more than a part."""
    on = hardware(problem.out.device)
    m, n, k = problem.shape
    layouts = f"{problem.lhs_major}.{problem.rhs_major}"
    types = dict.fromkeys((str(problem.lhs.dtype), str(problem.rhs.dtype)))
    text = f"{m} x {n} x {k} {' x '.join(types)}, {layouts}"
    text += f", batch {problem.batch * len(problem.outer)}" if problem.batch * len(problem.outer) != 1 else ""
    text += " (transposed: the result is column-major)" if problem.swapped else ""
    found = usable(problem, on)
    if not problem.plain:
        text += f", {described(problem.epilogue)}"
    chosen = found[0]
    if tune and problem.out.device[0] == "cuda":
        chosen = estimate(problem, best(problem, True), on)
    rest = [e for e in found if e.plan != chosen.plan]
    seen: dict[tuple[Any, ...], Estimate] = {}
    for e in rest:
        seen.setdefault((e.plan.kernel, e.plan.tile, e.plan.swap), e)
    return Report(text, on.name, chosen, tuple(list(seen.values())[:count]), chosen is not found[0])


def described(e: Epilogue) -> str:
    """The epilogue in words."""
    parts = ["alpha"] * e.scaled + [f"+ beta * {e.addend}"] * bool(e.addend)
    parts += [f"+ bias along {e.bias}"] * bool(e.bias) + [e.activation] * bool(e.activation)
    return ", ".join(parts)
