"""Batches whose rhs stays in shared memory: the kernel on the PTX machine, and the choice of its plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.sampling import by_night
from tilemma import testing
from tilemma.atoms import catalogue
from tilemma.machine.run import schedule_of
from tilemma.ops import arguments, product
from tilemma.ops.arguments import Call
from tilemma.ops.batch_model import ATOM, DEPTH, WIDEST
from tilemma.ops.candidates import candidates
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import describe

# (batch, M, N, K): all columns in a tile or in two, of an even and an odd number of 16 bytes; steps of 64, 32 and
# 16 along K; rows that fill no tile.
SHAPES = (
    (3, 136, 40, 24), (2, 72, 48, 88), (5, 72, 64, 64), (3, 200, 24, 120), (2, 136, 264, 40), (2, 72, 320, 16),
)  # fmt: skip


def batch(shape: tuple[int, int, int, int]) -> tuple[Problem, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """The problem, its result before it is computed, and the operands."""
    b, m, n, k = shape
    left, right = testing.random_array((b, m, k), "f16", 0), testing.random_array((b, n, k), "f16", 1)
    out = np.full((b, m, n), np.nan, np.float16)
    call = Call(describe(left), describe(right.swapaxes(1, 2)))
    return arguments.problem(call, describe(out), made=False), out, (left, right)


def resident(p: Problem) -> list[Plan]:
    return [x for x in candidates(p, Hardware()) if x.kernel == "resident"]


def run(shape: tuple[int, int, int, int], plan: Plan, **options: object) -> float:
    p, out, (left, right) = batch(shape)
    product.run(p, plan, "machine", arch="sm_90a", **options)
    shares = []
    for a, b, found in zip(left, right, out, strict=True):
        bound = testing.error_bound(a, b.T, out="f16")
        shares.append(testing.share_of_bound(found, testing.reference("mk,kn->mn", a, b.T), bound))
    return max(shares)


def small(plan: Plan) -> Plan:
    """The same on two blocks with a short ring: blocks start and end within products, and slots are used again."""
    return replace(plan, grid=2, stages=2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_plan_on_the_machine(shape: tuple[int, int, int, int], request: pytest.FixtureRequest) -> None:
    plans = list(dict.fromkeys(small(x) for x in resident(batch(shape)[0])))
    assert plans
    # By day each shape has every fourth plan, and the next shape others.
    day = plans[SHAPES.index(shape) % min(4, len(plans)) :: 4]
    for plan in plans if by_night(request.config) else day:
        assert run(shape, plan) <= 1


def test_rhs_of_many_columns_fits_beside_tiles_of_few_rows() -> None:
    plans = resident(batch((2, 200, 792, 72))[0])
    assert plans
    assert all(x.tile[0] < 64 * x.groups for x in plans)


def test_rhs_that_does_not_fit_has_other_plans() -> None:
    assert resident(batch((2, 200, 520, 64))[0])
    assert not resident(batch((2, 200, 520, 264))[0])
    assert not resident(batch((2, 64, 40, 64))[0])


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_schedules(shape: tuple[int, int, int, int]) -> None:
    for plan in resident(batch(shape)[0]):
        for seed in range(20):
            assert run(shape, small(plan), seed=seed, schedule=schedule_of(seed)) <= 1


def test_the_sizes_of_an_instruction_are_those_of_its_record() -> None:
    assert catalogue["SM90_64x256x16_F32F16F16_SS"].shape == (ATOM, WIDEST, DEPTH)
