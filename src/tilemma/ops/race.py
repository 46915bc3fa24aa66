"""Times of plans for the same product, measured by turns."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tilemma.errors import TilemmaError
from tilemma.ops.compiling import Compiled, calls_of, launches_of
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem
from tilemma.runtime import Device, PreparedLaunch, cuda_device
from tilemma.runtime.arrays import ArrayRef, stream_source

# The fewest rounds of a measurement; those before the first that counts.
FEWEST, WARMING = 3, 1
# At most so many copies of the operands besides the caller's, and bytes of them; copies where so many would fit
# in half of the L2 cache; the alignment of each.
COPIES, SPREAD, CACHED, UNIT = 11, 96 << 20, 3, 256
# The L2 cache is emptied by a write of so many times its size, which lasts until the launches are enqueued.
FLUSH = 10
# Calls at a time where there are copies of the operands, and otherwise, if one is predicted to take fewer seconds.
CALLS, REPEATED, SHORT = 12, 4, 2e-4


@dataclass
class Contestant:
    """A plan's launches for the caller's operands and for the copies of these, and its other arrays."""

    launches: list[list[PreparedLaunch]]
    work: Mapping[str, Any]
    graph: Any = None


@dataclass
class Race:
    """Plans for ``problem``, timed one call at a time or ``calls``, these on it and on ``copies`` of its operands.

    ``say``: prints why a plan cannot run.
    """

    problem: Problem
    copies: Sequence[Problem]
    calls: int
    advance: Callable[[], None]
    say: Callable[[str], None]
    ready: dict[Plan, Contestant] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        return cuda_device(self.problem.lhs.device[1])

    def enter(self, plans: Iterable[Compiled]) -> list[Plan]:
        """Those of ``plans`` that can run."""
        found = []
        for each in plans:
            try:
                self.ready[each.plan] = Contestant([each.launches()], each.work)
                found.append(each.plan)
            except TilemmaError as e:
                self.say(f"{each.plan}: {e.message}")
            self.advance()
        return found

    def _starter(self, plan: Plan, single: bool) -> Callable[[int], None]:
        """Starts one call by a plan, or all; small ones as a graph: the host takes longer to launch them."""
        own, driver = self.ready[plan], self.device.driver
        if single or (not self.copies and self.calls == 1):
            return partial(_start, own.launches[:1])
        if not self.copies:
            return partial(_start, own.launches[:1] * self.calls)
        if own.graph is None:
            own.launches += [launches_of(calls_of(p, plan, own.work)[0]) for p in self.copies]
            turns = [own.launches[i % len(own.launches)] for i in range(self.calls)]
            with self.device.active():
                own.graph = driver.graph(partial(_start, turns))
        return partial(driver.replay, own.graph)

    def close(self) -> None:
        with self.device.active():
            for each in self.ready.values():
                if each.graph is not None:
                    self.device.driver.forget(each.graph)

    def run(
        self, plans: Sequence[Plan], rounds: int, deadline: float, single: bool = False
    ) -> dict[Plan, list[float]]:
        """The times of a call by each plan: of all calls or a ``single`` one, the L2 cache emptied before the
        first, in rounds that run each plan once; `FEWEST` rounds at least."""
        times: dict[Plan, list[float]] = {p: [] for p in plans}
        starters = {p: self._starter(p, single) for p in plans}
        graphs, calls = bool(self.copies) and not single, 1 if single else self.calls
        driver, size = self.device.driver, FLUSH * max(self.device.l2_bytes, 1)
        stream = stream_source(self.problem.lhs)()
        with self.device.active():
            driver.synchronize(stream)
            place = driver.allocate(size)
            try:
                start, stop = driver.event(), driver.event()
                for number in range(-WARMING, rounds):
                    for plan, starter in starters.items():
                        # The write empties the cache, and keeps the device busy while the host enqueues launches.
                        driver.fill_async(place, 0, size, stream)
                        if graphs:
                            # What the cache holds of that is written to memory meanwhile.
                            starter(stream)
                        driver.record(start, stream)
                        starter(stream)
                        driver.record(stop, stream)
                        seconds = driver.elapsed(start, stop) / calls
                        if number >= 0:
                            times[plan].append(seconds)
                    self.advance()
                    if number >= FEWEST - 1 and time.perf_counter() > deadline:
                        break
            finally:
                driver.free(place)
        return times


def _start(calls: Sequence[Sequence[PreparedLaunch]], stream: int) -> None:
    for launch in itertools.chain(*calls):
        launch.start(stream)


@contextlib.contextmanager
def copied(problem: Problem) -> Iterator[list[Problem]]:
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
