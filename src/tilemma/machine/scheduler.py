"""Runs a grid: chooses the next warp, executes it until it must or should stop, completes agents.

All random choices use one seeded generator, so that the same seed gives the same run.  ``schedule`` says when
asynchronous agents complete: ``late`` (only when nothing else can happen, or a wait forces them; warps that poll
a value count as waiting), ``early`` (at once) or ``random``.  Warps interleave either uniformly in short bursts or
by random priorities that change at random moments (Burckhardt et al., "A Randomized Scheduler with Probabilistic
Guarantees of Finding Bugs"), which lets one warp run far ahead of the others.  ``starve`` delays one warp as long
as possible: it runs only when no other warp can, and no asynchronous operation is left to complete.  A warp that
may miss a phase of an mbarrier misses it then.  The seed selects the warp.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import numpy as np

from tilemma.blas import one_blas_thread
from tilemma.machine import catalogue as hz
from tilemma.machine import convergence, deadlock, exit_checks, limits, livelock, starvation
from tilemma.machine.choices import Choices
from tilemma.machine.finished import Finished
from tilemma.machine.hazards import HazardError
from tilemma.machine.memory import GlobalMemory
from tilemma.machine.native import frames, library, twister
from tilemma.machine.performance import Performance
from tilemma.machine.program import ALU, BRANCH, VISIBLE, Program, Step
from tilemma.machine.reconvergence import diverge, held_for_long, join, leave, waiting_for_own
from tilemma.machine.shared_names import SharedNames
from tilemma.machine.state import Cluster, Cta, Frame, Warp
from tilemma.machine.timeline import Bar

# Results of a step: the frame waits and executes the same step again, or continues after it.
AGAIN, AFTER = object(), object()
# The step polled a value that had not changed: other warps run first.
POLL = object()
# Consecutive polls without progress that count as a deadlock.
_POLLS = 4000
# Hazards of one kind that a collecting run keeps.
_EACH = 8
# Warp instructions between two calls of `Machine.tick`.
_TICK = 2000
# Threads that run at the same time where CTAs talk to each other.
RESIDENT = 16384


class Stop(Exception):
    """Ends a run that collects hazards after one that makes it impossible to continue."""


class Machine(Choices):
    """One run of one grid."""

    def __init__(
        self,
        program: Program,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int],
        dynamic_shared: int,
        *,
        seed: int = 0,
        schedule: str = "random",
        strict: bool = False,
        collect: bool = False,
        enough: Collection[str] = (),
        max_steps: int = 50_000_000,
        trace: Any = None,
        history: Any = None,
        ctas: int | None = None,
    ) -> None:
        self.program, self.grid, self.block, self.cluster_shape = program, grid, block, cluster
        self.module_name = program.module.name
        self.threads_per_cta = block[0] * block[1] * block[2]
        self.warps_per_cta = -(-self.threads_per_cta // 32)
        self.dynamic_shared = dynamic_shared
        self.shared_base = program.shared_base
        self.shared_bytes = program.static_shared + dynamic_shared
        self.seed, self.random = seed, random.Random(seed)
        self.schedule, self.strict, self.collect, self.max_steps = schedule, strict, collect, max_steps
        # A collecting run ends at the first hazard of these codes.
        self.enough = enough
        # How many CTAs, in whole clusters, are run of the grid; None: all.
        self.ctas = ctas
        self.memory = GlobalMemory()
        self.names = SharedNames()
        self.tensor_maps: dict[int, Any] = {}
        # Frames whose lanes wait for other lanes of their warp, at the last look; those that do so for long.
        self.waited: dict[int, Frame] = {}
        self.held: dict[int, Frame] = {}
        # The address of the memory of a cooperative launch.
        self.workspace = 0
        self.performance = Performance()
        self.released: dict[Any, Any] = {}
        # By number; without clusters that left no records for races on global memory.
        self.clusters: dict[int, Cluster] = {}
        # The register files of the first CTA as it started, where there are others.
        self.first_registers: dict[str, Any] | None = None
        self.finished = Finished(self.clusters, self.memory, self.released)
        self.started = 0
        self.hazards: list[HazardError] = []
        self.letter: list[HazardError] = []
        self._reported: set[Any] = set()
        self.steps = 0
        self.progress = 0
        self.pending: list[Any] = []
        self.ready: list[Frame] = []
        self.polling: list[Frame] = []
        self.waiting: set[Frame] = set()
        # Those that wait at a barrier which the native library counts, in the order of their arrival.
        self.parked: list[Frame] = []
        # Warps that run only when nothing else can, and the progress at their last step.
        self.starved: set[Warp] = set()
        self.starved_at = -1
        self.trace = trace
        # A `Recording` that the stores to global memory are entered into.
        self.history = history
        # The native library, for accesses to memory; stores that are recorded are made by the NumPy code.
        self.native: Any = library.loaded() if history is None else None
        # What runs frames in that library; a timeline needs each store.
        self.runner: frames.Runner | None = None
        self.active = 0
        self.timeouts: dict[Frame, None] = {}
        # Steps that some lane has executed; a segment counts by its first step.
        self.covered = bytearray(len(program.steps) + 1)
        # The output of vprintf, in the order of execution.
        self.printed: list[str] = []
        self.printed_size = 0
        # The last output of each warp, for the report of a trap.
        self.last_words: dict[Any, str] = {}
        self._leaders: dict[int, int] = {}
        # Warps that a missed phase does not hold up, with the deadlock that it is by the ISA's text.
        self.followers: dict[Warp, HazardError] = {}
        # The number of provenance checks of each matrix instruction, and the steps that need no more of them.
        self.looks: dict[int, int] = {}
        self.looked = bytearray(len(program.steps) + 1)
        # Whether the native library has to be told what is in flight.
        self.stale = True

    # -- reports
    def report(self, hazard: HazardError, *, fatal: bool = False) -> None:
        """Raise the hazard; in a collecting run keep it, and stop only if ``fatal``."""
        key = (hazard.code, hazard.facts.get("ptx_line"), hazard.facts.get("other_line"))
        if hazard.strict_only and not self.strict:
            if key not in self._reported:
                self._reported.add(key)
                self.names.annotate(hazard)
                self.letter.append(hazard)
            return
        if not self.collect:
            self.names.annotate(hazard)
            self.hazards.append(hazard)
            raise hazard
        if not self.hazards:
            # Many later hazards are consequences: an endless loop need not run to the full limit.
            self.max_steps = min(self.max_steps, 2 * self.steps + 50_000)
        if key not in self._reported and sum(h.code == hazard.code for h in self.hazards) < _EACH:
            self._reported.add(key)
            self.names.annotate(hazard)
            self.hazards.append(hazard)
        if fatal or hazard.code in self.enough:
            raise Stop

    def event_of(self, packed: int) -> Any:
        """The access of a global event."""
        return self.clusters[(packed >> 32) - 1].events.of(packed & 0xFFFFFFFF)

    def note_work(self, w: Warp, what: str, line: int) -> None:
        """A warp multiplies or stores; `TracedMachine` enters it into the timeline."""

    def note_time(self, what: str, cta: Any, actor: str, start: int, end: int, line: int, about: str = "") -> None:
        """Enter something into the timeline, if one is kept."""
        if self.trace is not None:
            self.trace.add(Bar(actor, what, start, end, line, cta, about))

    def leader(self, mask: int) -> int:
        """Which of the lanes in ``mask`` is elected: the same for the same mask throughout a run."""
        if mask not in self._leaders:
            self._leaders[mask] = self.random.randrange(32)
        return self._leaders[mask]

    # -- grid
    @one_blas_thread()
    def run(self) -> None:
        """Run the whole grid; raises the first hazard unless collecting."""
        shape = self.cluster_shape
        counts = [g // c for g, c in zip(self.grid, shape, strict=True)]
        total = counts[0] * counts[1] * counts[2]
        order = limits.cluster_order(total, not self.program.communicates, self.random)
        if self.ctas is not None:
            size = shape[0] * shape[1] * shape[2]
            order = iter(limits.sampled(total, -(-self.ctas // size), random.Random(self.seed)))
        lanes = 32 * self.warps_per_cta
        threads = lanes * shape[0] * shape[1] * shape[2]
        # Independent CTAs run one cluster after the other; communicating ones run together.
        resident = max(1, RESIDENT // threads) if self.program.communicates else 1
        room = limits.clusters_at_once(self.program, shape[0] * shape[1] * shape[2], lanes, self.shared_bytes)
        resident = min(resident, room)
        upcoming = next(order, None)
        self.style()
        if self.native is not None:
            self.memory.tabulate()
            # The library chooses among the frames of one warp in an order that may leave one out.
            plain = self.trace is None and not self.program.apart
            if self.program.table is not None and plain and twister.available():
                self.runner = frames.Runner(self, self.program.table)
                self.performance.counted = self.runner.counts
                self.memory.expect_reads()
        with np.errstate(all="ignore"):
            while upcoming is not None or self.active:
                while upcoming is not None and self.active < resident:
                    self.start(upcoming, counts)
                    upcoming = next(order, None)
                if self.tick is not None and self.steps >= self.next_tick:
                    self.tick(self.steps)
                    self.next_tick = self.steps + _TICK
                if not self.advance():
                    if upcoming is None:
                        self.deadlock()
                        continue
                    self.start(upcoming, counts)
                    upcoming = next(order, None)

    # What looks for a run without an end, if something does, and the instruction at which the next one starts.
    watch: livelock.Watch | None = None
    next_watch = livelock.FIRST

    def advance(self) -> bool:
        """`step`; False also where every warp that can run is in a loop that changes nothing."""
        watch = self.watch
        if watch is None:
            if self.steps >= self.next_watch:
                self.next_watch *= 2
                if livelock.can_watch(self.program):
                    self.unpark()
                    self.watch = livelock.Watch(self.steps)
                elif not self.program.apart and held_for_long(self):
                    raise Stop
        elif watch.changed:
            self.watch = None
        elif watch.stalled(self):
            # Other operations may be kept back in the same way: the next watch does not begin much later.
            self.watch, self.next_watch = None, self.steps + livelock.FIRST
            self.complete(self.random.choice(self.pending))
            return True
        elif watch.endless(self):
            watch.describe(self)
            self.watch = None
            return False
        elif watch.hurry(self):
            return True
        return self.step()

    # Called with the warp instructions so far, every `_TICK` of them.
    tick: Callable[[int], None] | None = None
    next_tick = 0

    def start(self, number: int, counts: list[int]) -> None:
        index = (number % counts[0], number // counts[0] % counts[1], number // (counts[0] * counts[1]))
        cluster = Cluster(self, index, self.started)
        self.clusters[self.started] = cluster
        self.started += 1
        self.active += 1
        if self.runner is not None:
            self.runner.begin(cluster)
        for cta in cluster.ctas:
            for warp in cta.warps:
                warp.record.priority = self.random.random()
                self.ready.append(warp.root)
        if self.schedule == "starve":
            starvation.starve(self, cluster)

    def finish(self, cluster: Cluster) -> None:
        """The last warp of a cluster has left."""
        self.active -= 1
        for agent in [a for a in self.pending if a.warp.cta.cluster is cluster]:
            if agent in self.pending:
                self.complete(agent)
        self.starved.difference_update(warp for cta in cluster.ctas for warp in cta.warps)
        self.finished.add(cluster)

    # -- choice of the next action
    def step(self) -> bool:
        """Run a frame or complete an agent; False when neither is possible."""
        runner = self.runner
        if runner is not None and (self.ready or self.parked) and not self.followers and self.watch is None:
            return runner.step()
        pending = self.pending
        if self.ready and self.starved:
            return starvation.step(self)
        if self.ready:
            if pending and self.schedule != "late":
                if self.schedule == "early":
                    self.complete(pending[0])
                    return True
                if self.random.random() < self.eagerness * 0.3:
                    self.complete(self.random.choice(pending))
            self.execute(*self.pick())
            return True
        return self.step_without_ready()

    def step_without_ready(self) -> bool:
        """`step` where no frame is ready."""
        pending = self.pending
        if pending:
            self.complete(self.random.choice(pending))
            return True
        if self.polling:
            self.polls += 1
            if self.polls > _POLLS:
                return False
            self.ready, self.polling = self.polling, []
            return True
        return False

    polls = 0

    def complete(self, agent: Any) -> None:
        """Complete an agent (first those that must come before it)."""
        for earlier in agent.before():
            if earlier in self.pending:
                self.complete(earlier)
        if agent in self.pending:
            self.pending.remove(agent)
            self.stale = True
            if self.trace is not None:
                where, line = agent.ctas()[0].index, agent.instruction.line
                self.note_time(agent.kind, where, agent.actor, agent.issued, self.steps, line, agent.about)
            agent.complete()
            if not agent.waited:
                exit_checks.completed(agent)
            self.progress += 1
            self.polls = 0

    def issue(self, agent: Any) -> None:
        """An asynchronous operation starts."""
        agent.issued = self.steps
        self.pending.append(agent)
        self.stale = True

    def suspend(self, frame: Frame, why: Any, on: int | str = "") -> None:
        """The frame waits until ``wake``; ``on``: an mbarrier's address, or a name, for the timeline."""
        frame.blocked = why
        self.waiting.add(frame)

    def wake(self, frame: Frame) -> None:
        """A waiting frame can go on."""
        if frame in self.waiting:
            self.waiting.discard(frame)
            self.timeouts.pop(frame, None)
            frame.blocked = ""
            self.ready.append(frame)

    def unpark(self, cta: Cta | None = None) -> None:
        """Let frames (of ``cta``) that wait at a barrier of the native library wait at one of Python instead."""
        frames, self.parked = self.parked, []
        for f in frames:
            f.w.cta.record.arrived = 0
        for f in frames:
            if cta is None or f.w.cta is cta:
                self.program.steps[f.pc - 1].run(f, None)
            else:
                f.w.cta.record.arrived += 1
                self.parked.append(f)

    def deadlock(self) -> None:
        """Report a deadlock: each waiting warp and the reason of its wait."""
        self.unpark()
        self.held |= waiting_for_own(self)
        hazard = deadlock.explain(self)
        if self.strict or not deadlock.release_followers(self, hazard):
            self.stop(hazard)

    def stop(self, hazard: HazardError) -> NoReturn:
        """Report a hazard after which nothing can go on."""
        self.names.annotate(hazard)
        self.hazards.append(hazard)
        if not self.collect:
            raise hazard
        raise Stop

    # -- execution of one frame
    def execute(self, f: Frame, budget: int, how: int = -1) -> None:
        """Run ``f`` until it blocks, ends, meets its reconvergence point or has used its budget.

        ``how``: the native library has run it and ended so; where it can go on, it is `Runner.resumed`.
        """
        program = self.program
        steps, segments, covered = program.steps, program.segments, self.covered
        batches = program.batches
        w = f.w
        pc = f.pc
        count = len(steps)
        watch = self.watch
        runner = self.runner if not self.followers and watch is None else None
        if watch is not None:
            watch.enter(f)
        while True:
            if runner is not None:
                ended, how = how, -1
                if ended == frames.PARTLY:
                    segment = segments[pc]
                    assert segment is not None
                    for run in segment.each[runner.record.done :]:
                        run(w, f.m)
                    self.steps += segment.count
                    pc = segment.next
                    continue
                if ended < 0 and runner.kinds[pc]:
                    f.pc = pc
                    runner.resumed = f, budget
                    return
            if pc == f.rpc:
                f.pc = pc
                join(self, f)
                return
            segment = segments[pc]
            if segment is not None:
                m = f.m
                covered[pc] = 1
                for run in segment.runs:
                    run(w, m)
                self.steps += segment.count
                pc = segment.next
                if pc == f.rpc:
                    continue
            if pc >= count:
                leave(self, f, None)
                return
            step = steps[pc]
            self.steps += 1
            if self.steps > self.max_steps:
                self._too_long(f, step)
            m = f.m
            if step.guard >= 0:
                if step.check_guard is not None and step.kind != ALU:
                    step.check_guard(w, m)
                p = w.v[9][step.guard]
                if step.negated:
                    p = ~p
                g = p if m is None else p & m
                n = g.tobytes().count(1)
                if step.kind == BRANCH:
                    covered[pc] = 1
                    if n == 0:
                        pc += 1
                    elif n == len(f.lanes):
                        pc = step.target
                    else:
                        f.pc = pc
                        if not diverge(self, f, step, g):
                            return
                        pc = f.pc
                    continue
                if n == 0:
                    pc += 1
                    continue
                m = None if n == 32 else g
            covered[pc] = 1
            if step.kind == VISIBLE:
                f.pc = pc
                if step.membership != convergence.NOBODY and m is not None:
                    if convergence.must_wait(self, f, step, m):
                        return
                    if f.met is not None:
                        m, f.met = f.met, None
                        if 1 not in m.tobytes():
                            pc += 1
                            continue
                if self.followers and w in self.followers:
                    deadlock.effect_of(self, f, step.instruction)
                if m is None and pc in batches:
                    batch = batches[pc]
                    batch.run(f)
                    covered[pc : pc + batch.count] = b"\x01" * batch.count
                    self.steps += batch.count - 1
                    budget -= batch.count - 1
                    pc += batch.count - 1
                    result = None
                else:
                    result = step.run(f, m)
                if watch is not None:
                    watch.executed(f, step)
                if result is None:
                    pc += 1
                    budget -= 1
                    if budget <= 0:
                        f.pc = pc
                        self.ready.append(f)
                        return
                elif result is AGAIN:
                    return
                elif result is AFTER:
                    f.pc = pc + 1
                    return
                else:  # POLL
                    f.pc = pc + 1
                    self.polling.append(f)
                    if self.progress != self.seen_progress:
                        self.seen_progress, self.polls = self.progress, 0
                    return
            elif step.kind == BRANCH:
                pc = step.target
                if pc <= step.index:
                    budget -= 1
                    if budget <= 0:
                        f.pc = pc
                        self.ready.append(f)
                        return
            elif step.kind == ALU:
                # Only a step after a leader that no segment covers.
                step.run(w, m)
                pc += 1
            else:
                if leave(self, f, m):
                    return
                pc += 1

    seen_progress = -1

    def _too_long(self, f: Frame, step: Step) -> NoReturn:
        if self.hazards:
            raise Stop
        hazard = hz.StepLimit.at(f.w.place(step.instruction), steps=self.max_steps)
        self.hazards.append(hazard)
        if not self.collect:
            raise hazard
        raise Stop

    def warp_done(self, w: Warp) -> None:
        """All lanes of a warp have exited."""
        from tilemma.machine.exec import barriers

        w.done = True
        cta = w.cta
        cta.live_warps -= 1
        cta.record.live_warps = cta.live_warps
        cta.cluster.live_warps -= 1
        barriers.warp_left(self, w)
        if cta.live_warps == 0:
            exit_checks.check(self, cta)
            cta.exited = True
        self.progress += 1
        if self.watch is not None:
            # Another cluster can start; states of a warp that has left would keep it.
            self.watch.changed = True
        if cta.cluster.live_warps == 0:
            self.finish(cta.cluster)
