"""The models of times beside the stored times of plans: what the choice loses, and how far predictions are off."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from products import grouped

from tilemma import dtypes
from tilemma.ops import arguments, few_rounds, few_rows, long_k, middle, unaligned_batches
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.plan import Hardware, Plan, estimates
from tilemma.ops.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from fit_few_rounds import FLUSHED
from sweep_ops import Shape, call_of, imagined, plan_of

H200 = Hardware()
STORED = Path(__file__).parents[2] / "docs" / "performance"
SWEEPS = ("ops_sweep", "few_rounds", "unaligned_batches")
# Plans that take no more than so many times as long as the fastest one of their product matter for the choice.
NEAR = 1.5
# By model, as logarithms: the mean loss of the choice to the fastest timed plan; the standard deviation of
# predicted over measured time among the plans of a product; and the root mean square of its mean.
PRESENT = {
    "batches": (0.0125, 0.0440, 0.0698),
    "unaligned batches": (0.0228, 0.0632, 0.0670),
    "few rows": (0.0181, 0.0698, 0.0662),
    "long K": (0.0360, 0.0759, 0.0746),
    "few rounds": (0.0042, 0.0228, 0.0438),
    "middle": (0.0130, 0.0414, 0.1369),
    "large": (0.0080, 0.0761, 0.1620),
    "8 bits": (0.0271, 0.0937, 0.2419),
}
# How much worse other models may be; those that are better, or know more sweeps, state what the test prints.
WORSE = 1.2, 1.08, 1.08
# Of so many products of each model: the mean loss of the fastest timed candidate to the fastest timed plan.
PRODUCTS, LEFT_OUT = 40, 0.004


class Timed(NamedTuple):
    """A product with timed plans, and their microseconds."""

    problem: Problem
    plans: list[Plan]
    us: Any


@cache
def stored() -> dict[str, list[Timed]]:
    """The stored products by the model that predicts their times."""
    found: dict[str, list[Timed]] = {name: [] for name in PRESENT}
    for sweep in SWEEPS:
        text = (STORED / f"{sweep}.json").read_text(encoding="utf-8")
        for x in json.loads(text)["shapes"]:
            call, out = call_of(Shape(x["kind"], x["m"], x["n"], x["k"], x.get("batch", 1)), imagined)
            p = arguments.problem(call, out, made=True)
            # Flushed and steady, where both were timed.
            us = [row["us"] * (row.get("steady_us", row["us"]) / row["us"]) ** (1 - FLUSHED) for row in x["plans"]]
            found[model_of(p)].append(Timed(p, [plan_of(row["plan"]) for row in x["plans"]], np.array(us)))
    return found


def model_of(p: Problem) -> str:
    if p.batch > 1:
        return "unaligned batches" if unaligned_batches.applies(p) else "batches"
    modules = {"few rows": few_rows, "long K": long_k, "few rounds": few_rounds, "middle": middle}
    of_its_own = next((name for name, module in modules.items() if module.applies(p)), "")
    return of_its_own or ("8 bits" if p.lhs.dtype.bits == 8 else "large")


@pytest.mark.parametrize("model", PRESENT)
def test_the_model_predicts_what_was_timed(model: str) -> None:
    lost, within, means = [], [], []
    for x in stored()[model]:
        seconds = np.array([e.seconds for e in estimates(x.problem, x.plans, H200)])
        slower = np.log(x.us / x.us.min())
        off = np.log(seconds * 1e6 / x.us)[slower < math.log(NEAR)]
        lost.append(slower[seconds.argmin()])
        within.append(off.var())
        means.append(off.mean())
    found = np.mean(lost), math.sqrt(np.mean(within)), math.sqrt(np.mean(np.square(means)))
    assert all(x < most * y for x, most, y in zip(found, PRESENT[model], WORSE, strict=True)), found


def kind(x: Plan) -> tuple[Any, ...]:
    """What tells the plans of a product apart, besides rings and how the kernel is written."""
    return x.kernel, x.tile, x.groups, x.cluster, x.share, x.split, x.swap, x.loaded, x.ordered, x.pack


# The sweep of a long K has tiles of equal columns, which its candidates no longer have.
@pytest.mark.parametrize("model", [x for x in PRESENT if x != "long K"])
def test_the_fastest_timed_plans_are_candidates(model: str) -> None:
    products, lost = stored()[model], []
    for x in products[:: 1 + len(products) // PRODUCTS]:
        found = {kind(plan) for plan in candidates(x.problem, H200)}
        known = [us for plan, us in zip(x.plans, x.us, strict=True) if kind(plan) in found]
        lost.append(math.log(min(known) / x.us.min()))
    assert np.mean(lost) < LEFT_OUT


# The logarithm of predicted over measured time of divisions into groups, at most.
OFF = 0.25


def test_the_model_predicts_what_groups_took() -> None:
    """The choice for random groups, timed by `bench/ops_types.py`."""
    rows = [x for x in json.loads((STORED / "ops_types.json").read_text())["rows"] if x["group"] == "grouped"]
    assert rows
    for x in rows:
        dtype, numbers = x["name"].split(" ", 1)
        p = grouped(*map(int, numbers.split(", ")))
        if dtype == "e4m3":
            e4m3 = dtypes.dtype("f8_e4m3")
            p = replace(p, lhs=p.lhs._replace(dtype=e4m3), rhs=p.rhs._replace(dtype=e4m3))
        assert abs(math.log(ranked(p, H200)[0].seconds * 1e6 / x["mine"])) < OFF, x["name"]
