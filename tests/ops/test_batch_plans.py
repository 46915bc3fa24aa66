"""Batches whose blocks have other tiles of the products in each round, alone and in clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilemma import testing
from tilemma.ops import arguments, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import candidates
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import describe

# Two or three blocks or clusters have several whole rounds and a part of one.
PLANS = {
    "alone": Plan("pipelined", (64, 64, 64), 1, 2, grid=3, store="tma"),
    "in rows": Plan("pipelined", (128, 72, 64), 2, 2, grid=2, store="rows"),
    "swapped": Plan("pipelined", (128, 64, 64), 2, 2, grid=2, store="tma", swap=True),
    "pairs": Plan("pipelined", (64, 64, 64), 1, 2, grid=3, store="tma", cluster=(2, 1)),
    "squares": Plan("pipelined", (64, 64, 64), 1, 2, grid=3, store="tma", cluster=(2, 2)),
    "fours": Plan("pipelined", (64, 64, 64), 1, 2, grid=2, store="tma", cluster=(4, 1), swap=True),
}


def batch(shape: tuple[int, int, int, int], **options: object) -> tuple[Problem, np.ndarray, list[np.ndarray]]:
    """The problem, its result before it is computed, and the operands."""
    b, m, n, k = shape
    left, right = testing.random_array((b, m, k), "f16", 0), testing.random_array((b, n, k), "f16", 1)
    out = np.full((b, m, n), np.nan, np.float16)
    call = Call(describe(left), describe(right.swapaxes(1, 2)), **options)
    return arguments.problem(call, describe(out), made=False), out, [left, right]


def check(plan: Plan, **options: object) -> None:
    p, out, (left, right) = batch((4, 136, 136, 40))
    product.run(p, replace(plan, by_hand=True, turns=True), "machine", arch="sm_90a", **options)
    for a, b, found in zip(left, right, out, strict=True):
        bound = testing.error_bound(a, b.T, out="f16")
        assert testing.share_of_bound(found, testing.reference("mk,kn->mn", a, b.T), bound) <= 1


@pytest.mark.parametrize("name", PLANS)
def test_every_tile_is_computed(name: str) -> None:
    check(PLANS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_schedules(name: str) -> None:
    for seed in range(20):
        check(PLANS[name], seed=seed)


def test_blocks_take_turns_in_batches_of_several_tiles_and_rounds() -> None:
    def some(shape: tuple[int, int, int, int], **options: object) -> list[Plan]:
        return [x for x in candidates(batch(shape, **options)[0], Hardware()) if x.turns]

    found = some((20, 520, 520, 64))
    assert found and all(x.by_hand and x.split == 1 for x in found)
    assert {(2, 2), (4, 1)} <= {x.cluster for x in found}
    # Of one tile each, one product, an epilogue.
    assert not [x for x in some((300, 64, 64, 64)) if x.tile[0] == x.tile[1] == 64]
    assert not some((1, 264, 264, 64)) and not some((20, 264, 264, 64), activation="relu")
