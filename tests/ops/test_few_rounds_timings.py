"""Timings of plans of few rounds, from which the times of plans like them are predicted."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from products import problem

from tilemma.ops import few_rounds
from tilemma.ops.candidates import candidates
from tilemma.ops.few_rounds_timings import Timed, factor
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan, estimates

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import fit_few_rounds_timings
import kriging

H200 = Hardware()
SOME = Timed(1472, 1728, 3008, 128, 160, 5, 1, 1, 1, 0, 0, "tma", 1, 0, 132)


def by_formula(shape: tuple[int, int, int], plan: Plan) -> float:
    p = problem(*shape)
    return few_rounds.seconds(transposed_product(p) if plan.swap else p, plan, H200)[0]


def test_plans_like_none_that_was_timed_have_the_mean_of_all() -> None:
    far = SOME._replace(rows=10**9, stages=10**9)
    assert math.isclose(factor(far), factor(far._replace(wide=10**9)), rel_tol=1e-4)
    assert not math.isclose(factor(far), factor(SOME), rel_tol=1e-3)


def test_the_fit_finds_which_plans_take_longer_than_the_formula_says(tmp_path: Path) -> None:
    shapes = []
    for i in range(6):
        shape = 1472, 1728 + 64 * i, 3008
        found = [x for x in candidates(problem(*shape), H200) if x.kernel == "pipelined" and x.split == 1][:40]
        times = [1e6 * by_formula(shape, x) * (1.1 if x.swap else 0.95) for x in found]
        rows = [{"plan": asdict(x), "us": t, "steady_us": t} for x, t in zip(found, times, strict=True)]
        shapes.append({"kind": "few rounds", **dict(zip("mnk", shape, strict=True)), "plans": rows})
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"shapes": shapes}))
    found = list(fit_few_rounds_timings.rows([file]))
    assert len({r.number for r in found}) == 6
    more = kriging.corrections(found, fit_few_rounds_timings.weights(found))
    assert np.abs(more - [r.log for r in found]).max() < 0.03


def test_plans_that_take_far_longer_than_the_best_are_not_looked_up() -> None:
    shape = 1472, 1728, 3008
    plans = [x for x in candidates(problem(*shape), H200) if x.kernel == "pipelined" and not x.pack]
    best = min(by_formula(shape, x) for x in plans)
    found = estimates(problem(*shape), plans, H200)
    changed = {e.plan for e in found if not math.isclose(e.seconds, by_formula(shape, e.plan), rel_tol=1e-9)}
    assert changed and all(by_formula(shape, x) <= few_rounds.NEAR * best for x in changed)
