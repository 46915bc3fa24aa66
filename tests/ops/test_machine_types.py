"""The PTX machine on the kernel variants of 8-bit types, scales and groups: no hazards, and the right result."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typed_cases import TypedCase, expected

from tilemma import machine, ops, testing
from tilemma.machine.run import schedule_of
from tilemma.ops import product
from tilemma.ops.candidates import PIPELINED, candidates
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem

SMALL = Plan("pipelined", (64, 64, 128), 1, stages=2, grid=2)


def call(
    function: str,
    shape: tuple[int, int, int],
    types: tuple[str, str],
    out: str,
    scales: str = "",
    order: Any = "C",
    epilogue: bool = True,
    **options: Any,
) -> TypedCase:
    """A call of operands with K contiguous, with a bias and relu or without an ``epilogue``.

    ``scales``: "rows", "blocks", "blocks of lhs", or "turned" blocks, whose steps are neighbours in memory; groups
    have 0, 5, .. rows."""
    m, n, k = shape
    grouped = function == "grouped_matmul"
    arrays: dict[str, Any] = {"a": testing.random_array((m, k), types[0], 0).copy(order=order)}
    b = testing.random_array(((3,) if grouped else ()) + (n, k), types[1], 1)
    arrays["b"] = np.swapaxes(b, -1, -2)
    if grouped:
        arrays["offsets"] = np.array([0, 5, m - 2], np.int32)
    if scales:
        steps, blocks = -(-k // 128), -(-n // 128)
        forms = {"rows": ((m, 1), (1, n)), "blocks": ((steps, m), (steps, blocks))}
        forms |= {"blocks of lhs": ((steps, -(-m // 128)), (steps, n)), "turned": forms["blocks"]}
        left, right = (np.abs(testing.random_array(f, "f32", 7)) + np.float32(0.1) for f in forms[scales])
        arrays["scale_a"] = left if scales == "rows" else left.T
        arrays["scale_b"] = np.broadcast_to(right, (3, *right.shape)).copy() if grouped else right
        if scales == "turned":
            room = np.zeros((*arrays["scale_b"].shape[:-2], blocks, -(-steps // 4) * 4), np.float32)
            turned = np.swapaxes(room[..., :steps], -1, -2)
            turned[...] = arrays["scale_b"]
            arrays["scale_b"] = turned
    if epilogue:
        arrays["bias"] = testing.random_array((n,), "f32", 3)
        options["activation"] = "relu"
    return TypedCase(function, arrays, options, out)


def on_machine(
    x: TypedCase, plan: Plan, monkeypatch: pytest.MonkeyPatch, plain: bool = False, **options: Any
) -> float:
    """The share of the bound that the machine's result with ``plan`` uses; ``plain``: that of the plain text, also
    where the kernel is written by hand."""
    compute = product.run

    def run(problem: Problem, _: Plan) -> None:
        found = candidates(problem, Hardware())
        known = next(c for c in found if c.kernel == "pipelined" and c.swap == plan.swap)
        hand = known.by_hand or plan.cluster != (1, 1)
        like = replace(plan, pack=known.pack, by_hand=hand and not plain)
        compute(problem, like if plan.kernel == "pipelined" else plan, "machine", **options)

    monkeypatch.setattr(product, "run", run)
    given = dict(x.arrays)
    names = ["a", "b", *(["offsets"] if "offsets" in given else [])]
    result = getattr(ops, x.function)(*[given.pop(n) for n in names], **given, out_dtype=x.out_dtype, **x.options)
    wanted, bound = expected(x)
    return testing.share_of_bound(result[: len(wanted)], wanted, bound)


E4, E5 = "f8_e4m3", "f8_e5m2"
VARIANTS: dict[str, tuple[Plan, TypedCase]] = {
    "integers": (SMALL, call("matmul", (72, 80, 272), ("s8", "u8"), "s32")),
    "integers in parts": (replace(SMALL, split=2), call("matmul", (72, 80, 272), ("u8", "s8"), "f32")),
    "rows": (SMALL, call("scaled_matmul", (72, 80, 272), (E4, E5), "bf16", "rows")),
    "rows of s8": (SMALL, call("scaled_matmul", (72, 80, 144), ("s8", "s8"), "s8", "rows")),
    "stored by tma": (replace(SMALL, store="tma"), call("scaled_matmul", (72, 80, 144), (E4, E4), "f16", "rows")),
    "scaled, stored while the next tile is multiplied": (
        replace(SMALL, tile=(128, 256, 128), groups=2, stages=4, grid=1, store="tma"),
        call("scaled_matmul", (72, 520, 528), (E4, E4), "bf16", "rows"),
    ),
    "rows of tiles that are not full": (
        replace(SMALL, tile=(64, 24, 128), swap=True, by_hand=True, loaded=40, streamed="lhs"),
        call("scaled_matmul", (20, 72, 272), (E4, E4), "bf16", "rows"),
    ),
    "promoted": (SMALL, call("scaled_matmul", (72, 80, 272), (E5, E4), "f32", "rows", fast=False)),
    "blocks": (SMALL, call("scaled_matmul", (72, 144, 272), (E4, E4), "bf16", "blocks")),
    "blocks swapped": (
        replace(SMALL, tile=(64, 16, 128), swap=True),
        call("scaled_matmul", (20, 72, 272), (E4, E4), "bf16", "blocks"),
    ),
    "blocks in parts": (replace(SMALL, split=2), call("scaled_matmul", (72, 80, 592), (E4, E4), "bf16", "blocks")),
    # Scales keep sums of integers from being whole.
    "blocks of integers in parts": (
        replace(SMALL, split=2),
        call("scaled_matmul", (72, 80, 592), ("s8", "u8"), "f32", "blocks", epilogue=False),
    ),
    "blocks in pairs": (
        replace(SMALL, grid=1, cluster=(2, 1)),
        call("scaled_matmul", (136, 72, 144), (E4, E4), "bf16", "blocks"),
    ),
    "blocks there and back": (
        replace(SMALL, grid=3, raster=1, back=True),
        call("scaled_matmul", (136, 200, 656), (E4, E4), "bf16", "blocks"),
    ),
    "blocks of an odd step": (SMALL, call("scaled_matmul", (72, 80, 384), (E4, E4), "f32", "blocks")),
    "blocks of lhs": (SMALL, call("scaled_matmul", (72, 144, 272), (E4, E4), "bf16", "blocks of lhs")),
    "blocks of two warpgroups": (
        replace(SMALL, tile=(128, 128, 128), groups=2, grid=1, store="tma"),
        call("scaled_matmul", (136, 136, 400), (E4, E4), "bf16", "blocks"),
    ),
    "blocks in a wide tile": (
        replace(SMALL, tile=(128, 256, 128), groups=2, grid=1, store="tma"),
        call("scaled_matmul", (136, 512, 272), (E4, E4), "bf16", "blocks"),
    ),
    "blocks in wide tiles of a pair": (
        replace(SMALL, tile=(128, 256, 128), groups=2, grid=1, store="tma", cluster=(2, 1)),
        call("scaled_matmul", (136, 512, 272), (E4, E4), "bf16", "blocks"),
    ),
    "blocks whose scales are read from memory": (
        SMALL,
        call("scaled_matmul", (73, 144, 272), (E4, E4), "bf16", "blocks"),
    ),
    "blocks whose steps are neighbours": (
        SMALL,
        call("scaled_matmul", (72, 144, 656), (E4, E4), "bf16", "turned"),
    ),
    "blocks whose steps are neighbours in wide tiles of a pair": (
        replace(SMALL, tile=(128, 256, 128), groups=2, grid=1, store="tma", cluster=(2, 1)),
        call("scaled_matmul", (136, 512, 272), (E4, E4), "bf16", "turned"),
    ),
    "blocks whose steps are neighbours, swapped": (
        replace(SMALL, tile=(128, 16, 128), groups=2, swap=True),
        call("scaled_matmul", (20, 200, 272), (E4, E4), "bf16", "turned"),
    ),
    "blocks whose steps are neighbours there and back": (
        replace(SMALL, grid=3, raster=1, back=True),
        call("scaled_matmul", (136, 200, 656), (E4, E4), "bf16", "turned"),
    ),
    "blocks whose steps are neighbours in parts": (
        replace(SMALL, split=2),
        call("scaled_matmul", (72, 80, 1104), (E4, E4), "bf16", "turned"),
    ),
    "groups of blocks whose steps are neighbours": (
        SMALL,
        call("grouped_matmul", (80, 200, 656), (E4, E4), "bf16", "turned"),
    ),
    "blocks without rings": (
        Plan("tiles", (64, 64, 128), 1),
        call("scaled_matmul", (72, 80, 144), (E4, E4), "bf16", "blocks"),
    ),
    "groups": (replace(SMALL, tile=(64, 64, 64)), call("grouped_matmul", (80, 72, 136), ("bf16", "bf16"), "bf16")),
    "groups of neighbouring rows": (
        replace(SMALL, tile=(64, 64, 64)),
        call("grouped_matmul", (80, 72, 136), ("f16", "f16"), "f32", order="F"),
    ),
    "groups of two warpgroups": (
        # More slots than steps.
        replace(SMALL, tile=(128, 64, 64), groups=2, stages=3),
        call("grouped_matmul", (150, 72, 72), ("f16", "f16"), "f16"),
    ),
    "groups stored by tma": (
        replace(SMALL, tile=(128, 64, 64), groups=2, store="tma"),
        call("grouped_matmul", (150, 72, 72), ("f16", "f16"), "f16"),
    ),
    "groups whose last tasks are halved": (
        replace(SMALL, tile=(128, 128, 64), groups=2, grid=4, store="tma"),
        call("grouped_matmul", (150, 200, 136), ("bf16", "bf16"), "bf16", epilogue=False),
    ),
    "groups stored while the next tile is multiplied": (
        replace(SMALL, tile=(128, 256, 64), groups=2, stages=4, store="tma"),
        call("grouped_matmul", (290, 520, 264), ("bf16", "bf16"), "bf16", epilogue=False),
    ),
    "scaled groups stored while the next tile is multiplied": (
        replace(SMALL, tile=(128, 256, 128), groups=2, stages=4, store="tma"),
        call("grouped_matmul", (150, 528, 528), (E4, E4), "bf16", "rows"),
    ),
    "groups swapped": (
        replace(SMALL, tile=(64, 16, 128), swap=True),
        call("grouped_matmul", (30, 72, 144), ("bf16", "bf16"), "bf16"),
    ),
    "groups of scaled rows": (SMALL, call("grouped_matmul", (80, 72, 144), (E4, E4), "bf16", "rows")),
    "groups of blocks, transposed, in tiles": (
        Plan("tiles", (64, 64, 128), 1, swap=True),
        call("grouped_matmul", (80, 72, 144), (E4, E4), "bf16", "blocks"),
    ),
    "groups of blocks": (SMALL, call("grouped_matmul", (80, 72, 144), (E4, E4), "bf16", "blocks")),
    "groups of blocks swapped": (
        replace(SMALL, tile=(64, 16, 128), swap=True),
        call("grouped_matmul", (30, 72, 144), (E4, E4), "bf16", "blocks"),
    ),
    "groups of integers": (SMALL, call("grouped_matmul", (80, 72, 144), ("s8", "s8"), "s32")),
    "groups without rings": (
        Plan("tiles", (64, 64, 64), 1),
        call("grouped_matmul", (80, 72, 72), ("bf16", "bf16"), "f32"),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, x = VARIANTS[name]
    assert on_machine(x, plan, monkeypatch, arch="sm_90a", seed=1) <= 1


def test_slots_of_promoted_sums_are_fenced_while_tensor_cores_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads have read the scales in a slot when they wait for the last multiplies of a step."""
    texts, run = [], machine.run
    monkeypatch.setattr(machine, "run", lambda ptx, *x, **y: texts.append(ptx) or run(ptx, *x, **y))
    plan, x = VARIANTS["blocks in a wide tile"]
    assert on_machine(x, plan, monkeypatch, arch="sm_90a", seed=1) <= 1
    assert re.search(r"fence\.proxy\.async\S*\s+(\.loc .*\s+)?wgmma\.wait_group\S* 0;", texts[0])


