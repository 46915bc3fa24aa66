"""A fixed sample of the mutants of `make mutate`: each mutant of an example has the expected hazard."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import mutate
from machine_cases import TYPES
from mutate import EVERY

EXAMPLES = {c.example: c for c in EVERY}
# Programs of one warp's lanes wait for nobody: they have no mutants.
LANES = {c.example for c in TYPES if c.example.startswith("typed lanes")}
SAMPLE = [
    ("matmul_wgmma_2group", "sm_90a", 4),
    ("multistage", "sm_80", 4),
    ("event_pipeline", "sm_90a", 4),
    ("warp_specialized", "sm_90a", 5),
    ("multicast", "sm_90a", 4),
    ("pingpong", "sm_90a", 4),
    ("ops pipelined, MN-major", "sm_90a", 4),
    ("typed fp8 promoted", "sm_89", 2),
    ("typed sparse scaled", "sm_90a", 2),
]


@pytest.mark.parametrize(("name", "arch", "count"), SAMPLE)
def test_mutants_are_convicted(name: str, arch: str, count: int) -> None:
    tasks = mutate.tasks([EXAMPLES[name]], 6, None)
    chosen = random.Random(name).sample([t for t in tasks if t.arch == arch], count)
    tried = [mutate.attempt(t) for t in chosen]
    assert not mutate.problems(tried)
    assert any(t.convicted for t in tried)


def test_problems_are_told() -> None:
    """Survivors, unreached mutants, unexpected hazards and stale entries of the list fail the survey."""
    right = mutate.Tried("p", "no barrier 1", "deleted", 3, ("race",), "", "", False, True, (), 0.1)
    assert not mutate.problems([right])
    for change in (
        {"codes": ()},
        {"codes": (), "unreached": True},
        {"as_expected": False},
        {"reason": "listed, but convicted"},
    ):
        assert mutate.problems([replace(right, **change)])
    listed = replace(right, codes=(), reason="the same program")
    assert not mutate.problems([listed])
    assert mutate.record([right, listed], 1.0, 1)["equivalent"] == 1


def test_every_example_has_a_case() -> None:
    """Those that multiply two matrices and say how they are pipelined; of the others, some have nothing to
    synchronise, and the operands of some have other shapes."""
    files = {p.stem for p in (Path(mutate.__file__).parents[1] / "examples" / "py").glob("*.py")}
    assert files - set(EXAMPLES) <= {"hello_mma", "fragment_walk", "attention_roles", "plain"}


def test_the_recorded_surveys_found_nothing() -> None:
    proofs = Path(mutate.__file__).parents[1] / "docs" / "proofs"
    mutation = json.loads((proofs / "mutation.json").read_text(encoding="utf-8"))
    assert mutation["problems"] == []
    assert mutation["convicted"] + mutation["equivalent"] == mutation["mutants"]
    assert mutation["equivalent"] <= 0.05 * mutation["mutants"]
    assert {p.rsplit(" ", 1)[0] for p in mutation["programs"]} == set(EXAMPLES) - LANES
    alarms = json.loads((proofs / "false_alarms.json").read_text(encoding="utf-8"))
    assert alarms["ok"]
    assert {f"{c.example} {arch}" for c in TYPES for arch in c.archs} <= set(alarms["programs"])
    assert min(row["schedules"] for row in alarms["programs"].values()) >= 100
