"""The PTX machine on every kernel variant that a plan can choose: no hazards, and the right result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from products import problem

from tilemma import dtypes, testing
from tilemma.machine.run import schedule_of
from tilemma.ops import arguments, kernels, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import PIPELINED, candidates, ranked
from tilemma.ops.plan import Hardware, Plan
from tilemma.runtime.arrays import describe

LAYOUTS = (("C", "F"), ("C", "C"), ("F", "F"), ("F", "C"))


def multiply(plan: Plan, shape: tuple[int, int, int], layout: int, how: dict[str, Any], **options: Any) -> float:
    """The share of the bound that the machine's result uses."""
    m, n, k = shape
    dtype, out_dtype = how.get("dtype", "f16"), how.get("out", "f16")
    a = testing.random_array((m, k), dtype, 0).copy(order=LAYOUTS[layout][0])
    b = testing.random_array((k, n), dtype, 1).copy(order=LAYOUTS[layout][1])
    c = testing.random_array((m, n), out_dtype, 2) if how.get("c") else None
    bias = testing.random_array((n,), "f32", 3) if how.get("bias") else None
    out = np.full((m, n), np.nan, dtypes.dtype(out_dtype).numpy)
    if how.get("c") == "out":
        out[...] = c
    alpha, beta, activation = (
        (0.5, 2.0, how.get("activation")) if c is not None else (1.0, 0.0, how.get("activation"))
    )
    refs = [None if x is None else describe(x) for x in (out if how.get("c") == "out" else c, bias)]
    call = Call(describe(a), describe(b), alpha=alpha, beta=beta, c=refs[0], bias=refs[1], activation=activation)
    p = arguments.problem(call, describe(out), made=False)
    product.run(p, plan, "machine", **options)
    value = alpha * testing.reference("mk,kn->mn", a, b)
    value = value + (0 if c is None else beta * testing.to_float64(c)) + (0 if bias is None else bias)
    if activation:
        value = testing.ACTIVATIONS[activation].value(value)
    bound = testing.error_bound(a, b, out=out_dtype, alpha=alpha, beta=beta, c=c, bias=bias, activation=activation)
    return testing.share_of_bound(out, value, bound)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("layout", range(4))
def test_tiles(arch: str, layout: int) -> None:
    plan = Plan("tiles", (64, 64, 64), 1)
    assert multiply(plan, (66, 72, 72), layout, {"bias": layout % 2, "activation": "relu"}, arch=arch) <= 1


@pytest.mark.parametrize("index", range(len(PIPELINED)))
def test_every_tile(index: int) -> None:
    """Each tile with a ragged edge, three steps through two slots, one block for two tiles."""
    tile, groups = PIPELINED[index]
    store = "tma" if tile[1] % 64 == 0 or tile[1] > 64 else "direct"
    plan = Plan("pipelined", tile, groups, stages=2, grid=1, store=store)
    shape = (tile[0] + 8, tile[1] - 8, 2 * tile[2] + 8)
    assert multiply(plan, shape, 0, {}, arch="sm_90a") <= 1


def test_a_tile_is_stored_in_pieces_of_half_a_swizzle() -> None:
    """With four stages there is no room for all of it, and 64 does not divide its columns."""
    plan = Plan("pipelined", (128, 224, 64), 2, stages=4, grid=1, store="tma")
    assert multiply(plan, (136, 240, 72), 0, {}, arch="sm_90a") <= 1


