"""`machine_variants`: which variants it runs, and that it says what is wrong."""

from __future__ import annotations

import machine_variants
import pytest


def test_variants_of_a_family_are_run_under_each_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*machine_variants.of_family("f64")]
    assert {plan.kernel for _, plan, _ in found} == {"tiles", "ahead"}
    assert len({machine_variants.kind(plan) for _, plan, _ in found}) == len(found)
    schedules: list[str] = []

    def run_small(x: object, plan: object, target: str, *, schedule: str, **_: object) -> str:
        schedules.append(schedule)
        return "an element" if schedule == "starve" else ""

    monkeypatch.setattr(machine_variants, "run_small", run_small)
    monkeypatch.setattr(machine_variants, "_known", found)
    name, runs, _, wrong = machine_variants.outcome((0, 20))
    assert (name, runs, schedules) == ("f64", 3, ["late", "early", "starve"]) and "an element" in wrong
