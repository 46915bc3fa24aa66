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

from tilemma import dtypes, kernels, ops
from tilemma.compiler import Ready
from tilemma.ops import arguments, compiling, plans
from tilemma.ops.candidates import fitting_stages, ranked
from tilemma.ops.kernels import matmul_tiles
from tilemma.ops.neighbours import neighbours
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Estimate, Hardware, Plan
from tilemma.ops.race import Race, copied
from tilemma.ops.tuning import MARGIN, MARGIN_OF_PARTS, MARGIN_OF_SHORT, Search, measured, winner
from tilemma.runtime import DeviceArray, DriverError, cuda_device, cudadriver
from tilemma.runtime.arrays import ArrayRef, describe

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
    monkeypatch.setattr(compiling, "calls_of", lambda problem, plan, work: ([plan], work))
    wanted = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in range(20)]
    compiler, found = compiling.Threads(problem(70, 80, 301), 1.5), []
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
        compiler = compiling.compiler(race.problem, time.perf_counter() + 60, iter(wanted))
        with contextlib.closing(compiler):
            compiler.send(impossible)
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


def test_neighbours_differ_in_one_way_that_fits() -> None:
    """In steps along K, clusters, blocks, directions and hints; the ring of each fits in shared memory."""
    p = problem(1500, 1100, 1160)
    found = ranked(p, Hardware())
    plan = next(
        e.plan for e in found if e.plan.kernel == "pipelined" and not e.plan.swap and e.plan.cluster == (1, 1)
    )
    plan = replace(plan, grid=9)
    near = neighbours(p, plan, found, Hardware())
    tasks = -(-1500 // plan.height) * -(-1100 // plan.tile[1])
    assert {2 * plan.tile[2], plan.tile[2]} <= {x.tile[2] for x in near if x.tile[:2] == plan.tile[:2]}
    assert (2, 1) in {x.cluster for x in near} and {"lhs", "rhs", "both"} <= {x.streamed for x in near}
    assert replace(plan, store="direct") in near
    assert any(x.back for x in near) and -(-tasks // -(-tasks // 9)) in {
        x.grid for x in near if x.tile == plan.tile
    }
    for x in near:
        side = transposed_product(p) if x.swap else p
        assert x.stages <= fitting_stages(side, x.tile, x.groups, x.store, Hardware(), deepest=x.stages)


def test_neighbours_of_plans_that_keep_rhs_have_other_rings_that_fit() -> None:
    """Of both operands, beside the staged tile; each ring as long as the other leaves room for, or shorter."""
    a, b, out = (
        ArrayRef(i << 40, shape, (shape[1] * shape[2], shape[2], 1), dtypes.f16, ("cuda", 0), None, "torch")
        for i, shape in enumerate(((600, 280, 104), (600, 72, 104), (600, 280, 72)), 1)
    )
    b = b._replace(shape=(600, 104, 72), strides=(72 * 104, 1, 104))
    p = arguments.problem(arguments.Call(a, b), out, made=True)
    found = ranked(p, Hardware())
    plans = [e.plan for e in found if e.plan.kernel == "resident"]
    assert plans
    for plan in plans:
        near = [x for x in neighbours(p, plan, found, Hardware()) if x.tile == plan.tile and x.grid == plan.grid]
        rings = {(x.slots, x.stages) for x in near}
        assert len(rings) > 1 or plan.grid > 264
        assert (plan.slots, plan.stages) not in rings
        for slots, stages in rings:
            size = 2 * 104 * (slots * 72 + stages * plan.tile[0]) + 2 * plan.tile[0] * 72
            assert 1 <= slots <= 6 and 2 <= stages <= 6 and size * (plan.grid // 132) <= Hardware().shared


def test_neighbours_of_promoted_tiles_have_columns_of_one_block_of_scales() -> None:
    """Tiles of 96 columns seemed 10 % faster, and used the scales of the first block for columns of the second."""
    m, n, k = 1152, 1280, 5120
    steps = k // 128
    extents = {"a": (m, k), "b": (n, k), "scale_a": (steps, m), "scale_b": (steps, n // 128), "out": (m, n)}
    types = {"out": "bf16"} | dict.fromkeys(("a", "b"), "f8_e4m3") | dict.fromkeys(("scale_a", "scale_b"), "f32")
    x = {
        name: ArrayRef(i << 40, shape, (shape[1], 1), dtypes.dtype(types[name]), ("cuda", 0), None, "torch")
        for i, (name, shape) in enumerate(extents.items(), 1)
    }
    b = x["b"]._replace(shape=(k, n), strides=(1, k))
    scale = x["scale_a"]._replace(shape=(m, steps), strides=(1, m))
    call = arguments.Call(x["a"], b, rules=arguments.SCALED, scale_a=scale, scale_b=x["scale_b"])
    p = arguments.problem(call, x["out"], made=True)
    assert p.promote and p.right.kind == "blocks"
    found = ranked(p, Hardware())
    for e in found[:3]:
        assert all(128 % x.tile[1] == 0 or x.tile[1] == 256 for x in neighbours(p, e.plan, found, Hardware()))


class FullDriver(FakeDriver):
    """A device without room for more than ``most`` bytes at a time."""

    most = 1 << 30

    def allocate(self, size: int) -> int:
        if size > self.most:
            raise DriverError(call="cuMemAlloc", name="CUDA_ERROR_OUT_OF_MEMORY", text="out of memory", remedy="")
        return super().allocate(size)


def on_fake_device() -> Any:
    a, b, out = (DeviceArray(cuda_device(0), shape, "f16") for shape in ((70, 301), (301, 80), (70, 80)))
    return arguments.problem(arguments.Call(describe(a), describe(b)), describe(out), made=False)


def test_failures_without_a_text_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of no launches would seem the fastest."""

    def fails(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(compiling, "calls_of", fails)
    plan = Plan("tiles", (64, 64, 64), 1)
    assert compiling._make(problem(70, 80, 301), "sm_90a", "sm_90a", plan) == "MemoryError"


@pytest.mark.parametrize("count", [1, 4])
def test_plans_whose_arrays_find_no_room_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "cores", lambda: count)
    plan, driver, said = Plan("tiles", (64, 64, 64), 1, raster=21), FullDriver(), list[str]()
    large = Plan("pipelined", (64, 64, 64), 1, stages=2, grid=4, split=2, pack=("lhs", "rhs"))
    with cudadriver.using(driver):
        race = Race(on_fake_device(), (), 1, lambda: None, said.append)
        driver.most = 0
        wanted = iter((large, plan))
        with contextlib.closing(compiling.compiler(race.problem, time.perf_counter() + 60, wanted)) as compiler:
            for each in wanted:
                compiler.send(each)
            while compiler.waiting:
                race.enter(compiler.receive(time.perf_counter() + 60))
    assert list(race.ready) == [plan] and len(said) == 1 and said[0].startswith(str(large))


def test_a_full_device_is_measured_without_copies_and_after_a_shorter_write() -> None:
    driver, plan = FullDriver(), Plan("tiles", (64, 64, 64), 1, raster=21)
    with cudadriver.using(driver):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None)
        race.enter([compiling.Compiled(plan)])
        driver.most = 2 * max(race.device.l2_bytes, 1)
        with copied(race.problem) as copies:
            assert not copies
        assert len(race.run([plan], 3, 0.0, single=True)[plan]) == 3
        assert ("fill_async", driver.most, 0) in driver.calls


def test_rounds_end_with_the_time() -> None:
    """After three at least."""
    plan = Plan("tiles", (64, 64, 64), 1, raster=21)
    with cudadriver.using(FakeDriver()):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None)
        race.enter([compiling.Compiled(plan)])
        for deadline, rounds in ((0.0, 3), (time.perf_counter() + 60, 7)):
            assert len(race.run([plan], 7, deadline, single=True)[plan]) == rounds


class PacedDriver(FakeDriver):
    """A device whose launches take as many seconds as `pace` says."""

    pace = iter(())

    def elapsed(self, start: Any, stop: Any) -> float:
        return next(self.pace)


def test_slow_plans_have_no_further_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in (21, 22)]
    driver = PacedDriver()
    with cudadriver.using(driver):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None)
        race.enter([compiling.Compiled(x) for x in plans])
        # The order of a round is random: the plans take their times in it.
        monkeypatch.setattr(race.turns, "sample", lambda x, _: sorted(x, key=lambda y: y[0].raster))
        driver.pace = iter((1.0, 1.05, 1.0, 1.2, 1.0))
        assert race.run(plans, 3, 60.0, within=1.1) == {plans[0]: [1.0] * 3, plans[1]: [1.05, 1.2]}


@pytest.mark.parametrize("single", [True, False])
def test_nothing_is_measured_after_the_end(single: bool) -> None:
    """A plan without times does not win."""
    plan = Plan("tiles", (64, 64, 64), 1, raster=21)
    with cudadriver.using(FakeDriver()):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None, end=0.0)
        race.enter([compiling.Compiled(plan)])
        assert race.run([plan], 7, 60.0, single) == {plan: []}
    assert winner({plan: [[0.9] * 9, []]}) is None and winner({plan: [[]]}) is None


def test_operands_that_are_read_backwards_are_not_copied() -> None:
    """The copy would be of the memory behind them."""
    with cudadriver.using(FakeDriver()):
        p = on_fake_device()
        for stride in (-1, -80):
            lhs = p.lhs._replace(strides=(*p.lhs.strides[:2], stride))
            with copied(replace(p, lhs=lhs)) as copies:
                assert not copies
        with copied(p) as copies:
            assert copies


def in_turn(wanted: Any) -> tuple[list[Any], list[list[Any]]]:
    """The problem and its copies, and the launches for each."""
    plan = Plan("tiles", (64, 64, 64), 1, raster=21)
    with copied(wanted) as copies:
        race = Race(wanted, copies, 4, lambda: None, lambda _: None)
        calls, work = compiling.calls_of(wanted, plan)
        race.enter([compiling.Compiled(plan, work, lambda: compiling.launches_of(calls))])
        race.run([plan], 3, 0.0)
    assert copies
    return [wanted, *copies], [[x._bound for x in call] for call in race.ready[plan].launches]


@pytest.mark.parametrize("parts", ["", "operands", "addend"])
def test_calls_in_turn_read_the_copies_of_the_operands(parts: str) -> None:
    """Results are written to copies, too.  Operands may be ``parts`` of one array, and an addend part of the array
    that an operand is part of: then it begins within the operand's memory, and ends behind it."""
    with cudadriver.using(FakeDriver()):
        a, b, c, out = (DeviceArray(cuda_device(0), (80, 160), "f16") for _ in range(4))
        lhs, rhs, addend, result = (describe(x)._replace(shape=(80, 80)) for x in (a, b, c, out))
        if parts == "operands":
            rhs = lhs._replace(pointer=lhs.pointer + 160)
        elif parts:
            addend = rhs._replace(pointer=rhs.pointer + 160)
        call = arguments.Call(lhs, rhs, c=addend, beta=1.0)
        problems, launches = in_turn(arguments.problem(call, result, made=False))
    for p, (bound,) in zip(problems, launches, strict=True):
        expected = p.lhs, p.rhs, problems[0].c, p.out
        for name, x in zip(("lhs", "rhs", "c", "out"), expected, strict=True):
            assert bound.array(name).pointer == x.pointer


def test_calls_in_turn_read_no_memory_behind_the_copies() -> None:
    """Products of two heads: the memory of the first head's batches does not contain all of the second's."""
    with cudadriver.using(FakeDriver()):
        a, b = (DeviceArray(cuda_device(0), (4, 24, 2, 32), "f16") for _ in range(2))
        out = DeviceArray(cuda_device(0), (4, 2, 24, 24), "f16")
        lhs = describe(a)._replace(shape=(4, 2, 24, 32), strides=(1536, 32, 64, 1))
        rhs = describe(b)._replace(shape=(4, 2, 32, 24), strides=(1536, 32, 1, 64))
        heads = arguments.problem(arguments.Call(lhs, rhs), describe(out), made=False)
        problems, launches = in_turn(heads)
    assert len(heads.outer) == 2
    for copy, bounds in zip(problems[1:], launches[1:], strict=True):
        first, second = ([x.array(name) for x in bounds] for name in ("lhs", "rhs"))
        assert [first[0].pointer, second[0].pointer] == [copy.lhs.pointer, copy.rhs.pointer]
        assert [first[1].pointer, second[1].pointer] == [lhs.pointer + 64, rhs.pointer + 64]


def test_threads_compile_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fails, raising=False)
    monkeypatch.setattr(compiling, "cores", lambda: 4)
    with cudadriver.using(FakeDriver()):
        plans = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in range(6)]
        compiler = compiling.compiler(on_fake_device(), time.perf_counter() + 60, iter(plans))
        assert isinstance(compiler, compiling.Threads) and compiler.waiting == 6
        monkeypatch.setattr(compiling, "launches_of", list)
        found = [[x.plan for x in compiler.receive(60.0)] for _ in range(2)]
        # No more at once than threads: the deadline is looked at in between.
        assert found == [plans[: compiling.WAITING], plans[compiling.WAITING :]]


def test_errors_of_plans_are_printed_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They are no markup, and nothing else is written where stderr is no terminal."""
    monkeypatch.setattr(compiling, "cores", lambda: 1)
    monkeypatch.setattr(
        compiling.Threads, "receive", lambda x, _: [compiling.Compiled(x._sent.popleft(), error="[/no] room")]
    )
    with cudadriver.using(FakeDriver()):
        wanted = on_fake_device()
        found = ranked(wanted, Hardware())[:1]
        assert measured(wanted, found) == found[0].plan
        printed = capfd.readouterr()
        assert not printed.out and "[/no] room" in printed.err and not printed.err.startswith("\n")
        monkeypatch.setattr(sys, "stderr", None)
        assert measured(wanted, found) == found[0].plan and not capfd.readouterr().out


def test_one_thread_tunes_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another one with the same call takes the winner."""
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "used", {})
    running: list[int] = []

    def measures(_: Any, found: Any, spent: float) -> Plan:
        running.append(0)
        time.sleep(0.05)
        return found[0].plan

    monkeypatch.setattr(plans, "measured", measures)
    with cudadriver.using(FakeDriver()):
        wanted = on_fake_device()
        threads = [threading.Thread(target=plans.best, args=(wanted, True)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(running) == 1


def test_reports_say_measured_only_of_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A result that is its own addend is not: each run would add to it."""
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "used", {})
    monkeypatch.setattr(plans, "measured", lambda _, found, spent: found[1].plan)
    with cudadriver.using(FakeDriver()):
        a, b, out = (DeviceArray(cuda_device(0), shape, "f16") for shape in ((70, 301), (301, 80), (70, 80)))
        assert ops.plan(a, b, out=out, tune=True).measured and not ops.plan(a, b, out=out).measured
        assert not ops.plan(a, b, out=out, c=out, beta=1.0, tune=True).measured


def test_only_plans_that_seemed_faster_are_measured_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that seemed slower in the search stays out, however fast it would seem at last."""
    asked: list[list[Plan]] = []

    def run(_: Race, wanted: Any, *__: Any) -> dict[Plan, list[float]]:
        asked.append(list(wanted))
        return {p: [0.5 if p is not wanted[0] else 1.0] * 4 for p in wanted}

    monkeypatch.setattr(Race, "run", run)
    with cudadriver.using(FakeDriver()):
        wanted = on_fake_device()
        found = ranked(wanted, Hardware())
        first, slower, faster = found[0].plan, *(replace(found[0].plan, raster=x) for x in (33, 34))
        race = Race(wanted, (), 4, lambda: None, lambda _: None)
        search = Search(wanted, found, race, contextlib.ExitStack())
        search.ratios = {first: [1.0], slower: [1.01], faster: [0.99]}
        assert search.decide(0.0) == faster and asked and all(x == [first, faster] for x in asked)
        search.ratios = {first: [1.0], slower: [1.01]}
        assert search.decide(0.0) == first


class LateDriver(FakeDriver):
    """A device that comes to the first event before the host has enqueued all launches, in the first ``late``
    measurements."""

    late = 0

    def reached(self, event: Any) -> bool:
        self.late -= 1
        return self.late >= 0

    def elapsed(self, start: Any, stop: Any) -> float:
        return 9.0 if self.late >= 0 else 1e-5


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize(("late", "ahead"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8)])
def test_late_launches_are_timed_again(single: bool, late: int, ahead: int) -> None:
    """The device is kept busy for longer where the host is late twice."""
    driver, plan = LateDriver(), Plan("tiles", (64, 64, 64), 1, raster=21)
    with cudadriver.using(driver):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None)
        race.enter([compiling.Compiled(plan)])
        driver.late = late
        assert race.run([plan], 3, 0.0, single)[plan] == [1e-5] * 3
        assert race.ahead == {single: ahead, not single: 1}


def test_a_host_that_is_always_late_is_timed_nevertheless() -> None:
    driver, plan = LateDriver(), Plan("tiles", (64, 64, 64), 1, raster=21)
    with cudadriver.using(driver):
        race = Race(on_fake_device(), (), 1, lambda: None, lambda _: None)
        race.enter([compiling.Compiled(plan)])
        driver.late = 1000
        assert race.run([plan], 3, 0.0, single=True)[plan] == [9.0] * 3


def test_plans_in_parts_and_short_calls_have_to_be_faster_by_more() -> None:
    p, whole = problem(512, 512, 4096), Plan("pipelined", (64, 64, 64), 1)
    parts = replace(whole, split=4)
    for seconds in (3e-5, 1e-5):
        for first, plan in ((whole, whole), (whole, parts), (parts, whole)):
            search = Search(p, [Estimate(first, seconds, "")], None, contextlib.ExitStack())
            wanted = MARGIN_OF_SHORT if seconds < 2e-5 else MARGIN if first == plan else MARGIN_OF_PARTS
            assert search._margin(plan) == wanted
    assert MARGIN < MARGIN_OF_PARTS <= MARGIN_OF_SHORT


def test_a_plan_wins_where_it_is_faster_beyond_doubt() -> None:
    """And by its margin, and in no way to measure slower by 0.5 %."""
    a, b = (Plan("tiles", (64, 64, 64), 1, raster=x) for x in (1, 2))
    sure, noisy = [0.97, 0.98, 0.99] * 10, [0.6, 1.3, 0.9, 0.95, 1.4] * 6
    assert winner({a: [noisy], b: [sure]}) == b
    assert winner({a: [noisy]}) is None and winner({}) is None
    assert winner({b: [sure, [0.999, 1.0, 0.998] * 10]}) == b
    assert winner({b: [sure, [1.001] * 30]}) is None and winner({b: [sure, noisy]}) is None
    assert winner({b: [sure]}, lambda _: 0.03) is None
    assert winner({b: [[0.95] * 30, [1.003] * 30]}) == b and winner({b: [[0.95] * 30, [1.006] * 30]}) is None
