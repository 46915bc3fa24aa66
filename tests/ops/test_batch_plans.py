"""Batches whose blocks take tiles from a queue, or have other tiles of the products in each round, alone and in
clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilemma import machine, testing
from tilemma.ops import arguments, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import describe

# Two or three blocks or clusters, many more tiles.
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


def plans_of(shape: tuple[int, int, int, int], **options: object) -> list[Plan]:
    """The plans for a batch whose arrays are never read, the best first."""
    b, m, n, k = shape
    left, right, out = (np.empty((b, *x), np.float16) for x in ((m, k), (n, k), (m, n)))
    call = Call(describe(left), describe(right.swapaxes(1, 2)), **options)
    return [e.plan for e in ranked(arguments.problem(call, describe(out), made=False), Hardware())]


def check(
    plan: Plan, turns: bool = False, shape: tuple[int, int, int, int] = (4, 136, 136, 40), **options: object
) -> None:
    p, out, (left, right) = batch(shape)
    product.run(
        p,
        replace(plan, by_hand=True, turns=turns, queue=not turns, kept=True),
        "machine",
        arch="sm_90a",
        **options,
    )
    for a, b, found in zip(left, right, out, strict=True):
        bound = testing.error_bound(a, b.T, out="f16")
        assert testing.share_of_bound(found, testing.reference("mk,kn->mn", a, b.T), bound) <= 1


@pytest.mark.parametrize("turns", [False, True], ids=["queue", "turns"])
@pytest.mark.parametrize("name", PLANS)
def test_every_tile_is_computed(name: str, turns: bool) -> None:
    check(PLANS[name], turns)


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True], ids=["queue", "turns"])
@pytest.mark.parametrize("name", PLANS)
def test_schedules(name: str, turns: bool) -> None:
    for seed in range(20):
        check(PLANS[name], turns, seed=seed)


# Tiles that are staged in pieces, and products of two of them.
IN_PIECES = {
    "alone": (Plan("pipelined", (128, 256, 64), 2, 4, grid=1, store="tma"), (3, 72, 264, 264)),
    "swapped": (Plan("pipelined", (128, 256, 64), 2, 4, grid=1, store="tma", swap=True), (2, 264, 72, 520)),
    "pairs": (
        Plan("pipelined", (128, 176, 64), 2, 5, grid=1, store="tma", cluster=(2, 1)),
        (3, 136, 184, 264),
    ),
}


@pytest.mark.parametrize("name", IN_PIECES)
def test_tiles_of_a_queue_are_stored_while_the_next_is_multiplied(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, run = [], machine.run
    monkeypatch.setattr(machine, "run", lambda ptx, *x, **y: texts.append(ptx) or run(ptx, *x, **y))
    plan, shape = IN_PIECES[name]
    check(plan, shape=shape, strict=True)
    assert "%mc_held" in texts[0]


def test_blocks_of_batches_with_more_tiles_take_turns_or_a_queue() -> None:
    def some(shape: tuple[int, int, int, int], **options: object) -> list[Plan]:
        return [x for x in plans_of(shape, **options) if x.turns or x.queue]

    found = some((400, 264, 520, 1000))
    assert found and all(x.by_hand and x.split == 1 and x.turns != x.queue and x.kept for x in found)
    for queue in (False, True):
        assert {(1, 1), (1, 2)} <= {x.cluster for x in found if x.queue == queue}
    # Of one tile each there is nothing to keep; a tile for each block, few tiles, one product, an epilogue.
    whole = [x for x in some((3000, 64, 64, 64)) if x.tile[0] == x.tile[1] == 64]
    assert whole and all(x.queue and not x.kept for x in whole)
    assert not [x for x in some((100, 64, 64, 64)) if x.grid == 132 and x.tile[1] >= 64]
    assert not [x for x in some((20, 520, 520, 64)) if x.queue]
    assert not some((1, 264, 264, 64)) and not some((200, 264, 264, 64), activation="relu")


def test_clusters_of_four_have_large_tiles_or_all_of_a_product_beside_each_other() -> None:
    plans = plans_of((147, 312, 112, 776))
    fours = {(x.tile[:2], x.cluster) for x in plans if x.cluster in ((2, 2), (1, 4), (4, 1)) and x.swap}
    assert ((128, 80), (1, 4)) in fours
    for (rows, columns), cluster in fours:
        large = rows == 128 and columns >= 128
        assert large or (cluster == (1, 4) and (-(-112 // rows), -(-312 // columns)) == cluster)


def test_small_tiles_of_blocks_that_share_have_longer_rings() -> None:
    def stages(shape: tuple[int, int, int, int], tile: tuple[int, int, int], cluster: tuple[int, int]) -> set[int]:
        plans = plans_of(shape)
        return {x.stages for x in plans if (x.tile, x.cluster) == (tile, cluster) and x.share}

    assert stages((1202, 56, 128, 944), (64, 64, 64), (1, 2)) == {8}
    assert stages((588, 248, 104, 248), (128, 112, 64), (2, 1)) == {5}


@pytest.mark.parametrize("shape", [(58, 1024, 4096, 64), (58, 1024, 2048, 128), (36, 512, 4096, 128)], ids=str)
def test_wide_results_of_a_short_k_are_taken_from_a_queue(shape: tuple[int, int, int, int]) -> None:
    """In turns 128x256 took 163.0, 87.1 and 60.6 us, from a queue 155.6, 83.6 and 57.3."""
    assert plans_of(shape)[0].queue


@pytest.mark.parametrize("shape", [(3, 448, 104, 7312), (3, 504, 360, 12720)], ids=str)
def test_few_tiles_with_a_long_k_are_divided(shape: tuple[int, int, int, int]) -> None:
    """The first took 17.2 us with whole tiles of 64x64, and 11.2 us with four parts of 64x112."""
    assert plans_of(shape)[0].split > 1


def test_no_long_steps_where_blocks_of_a_batch_have_many_tiles() -> None:
    def deepest(batches: int) -> int:
        return max(x.tile[2] for x in plans_of((batches, 112, 112, 688)) if x.kernel == "pipelined")

    assert deepest(100) == 128 and deepest(1219) == 64
