"""Timing, tuning and tables, on a driver that counts launches as microseconds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tests.runtime.fake_driver import FakeDriver
from tilemma import runtime
from tilemma.errors import TilemmaError
from tilemma.measure import Timing, Tuned, tuning
from tilemma.runtime import cudadriver


@tm.kernel
def scaled(x: tm.Global["f32", "M", 64], y: tm.Global["f32", "M", 64], *, ROWS=1, TWICE=0) -> None:
    for i in tm.parallel(tm.cdiv(x.shape[0], ROWS), level="block"):
        for r in tm.foreach(ROWS):
            for j in tm.parallel(64, level="thread"):
                y[i * ROWS + r, j] = x[i * ROWS + r, j] * (2.0 + TWICE)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    driver = FakeDriver()
    with cudadriver.using(driver):
        yield driver


@pytest.fixture
def pair(fake: FakeDriver) -> tuple[Any, Any]:
    device = runtime.cuda_device(0)
    x, y = runtime.to_device((np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)), device)
    return x, y


def test_single_calls_and_calls_back_to_back(fake: FakeDriver, pair: tuple[Any, Any]) -> None:
    """A launch takes a microsecond on this driver, however many are measured together."""
    found = tm.bench(scaled, *pair, repeats=5, steady=1e-4, flops=1e6)
    assert found.median == found.low == found.high == pytest.approx(1e-6)
    assert found.steady == pytest.approx(1e-6) and found.calls == 5
    assert found.bytes == 2 * 8 * 64 * 4 and found.tflops == pytest.approx(1.0)
    assert fake.count("fill_async") == 5
    assert "1 us" in str(found) and "1 TFLOP/s" in str(found)
    fake.calls.clear()
    tm.bench(scaled, *pair, repeats=5, steady=0, flush=False)
    assert fake.count("fill_async") == 0


def test_the_roofline_is_the_larger_bound() -> None:
    t = Timing("k", "d", 2.0, 1.0, 3.0, 3, True, None, flops=10.0, bytes=6.0, peak_flops=10.0, peak_bytes=4.0)
    assert t.roofline == 1.5 and t.to_json()["roofline"] == 1.5


def test_the_peak_is_of_the_instructions_for_the_type(fake: FakeDriver, pair: tuple[Any, Any]) -> None:
    rates = {c: tm.bench(scaled, *pair, repeats=1, steady=0, compute=c).peak_flops for c in ("f16", "e4m3", "f64")}
    assert rates["e4m3"] == 2 * (rates["f16"] or 0) and (rates["f64"] or 0) < (rates["f16"] or 0)


def test_functions_on_the_host_are_timed() -> None:
    calls = []
    found = tm.bench(calls.append, 1, repeats=3, steady=0)
    assert len(calls) == 4 and found.where == "the host" and found.bytes is None


def test_tuning_takes_the_fastest_and_keeps_refusals() -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    times = iter([4.0, 3.0, 1.0, 2.0])

    def measure(run: Any) -> float:
        run()
        return next(times)

    found = scaled.tune(x, y, space={"ROWS": [1, 2, 4]}, measure=measure)
    assert found.values == {"ROWS": 2} and found.complete
    found(x, y)
    assert (y == 2).all()
    refused = scaled.tune(x, y, space=[{"ROWS": 2**40}], measure=lambda run: run() or 1.0).attempts[1]
    assert refused.seconds is None and refused.refused and refused.values == (("ROWS", 2**40),)


def test_a_space_of_which_nothing_runs() -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 32), np.float32)
    with pytest.raises(TilemmaError) as caught:
        scaled.tune(x, y, space={"ROWS": [2]}, measure=lambda run: run() or 1.0)
    assert caught.value.code == "tune-nothing-runs" and "array-dimension" in caught.value.message


def test_the_defaults_win_where_little_is_gained() -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    times = iter([1.0, 0.99, 0.985])
    found = scaled.tune(x, y, space={"ROWS": [2, 4]}, measure=lambda run: next(times))
    assert found.values == {}


def test_results_are_kept_on_disk(pair: tuple[Any, Any], fake: FakeDriver) -> None:
    first = scaled.tune(*pair, space={"ROWS": [2]}, quiet=True)
    launched = len(fake.launches)
    again = scaled.tune(*pair, space={"ROWS": [2]}, quiet=True)
    assert not first.stored and again.stored and again.values == first.values
    assert len(fake.launches) == launched
    assert not scaled.tune(*pair, space={"ROWS": [4]}, quiet=True).stored


def test_the_result_of_a_short_budget_serves_budgets_up_to_its_own(
    pair: tuple[Any, Any], fake: FakeDriver
) -> None:
    space = {"ROWS": [2, 4, 8]}
    first = scaled.tune(*pair, space=space, quiet=True, budget_s=1e-6)
    assert not first.complete and not first.stored
    again = scaled.tune(*pair, space=space, quiet=True, budget_s=1e-7)
    assert again.stored and not again.complete and again.values == first.values
    assert not scaled.tune(*pair, space=space, quiet=True, budget_s=60.0).stored


def test_a_budget_ends_the_search() -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    found = scaled.tune(x, y, space={"ROWS": [1, 2, 4]}, measure=lambda run: 1.0, budget_s=1e-9)
    assert not found.complete and len(found.attempts) == 1 and "budget" in str(found)


def test_autotune_measures_each_kind_of_arguments_once() -> None:
    measured = []

    def measure(run: Any) -> float:
        measured.append(run)
        return float(len(measured))

    tuned = tm.autotune({"ROWS": [2, 4]}, measure=measure)(scaled)
    for rows in (8, 8, 16):
        x, y = np.ones((rows, 64), np.float32), np.zeros((rows, 64), np.float32)
        tuned(x, y)
        assert (y == 2).all()
    assert len(measured) == 2 * 3
    tuned(x, y, TWICE=1)
    assert (y == 3).all() and tuned.name == "scaled"


@pytest.mark.parametrize(
    "options, code",
    [
        ({"space": {"ROWS": 3}}, "wrong-type"),
        ({"space": 3}, "wrong-type"),
        ({"space": {"COLUMNS": [3]}}, "tune-unknown-constant"),
        ({"space": {"ROWS": [1]}, "budget_s": 0}, "wrong-argument"),
        ({"space": {"ROWS": [1]}}, "tune-needs-gpu"),
        ({"space": {"ROWS": range(100_000)}}, "wrong-argument"),
    ],
)
def test_wrong_arguments_of_tune(options: dict[str, Any], code: str) -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(TilemmaError) as caught:
        scaled.tune(x, y, **options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "call",
    [
        lambda: tm.bench(3),
        lambda: tm.bench(print, repeats=0),
        lambda: tm.bench(print, steady=-1),
        lambda: tm.bench(print, compute="f99"),
        lambda: tm.report({}, [1], lambda n: ()),
        lambda: tm.report({"a": print}, [], lambda n: ()),
        lambda: tm.report({"a": print}, "abc", lambda n: ()),
        lambda: tm.report({"a": print}, [1], 3),
        lambda: tm.autotune({"ROWS": [1]})(print),
    ],
)
def test_wrong_arguments_are_family_errors(call: Any) -> None:
    with pytest.raises(TilemmaError):
        call()


def test_a_report_is_a_table_and_a_plot() -> None:
    functions = {"sum": lambda n: sum(range(n)), "len <&": lambda n: len(range(n))}
    table = tm.report(functions, [10, 100], lambda n: (n,), flops=float, repeats=2, steady=0)
    assert table.unit == "TFLOP/s" and len(str(table).splitlines()) == 4
    assert len(table.to_json()) == 4
    lines = ET.fromstring(table.svg()).findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == len(functions)


def test_a_tuned_kernel_says_what_it_is() -> None:
    tuned = Tuned(scaled, {"ROWS": 4}, (), True, False)
    assert repr(tuned) == "<tuned scaled: ROWS=4>"
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    assert str(tm.bench(tuned, x, y, repeats=1, steady=0)).startswith("scaled on ")


def test_a_roofline_of_bytes_alone_says_so() -> None:
    times = {"name": "k", "where": "here", "median": 1.0, "low": 1.0, "high": 1.0, "calls": 3, "flushed": True}
    both = {"flops": 1.0, "bytes": 1.0, "peak_bytes": 2.0}
    assert str(Timing(**times, **both)).endswith("50% of the memory's roofline")
    assert str(Timing(**times, **both, peak_flops=1.0)).endswith("100% of the roofline")


def test_tuning_writes_nothing_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    found, finished = tuning._attempts(scaled, [{}, {}], (), lambda _: 1.0, 60.0, False)
    assert finished and [x.seconds for x in found] == [1.0, 1.0] and capfd.readouterr() == ("", "")