@pytest.mark.parametrize("columns", [72, 80, 112, 144])
def test_columns_beside_the_widest_boxes_are_stored_in_boxes_of_their_own(columns: int) -> None:
    plan = Plan("pipelined", (128, columns, 64), 2, stages=3, grid=1, store="tma")
    assert multiply(plan, (136, columns + 24, 72), 0, {}, arch="sm_90a") <= 1


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("shape", [(264, 168, 136), (205, 136, 72), (384, 264, 64)])
@pytest.mark.parametrize("swap", [False, True])
def test_tiles_end_at_the_edges(cluster: tuple[int, int], shape: tuple[int, int, int], swap: bool) -> None:
    """Each element is stored by one tile; blocks of a cluster that have no tile store nothing."""
    plan = Plan("pipelined", (128, 88, 64), 2, stages=2, grid=2, store="tma", swap=swap, by_hand=True, inside=True)
    m, n, k = shape
    shape = (n, m // 8 * 8, k) if swap else shape
    assert multiply(replace(plan, cluster=cluster), shape, 0, {"bias": True}, arch="sm_90a") <= 1


@pytest.mark.parametrize("rows, groups, columns", [(64, 1, 88), (128, 2, 168), (192, 3, 104), (256, 2, 120)])
def test_tiles_chosen_for_their_number(rows: int, groups: int, columns: int) -> None:
    """One block computes four of them, each stored while the next is multiplied where registers suffice."""
    plan = Plan("pipelined", (rows, columns, 64), groups, 3, grid=1, store="tma")
    assert multiply(plan, (rows + 8, columns + 24, 392), 0, {}, arch="sm_90a") <= 1


@pytest.mark.parametrize("layout", range(4))
@pytest.mark.parametrize("store", ["tma", "direct"])
def test_layouts_and_stores(layout: int, store: str) -> None:
    # Blocks that stay, or as many as there are tiles.
    plan = Plan("pipelined", (64, 64, 64), 1, stages=2, grid=2 if layout % 2 else 8, store=store)
    how = {"bias": True, "c": layout == 1, "activation": ("gelu", "silu", "relu", None)[layout], "dtype": "bf16"}
    how["out"] = (
        ("f16", "bf16", "bf16", "f16")[layout] if store == "tma" else ("f32", "f16", "bf16", "f32")[layout]
    )
    assert multiply(plan, (136, 72, 200), layout, how, arch="sm_90a", seed=layout) <= 1


OTHERS = {
    "split": Plan("pipelined", (64, 64, 64), 1, stages=2, grid=3, split=2),
    "split, three tiles of each operand": Plan("pipelined", (64, 72, 64), 1, stages=2, grid=18, split=2),
    "swapped": Plan("pipelined", (64, 16, 128), 1, stages=3, grid=2, swap=True),
    "swapped, of 24 columns": Plan("pipelined", (64, 24, 128), 1, stages=3, grid=2, swap=True),
    "swapped, of 112 columns": Plan("pipelined", (128, 112, 64), 2, stages=2, grid=2, swap=True),
    "swapped, stored by TMA": Plan("pipelined", (64, 40, 64), 1, stages=2, grid=2, store="tma", swap=True),
    "swapped, stored in pieces": Plan("pipelined", (192, 88, 64), 3, 6, grid=1, store="tma", swap=True),
    "swapped, one tile after another": Plan("pipelined", (128, 48, 64), 2, 3, grid=1, store="tma", swap=True),
    "swapped, two parts of each": Plan("pipelined", (256, 40, 64), 2, 3, grid=1, store="tma", swap=True),
    "swapped, stored by hand": Plan(
        "pipelined", (128, 72, 64), 2, 2, grid=1, store="tma", swap=True, cluster=(1, 2), share=False, by_hand=True
    ),
    "swapped, 40 rows to a tile, in order": Plan(
        "pipelined", (64, 40, 64), 1, 3, 1, grid=2, swap=True, by_hand=True, loaded=40, ordered=True
    ),
    "swapped, 88 rows to a tile, in squares": Plan(
        "pipelined", (128, 40, 64), 2, 2, grid=1, swap=True, cluster=(2, 2), share=False, by_hand=True, loaded=88
    ),
    "swapped, 48 rows to a tile, pairs share columns": Plan(
        "pipelined", (64, 80, 64), 1, 3, grid=1, swap=True, cluster=(2, 1), by_hand=True, loaded=48
    ),
    "packed": Plan("pipelined", (64, 64, 64), 1, stages=2, grid=2, pack=("lhs", "rhs")),
    "packed, by hand": Plan("pipelined", (64, 64, 64), 1, 2, grid=2, pack=("lhs", "rhs"), by_hand=True),
    "split and swapped": Plan("pipelined", (64, 24, 128), 1, stages=2, grid=3, split=2, swap=True),
    "three warpgroups": Plan("pipelined", (192, 24, 64), 3, stages=2, grid=1, swap=True),
    "there and back": Plan("pipelined", (64, 64, 64), 1, 2, grid=3, raster=1, back=True),
    "pairs share lhs": Plan("pipelined", (64, 64, 64), 1, 2, grid=1, store="tma", cluster=(1, 2), by_hand=True),
    "squares share both": Plan(
        "pipelined", (64, 64, 64), 1, 3, grid=1, swap=True, cluster=(2, 2), split=2, by_hand=True
    ),
    "fours read the same part of K": Plan(
        "pipelined", (64, 64, 64), 1, 2, grid=1, cluster=(2, 2), share=False, split=2, by_hand=True
    ),
    "threes beside each other": Plan(
        "pipelined", (64, 72, 64), 1, 2, grid=1, store="tma", cluster=(3, 1), share=False, by_hand=True
    ),
    "threes beside each other, swapped, a deep ring": Plan(
        "pipelined", (64, 24, 64), 1, 11, grid=1, store="tma", swap=True, cluster=(1, 3), share=False, by_hand=True
    ),
    "eights share few rows and weights": Plan(
        "pipelined", (64, 40, 64), 1, 3, grid=1, store="tma", swap=True, cluster=(4, 2), by_hand=True
    ),
    "eights share few rows, release promptly": Plan(
        "pipelined", (128, 72, 64), 2, 3, grid=1, store="tma", swap=True, cluster=(8, 1), by_hand=True, prompt=True
    ),
    "fours share few rows, the weights are streamed": Plan(
        "pipelined",
        (64, 72, 64),
        1,
        3,
        grid=9,
        store="tma",
        swap=True,
        cluster=(4, 1),
        by_hand=True,
        streamed="lhs",
    ),
    "plain pairs": Plan("pipelined", (64, 64, 64), 1, 2, grid=1, store="tma", cluster=(1, 2)),
    "there and back by hand": Plan("pipelined", (64, 64, 64), 1, 2, grid=3, raster=1, back=True, by_hand=True),
    "low groups of tiles": Plan(
        "pipelined", (64, 64, 64), 1, 2, grid=3, raster=4, store="tma", swap=True, by_hand=True
    ),
    "low groups of tiles, one of each block": Plan(
        "pipelined", (64, 64, 64), 1, 2, raster=2, grid=28, store="tma", by_hand=True
    ),
    "copied": Plan("pipelined", (64, 48, 64), 1, 2, grid=2, store="copy", by_hand=True),
    "copied by warpgroups of their own": Plan(
        "pipelined", (128, 112, 64), 2, 2, grid=1, store="copy", by_hand=True
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_split_swapped_packed_and_clustered(name: str) -> None:
    shape = (72, 67, 133) if "packed" in name else (72, 64 if name in ("split", "swapped") else 200, 264)
    shape = (200, 131, 136) if "copied" in name else (130, 150, 264) if "three tiles" in name else shape
    # Seven rows of tiles: the last group has fewer.
    shape = ((200, 440, 136) if OTHERS[name].swap else (440, 200, 136)) if "low groups" in name else shape
    assert multiply(OTHERS[name], shape, 0, {"bias": True, "activation": "silu"}, arch="sm_90a") <= 1


def test_parts_are_added_to_the_result_before_its_activation() -> None:
    how = {"c": "out", "activation": "silu"}
    assert multiply(OTHERS["split"], (72, 64, 264), 0, how, arch="sm_90a", seed=1) <= 1


# (rows, rows that are loaded, the blocks that share them, warpgroups, the parts of K).
WAVES = ((5, 8, 1, 1, 1), (70, 72, 1, 2, 1), (97, 104, 2, 2, 2), (129, 136, 4, 3, 1), (250, 256, 1, 2, 1))


@pytest.mark.parametrize("rows, loaded, beside, groups, split", WAVES)
@pytest.mark.parametrize("persistent", [False, True])
def test_rows_that_a_tile_has_too_many_are_not_loaded(
    rows: int, loaded: int, beside: int, groups: int, split: int, persistent: bool
) -> None:
    """They are zero in every slot of the ring, for all tiles of a block."""
    tile, store = (-(-rows // 64) * 64, 40, 64), "tma" if split == 1 else "direct"
    grid = 1 if persistent else 8
    plan = Plan(
        "pipelined", tile, groups, 2, grid=grid, split=split, store=store, cluster=(1, beside), by_hand=True,
        loaded=loaded if loaded < tile[0] else 0,
    )  # fmt: skip
    how = {"bias": True, "activation": "relu"}
    assert multiply(plan, (rows, 48 * beside, 264 * split), 0, how, arch="sm_90a", seed=rows) <= 1


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_two_arrays_are_packed_by_one_kernel(rows: int) -> None:
    """Rows of odd lengths, and of odd numbers; the rest of the longer rows becomes 0."""
    shapes, sources, packed = ((2, 19, 131), (1, 5, 300)), [], []
    for shape in shapes:
        sources.append(testing.random_array(shape, "f16", 0))
        packed.append(np.full((*shape[:2], -(-shape[2] // 64) * 64), np.nan, np.float16))
    given = [x for pair in zip(sources, packed, strict=True) for x in pair]
    kernels.pack_pair.on("machine", arch="sm_90a")(*given, T="f16", ROWS=rows)
    for source, found in zip(sources, packed, strict=True):
        columns = source.shape[2]
        assert np.array_equal(found[:, :, :columns], source) and not found[:, :, columns:].any()


def choosable() -> list[Plan]:
    """A plan for every kernel that `candidates` can yield, made small: two slots, one block or cluster."""
    found: dict[Any, Plan] = {}
    shapes = ((4096, 4096, 4096), (4095, 4097, 4104), (16, 8192, 8192), (64, 8192, 8192), (128, 8192, 8192))
    shapes += ((1, 8192, 8192), (100, 8192, 8192))
    # Few rows in several tiles that the blocks of a cluster compute.
    shapes += ((114, 4608, 7424), (209, 4864, 6144), (4608, 190, 4096))
    # Parts of a long K.
    shapes += ((504, 392, 16384),)
    yielded = [x for shape in shapes for x in candidates(problem(*shape), Hardware())]
    # Tiles of five warpgroups.
    yielded += [x for x in candidates(problem(203, 20096, 9856), Hardware()) if x.groups == 5]
    # A plan of large products, with alternating directions.
    yielded += [e.plan for e in ranked(problem(16384, 16384, 8192), Hardware())[:6]]
    # Tiles that end at the edges.
    yielded += [e.plan for e in ranked(problem(1216, 1256, 3200), Hardware())[:12] if e.plan.inside]
    for x in yielded:
        plan = replace(x, stages=min(x.stages, 2), grid=min(x.grid, 1), split=min(x.split, 2), pack=())
        plan = replace(plan, raster=1 if plan.back else plan.raster)
        split = plan.split > 1
        kind = plan.kernel, plan.tile, plan.cluster, plan.share, plan.store, split, plan.back
        kind += plan.by_hand, plan.loaded, plan.prompt, plan.streamed, plan.inside
        found.setdefault(kind, plan)
    return list(found.values())


def small(plan: Plan) -> tuple[int, int, int]:
    """A shape with ragged edges, more tiles than blocks, and three steps for each part."""
    m, n = plan.tile[0] * plan.cluster[0] + 8, plan.tile[1] + 8
    m = plan.loaded - 3 if plan.loaded and not plan.swap else m
    k = 3 * plan.split * plan.tile[2] - 8
    return (n, m, k) if plan.swap else (m, n, k)


def under_schedule(plan: Plan, seed: int) -> float:
    """The share of the bound that the result uses: layouts in turn, few blocks and as many as there are tasks."""
    layout = seed % 4 if plan.tile[1] % 64 == 0 and plan.kernel == "pipelined" and not plan.loaded else 0
    enough = replace(plan, grid=plan.grid and 64) if seed % 8 >= 4 else plan
    options = {"arch": "sm_90a", "seed": seed, "schedule": schedule_of(seed)}
    return multiply(enough, small(plan), layout, {}, **options)


@pytest.mark.slow
@pytest.mark.parametrize("plan", choosable(), ids=str)
def test_schedules(plan: Plan) -> None:
    for seed in range(20):
        assert under_schedule(plan, seed) <= 1


@pytest.mark.parametrize("seed", [0, 5])
def test_five_warpgroups_of_which_the_last_may_multiply_fewer_weights(seed: int) -> None:
    found = [x for x in candidates(problem(203, 20096, 9856), Hardware()) if x.groups == 5]
    assert {(x.ordered, x.loaded > 0) for x in found} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }
    # Tiles of fewer rows are the same kernels.
    for x in (x for x in found if x.tile[1] == 104):
        assert not x.loaded or x.tile[0] - 64 < x.loaded < x.tile[0]
        assert under_schedule(replace(x, stages=2, grid=1), seed) <= 1


@pytest.mark.parametrize(
    "plan", [Plan("tiles", (64, 64, 64), 1), Plan("pipelined", (64, 64, 64), 1, 2, grid=2)], ids=str
)
def test_batches_share_an_operand(plan: Plan) -> None:
    a, b = testing.random_array((3, 40, 72), "f16", 0), testing.random_array((72, 48), "f16", 1)
    out = np.full((3, 40, 48), np.nan, np.float16)
    p = arguments.problem(Call(describe(a), describe(b)), describe(out), made=False)
    product.run(p, plan, "machine", arch="sm_90a")
    wanted = testing.to_float64(a) @ testing.to_float64(b)
    assert testing.share_of_bound(out, wanted, testing.error_bound(a, b)) <= 1
