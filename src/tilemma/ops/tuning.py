"""Tuning: the fastest plan for a call, found by measurement.

The plans that the model ranks first, and the best of other tiles, are compiled and timed in a few rounds.  Then
the neighbours of the fastest three are.  The fastest few of all are timed once more, in turns with the model's
choice: a plan that was the fastest by chance does not win.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tilemma.arithmetic.integers import cdiv
from tilemma.errors import TilemmaError
from tilemma.kernels import Kernel, best_arch
from tilemma.ops.children import cores, results_of
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps
from tilemma.ops.transfer import Made, adopt, make
from tilemma.ops.workspace import allocate
from tilemma.runtime import Device, PreparedLaunch, assembly_arch, cuda_device
from tilemma.runtime.arrays import ArrayRef, describe, stream_source

# How many plans are measured first, how many neighbours of the fastest, and of how many; the last few, besides the
# model's.
MEASURED, NEIGHBOURS, FASTEST, FINALISTS = 24, 16, 3, 5
# Seconds after the begin: no plan that would be ready later is compiled, no neighbour, and the last are measured
# until then, at least as long as this.
COMPILING, SEARCHING, MEASURING, LEAST = 0.95, 1.45, 1.75, 0.12
# Rounds of the first measurements, in at most so many seconds, and of the last; the fewest; the rounds before the
# first that counts.
TRIAL, TRYING, ROUNDS, FEWEST, WARMING = 5, 0.1, 61, 3, 1
# At most so many copies of the operands besides the caller's, and bytes of them; copies where so many would fit in
# half of the L2 cache; the alignment of each.
COPIES, SPREAD, CACHED, UNIT = 11, 96 << 20, 3, 256
# The L2 cache is emptied by a write of this many times its size, which lasts until the launches are enqueued.
FLUSH = 10
# Calls at a time where there are copies of the operands, and otherwise, if one is predicted to take fewer seconds:
# single launches also show how a plan starts and ends.
CALLS, REPEATED, SHORT = 12, 4, 2e-4
# Child processes that compile, at most and at least; threads otherwise, which wait for the assembler.
CHILDREN, FEWEST_CHILDREN, WAITING = 12, 3, 4
# By how much another plan has to be faster than the model's, in either half of the rounds: of 56 products that
# were timed again the winners were 0.993 times as fast at least.  Of 145, timed without graphs, they were 0.999,
# and 0.959 with 0.012.
MARGIN = 0.02
# Plans that the model predicts to take so many times the least are not measured.
HOPELESS = 2.0
# Neighbours: tile rows that blocks walk together; how many plans with the nearest tiles and parts, whose predicted
# time is at most so many times the least.
RASTERS, NEAREST, WORTH = (8, 4, 32), 4, 1.5


def variants(found: Sequence[Estimate]) -> list[Plan]:
    """The plans to be measured first: the model's, the next best that differ in tile, parts or cluster, and by
    turns with these the best of tiles that the others do not have."""
    different: dict[Any, Plan] = {}
    for p in (e.plan for e in found if e.seconds <= HOPELESS * found[0].seconds):
        different.setdefault((p.kernel, p.tile, p.split, p.swap, p.cluster, p.share), p)
    ordered = list(different.values())
    tiles: dict[Any, Plan] = {}
    for p in ordered:
        tiles.setdefault((p.tile[:2], p.swap), p)
    turns = zip(ordered[3:], itertools.chain(tiles.values(), itertools.repeat(ordered[0])), strict=False)
    return list(dict.fromkeys([*ordered[:3], *itertools.chain(*turns)]))[:MEASURED]


def neighbours(problem: Problem, plan: Plan, found: Sequence[Estimate]) -> list[Plan]:
    """Plans that differ from ``plan`` in what the model does not tell apart: the number of parts, the raster, the
    stages, and who pipelines the kernel; and those of ``found`` with the nearest tiles and parts."""
    p = transposed_product(problem) if plan.swap else problem
    (m, n, k), (rows, columns, depth) = p.shape, plan.tile
    near = []
    if plan.split > 1:
        parts = (plan.split + x for x in (1, -1, 2, -2))
        near += [replace(plan, split=x) for x in parts if 1 < x <= cdiv(k, depth) // 4]
    near += [replace(plan, stages=plan.stages - 1)] * (plan.stages > 2)
    if plan.kernel == "pipelined" and (not plan.by_hand or (p.grouped and not p.promote)):
        near.append(replace(plan, by_hand=not plan.by_hand))
    near += sorted(_similar(plan, found), key=partial(_distance, plan))[:NEAREST]
    if plan.kernel == "pipelined" and cdiv(n, columns) > 1:
        tall = cdiv(m, rows * plan.cluster[0])
        near += [replace(plan, by_hand=True, raster=x) for x in RASTERS if x < tall and x != plan.raster]
    return near + [replace(plan, stages=plan.stages - 2)] * (plan.stages > 4)


def _similar(plan: Plan, found: Sequence[Estimate]) -> list[Plan]:
    most = WORTH * found[0].seconds
    same = (e.plan for e in found if e.seconds < most and e.plan.kernel == plan.kernel)
    return [x for x in same if x.swap == plan.swap and x != plan]


def _distance(a: Plan, b: Plan) -> float:
    """How different two plans are, in doublings of an extent."""
    pairs = [*zip(a.tile, b.tile, strict=True), *zip(a.cluster, b.cluster, strict=True), (a.split, b.split)]
    return sum(abs(math.log2(x / y)) for x, y in pairs) + (a.share != b.share) + (a.pack != b.pack)


def measured(problem: Problem, found: Sequence[Estimate], quiet: bool = False) -> Plan:
    """The fastest of `variants` and of their `neighbours`; the model's choice unless another is faster."""
    from rich.console import Console
    from rich.progress import Progress

    begin, console = time.perf_counter(), Console(file=sys.stderr, quiet=quiet)
    first = found[0].plan
    progress = Progress(console=console, transient=True)
    with progress, _copied(problem) as copies, contextlib.ExitStack() as alive:
        task = progress.add_task("measuring plans", total=MEASURED + NEIGHBOURS + 2 * TRIAL + ROUNDS)
        advance = partial(progress.advance, task)
        calls = CALLS if copies else REPEATED if found[0].seconds < SHORT else 1
        race = Race(problem, copies, calls, advance, lambda text: console.print(text))
        alive.callback(race.close)
        race.enter(variants(found), begin + COMPILING)
        if first not in race.entered:
            race.enter([first], math.inf)
        if not race.ready:
            return first
        spent = time.perf_counter() - begin
        times = race.run(list(race.ready), TRIAL, time.perf_counter() + TRYING)
        order = _order(times, first)
        # By turns, those of the fastest first, and as many as will be ready if they take as long as the others.
        lists = itertools.zip_longest(*(neighbours(problem, p, found) for p in order[:FASTEST]))
        near = [x for x in dict.fromkeys(itertools.chain(*lists)) if x is not None and x not in race.entered]
        room = int((begin + SEARCHING - time.perf_counter()) / spent * len(race.entered))
        new = race.enter(near[: max(0, min(room, NEIGHBOURS))], begin + SEARCHING)
        if new:
            base = first if first in race.ready else order[0]
            more = race.run([base, *new], TRIAL, time.perf_counter() + TRYING)
            ratios = _ratios(times, base) | _ratios(more, base)
            order = sorted(ratios, key=lambda p: ratios[p])
        last = [first] * (first in race.ready) + [p for p in order if p != first][:FINALISTS]
        until = max(begin + MEASURING, time.perf_counter() + LEAST)
        return winner(race.run(last, ROUNDS, until), first)