@pytest.mark.parametrize(
    "sizes",
    [(320, 0, 65, 270, 1), (0, 0, 400, 0, 0, 0), (10, 20, 64, 40, 270), (128, 256, 0, 384, 0, 1)],
)
def test_every_task_of_large_and_small_groups(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty groups, groups of one row, all rows in one group; the last tasks are halved.  The counter of tasks is
    zero again: the next product begins with it."""
    rooms, allocate = [], product.allocate
    monkeypatch.setattr(product, "allocate", lambda *x: rooms.append(allocate(*x)) or rooms[-1])
    x = call("grouped_matmul", (sum(sizes), 72, 72), ("bf16", "bf16"), "bf16", epilogue=False)
    x.arrays["b"] = np.swapaxes(testing.random_array((len(sizes), 72, 72), "bf16", 1), -1, -2)
    x.arrays["offsets"] = np.cumsum(sizes, dtype=np.int32)
    plan = replace(SMALL, tile=(128, 64, 64), groups=2, grid=12, store="tma")
    assert on_machine(x, plan, monkeypatch, arch="sm_90a", seed=1) <= 1
    assert [x["words"].any() for x in rooms] == [False]


def test_the_plain_text_stores_the_rows_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole tile by TMA would write over those of the next."""
    plan, x = VARIANTS["groups stored by tma"]
    assert on_machine(x, plan, monkeypatch, plain=True, arch="sm_90a", seed=1) <= 1


# A tile with two blocks of scales: the plain text has none.
BY_HAND = "blocks in a wide tile", "blocks in wide tiles of a pair"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "plain"), [(x, plain) for x in VARIANTS for plain in (False, True) if not (plain and x in BY_HAND)]
)
def test_schedules_of_variants(name: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, x = VARIANTS[name]
    for seed in range(20):
        with monkeypatch.context() as patch:
            assert on_machine(x, plan, patch, plain, arch="sm_90a", seed=seed, schedule=schedule_of(seed)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(PIPELINED)))
