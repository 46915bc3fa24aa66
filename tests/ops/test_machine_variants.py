"""`machine_variants`: which variants it runs, that it says what is wrong, and that it goes on where it stopped."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import machine_variants
import pytest

from tilemma.ops.operand_layouts import far_scales
from tilemma.runtime.arrays import describe


@pytest.fixture
def found() -> list[Any]:
    return [v for v in machine_variants.of_family("f64") if v.plan.kernel == "ahead"][:1]


def test_each_kind_is_one_variant() -> None:
    found = [*machine_variants.of_family("f64")]
    assert {v.plan.kernel for v in found} == {"tiles", "ahead"}
    assert len({machine_variants.kind(v.plan) for v in found}) == len(found)


def test_two_tiles_lie_along_one_extent_and_then_along_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_variants, "OTHERS", ())  # some of them have one tile
    for v in machine_variants.of_family("bf16, rhs of contiguous rows"):
        names = "NM" if v.plan.swap else "MN"
        tiles = set()
        for x, _ in v.calls:
            extents = [t * c for t, c in zip(v.plan.tile[:2], v.plan.cluster, strict=True)]
            tiles.add(tuple(-(-x.sizes[n] // e) for n, e in zip(names, extents, strict=True)))
        assert tiles <= {(1, 1), (1, 2), (2, 1), (1, 3), (3, 1)}, v.plan
        assert any(max(t) > 1 for t in tiles), v.plan


@pytest.mark.parametrize("name", [n for n in machine_variants.FAMILIES if n.startswith("halved")])
def test_blocks_share_the_last_tasks_of_groups(name: str) -> None:
    found = [*machine_variants.of_family(name)]
    assert found
    for v in found:
        for x, plan in v.calls:
            ends = machine_variants.offsets_of(x)
            sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
            tasks = sum(-(-size // plan.tile[0]) for size in sizes) * -(-x.sizes["N"] // plan.tile[1])
            assert 0 < tasks % plan.grid <= plan.grid // 2 and tasks > plan.grid, v.plan


@pytest.mark.parametrize("name", [n for n, f in machine_variants.FAMILIES.items() if f.brought])
def test_scales_of_steps_come_with_the_tiles(name: str) -> None:
    """Those of reduced calls, too: their lines start at multiples of 16 bytes."""
    for v in itertools.islice(machine_variants.of_family(name), 8):
        for x, _ in v.calls:
            arrays, _ = machine_variants.numpy_arrays(x)
            problem = x.problem({n: describe(y) for n, y in arrays.items()})
            for scale in (problem.left, problem.right):
                assert not far_scales(scale), v.plan
                assert scale.stepwise == (x.sizes["K"] > 128)


def test_schedules_take_turns_until_something_is_wrong(found: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: list[str] = []

    def run(job: Any, *, seed: int, schedule: str) -> None:
        schedules.append(schedule)
        assert "product" in job.entry.name

    monkeypatch.setattr(machine_variants, "wrong_result", lambda *_: "an element" if len(schedules) == 3 else "")
    monkeypatch.setattr(machine_variants.Job, "run", run)
    outcome = machine_variants.outcome(found[0], 20)
    assert schedules == ["late", "early", "starve"]
    assert outcome.runs == 3 and "an element" in outcome.wrong and "schedule 2" in outcome.wrong


def test_a_wrong_result_is_found(found: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_variants.Job, "run", lambda *_, **__: None)
    assert "wrong, first" in machine_variants.outcome(found[0], 2).wrong


def test_variants_that_have_passed_are_not_run_again(
    found: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine_variants, "variants", lambda: found)
    monkeypatch.setattr(machine_variants, "wrong_result", lambda *_: "")
    monkeypatch.setattr(machine_variants.Job, "run", lambda *_, **__: None)
    command = ["machine_variants.py", "--workers", "1", "--schedules", "1", "--done", str(tmp_path / "done")]
    monkeypatch.setattr(sys, "argv", command)
    assert machine_variants.main() == 0
    assert "1 variants, 1 runs, 0 failures, 0 passed before" in capsys.readouterr().out
    assert machine_variants.main() == 0
    assert "0 variants, 0 runs, 0 failures, 1 passed before" in capsys.readouterr().out


def test_a_kernel_that_ran_under_all_schedules_is_run_again_where_its_arrays_differ(
    found: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, runs = machine_variants.Prepared(*found[0].calls[0]), []
    monkeypatch.setattr(machine_variants, "_runs", machine_variants.Counter())
    monkeypatch.setattr(machine_variants, "wrong_result", lambda *_: "")
    monkeypatch.setattr(machine_variants.Job, "run", lambda *_, seed, **__: runs.append(seed))
    for seed in range(22):
        prepared.run(seed)
    assert runs == [*range(20)]
    before, _ = prepared.images[0]
    before[0] = b"others"
    prepared.run(22)
    assert runs == [*range(20), 22]
