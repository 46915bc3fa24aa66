"""Calls as large as those of programs: their plans compile without spills, and the same kernels on small arrays
agree with NumPy."""

from __future__ import annotations

from typing import Any

import pytest
from real_calls import Array, RealCall, compiled, drawn, outcome, plan_of, reduced, run_small

from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.plan import Hardware, Plan

# `python tests/ops/real_calls.py --first N` draws others.
DAILY, NIGHTLY = range(12), range(12, 300)


def seeds(daily: range) -> list[object]:
    return [*daily, *(pytest.param(s, marks=pytest.mark.slow) for s in NIGHTLY)]


# Of f64: rows that are not aligned, addends, and extents of whole tiles.  Of groups of integers with scales and an
# activation.
FOUND = 200579, 810552, 810830, 96110, 96165, 96418, 810234


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("seed", [*FOUND, *seeds(range(5))])
def test_chosen_plans_keep_to_registers(seed: int) -> None:
    problem = drawn(seed).imagined()
    assert compiled(problem, plan_of(problem)) == []


# f64 with addends and activations, f32, tf32, promoted groups of f8, f8 that is turned, and with an addend.
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("seed", [400208, 400218, 100389, 701280, 700442, 97243, 800079, 97395, 800121])
def test_all_plans_for_any_strides_keep_to_registers(seed: int) -> None:
    """ptxas, left alone, spilled for more blocks on an SM, or had no more registers."""
    problem = drawn(seed).imagined()
    plans = [e.plan for e in ranked(problem, Hardware()) if e.plan.kernel in ("tiles", "ahead")]
    assert plans and [(str(p), wrong) for p in plans if (wrong := compiled(problem, p))] == []


@pytest.mark.parametrize("seed", seeds(DAILY))
def test_chosen_plans_read_the_right_elements(seed: int) -> None:
    x = drawn(seed)
    problem = x.imagined()
    assert run_small(*reduced(x, problem, plan_of(problem))) == ""


@pytest.mark.parametrize("seed", seeds(DAILY))
def test_plans_that_tuning_may_take_read_the_right_elements(seed: int) -> None:
    assert outcome(2 * seed + 1, reference=True, draws=True, assemble=False)[1] == ""


def matmul(shape: tuple[int, int, int], orders: tuple[str, str]) -> RealCall:
    left, right = (Array(e, "bf16", o) for e, o in zip((("M", "K"), ("K", "N")), orders, strict=True))
    arrays = {"a": left, "b": right, "out": Array(("M", "N"), "bf16")}
    return RealCall(0, "matmul", dict(zip("MNK", shape, strict=True)), arrays, {}, "bf16")


@pytest.mark.parametrize("rows", [1, 8, 100, 200])
@pytest.mark.parametrize("orders", [(x, y) for x in ("rows", "columns") for y in ("rows", "columns")], ids=str)
def test_few_rows_of_every_layout(rows: int, orders: tuple[str, str]) -> None:
    x = matmul((rows, 8192, 8192), orders)
    problem = x.imagined()
    assert run_small(*reduced(x, problem, plan_of(problem))) == ""


def test_parts_of_scaled_integers_are_not_rounded() -> None:
    arrays = {
        "a": Array(("M", "K"), "s8"),
        "b": Array(("K", "N"), "u8", "columns"),
        "scale_a": Array(("M", "KB"), "f32"),
        "scale_b": Array(("KB", "NB"), "f32"),
        "out": Array(("M", "N"), "f32"),
    }
    x = RealCall(0, "scaled_matmul", {"M": 72, "N": 80, "K": 592}, arrays, {}, "f32")
    plan = Plan("pipelined", (64, 64, 128), 1, stages=2, grid=2, split=2, by_hand=True)
    assert run_small(x, plan) == ""


STEPS, BLOCKS = (("M", "KB"), ("KB", "N")), (("MB", "KB"), ("KB", "NB"))