def _ratios(times: Mapping[Plan, Sequence[float]], base: Plan) -> dict[Plan, float]:
    """The median of each plan's ratios to ``base`` within rounds: clocks change from round to round."""
    return {p: statistics.median(x / y for x, y in zip(t, times[base], strict=True)) for p, t in times.items()}


def _order(times: Mapping[Plan, Sequence[float]], first: Plan) -> list[Plan]:
    ratios = _ratios(times, first if first in times else next(iter(times)))
    return sorted(ratios, key=lambda p: ratios[p])


def winner(times: Mapping[Plan, Sequence[float]], first: Plan) -> Plan:
    """The fastest plan; the model's ``first`` unless another is faster by more than `MARGIN` in the first half of
    the rounds and in the second."""
    best = _order(times, first)[0]
    if first not in times:
        return best
    half = len(times[first]) // 2
    for part in (slice(half), slice(half, None)) if half else (slice(None),):
        rounds = {p: t[part] for p, t in times.items() if p in (first, best)}
        if _ratios(rounds, first)[best] >= 1 - MARGIN:
            return first
    return best


@dataclass
class Race:
    """Plans for ``problem``, ready to be timed by ``calls`` at a time, on it and on ``copies`` of its operands."""

    problem: Problem
    copies: Sequence[Problem]
    calls: int
    advance: Callable[[], None]
    say: Callable[[str], None]
    entered: set[Plan] = field(default_factory=set)
    # A function that starts the calls of a plan on a stream; the graphs of some; the arrays that they work in.
    ready: dict[Plan, Callable[[int], None]] = field(default_factory=dict)
    graphs: list[Any] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)

    @property
    def device(self) -> Device:
        return cuda_device(self.problem.lhs.device[1])

    def enter(self, plans: Iterable[Plan], deadline: float) -> list[Plan]:
        """Compile the plans that will be ready by ``deadline``; those that can run."""
        found = []
        for plan, work, launches in _compiled(self.problem, list(dict.fromkeys(plans)), deadline):
            self.entered.add(plan)
            try:
                each = [launches(), *(_launches(_calls(p, plan, work)[0]) for p in self.copies)]
                self.ready[plan] = self._starter([each[i % len(each)] for i in range(self.calls)])
                self.alive.append((work, each))
                found.append(plan)
            except TilemmaError as e:
                self.say(f"{plan}: {e.message}")
            self.advance()
        return found

    def _starter(self, calls: Sequence[Sequence[PreparedLaunch]]) -> Callable[[int], None]:
        """Starts all calls; small ones as a graph, because the host takes longer to launch them."""

        def start(stream: int) -> None:
            for launch in itertools.chain(*calls):
                launch.start(stream)

        if not self.copies:
            return start
        driver = self.device.driver
        with self.device.active():
            graph = driver.graph(start)
        self.graphs.append(graph)
        return partial(driver.replay, graph)

    def close(self) -> None:
        with self.device.active():
            for graph in self.graphs:
                self.device.driver.forget(graph)

    def run(self, plans: Sequence[Plan], rounds: int, deadline: float) -> dict[Plan, list[float]]:
        """The times of a call by each plan: all calls, the L2 cache emptied before the first, in rounds that run
        each plan once; `FEWEST` rounds at least."""
        times: dict[Plan, list[float]] = {p: [] for p in plans}
        stream = stream_source(self.problem.lhs)()
        for _ in self._rounds(times, stream, rounds, deadline):
            self.advance()
        return times

    def _rounds(self, times: dict[Plan, list[float]], stream: int, rounds: int, deadline: float) -> Iterator[None]:
        """Rounds that append the times of a call by each plan: ``rounds``, or fewer until ``deadline``."""
        driver, size = self.device.driver, FLUSH * max(self.device.l2_bytes, 1)
        with self.device.active():
            driver.synchronize(stream)
            place = driver.allocate(size)
            try:
                start, stop = driver.event(), driver.event()
                for number in range(-WARMING, rounds):
                    for plan in times:
                        # The write empties the cache, and keeps the device busy while the host enqueues launches.
                        driver.fill_async(place, 0, size, stream)
                        if self.graphs:
                            # What the cache holds of that is written to memory meanwhile.
                            self.ready[plan](stream)
                        driver.record(start, stream)
                        self.ready[plan](stream)
                        driver.record(stop, stream)
                        seconds = driver.elapsed(start, stop) / self.calls
                        if number >= 0:
                            times[plan].append(seconds)
                    if number >= FEWEST - 1 and time.perf_counter() > deadline:
                        break
                    yield
            finally:
                driver.free(place)