@pytest.mark.parametrize("out", ["s32", "bf16"])
def test_every_tile_of_8_bits(index: int, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tile, groups = PIPELINED[index]
    wide = tile[0], tile[1], tile[2] * 2
    types = ("s8", "s8") if out == "s32" else (E4, E5)
    x = call("scaled_matmul", (tile[0] + 8, tile[1] + 8, 2 * wide[2] + 16), types, out, "rows")
    assert on_machine(x, Plan("pipelined", wide, groups, 2, grid=1), monkeypatch, arch="sm_90a") <= 1


@pytest.mark.parametrize("scales", ["blocks", "blocks of lhs"])
def test_the_cpu_scales_each_block_by_its_own(scales: str) -> None:
    """Tiles of the reference are larger than blocks elsewhere."""
    x = call("scaled_matmul", (300, 300, 136), (E4, E4), "f32", scales)
    result = ops.scaled_matmul(
        x.arrays.pop("a"), x.arrays.pop("b"), **x.arrays, out_dtype="f32", activation="relu"
    )
    wanted, bound = expected(call("scaled_matmul", (300, 300, 136), (E4, E4), "f32", scales))
    assert testing.share_of_bound(result, wanted, bound) <= 1


@pytest.mark.parametrize("groups", [1, 2])
def test_the_reference_reads_the_scales_of_every_warpgroup(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = call("scaled_matmul", (136, 72, 144), (E4, E4), "bf16", "rows")
    plan = Plan("pipelined", (64 * groups, 64, 128), groups, stages=2, grid=1)
    compute = product.run
    monkeypatch.setattr(product, "run", lambda problem, _: compute(problem, plan))
    result = ops.scaled_matmul(
        x.arrays.pop("a"), x.arrays.pop("b"), **x.arrays, out_dtype="bf16", activation="relu"
    )
    wanted, bound = expected(call("scaled_matmul", (136, 72, 144), (E4, E4), "bf16", "rows"))
    assert testing.share_of_bound(result, wanted, bound) <= 1
