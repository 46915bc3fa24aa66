"""Whole kernels: right results, no false alarm under any schedule, a hazard for every mutant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels import gemm_tma, gemm_tma_bytes
from ptx_programs import ampere

from dev.ptx_mutation import survey as mutate
from tilemma import machine


def hopper(
    m: int, n: int, k: int, *, bn: int = 64, consumers: int = 1, stages: int = 2, cluster: int = 1
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)
    c = np.zeros((m, n), np.float16)
    bm = 64 * consumers
    args = {
        "a": machine.TensorMap(a, (64, bm), 128),
        "b": machine.TensorMap(b, (64, bn // cluster), 128),
        "c": machine.TensorMap(c, (bn, 64)),
        "k": k,
    }
    launch = {
        "grid": (-(-m // (bm * cluster)) * cluster, -(-n // bn)),
        "block": 128 + 128 * consumers,
        "shared": gemm_tma_bytes(bn, consumers, stages),
        "cluster": (cluster, 1, 1),
    }
    return gemm_tma(bn, consumers, stages, cluster), launch, args


def error(args: dict[str, Any]) -> float:
    a, b, c = (getattr(args[x], "array", args[x]) for x in "abc")
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return float(np.abs(c - exact).max() / np.abs(exact).max())


PROGRAMS: dict[str, Callable[[], Any]] = {
    "sm_80": lambda: ampere(70, 100, 104),
    "tma": lambda: hopper(64, 64, 256),
    "tma, ragged": lambda: hopper(100, 72, 200),
    "tma, 128 x 128, 2 consumers": lambda: hopper(128, 128, 192, bn=128, consumers=2, stages=3),
    "tma, cluster of 2, multicast": lambda: hopper(128, 64, 256, cluster=2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_and_acquitted(name: str, assembles: Callable[[str, str], None]) -> None:
    ptx, launch, args = PROGRAMS[name]()
    assembles(ptx, "sm_80" if name == "sm_80" else "sm_90a")
    verdict = machine.check(ptx, launch, args, schedules=12 if name == "sm_80" else 25, strict=True)
    assert verdict.ok, verdict.render()[:3000]
    assert error(args) < (1e-6 if name == "sm_80" else 1e-3)


def test_same_seed_same_run() -> None:
    reports = []
    for _ in range(2):
        ptx, launch, args = hopper(64, 64, 192)
        reports.append(machine.run(ptx, launch, args, seed=7, trace=True))
    assert reports[0].instructions == reports[1].instructions
    assert reports[0].timeline.bars == reports[1].timeline.bars
    other = machine.run(*hopper(64, 64, 192), seed=8, trace=True)
    assert other.timeline.bars != reports[0].timeline.bars


@pytest.mark.parametrize("name", ["tma", "tma, cluster of 2, multicast"])
def test_every_mutant_is_convicted(name: str) -> None:
    survey = mutate.survey(name, *PROGRAMS[name](), schedules=10)
    assert len(survey.outcomes) > 30
    assert not survey.survivors, survey.render()
    assert not survey.unexpected, survey.render()


def test_ampere_mutants_are_convicted() -> None:
    survey = mutate.survey("sm_80", *ampere(32, 40, 72), schedules=6, sample=12)
    assert not survey.survivors, survey.render()
    assert not survey.unexpected, survey.render()


def test_a_mutant_that_nobody_convicts_is_reported() -> None:
    ptx, launch, args = ampere(32, 40, 72)
    # A second barrier right after the first is not needed: deleting one of them changes nothing.
    doubled = ptx.replace("bar.sync 0; // @barrier-arrived", "bar.sync 0; bar.sync 0;")
    survey = mutate.survey("doubled", doubled, launch, args, schedules=2, equivalents={"no barrier 1": "doubled"})
    assert "no barrier 2" in [o.mutant.key for o in survey.survivors]
    assert [o.reason for o in survey.equivalents] == ["doubled"]
