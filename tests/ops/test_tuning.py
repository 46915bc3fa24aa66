"""Which plans are compiled for a measurement, and which are measured."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from products import problem

from tilemma import kernels
from tilemma.compiler import Ready
from tilemma.ops import arguments, compiling
from tilemma.ops.candidates import ranked
from tilemma.ops.kernels import matmul_tiles
from tilemma.ops.neighbours import neighbours
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.race import Race
from tilemma.runtime import DeviceArray, cuda_device, cudadriver
from tilemma.runtime.arrays import describe

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from fake_driver import FakeDriver


class Clock:
    """A clock that compilation advances."""

    def __init__(self) -> None:
        self.now, self.running = 0.0, 0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "count"), [(0.4, 3), (0.1, 14), (5.0, 1)])
def test_plans_that_would_be_late_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, seconds: float, count: int
) -> None:
    """The first always is; another one only if it will be ready in time, as long as the others took."""
    clock, lock = Clock(), threading.Lock()

    def launches(calls: Any) -> list[Any]:
        with lock:
            clock.running += 1
            clock.now += seconds
            clock.running -= 1
        return list(calls)

    monkeypatch.setattr(compiling, "time", clock)
    monkeypatch.setattr(compiling, "WAITING", 1)
    monkeypatch.setattr(compiling, "launches_of", launches)
    monkeypatch.setattr(compiling, "calls_of", lambda problem, plan: ([plan], {}))
    wanted = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in range(20)]
    problem: Any = None
    compiler, found = compiling.Threads(problem, 1.5), []
    for plan in wanted:
        compiler.send(plan)
        found += [(x.plan, x.launches()) for x in compiler.receive(1.5)]
    assert found == [(x, [x]) for x in wanted[:count]]
    assert clock.running == 0


def test_variants_of_a_kernel_are_compiled_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for ptxas while the front end works on the next."""
    together = threading.Barrier(2)

    def ready(*_: Any) -> Ready:
        together.wait(timeout=20)
        return Ready("", ())

    monkeypatch.setattr(kernels, "ready", ready)
    found = []
    work = [
        threading.Thread(target=lambda x=x: found.append(matmul_tiles.ready("sm_90a", {}, RASTER=x)))
        for x in (3, 5)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(found) == 2 and not together.broken


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_children_compile_for_their_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The parent only prepares the launches; it says what is wrong with a plan."""
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    parent, ready, own = os.getpid(), kernels.ready, []

    def counted(*args: Any) -> Ready:
        if os.getpid() == parent:
            own.append(args)
        return ready(*args)

    monkeypatch.setattr(kernels, "ready", counted)
    monkeypatch.setattr(compiling, "cores", lambda: 4)
    wanted = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in (21, 22)]
    # Its kernels have arrays that only the plan needs.
    wanted.append(Plan("pipelined", (64, 64, 64), 1, stages=2, grid=4, split=2, pack=("lhs", "rhs")))
    impossible, said = replace(wanted[0], tile=(64, 64, 7)), list[str]()
    with cudadriver.using(FakeDriver()):
        a, b, out = (DeviceArray(cuda_device(0), shape, "f16") for shape in ((70, 301), (301, 80), (70, 80)))
        call = arguments.Call(describe(a), describe(b))
        race = Race(arguments.problem(call, describe(out), made=False), (), 1, lambda: None, said.append)
        compiler = compiling.compiler(race.problem, time.perf_counter() + 60)
        with contextlib.closing(compiler):
            for plan in (*wanted, impossible):
                compiler.send(plan)
            while compiler.waiting:
                race.enter(compiler.receive(time.perf_counter() + 60))
        assert set(race.ready) == set(wanted) and not own
        assert len(said) == 1 and said[0].startswith(str(impossible))


def test_neighbours_have_other_numbers_of_parts_and_stages() -> None:
    p = problem(88, 144, 32384)
    found = ranked(p, Hardware())
    plan = found[0].plan
    near = neighbours(p, plan, found, Hardware())
    assert {plan.split - 1, plan.split + 1} <= {x.split for x in near if x.tile == plan.tile}
    assert plan.stages - 1 in {x.stages for x in near} and plan not in near
