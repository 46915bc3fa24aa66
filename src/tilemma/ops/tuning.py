"""Tuning: the fastest plan for a call, found by measurement.

Child processes compile plans all the time: those that the model ranks first, the best of other tiles, and the
neighbours of those that were the fastest so far.  Meanwhile those that are ready are timed in a few rounds.  The
fastest few of all are timed once more, in turns with the model's choice: a plan that was the fastest by chance
does not win.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilemma.forking import cached_property, collection_paused
from tilemma.ops import compiling, few_rows, race
from tilemma.ops.neighbours import neighbours
from tilemma.ops.plan import Estimate, Hardware, Plan, hardware
from tilemma.ops.problem import Problem
from tilemma.ops.race import Race, copied
from tilemma.runtime import PreparedLaunch

# How many of the model's plans are tried; how many of the fastest plans have neighbours that are tried, and how
# many are measured at last, besides the model's.
MEASURED, FASTEST, FINALISTS = 40, 4, 6
# Seconds after the begin: no plan that would be ready later is compiled, but the model's choice is awaited until
# the second; the last are measured until the third, at least as long as this.
SEARCHING, WAITING, MEASURING, LEAST = 1.42, 1.7, 1.8, 0.12
# Seconds that measurements of the search may last longer: children end at the same time.
LATE = 0.15
# Plans that are timed together; rounds of the first measurements, in at most so many seconds, and of the last.
TOGETHER, TRIAL, TRYING, ROUNDS = 8, 5, 0.1, 61
# One call is timed at a time, too, of results with so many rows and columns, and of batches whose operands have
# so many bytes: at first, where it is predicted to take so many seconds.
LARGE, WIDE, SLOW = 512, 60e6, 2e-5
# How much faster than the model's choice another plan has to be on average, of few rows, which have a model of
# their own, where K is divided, and of batches; in each way to measure; how much slower it may seem in half of the
# rounds.  Plans for 11 products of few rows that seemed 1 % faster and more were 0.969 to 1.033 times as fast when
# timed again, two that divide K and seemed 1.3 and 1.9 % faster 0.985 and 0.990, two for batches that seemed 2.4
# and 3.5 % faster 0.957 and 0.988.
MARGIN, MARGIN_OF_FEW, MARGIN_OF_PARTS, MARGIN_OF_BATCHES = 0.01, 0.02, 0.02, 0.03
EACH, HALF = 0.003, 0.005
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
        )  # fmt: skip
        alive.callback(contest.close)
        search = Search(problem, found, contest)
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
    tried: set[Plan] = field(default_factory=set)
    # The median of each plan's times over those of the plan that all are compared with.
    ratios: dict[Plan, float] = field(default_factory=dict)
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
        # Results need not wait for collections, which take long in a program with many objects.
        with contextlib.closing(compiler), collection_paused():
            new: list[Plan] = []
            base: Plan | None = None
            while True:
                while compiler.room > 0 and (plan := next(wanted, None)) is not None:
                    compiler.send(plan)
                until = deadline if base else last
                more = compiler.waiting > 0 and time.perf_counter() < until
                if more:
                    new += self.race.enter(compiler.receive(until))
                if base is None and self.first in new:
                    base = self.first
                    self.ratios[base] = 1.0
                if base is not None and new and (len(new) >= TOGETHER or not more):
                    self._time(base, [p for p in new if p != base], deadline)
                    new, wanted = [], self._wanted()
                elif not more:
                    return

    def _time(self, base: Plan, plans: Sequence[Plan], deadline: float) -> None:
        """Time those of ``plans`` that take no longer than `LATE` seconds after ``deadline``."""
        begin = time.perf_counter()
        plans = plans[: max(0, int((deadline + LATE - begin) / self.longest))]
        times = self.race.run([base, *plans], TRIAL, begin + TRYING, self.ways[0])
        self.ratios |= _ratios(times, base)
        self.longest = max(self.longest, (time.perf_counter() - begin) / (1 + len(plans)))

    def _wanted(self) -> Iterator[Plan]:
        """The plans to be tried next: by turns neighbours of the fastest, and the model's."""
        fastest = sorted(self.ratios, key=lambda p: self.ratios[p])[:FASTEST] or [self.first]
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
        order = sorted((p for p in self.ratios if self.ratios[p] < 1), key=lambda p: self.ratios[p])
        last = [self.first, *order[:FINALISTS]]
        if len(last) == 1:
            return last[0]
        races = []
        for i, single in enumerate(self.ways):
            now = time.perf_counter()
            races.append(self.race.run(last, ROUNDS, now + (until - now) / (len(self.ways) - i), single))
        return winner(races, self.first, self._margin)

    def _margin(self, plan: Plan) -> float:
        """How much faster than the model's choice ``plan`` has to be."""
        if self.problem.batch > 1:
            return MARGIN_OF_BATCHES
        if max(plan.split, self.first.split) > 1:
            return MARGIN_OF_PARTS
        return MARGIN_OF_FEW if few_rows.applies(self.problem) else MARGIN


def _ratios(times: Mapping[Plan, Sequence[float]], base: Plan) -> dict[Plan, float]:
    """The median of each plan's ratios to ``base`` within rounds: clocks change from round to round."""
    return {p: statistics.median(x / y for x, y in zip(t, times[base], strict=True)) for p, t in times.items()}


def winner(
    races: Sequence[Mapping[Plan, Sequence[float]]],
    first: Plan,
    margin: Callable[[Plan], float] = lambda _: MARGIN,
) -> Plan:
    """The fastest plan, by the mean of the races; the model's ``first`` unless another is faster by more than
    its ``margin``, and about as much in each race and in either half of it."""
    ratios = [_ratios(times, first) for times in races]
    means = {p: statistics.fmean(r[p] for r in ratios) for p in races[0]}
    for plan in sorted(means, key=lambda p: means[p]):
        if plan == first:
            break
        each = max(r[plan] for r in ratios) < 1 - EACH
        if means[plan] < 1 - margin(plan) and each and all(x < 1 + HALF for x in _halves(races, plan, first)):
            return plan
    return first


def _halves(races: Iterable[Mapping[Plan, Sequence[float]]], plan: Plan, first: Plan) -> Iterator[float]:
    """The ratio of both plans' times in the first half of each race, and in the second."""
    for times in races:
        half = len(times[first]) // 2
        for part in (slice(half), slice(half, None)) if half else (slice(None),):
            yield _ratios({p: times[p][part] for p in (first, plan)}, first)[plan]


def prepared(problem: Problem, plan: Plan) -> tuple[list[PreparedLaunch], Any]:
    """The launches of a plan for the problem's own arrays, and the arrays it works in, to be kept alive."""
    calls, work = compiling.calls_of(problem, plan)
    return compiling.launches_of(calls), work
