"""Timings of plans of batches, from which the times of plans like them are predicted."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path

import numpy as np

from tilemma.ops import arguments, batch_timings, plans
from tilemma.ops.batch_timings import REACH, Timed, factors
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Hardware

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from fit_batch_timings import Row, fitted, likeness, said
from sweep_ops import Shape, call_of, imagined

SOME = Timed(936, 392, 504, 136, 128, 224, 64, 2, 4, 2, 2, 1, 1, "tma", 0, 30, 1, 0, 0)


def test_plans_like_none_that_was_timed_have_the_mean_of_all():
    far = SOME._replace(batch=10**9, depth=10**6, slots=10**9, m=8 * 10**8)
    further = far._replace(batch=10**15)
    found = factors("pipelined", [far, further, SOME])
    assert math.isclose(found[0], found[1], rel_tol=1e-3) and found[0] != found[2]


def test_a_plan_has_the_same_factor_among_others():
    plans = [SOME._replace(m=8 * m) for m in range(4, 300)]
    together = factors("pipelined", plans)
    assert all(
        math.isclose(factors("pipelined", [x])[0], y, rel_tol=1e-4) for x, y in zip(plans, together, strict=True)
    )


def test_the_fit_finds_what_depends_on_the_plan_and_leaves_what_batches_have_in_common():
    rows, factors = [], {1: 0.0, 2: 0.05, 4: -0.1}
    for number in range(24):
        common = 0.02 * (-1) ** number
        for wide, log in factors.items():
            plan = SOME._replace(batch=100 + 8 * number, wide=wide, high=1)
            rows.append(Row("pipelined", number, plan, log + common))
    found = fitted(rows, 60)
    kept = np.array([Timed(*row[:-1]).place for row in found["plans"]]) / REACH
    weights = np.array([row[-1] for row in found["plans"]])
    for wide, log in factors.items():
        place = np.array([SOME._replace(batch=150, wide=wide, high=1).place]) / REACH
        assert abs(found["mean"] + (likeness(place, kept) @ weights)[0] - log) < 0.02


def test_other_timings_make_stored_winners_void():
    content = Path(batch_timings.__file__).with_suffix(".json").read_bytes()
    assert hashlib.sha256(content).hexdigest() in plans._own_sources()


def test_a_queue_where_it_was_faster() -> None:
    """176 us, 201 us in turns; 190 us, 177 us in turns."""
    for shape, queue in (((248, 672, 48, 1598), True), ((480, 336, 296, 762), False)):
        call, out = call_of(Shape("batches", *shape), imagined)
        assert ranked(arguments.problem(call, out, made=True), Hardware())[0].plan.queue == queue


def test_large_products_take_no_less_than_the_tensor_cores_need_at_their_highest_rate():
    """None like them was timed; the rate is the data sheet's."""
    for m, n, k, batch in ((8192, 8192, 8192, 2), (4096, 4096, 4096, 16), (2048, 2048, 2048, 32)):
        call, out = call_of(Shape("batches", m, n, k, batch), imagined)
        found = ranked(arguments.problem(call, out, made=True), Hardware())
        assert 2 * m * n * k * batch / found[0].seconds < 989e12


def test_a_fit_to_what_the_file_says_says_nearly_the_same():
    rows = [x for x in said() if x.kernel == "resident"]
    found = fitted(rows, len(rows))
    kept = np.array([Timed(*row[:-1]).place for row in found["plans"]]) / REACH
    logs = found["mean"] + likeness(kept, kept) @ np.array([row[-1] for row in found["plans"]])
    plans = [Timed(*row[:-1]) for row in found["plans"]]
    assert np.abs(logs - np.log(factors("resident", plans))).mean() < 0.03
