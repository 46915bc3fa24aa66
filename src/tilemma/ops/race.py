"""Times of plans for the same product, measured by turns."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tilemma.arithmetic.integers import cdiv
from tilemma.errors import TilemmaError
from tilemma.forking import cached_property
from tilemma.ops.compiling import Compiled
from tilemma.ops.plan import Plan
from tilemma.ops.problem import Problem
from tilemma.runtime import Device, PreparedLaunch, cuda_device
from tilemma.runtime.arrays import ArrayRef, stream_source
from tilemma.runtime.cudadriver import Driver, DriverError

# The fewest rounds of a measurement; those of single calls before the first that counts.
FEWEST, WARMING = 3, 1
# At most so many copies of the arrays besides the caller's, and bytes of all; copies where so many would fit
# in an eighth of the L2 cache: what a call finds there depends on their number where they would fill a half.
COPIES, SPREAD, CACHED = 11, 120 << 20, 3
# Copies start at the same place within a page as the caller's arrays, small ones within a smaller unit.
PAGE, UNIT = 2 << 20, 512
# The L2 cache is emptied by a write of so many times its size, which lasts until the launches are enqueued.
FLUSH = 5
# The device is kept busy for at most so many times as long, where the host needs more time to enqueue launches.
MOST_AHEAD = 8
# Every fourth launch of a process took 0.9 us longer, whatever it was: a random number of others, less than this,
# stands before each that is timed.
SPACED = 4
# Calls at a time, at most and at least, and seconds that they take together if there are more; products that are
# predicted to take so many seconds are only called once at a time.
CALLS, REPEATED, TOGETHER, LONG = 12, 4, 1.5e-3, 4e-4


@dataclass
class Contestant:
    """A plan's launches for the caller's operands and for the copies of these, and its other arrays."""

    launches: list[list[PreparedLaunch]]
    work: Mapping[str, Any]
    graph: Any = None


@dataclass
class Race:
    """Plans for ``problem``, timed one call at a time or ``calls``, these on it and on ``copies`` of its operands,
    until ``end`` (perf_counter).

    ``say``: prints why a plan cannot run.  Many calls are a graph: the host takes longer to launch small ones.  It
    is replayed twice, and the second time counts: as in a program, the L2 cache holds what the calls before have
    left.  Before a single call it is emptied.
    """

    problem: Problem
    copies: Sequence[Problem]
    calls: int
    advance: Callable[[], None]
    say: Callable[[str], None]
    end: float = math.inf
    ready: dict[Plan, Contestant] = field(default_factory=dict)
    # How often the device does what goes before a sequence of calls, and a single one.
    ahead: dict[bool, int] = field(default_factory=lambda: {False: 1, True: 1})
    turns: random.Random = field(default_factory=partial(random.Random, 0))

    @cached_property
    def _events(self) -> tuple[Any, Any]:
        return self.device.driver.event(), self.device.driver.event()

    @property
    def device(self) -> Device:
        return cuda_device(self.problem.lhs.device[1])

    def enter(self, plans: Iterable[Compiled]) -> list[Plan]:
        """Those of ``plans`` that can run."""
        found = []
        for each in plans:
            try:
                if each.error:
                    self.say(f"{each.plan}: {each.error}")
                    continue
                self.ready[each.plan] = Contestant([each.launches()], each.work)
                found.append(each.plan)
            except TilemmaError as e:
                self.say(f"{each.plan}: {e.message}")
            self.advance()
        return found

    def _starter(self, plan: Plan, single: bool) -> Callable[[int], None]:
        """Starts one call by a plan, or all."""
        own, driver = self.ready[plan], self.device.driver
        if single:
            return partial(_start, own.launches[:1])
        if own.graph is None:
            first = own.launches[0]
            own.launches += [[x.relocated(partial(self._place, p)) for x in first] for p in self.copies]
            turns = [own.launches[i % len(own.launches)] for i in range(self.calls)]
            with self.device.active():
                own.graph = driver.graph(partial(_start, turns))
        return partial(driver.replay, own.graph)

    def _place(self, copy: Problem, array: ArrayRef) -> int:
        """Where ``copy`` has ``array``: where it is, unless all of it lies within an operand or the result.

        Views of one array may begin within an operand and end behind it, where the copy has no memory.
        """
        low, high = array.span()
        own = self.problem
        for x, there in ((own.lhs, copy.lhs), (own.rhs, copy.rhs), (own.out, copy.out)):
            if x.pointer <= low and high <= x.pointer + _span(x):
                return there.pointer + array.pointer - x.pointer
        return array.pointer

    def close(self) -> None:
        """Forget the graphs."""
        with self.device.active():
            for each in self.ready.values():
                if each.graph is not None:
                    self.device.driver.forget(each.graph)

    def run(
        self, plans: Sequence[Plan], rounds: int, deadline: float, single: bool = False, within: float = math.inf
    ) -> dict[Plan, list[float]]:
        """The times of a call by each plan, of all calls or a ``single`` one, in rounds that run each plan once;
        `FEWEST` rounds at least, or those that can be done until the `end`.  Plans that take more than ``within``
        times as long as the first one have no further rounds.

        Each round has another order: the same kernel took up to 1 % more or less time behind another one.
        """
        times: dict[Plan, list[float]] = {p: [] for p in plans}
        starters = {p: self._starter(p, single) for p in plans}
        driver = self.device.driver
        stream = stream_source(self.problem.lhs)()
        with self.device.active():
            driver.synchronize(stream)
            place, size = _room(driver, max(self.device.l2_bytes, 1)) if single else (0, 0)
            empty = partial(self._empty, place, size) if single else None
            try:
                for number in range(-WARMING if single else 0, rounds):
                    found = self._round(starters, empty, stream)
                    if found is None:
                        break
                    for plan, seconds in found.items() if number >= 0 else ():
                        times[plan].append(seconds)
                        if seconds > within * found[plans[0]]:
                            del starters[plan]
                    self.advance()
                    if number >= FEWEST - 1 and time.perf_counter() > deadline:
                        break
            finally:
                if single:
                    driver.free(place)
        return times

    def _round(
        self, starters: Mapping[Plan, Callable[[int], None]], empty: Callable[[int], None] | None, stream: int
    ) -> dict[Plan, float] | None:
        """The time of a call by each plan, ``empty`` before single ones; None if it is the `end` before."""
        found = {}
        for plan, starter in self.turns.sample(list(starters.items()), len(starters)):
            if time.perf_counter() > self.end:
                return None
            seconds = self._timed(empty or starter, starter, empty is not None, stream)
            found[plan] = seconds if empty else seconds / self.calls
        return found

    def _empty(self, place: int, size: int, stream: int) -> None:
        """Empty the L2 cache, behind some launches."""
        for _ in range(self.turns.randrange(SPACED)):
            self.device.driver.fill_async(place, 0, 1, stream)
        self.device.driver.fill_async(place, 0, size, stream)

    def _timed(
        self, before: Callable[[int], None], starter: Callable[[int], None], single: bool, stream: int
    ) -> float:
        """Seconds of what ``starter`` starts, behind what ``before`` starts.

        Where the device comes to the first event before all launches are enqueued, it waits for the host, which
        may have other things to do: they are timed again, the device busy for longer if that happens twice.
        """
        driver, (start, stop), again = self.device.driver, self._events, False
        while True:
            for _ in range(self.ahead[single]):
                before(stream)
            driver.record(start, stream)
            starter(stream)
            driver.record(stop, stream)
            late = driver.reached(start)
            seconds = driver.elapsed(start, stop)
            if not late or self.ahead[single] >= MOST_AHEAD:
                return seconds
            self.ahead[single] *= 1 + again
            again = True


def _room(driver: Driver, least: int) -> tuple[int, int]:
    """Address and size of memory that is written to empty the L2 cache, of ``least`` bytes; shorter than `FLUSH`
    times as long where the device has no more room."""
    for size in (FLUSH * least, 2 * least):
        with contextlib.suppress(DriverError):
            return driver.allocate(size), size
    return driver.allocate(least), least


def _start(calls: Sequence[Sequence[PreparedLaunch]], stream: int) -> None:
    for launch in itertools.chain(*calls):
        launch.start(stream)


@contextlib.contextmanager
def copied(problem: Problem) -> Iterator[list[Problem]]:
    """``problem`` for copies of its operands and its result: as many as together with these exceed the L2 cache,
    at most `COPIES`, and none for large ones or where the device has no room.

    Results that are all written to the same place would stay in the L2 cache.
    """
    arrays = problem.lhs, problem.rhs, problem.out
    units = [PAGE if _span(x) > PAGE // 2 else UNIT for x in arrays]
    rooms = [cdiv(_span(x), unit) * unit + unit for x, unit in zip(arrays, units, strict=True)]
    device = cuda_device(problem.lhs.device[1])
    size = sum(map(_span, arrays))
    most = CACHED if 8 * COPIES * size < device.l2_bytes else COPIES
    count = min(most, cdiv(SPREAD, max(1, size)) - 1)
    if count < 1 or any(s < 0 for x in arrays for s in x.strides):
        yield []
        return
    with device.active():
        device.driver.synchronize(stream_source(problem.lhs)())
        try:
            place = device.driver.allocate(count * sum(rooms))
        except DriverError:
            place = 0
    if not place:
        yield []
        return
    try:
        found, at = [], place
        for _ in range(count):
            moved = []
            for x, unit, room in zip(arrays, units, rooms, strict=True):
                there = at + (x.pointer - at) % unit
                if x is not problem.out:
                    # The time depends on the values: the clock is higher where bits change less.
                    with device.active():
                        device.driver.copy(there, x.pointer, _span(x))
                moved.append(x._replace(pointer=there, owner=None))
                at += room
            found.append(replace(problem, lhs=moved[0], rhs=moved[1], out=moved[2]))
        yield found
    finally:
        with device.active():
            device.driver.free(place)


def _span(x: ArrayRef) -> int:
    """Bytes from the first element of an array to the end of its last."""
    return (1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True))) * x.dtype.bytes