@pytest.mark.parametrize("shape", [(3840, 190, 240), (217, 9344, 1024), (6144, 327, 128)], ids=str)
@pytest.mark.parametrize("left, right", [(STEPS, BLOCKS), (BLOCKS, STEPS), (BLOCKS, BLOCKS)], ids=range(3))
def test_no_tile_has_columns_of_two_blocks_of_scales(shape: tuple[int, int, int], left: Any, right: Any) -> None:
    """Of tiles as wide as a half of few columns, the second began within a block."""
    arrays = {
        "a": Array(("M", "K"), "f8_e5m2"),
        "b": Array(("K", "N"), "f8_e4m3", "columns"),
        "scale_a": Array(left[0], "f32"),
        "scale_b": Array(right[1], "f32"),
        "out": Array(("M", "N"), "bf16"),
    }
    x = RealCall(0, "scaled_matmul", dict(zip("MNK", shape, strict=True)), arrays, {}, "bf16")
    problem = x.imagined()
    found = (p for p in candidates(problem, Hardware()) if p.kernel == "pipelined" and p.split == 1)
    for plan in {(p.tile[1], p.swap): p for p in found}.values():
        assert run_small(*reduced(x, problem, plan)) == "", plan


# Epilogues that took more registers than a thread has, in tiles that the model liked.
HEAVY = {
    "silu": ((4096, 4096, 2048), "f16", "f16", {"activation": "silu"}),
    "silu in pairs": ((2176, 1600, 6872), "f16", "f16", {"activation": "silu"}),
    "addend": ((4008, 3136, 1640), "bf16", "f16", {"beta": 1.0}),
    "addend of e4m3": ((4672, 1152, 5376), "f8_e4m3", "bf16", {"beta": 1.0}),
    "addend and silu": ((9808, 256, 1664), "bf16", "bf16", {"beta": -0.5, "activation": "silu"}),
    "addend of integers": ((2316, 7776, 1720), "s8", "f32", {"beta": 1.0, "activation": "gelu"}),
    "scaled integers": ((1664, 8976, 256), "u8", "f32", {}),
    "scaled integers with a bias": ((2048, 4096, 2048), "s8", "f32", {"activation": "gelu", "alpha": 0.5}),
}


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("name", HEAVY)
def test_heavy_epilogues_keep_to_registers(name: str) -> None:
    shape, dtype, out, options = HEAVY[name]
    arrays = {"a": Array(("M", "K"), dtype), "b": Array(("K", "N"), dtype, "columns")}
    arrays["out"] = Array(("M", "N"), out)
    if "beta" in options:
        arrays["c"] = Array(("M", "N"), "f32" if dtype == "s8" else "bf16")
    if "bias" in name:
        arrays["bias"] = Array(("N",), "f32")
    if dtype[0] not in "bf" or dtype == "f8_e4m3":
        arrays |= {"scale_a": Array(("M", 1), "f32"), "scale_b": Array((1, "N"), "f32")}
    function = "scaled_matmul" if "scale_a" in arrays else "matmul"
    x = RealCall(0, function, dict(zip("MNK", shape, strict=True)), arrays, options, out)
    problem, tiles = x.imagined(), dict[tuple[int, ...], Plan]()
    for e in ranked(problem, Hardware())[:60]:
        tiles.setdefault(e.plan.tile[:2], e.plan)
    for plan in list(tiles.values())[:3]:
        assert compiled(problem, plan) == [], plan


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("shape", [(885, 120, 96, 88), (511, 720, 696, 88), (701, 496, 552, 168)], ids=str)
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_batches_that_leave_as_whole_rows_are_multiplied_by_wgmma(shape: tuple[int, ...], order: str) -> None:
    """Of an rhs with contiguous columns wgmma reads multiples of 64 of them."""
    arrays = {"a": Array(("B", "M", "K"), "f16"), "b": Array(("B", "K", "N"), "f16", order)}
    arrays["out"] = Array(("B", "M", "N"), "f16")
    x = RealCall(0, "matmul", dict(zip("BMNK", shape, strict=True)), arrays, {}, "f16")
    problem, tiles = x.imagined(), dict[tuple[object, ...], Plan]()
    for e in ranked(problem, Hardware()):
        tiles.setdefault((e.plan.store, e.plan.by_hand), e.plan)
    for plan in tiles.values():
        assert compiled(problem, plan) == [], plan