_Calls = list[tuple[Kernel, tuple[Any, ...], dict[str, Any]]]
_Started = tuple[Plan, Mapping[str, Any], Callable[[], list[PreparedLaunch]]]


def _compiled(problem: Problem, plans: Sequence[Plan], deadline: float) -> Iterator[_Started]:
    """Plans, the arrays that they work in, and a function for their launches: those that will be ready by
    ``deadline`` if they take as long as others."""
    count = min(CHILDREN, cores() - 1, len(plans))
    if count < FEWEST_CHILDREN or not hasattr(os, "fork"):
        yield from _compiled_here(problem, plans, deadline)
        return
    device = cuda_device(problem.lhs.device[1])
    target = best_arch(device.compute_capability)
    made_by = partial(_make, target, assembly_arch(target, device))
    jobs = [(plan, *_calls(problem, plan)) for plan in plans]
    for (plan, calls, work), made in results_of(made_by, jobs, count, deadline):
        for (kernel, *_), each in zip(calls, made, strict=False):
            adopt(kernel, each)
        # What a child could not compile is compiled again, for its error.
        yield plan, work, partial(_launches, calls)


def _make(target: str, where: str, job: tuple[Plan, _Calls, Any]) -> list[Made]:
    """The kernels of a plan, compiled in a child process; none if that fails."""
    with contextlib.suppress(Exception):
        return [make(target, where, *call) for call in job[1]]
    return []


def _compiled_here(problem: Problem, plans: Sequence[Plan], deadline: float) -> Iterator[_Started]:
    """The same by threads of this process.

    The assembler runs in processes of its own: `WAITING` plans wait for it together.  None is left running, since
    measurements would wait for its thread.
    """
    longest = 0.0
    rest, waiting = iter(plans), deque[tuple[Plan, Mapping[str, Any], float, list[Future[list[PreparedLaunch]]]]]()
    with ThreadPoolExecutor(WAITING) as pool:
        while True:
            while len(waiting) < WAITING and time.perf_counter() + longest < deadline:
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


@contextlib.contextmanager
def _copied(problem: Problem) -> Iterator[list[Problem]]:
    """``problem`` for other operands of the same shapes, whose values do not matter: as many as together exceed
    the L2 cache, at most `COPIES`, and none for large operands."""
    operands = problem.lhs, problem.rhs
    rooms = [-(-_span(x) // UNIT) * UNIT + UNIT for x in operands]
    device = cuda_device(problem.lhs.device[1])
    most = CACHED if 2 * COPIES * sum(rooms) < device.l2_bytes else COPIES
    count = min(most, SPREAD // sum(rooms))
    if count < 1 or any(s < 0 for x in operands for s in x.strides):
        yield []
        return
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
