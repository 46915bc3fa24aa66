"""Tuning: the fastest plan for a call, found by measurement.

Child processes compile plans all the time: those that the model ranks first, the best of other tiles, and the
neighbours of those that were the fastest so far.  Meanwhile those that are ready are timed in a few rounds.  The
fastest few of all are timed once more, in turns with the model's choice: a plan that was the fastest by chance
does not win.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilemma.forking import cached_property, collection_paused
from tilemma.ops import compiling, race
from tilemma.ops.neighbours import neighbours
from tilemma.ops.plan import Estimate, Hardware, Plan, hardware
from tilemma.ops.problem import Problem
from tilemma.ops.race import Race, copied
from tilemma.runtime import PreparedLaunch

# How many of the model's plans are tried, and how many of the fastest plans have neighbours that are tried.
MEASURED, FASTEST = 40, 4
# Seconds after the begin: no plan that would be ready later is compiled, but the model's choice is awaited until
# the second; the last are measured until the third, at least as long as this.
SEARCHING, WAITING, MEASURING, LEAST = 1.42, 1.65, 1.8, 0.1
# Seconds after the begin when nothing more is measured, whatever it is for: a busy host is late.
END = 1.86
# Seconds that measurements of the search may last longer.
LATE = 0.15
# Plans that are timed together; rounds of the first measurements, of sequences and of single calls, in at most so
# many seconds; how many times as long as the model's choice a plan takes that is not timed again.
TOGETHER, TRIAL, TRYING, SLOWER = 6, {False: 3, True: 5}, 0.1, 1.1
# Of the plans that may be the fastest so many are timed again while others are compiled, in so many rounds at a
# time, until they have been timed so often; more of their time than this over the least is not.
AGAIN, SHORT, ENOUGH, NEAR = 4, 4, 40, 1.02
# Of the last plans so many are left in each part of their measurement; rounds of a part, at most.
LEFT, ROUNDS = (6, 3, 2), 41
# One call is timed at a time, too, of results with so many rows and columns, and of batches whose operands have
# so many bytes: at first, where it is predicted to take so many seconds.
LARGE, WIDE, SLOW = 512, 60e6, 2e-5
# Those for which both ways are used are measured so in the search, too, where a call takes less than so long.
QUICK = 4e-5
# How much faster than the model's choice another plan has to be on average, and where K is divided and of batches.
# Of plans for 71 products that seemed 0.7 to 1.5 % faster at last, 5 of 50 were more than 1 % slower when timed
# again, of those that seemed 1.5 % faster and more 1 of 121.
MARGIN, MARGIN_OF_PARTS, MARGIN_OF_BATCHES = 0.01, 0.015, 0.015
# The same where single calls of less than `SLOW` count: their medians of seven change by 2 % from time to time.
MARGIN_OF_SHORT = 0.015
# Standard deviations, of as many coins as there are rounds, by which a plan has to win more rounds than it loses
# in one way to measure; how much slower it may be in the others beyond doubt.
CERTAIN, UNSURE = 2.5, 0.005
# Plans that the model predicts to take so many times the least are not measured.
HOPELESS = 2.0


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


def measured(problem: Problem, found: Sequence[Estimate], quiet: bool = False, spent: float = 0.0) -> Plan:
    """The fastest of `variants` and of their `neighbours`; the model's choice unless another is faster.

    ``spent``: seconds that the call has taken before.
    """
    begin = time.perf_counter() - spent
    from rich.console import Console
    from rich.progress import Progress

    # Without a stderr, rich would write on stdout.
    console = Console(file=sys.stderr, quiet=quiet or sys.stderr is None)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with progress, copied(problem) as copies, contextlib.ExitStack() as alive:
        task = progress.add_task("measuring plans", total=MEASURING)
        calls = min(race.CALLS, max(race.REPEATED, 1 + len(copies), int(race.TOGETHER / found[0].seconds)))
        contest = Race(
            problem, copies, calls,
            lambda: progress.update(task, completed=time.perf_counter() - begin),
            lambda text: console.print(text, markup=False),
            begin + END,
        )  # fmt: skip
        alive.callback(contest.close)
        search = Search(problem, found, contest, alive)
        search.run(begin + SEARCHING, begin + WAITING)
        if search.first not in search.ratios:
            return search.first
        until = max(begin + MEASURING, time.perf_counter() + LEAST)
        return search.decide(until)


@dataclass
class Search:
    """The search for the fastest plan for ``problem``; ``found``: the model's estimates."""

    problem: Problem
    found: Sequence[Estimate]
    race: Race
    # Ends what the search has started.
    alive: contextlib.ExitStack
    tried: set[Plan] = field(default_factory=set)
    # Each plan's times over those of the model's choice in the same rounds: clocks change from round to round.
    ratios: dict[Plan, list[float]] = field(default_factory=dict)
    near: dict[Plan, list[Plan]] = field(default_factory=dict)
    # Seconds that timing a plan took at most.
    longest: float = 1e-3

    @property
    def first(self) -> Plan:
        """The model's choice."""
        return self.found[0].plan

    @cached_property
    def variants(self) -> list[Plan]:
        return variants(self.found)

    @cached_property
    def on(self) -> Hardware:
        return hardware(self.problem.out.device)

    @cached_property
    def ways(self) -> tuple[bool, ...]:
        """Whether one call is timed at a time: first, and what is measured at last, too."""
        p, seconds = self.problem, self.found[0].seconds
        if seconds > race.LONG:
            return (True,)
        m, n, k = p.shape
        wide = p.batch > 1 and p.batch * (m + n) * k * p.lhs.dtype.bytes > WIDE
        if not (p.grouped or wide or min(m, n) >= LARGE):
            return (False,)
        return (True, False) if seconds > SLOW else (False, True)

    def run(self, deadline: float, last: float) -> None:
        """Compile and time plans until ``deadline`` (perf_counter); await the model's choice until ``last``."""
        wanted = self._wanted()
        compiler = compiling.compiler(self.problem, deadline, wanted)
        self.alive.callback(compiler.close)
        # Results need not wait for collections, which take long in a program with many objects.
        with collection_paused():
            try:
                self._run(compiler, wanted, deadline, last)
            finally:
                compiler.stop()

    def _run(
        self, compiler: compiling.Forked | compiling.Threads, wanted: Iterator[Plan], deadline: float, last: float
    ) -> None:
        new: list[Plan] = []
        while True:
            while compiler.room > 0 and (plan := next(wanted, None)) is not None:
                compiler.send(plan)
            known = self.first in self.ratios
            until = deadline if known else last
            more = compiler.waiting > 0 and time.perf_counter() < until
            again = self._promising() if known and compiler.apart else []
            if more:
                new += self.race.enter(compiler.receive(0.0 if again else until))
            if not known and self.first in new:
                self.ratios[self.first] = [1.0]
            elif known and new and (len(new) >= TOGETHER or not more):
                self._time([p for p in new if p != self.first], TRIAL, deadline)
                new, wanted = [], self._wanted()
            elif not more:
                return
            elif again:
                self._time(again, dict.fromkeys(TRIAL, SHORT), deadline)

    @cached_property
    def _first_ways(self) -> tuple[bool, ...]:
        """The ways to measure in the search: all, where many calls do not take long."""
        return self.ways if self.found[0].seconds < QUICK else self.ways[:1]

    def _time(self, plans: Sequence[Plan], rounds: Mapping[bool, int], deadline: float) -> None:
        """Time those of ``plans`` that take no longer than `LATE` seconds after ``deadline``."""
        begin = time.perf_counter()
        plans = plans[: max(0, int((deadline + LATE - begin) / self.longest))]
        all_of = [self.first, *plans]
        found = [self.race.run(all_of, rounds[x], begin + TRYING, x, SLOWER) for x in self._first_ways]
        for plan in plans:
            each = (_over(times[plan], times[self.first]) for times in found)
            ratios = [statistics.fmean(x) for x in zip(*each, strict=False)]
            if ratios:
                self.ratios.setdefault(plan, []).extend(ratios)
        self.longest = max(self.longest, (time.perf_counter() - begin) / (1 + len(plans)))

    def _ordered(self) -> list[tuple[float, Plan]]:
        """The timed plans but the model's choice, and how fast they may be, the fastest first: the median of few
        ratios is less certain."""
        medians = {p: statistics.median(x) for p, x in self.ratios.items() if p != self.first}
        off = [abs(x - medians[p]) for p in medians for x in self.ratios[p]]
        width = statistics.median(off) if off else 0.0
        least = ((x - width / math.sqrt(len(self.ratios[p])), p) for p, x in medians.items())
        return sorted(least, key=lambda x: x[0])

    def _promising(self) -> list[Plan]:
        """The plans to be timed again."""
        ordered = self._ordered()
        near = [p for x, p in ordered if x < NEAR * min(1.0, ordered[0][0])]
        return [p for p in near if len(self.ratios[p]) < ENOUGH][:AGAIN]

    def _wanted(self) -> Iterator[Plan]:
        """The plans to be tried next: by turns neighbours of the fastest, and the model's."""
        fastest = sorted(self.ratios, key=lambda p: statistics.median(self.ratios[p]))[:FASTEST] or [self.first]
        for p in fastest:
            if p not in self.near:
                self.near[p] = neighbours(self.problem, p, self.found, self.on)
        lists = itertools.zip_longest(self.variants, *(self.near[p] for p in fastest))
        for plan in itertools.chain([self.first], *lists):
            if plan is not None and plan not in self.tried:
                self.tried.add(plan)
                yield plan

    def decide(self, until: float) -> Plan:
        """The fastest of the fastest, measured until ``until``."""
        # A plan that seemed slower in the search and 10 % faster at last was 1 % slower when timed again.
        last = [p for _, p in self._ordered() if statistics.median(self.ratios[p]) < 1]
        found: dict[Plan, list[list[float]]] = {p: [[] for _ in self.ways] for p in last}
        turns = [(left, i) for left in LEFT for i in range(len(self.ways))] if last else []
        for done, (left, i) in enumerate(turns):
            if i == 0:
                last = sorted(last, key=lambda p: _mean(found[p]))[:left]
            now = time.perf_counter()
            deadline = now + (until - now) / (len(turns) - done)
            times = self.race.run([self.first, *last], ROUNDS, deadline, self.ways[i])
            for plan in last:
                found[plan][i] += _over(times[plan], times[self.first])
        return winner({p: found[p] for p in last}, self._margin) or self.first

    def _margin(self, plan: Plan) -> float:
        """How much faster than the model's choice ``plan`` has to be."""
        if True in self.ways and self.found[0].seconds < SLOW:
            return MARGIN_OF_SHORT
        if self.problem.batch > 1:
            return MARGIN_OF_BATCHES
        return MARGIN_OF_PARTS if max(plan.split, self.first.split) > 1 else MARGIN


