"""Timings of plans of batches, from which the times of plans like them are predicted."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tilemma.ops import arguments, batch_model, batch_timings, plans
from tilemma.ops.batch_timings import Timed, factors
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan, estimates
from tilemma.ops.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import fit_batch_timings
import kriging
from sweep_ops import Shape, call_of, imagined

H200 = Hardware()
SOME = Timed(936, 392, 504, 136, 128, 224, 64, 2, 4, 2, 2, 1, 1, "tma", 0, 30, 1, 0, 0)


def batch(m: int, n: int, k: int, count: int) -> Problem:
    call, out = call_of(Shape("batches", m, n, k, count), imagined)
    return arguments.problem(call, out, made=True)


def by_formula(p: Problem, plan: Plan) -> float:
    return batch_model.seconds(transposed_product(p) if plan.swap else p, plan, H200)[0]


def known(p: Problem) -> list[Plan]:
    found = candidates(p, H200)
    return [x for x in found if batch_model.like_timed(transposed_product(p) if x.swap else p, x)]


def test_plans_like_none_that_was_timed_have_the_mean_of_all() -> None:
    far = SOME._replace(depth=10**9, slots=10**9)
    found = factors([far, far._replace(wide=10**9), SOME])
    assert math.isclose(found[0], found[1], rel_tol=1e-3) and not math.isclose(found[0], found[2], rel_tol=1e-3)


def test_a_plan_has_the_same_factor_among_others() -> None:
    many = [SOME._replace(m=8 * m) for m in range(4, 300)]
    apart = [factors([x])[0] for x in many]
    assert np.allclose(factors(many), apart, rtol=2e-4)


def test_the_fit_finds_which_plans_take_longer_than_the_formula_says(tmp_path: Path) -> None:
    shapes = []
    for i in range(6):
        p = batch(200, 104 + 8 * i, 248, 400)
        times = {x: 1e6 * by_formula(p, x) * (1.1 if x.swap else 0.95) for x in known(p)[:40]}
        rows = [{"plan": asdict(x), "us": t} for x, t in times.items()]
        shapes.append({"kind": "batches", "batch": 400, **dict(zip("mnk", p.shape, strict=True)), "plans": rows})
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"shapes": shapes}))
    found = list(fit_batch_timings.timings([file]))
    assert len({r.number for r in found}) == 6
    more = kriging.corrections(found, fit_batch_timings.weights(found))
    assert np.abs(more - [r.log for r in found]).mean() < 0.01


def test_other_timings_make_stored_winners_void() -> None:
    content = Path(batch_timings.__file__).with_suffix(".json").read_bytes()
    assert hashlib.sha256(content).hexdigest() in plans.own_sources()


def test_a_queue_where_it_was_faster() -> None:
    """148 us, 154 us in turns; 89 us, 78 us in turns."""
    for shape, queue in (((840, 112, 32, 2315), True), ((576, 480, 160, 322), False)):
        assert ranked(batch(*shape), H200)[0].plan.queue == queue


def test_large_products_take_no_less_than_the_tensor_cores_need_at_their_highest_rate() -> None:
    """None like them was timed; the rate is the data sheet's."""
    for m, n, k, count in ((8192, 8192, 8192, 2), (4096, 4096, 4096, 16), (2048, 2048, 2048, 32)):
        assert 2 * m * n * k * count / ranked(batch(m, n, k, count), H200)[0].seconds < 989e12


def test_plans_that_take_far_longer_than_the_best_are_not_looked_up() -> None:
    p = batch(200, 104, 248, 400)
    found = known(p)
    best = min(by_formula(p, x) for x in found)
    changed = {
        e.plan
        for e in estimates(p, found, H200)
        if not math.isclose(e.seconds, by_formula(p, e.plan), rel_tol=1e-9)
    }
    assert 0 < len(changed) < len(found) and all(by_formula(p, x) <= batch_model.NEAR * best for x in changed)