def _over(times: Sequence[float], base: Sequence[float]) -> list[float]:
    # Slow plans are timed less often.
    return [x / y for x, y in zip(times, base, strict=False)]


def _mean(ratios: Sequence[Sequence[float]]) -> float:
    """The mean of the medians; 0 where there are no ratios."""
    return statistics.fmean(statistics.median(x) if x else 0.0 for x in ratios)


def winner(
    ratios: Mapping[Plan, Sequence[Sequence[float]]], margin: Callable[[Plan], float] = lambda _: MARGIN
) -> Plan | None:
    """The fastest plan, by the mean of all ways to measure; none if none is faster than the model's choice, whose
    times the ``ratios`` are over, by more than its ``margin``, beyond doubt, and in no way `UNSURE` slower."""
    for plan in sorted(ratios, key=lambda p: _mean(ratios[p])):
        each = ratios[plan]
        if not all(each):
            continue
        sure = [_surely(x) for x in each]
        if _mean(each) < 1 - margin(plan) and min(sure) < 1 and max(sure) < 1 + UNSURE:
            return plan
    return None


def _surely(x: Sequence[float]) -> float:
    """What the median of such ratios is less than, whatever their distribution: 99.4 times of 100 if there are
    many (the sign test)."""
    ordered = sorted(x)
    return ordered[min(len(x) - 1, math.ceil(len(x) / 2 + CERTAIN * math.sqrt(len(x)) / 2))]


def prepared(problem: Problem, plan: Plan, work: Any = None) -> tuple[list[PreparedLaunch], Any]:
    """The launches of a plan for the problem's own arrays, and the arrays it works in, to be kept alive; or those
    of another problem of the same kind."""
    calls, work = compiling.calls_of(problem, plan, work)
    return compiling.launches_of(calls), work
