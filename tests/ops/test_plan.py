from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import grouped, problem

from tests.sampling import examples
from tilemma import dtypes, ops, testing
from tilemma.kernels import facts_of
from tilemma.ops import arguments, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import LEAST_RING, PIPELINED, candidates, choose, ranked
from tilemma.ops.neighbours import neighbours
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import MOST_FLIGHT, Hardware, Plan, estimate
from tilemma.ops.problem import Problem
from tilemma.ops.refusals import MatmulShape
from tilemma.ops.steps import steps, workspaces
from tilemma.ops.tuning import variants
from tilemma.runtime.arrays import ArrayRef, describe, row_major

H200 = Hardware()


extents = st.integers(1, 9000)


@settings(max_examples=examples(60), deadline=None)
@given(extents, extents, extents)
def test_every_candidate_fits_the_device(m: int, n: int, k: int) -> None:
    found = list(candidates(problem(m, n, k), H200))
    assert found
    for plan in found:
        rows = plan.tile[0] // plan.groups
        assert rows % 64 == 0 and plan.tile[2] % 16 == 0
        ring = plan.stages * (plan.tile[0] + plan.tile[1]) * plan.tile[2] * 2
        assert plan.kernel == "tiles" or (plan.stages >= 2 and ring <= H200.shared)
        assert plan.split == 1 or plan.split * plan.tile[2] < k


@settings(max_examples=examples(40), deadline=None)
@given(extents, extents, extents)
def test_the_choice_is_the_best_estimate(m: int, n: int, k: int) -> None:
    p = problem(m, n, k)
    found = ranked(p, H200)
    assert found[0].seconds == min(estimate(p, x, H200).seconds for x in candidates(p, H200))
    assert all(e.seconds > 0 and e.why for e in found)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(5000, 17000), st.integers(5000, 17000), st.integers(4096, 9000))
def test_large_products_off_tensor_cores_copy_few_bytes(m: int, n: int, k: int) -> None:
    """Of thousands of tiles the last wave counts little: an operation needs as few bytes as any tile allows."""
    p = problem(m, n, k, "f32", row_a=-(-k // 4) * 4, row_b=-(-k // 4) * 4)

    def carried(plan: Plan) -> float:
        return 1 / plan.tile[0] + 1 / plan.tile[1]

    assert carried(ranked(p, H200)[0].plan) == min(carried(x) for x in candidates(p, H200) if x.kernel == "ahead")


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1000, 9000), st.integers(1000, 9000))
def test_f64_takes_tiles_that_fill_the_last_wave(m: int, n: int) -> None:
    """The operations of the rounds in which blocks compute tiles are at most a tenth more than any tile's."""
    p = problem(m, n, 4096, "f64")

    def rounds(plan: Plan) -> int:
        return -(-tasks(p, plan) // H200.sms) * area(plan)

    assert rounds(ranked(p, H200)[0].plan) <= 1.1 * min(rounds(x) for x in candidates(p, H200) if x.tile[0] == 128)


def tasks(p: Problem, plan: Plan) -> int:
    """Tiles of the result, with the padding of the last ones, times the parts of K."""
    m, n, _ = transposed_product(p).shape if plan.swap else p.shape
    return -(-m // plan.tile[0]) * -(-n // plan.tile[1]) * plan.split


def area(plan: Plan) -> int:
    return plan.tile[0] * plan.tile[1]


@pytest.mark.parametrize("size", [256, 512, 1024])
def test_small_products_run_in_one_round_of_blocks(size: int) -> None:
    plan = ranked(problem(size, size, size), H200)[0].plan
    assert tasks(problem(size, size, size), plan) <= H200.sms


def test_tiles_grow_with_the_product_up_to_the_largest() -> None:
    """Up to tiles of more than half of that size, where their number divides better."""
    areas = [area(ranked(problem(size, size, size), H200)[0].plan) for size in (512, 1024, 2048, 4096, 8192)]
    assert areas[:-1] == sorted(areas[:-1])
    assert areas[-1] > 0.5 * max(area(x) for x in candidates(problem(8192, 8192, 8192), H200))


@pytest.mark.parametrize("rows", [1, 16, 64, 128])
def test_few_rows_are_not_padded_to_large_tiles(rows: int) -> None:
    """The extent of a tile along M is below twice that of the product, or the smallest there is."""
    p = problem(rows, 8192, 8192)
    plan = ranked(p, H200)[0].plan
    along_m = 1 if plan.swap else 0
    smallest = min(x.tile[1 if x.swap else 0] for x in candidates(p, H200))
    assert (plan.loaded or plan.tile[along_m]) <= max(2 * rows - 1, smallest)


@pytest.mark.parametrize("rows", [1, 5, 20, 70, 100, 150])
def test_tiles_of_few_rows_have_few_beyond_the_edge(rows: int) -> None:
    plan = ranked(problem(rows, 8192, 8192), H200)[0].plan
    along_m = plan.loaded or plan.tile[1 if plan.swap else 0]
    assert -(-rows // along_m) * along_m - rows < 32


@pytest.mark.parametrize("rows", [1, 24, 100, 200])
def test_few_rows_keep_no_more_on_their_way_than_memory_takes(rows: int) -> None:
    """More stages than a few wait in front of memory, and slow it down."""
    p = problem(rows, 12288, 8192)
    x = ranked(p, H200)[0].plan
    wide, high = (x.height, x.tile[1]) if x.swap else (x.tile[1], x.height)
    beside = -(-rows // high)
    blocks = min(132, -(-12288 // wide) * beside)
    assert x.stages <= LEAST_RING or x.stages * blocks / beside * wide * x.tile[2] * 2 <= 1.1 * MOST_FLIGHT
    for x in candidates(p, H200):
        if x.swap and x.cluster == (1, 1) and x.split == 1:
            assert x.stages >= LEAST_RING or (x.stages + 1) * sum(x.tile[:2]) * x.tile[2] * 2 > 0.8 * H200.shared


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (3456, 1536, 5248, "f16"),
        (1920, 1408, 1152, "f16"),
        (2560, 1024, 3328, "f16"),
        (4352, 1664, 4992, "f8_e4m3"),
    ],
)
def test_rows_of_large_results_are_divided_in_small_steps_too(m: int, n: int, k: int, dtype: str) -> None:
    """By the transposed product, whose tiles have columns in steps of 8: the last round leaves few SMs out."""
    p = problem(m, n, k, dtype)
    p = replace(p, out=of(p.out, "f16"))
    plan = ranked(p, H200)[0].plan
    plain = next(e.plan for e in ranked(p, H200) if not e.plan.swap)

    def rounds(x: Plan) -> int:
        return -(-tasks(p, x) // H200.sms) * area(x)

    assert plan.swap and plan.store == "tma" and rounds(plan) <= rounds(plain)


@pytest.mark.parametrize(
    "p",
    [
        problem(3456, 1536, 5248, "s8"),
        problem(3456, 1536, 5248, "tf32"),
        problem(3456, 1530, 5248),
        problem(3456, 1536, 5241),
    ],
)
def test_transposed_tiles_are_for_large_results_that_they_have_been_timed_for(p: Problem) -> None:
    p = replace(p, out=of(p.out, "f16"))
    assert not any(x.swap for x in candidates(p, H200))


def test_misaligned_arrays_get_a_plan_that_can_take_them() -> None:
    rows = ranked(problem(4095, 4097, 4104), H200)[0].plan
    assert rows.kernel == "pipelined" and rows.store == "copy" and not rows.pack
    # Rows of the result that are aligned but end within a 16-byte unit, which a tensor store would overwrite.
    edge = list(candidates(problem(1024, 1020, 1024, row_c=1024), H200))
    assert {p.store for p in edge if p.kernel == "pipelined" and p.split == 1 and not p.swap} == {"copy"}
    # Only parts and the transposed product go straight from registers.
    assert all(p.split > 1 or p.swap for p in edge if p.kernel == "pipelined" and p.store == "direct")
    nothing = ranked(problem(4095, 4097, 4099), H200)[0].plan
    assert set(nothing.pack) == {"lhs", "rhs"}
    assert ranked(problem(100, 100, 0), H200)[0].plan.kernel == "tiles"


def test_operands_larger_than_the_cache_are_traversed_in_alternating_directions() -> None:
    for shape in ((16384, 16384, 8192), (8192, 28672, 8192)):
        (step,) = steps(problem(*shape), ranked(problem(*shape), H200)[0].plan)
        assert step.constants["BACK"]
    # Smaller; weights that are read once; rows that lie across cache lines.
    for shape in ((8192, 8192, 8192), (16, 28672, 8192), (16384, 16384, 8200)):
        assert not any(e.plan.back for e in ranked(problem(*shape), H200))


def test_other_devices_get_the_kernel_for_every_target() -> None:
    for capability in ((8, 0), (8, 6), (12, 0)):
        assert {p.kernel for p in candidates(problem(512, 512, 512), Hardware(capability=capability))} == {"tiles"}


@settings(max_examples=30, deadline=None)
@given(extents, extents, extents)
def test_turning_twice_is_nothing(m: int, n: int, k: int) -> None:
    p = problem(m, n, k)
    assert transposed_product(transposed_product(p)) == p
    assert transposed_product(p).shape == (n, m, k)


def test_the_report_names_choice_and_alternatives() -> None:
    a, b = testing.random_array((64, 640), "f16", 0), testing.random_array((640, 128), "f16", 1)
    report = ops.plan(a, b, activation="gelu")
    assert "64 x 128 x 640 f16, row.col, gelu" in str(report)
    assert str(report.chosen.plan) in str(report) and len(report.alternatives) >= 2
    assert report.to_json()["chosen"]["plan"]["tile"] == report.chosen.plan.tile
    with pytest.raises(MatmulShape):
        ops.plan(a, a)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1)], ids=str)
def test_nothing_and_next_to_nothing_have_a_plan(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    report = ops.plan(np.zeros((m, k), np.float16), np.zeros((k, n), np.float16))
    assert report.chosen.seconds > 0 and str(report)


PLANS = {
    "tiles": Plan("tiles", (128, 128, 64), 2),
    "pipelined": Plan("pipelined", (64, 64, 64), 1, stages=3, grid=2, store="tma"),
    "split": Plan("pipelined", (64, 64, 64), 1, stages=2, grid=3, split=3),
    "swapped": Plan("pipelined", (64, 16, 64), 1, stages=3, grid=2, swap=True),
    "swapped and split": Plan("pipelined", (64, 16, 64), 1, stages=3, grid=2, swap=True, split=2),
    "packed": Plan("pipelined", (128, 64, 64), 2, stages=2, grid=2, pack=("lhs", "rhs")),
    "there and back": Plan("pipelined", (64, 64, 64), 1, stages=2, grid=3, raster=1, back=True),
    "back by hand": Plan("pipelined", (64, 64, 64), 1, stages=2, grid=3, raster=1, back=True, by_hand=True),
    "copied": Plan("pipelined", (128, 48, 64), 2, stages=2, grid=2, store="copy", by_hand=True),
}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_computes_the_same(name: str) -> None:
    """On the CPU reference, with all of an epilogue, batches that broadcast, and a ragged shape."""
    plan = PLANS[name]
    a, b = testing.random_array((2, 70, 264), "f16", 0), testing.random_array((264, 72), "f16", 1)
    c, bias = testing.random_array((70, 72), "f16", 2), testing.random_array((70, 1), "f32", 3)
    out = np.zeros((2, 70, 72), np.float16)
    call = Call(
        describe(a), describe(b), alpha=-0.5, beta=2.0, c=describe(c), bias=describe(bias), activation="silu"
    )
    p = arguments.problem(call, describe(out), made=False)
    product.run(p, plan)
    wanted = -0.5 * testing.to_float64(a) @ testing.to_float64(b) + 2 * testing.to_float64(c) + bias
    bound = testing.error_bound(a, b, alpha=-0.5, beta=2.0, c=c, bias=bias, activation="silu")
    assert testing.share_of_bound(out, testing.ACTIVATIONS["silu"].value(wanted), bound) <= 1


def imagined_workspaces(p: Problem, plan: Plan) -> dict[str, ArrayRef]:
    """Arrays of the shapes and types that the plan asks for, at addresses that nothing has."""
    found = {}
    for i, (n, (s, t)) in enumerate(workspaces(p, plan).items()):
        found[n] = p.out._replace(pointer=(9 + i) << 40, shape=s, strides=row_major(s), dtype=dtypes.dtype(t))
    return found


@pytest.mark.parametrize("name", PLANS)
def test_steps_use_the_workspaces_they_ask_for(name: str) -> None:
    plan = PLANS[name]
    p = problem(100, 72, 264)
    p = transposed_product(p) if plan.swap else p
    work = imagined_workspaces(p, plan)
    used = {s for step in steps(p, plan, work) for s, _ in step.sources if s.startswith("work.")}
    assert used == {f"work.{n}" for n in work}


@pytest.mark.parametrize("swap", [False, True])
def test_parts_are_added_along_the_contiguous_axis_of_the_result(swap: bool) -> None:
    """The second kernel of a split product reads and writes neighbours, in the transposed product too."""
    plan = PLANS["swapped and split" if swap else "split"]
    p = problem(100, 72, 264)
    p = transposed_product(p) if swap else p
    ((shape, dtype),) = workspaces(p, plan).values()
    work = p.out._replace(pointer=9 << 40, shape=shape, strides=row_major(shape), dtype=dtypes.dtype(dtype))
    parts, *_, out, _, _ = [*steps(p, plan, {"partial": work})][-1].args
    assert parts.strides[-1] == out.strides[-1] == 1 and parts.shape[1:] == out.shape[1:]


def test_products_of_copied_operands_are_pipelined() -> None:
    """The compiler does not pipeline the plain text of products whose extents are no multiples of 16 bytes."""
    p = problem(700, 500, 355)
    assert all(x.by_hand for x in candidates(p, H200) if x.pack)


def of(x: ArrayRef, dtype: str) -> ArrayRef:
    return x._replace(dtype=dtypes.dtype(dtype))


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("index", range(len(PIPELINED)))
@pytest.mark.parametrize("activation, out", [(None, "f16"), ("gelu", "f16"), ("gelu", "f32")])
def test_kernels_keep_to_registers(index: int, activation: str | None, out: str) -> None:
    """No spills and no warnings of the assembler for the kernels that the plan takes for large products."""
    p = problem(4096, 4096, 4096)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""), out=of(p.out, out))
    tile, _ = PIPELINED[index]
    narrow = problem(16, 4096, 4096)
    plans = [x for q in (p, narrow) for x in candidates(q, H200) if x.tile == tile and x.kernel == "pipelined"]
    first = next((x for x in plans if x.split == 1), None)
    if first is None:
        assert activation
        return
    (step,) = steps(transposed_product(p) if first.swap else p, first)
    names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
    facts = facts_of(dict(zip(names, step.args, strict=False)))
    cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
    assert not cubin.spills and not cubin.warnings and cubin.stack_bytes == 0


@pytest.mark.parametrize("groups", [8, 64])
def test_pieces_of_a_tile_of_a_group_do_not_wait_for_each_other(groups: int) -> None:
    """Its place is found at run time: only the first waits for the tile before, once for each warpgroup."""
    p = grouped(groups, 8192, 4096, 4096)
    plan = next(e.plan for e in ranked(p, H200) if e.plan.tile == (128, 256, 64) and not e.plan.swap)
    (step,) = steps(p, plan, imagined_workspaces(p, plan))
    names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
    compiled = step.kernel.compile(
        "sm_90a", facts=facts_of(dict(zip(names, step.args, strict=False))), **step.constants
    )
    tiles = 2 if step.constants["HALVES"] else 1
    assert compiled.ptx.count("cp.async.bulk.wait_group 0") == plan.groups * tiles


def test_tiles_of_groups_have_64_rows_of_each_warpgroup() -> None:
    """Others store the last rows of a group from registers that they do not have."""
    found = list(candidates(grouped(32, 8192, 2048, 7168), H200))
    assert found and all(x.tile[0] == 64 * x.groups for x in found if x.kernel == "pipelined")


def test_few_rows_of_groups_have_tiles_for_a_group_with_all_of_them() -> None:
    """512 rows in one of 64 groups took 138 us in tiles of 16 rows, 40 us in these."""
    chosen = ranked(grouped(64, 512, 2048, 7168), H200)[0].plan
    assert chosen.tile[0] == 64 and not chosen.swap


def test_integers_of_groups_with_silu_have_few_columns() -> None:
    """160 columns and more spilled registers."""
    p = grouped(8, 4096, 4096, 4096)
    silu = replace(p.epilogue, activation="silu")
    p = replace(p, lhs=of(p.lhs, "s8"), rhs=of(p.rhs, "s8"), epilogue=silu)
    found = [x.tile[1] for x in candidates(p, H200) if x.kernel == "pipelined" and not x.swap]
    assert found and max(found) == 128


def test_tuning_tries_the_plain_text_of_groups() -> None:
    p = grouped(8, 8192, 4096, 4096)
    known = ranked(p, H200)
    near = neighbours(p, variants(known)[0], known, H200)
    found = [x for x in near if x.kernel == "pipelined" and not x.by_hand]
    (step,) = steps(p, found[0])
    assert step.kernel.build(**step.constants).arrays


def test_large_results_of_4_bytes_are_stored_by_tma() -> None:
    """A store from registers keeps the tensor cores waiting."""
    for dtype, out in (("f16", "f32"), ("s8", "s32")):
        p = problem(4096, 4096, 4096, dtype)
        assert ranked(replace(p, out=of(p.out, out)), H200)[0].plan.store == "tma"


def check_registers(p: Problem, plan: Plan) -> None:
    """No register of the plan's kernel spills."""
    (step,) = steps(p, plan)
    names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
    facts = facts_of(dict(zip(names, step.args, strict=False)))
    cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
    assert not cubin.spills and not cubin.warnings and cubin.stack_bytes == 0, plan


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("rows", [104, 152, 200, 248])
@pytest.mark.parametrize("activation", ["gelu", None])
def test_kernels_that_store_transposes_keep_to_registers(rows: int, activation: str | None) -> None:
    p = problem(rows, 4096, 4096)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""))
    wide = {x.tile: x for x in candidates(p, H200) if x.swap and x.tile[1] == rows and x.store == "tma"}
    assert wide or activation
    for plan in wide.values():
        check_registers(transposed_product(p), plan)


@pytest.mark.parametrize("shape", [(54, 13696, 12032), (20, 9216, 3200), (118, 8832, 11008)], ids=str)
def test_weights_of_few_rows_are_divided_among_all_multiprocessors(shape: tuple[int, int, int]) -> None:
    """Tiles of 64 or 128 weights give some multiprocessors one more than others, or nothing."""
    (rows, columns, _), plans = shape, candidates(problem(*shape), H200)
    wide = [x for x in plans if x.loaded and not x.swap and x.cluster == (1, 1)]
    assert any(-(-columns // x.tile[1]) > 0.9 * H200.sms for x in wide)
    assert all(rows <= x.loaded < x.tile[0] for x in wide)


@pytest.mark.parametrize("shape", [(74, 5376, 4992), (70, 4480, 5504)], ids=str)
def test_tiles_have_as_many_weights_as_give_all_multiprocessors_a_task(shape: tuple[int, int, int]) -> None:
    """Measured on an H200: 16.0 us where tiles of 64 weights, or 48 of all rows, take 17.5."""
    p = problem(*shape)
    plan = ranked(p, H200)[0].plan
    even = [x for x in candidates(p, H200) if x.loaded and x.swap]
    assert even and all(0 < x.loaded < x.tile[0] and x.loaded % 8 == 0 for x in even)
    assert plan in even and -(-max(shape[:2]) // plan.loaded) > 0.8 * H200.sms


@pytest.mark.parametrize("shape", [(54, 13696, 12032), (89, 18432, 5120)], ids=str)
def test_few_rows_take_tiles_of_all_rows(shape: tuple[int, int, int]) -> None:
    """Measured on an H200: 78 us where 128 weights take 88, and 49 where 192 take 55."""
    chosen = ranked(problem(*shape), H200)[0].plan
    assert not chosen.swap and tasks(problem(*shape), chosen) <= H200.sms


@pytest.mark.parametrize("columns", [2560, 5376, 7040, 7552])
def test_no_more_clusters_of_three_than_run_at_a_time(columns: int) -> None:
    """With 40 of them 188x5376x7552 took 44.7 us, with 34 wider ones 28.5 us."""
    found = [x for x in candidates(problem(189, columns, 7552), H200) if 3 in x.cluster]
    assert found and all(3 * x.grid <= H200.resident(3) < 3 * 40 for x in found)


SEVERAL = ((114, 4608, 7424), (209, 4864, 6144), (188, 5376, 7552), (241, 17536, 4224), (121, 3712, 6528))


@pytest.mark.parametrize("shape", SEVERAL, ids=str)
def test_few_rows_in_several_tiles_are_computed_by_neighbours(shape: tuple[int, int, int]) -> None:
    """The blocks of a cluster, or blocks placed in order, read the same weights at the same time: 209x4864x6144
    took 22.0 us in clusters, 25.7 us without, and 28.4 us with tiles of all rows.  Small tiles have deep rings:
    bytes on their way."""
    chosen = ranked(problem(*shape), H200)[0].plan
    assert (chosen.cluster != (1, 1) or chosen.ordered) and chosen.split == 1
    assert chosen.grid * chosen.cluster[0] * chosen.cluster[1] <= H200.resident(3) or 3 not in chosen.cluster
    small = sum(chosen.tile[:2]) <= 128
    assert chosen.stages * chosen.tile[2] > 8 * 64 or not small


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3"])
@pytest.mark.parametrize("shape", [(216, 11264, 16256), (235, 6016, 14592), (139, 5632, 14080)], ids=str)
def test_blocks_in_order_compute_the_tiles_of_all_rows_one_after_another(
    shape: tuple[int, int, int], dtype: str
) -> None:
    """Neighbours need the same weights: measured on an H200, 124 us where blocks in any order take 139."""
    p = problem(*shape, dtype)
    p = replace(p, out=of(p.out, "bf16"))
    found = [x for x in candidates(p, H200) if x.ordered]
    assert {x.swap for x in found} == {True, False}
    for plan in found:
        m, n, _ = transposed_product(p).shape if plan.swap else p.shape
        tiles = -(-m // plan.height), -(-n // plan.tile[1])
        # A group of one tile row is walked from left to right, one of all rows from top to bottom.
        assert plan.raster == 1 if plan.swap else plan.raster >= tiles[0]
        assert min(tiles) > 1 and plan.cluster == (1, 1)
        assert plan.constants["OVERLAP"] is False


def test_few_rows_of_8_bits_stream_their_weights() -> None:
    """67x4480x13696 took 21.9 us in parts of K by the plain text, 17.7 us by hand with streamed weights."""
    p = problem(67, 4480, 13696, "f8_e4m3")
    plan = ranked(replace(p, out=of(p.out, "bf16")), H200)[0].plan
    assert plan.streamed == ("lhs" if plan.swap else "rhs") and plan.by_hand and plan.split == 1


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("rows", [94, 160, 190])
@pytest.mark.parametrize("activation", ["gelu", None])
def test_kernels_that_share_few_rows_keep_to_registers(rows: int, activation: str | None) -> None:
    p = problem(rows, 17536, 4224)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""))
    found = [x for x in candidates(p, H200) if x.swap and x.share and x.cluster[0] * x.cluster[1] >= 4]
    assert found
    for plan in found:
        check_registers(transposed_product(p), plan)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("rows", [120, 190, 250])
@pytest.mark.parametrize("activation", ["gelu", None])
def test_kernels_of_clusters_beside_each_other_keep_to_registers(rows: int, activation: str | None) -> None:
    p = problem(rows, 17536, 4224)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""))
    beside = [x for x in candidates(p, H200) if x.cluster[0] > 1 and not (x.share or x.swap) and x.split == 1]
    found = {x.tile: x for x in beside if x.tile[1] % 16}
    assert found or activation
    for plan in found.values():
        check_registers(p, plan)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("layout", ["tt", "tn", "nn"])
@pytest.mark.parametrize("rows", [8, 96, 200])
def test_tiles_of_all_rows_read_rows_that_are_contiguous(rows: int, layout: str) -> None:
    """Rows that are not loaded are lines of memory: those of a transposed operand are not."""
    assert any(x.loaded for x in candidates(problem(rows, 8192, 8192), H200))
    assert not any(x.loaded for x in candidates(problem(rows, 8192, 8192, layout=layout), H200))


@pytest.mark.parametrize("stride", [1, 3])
def test_the_stride_of_a_single_row_says_nothing(stride: int) -> None:
    """Libraries put any number there; with a second stride of 1, the store of a transposed result was refused."""
    plain, odd = problem(1, 4032, 4240), problem(1, 4032, 4240, row_a=stride, row_c=stride)
    assert odd.out.strides == plain.out.strides and odd.lhs.strides == plain.lhs.strides
    assert ranked(odd, H200)[0].plan == ranked(plain, H200)[0].plan


@pytest.mark.parametrize("rows", [230, 100, 152, 8])
@pytest.mark.parametrize("activation", ["gelu", None])
def test_kernels_of_all_rows_keep_to_registers(rows: int, activation: str | None) -> None:
    p = problem(rows, 20480, 4096)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""))
    plans = {(x.tile, x.cluster): x for x in candidates(p, H200) if x.loaded and x.split == 1}
    assert plans or activation
    for plan in plans.values():
        check_registers(p, plan)


def test_a_result_that_is_its_own_addend_is_stored_from_registers() -> None:
    """Its elements are read by row and column."""
    p = problem(16, 4096, 4096)
    own = replace(p, epilogue=replace(p.epilogue, addend="out"))
    assert "tma" in {x.store for x in candidates(p, H200) if x.swap}
    assert {x.store for x in candidates(own, H200) if x.swap} == {"direct"}


@pytest.mark.parametrize("columns", [19200, 27392, 28672])
def test_few_rows_leave_no_round_half_empty(columns: int) -> None:
    """Memory has nothing to do for the SMs without a tile."""
    p = problem(64, columns, 4096, "f8_e4m3")
    p = replace(p, out=of(p.out, "bf16"))
    chosen = ranked(p, H200)[0].plan
    count = tasks(p, chosen)
    assert count <= H200.sms or count / (-(-count // H200.sms) * H200.sms) > 0.8


@pytest.mark.parametrize("shape", [(1280, 5120, 2688), (2688, 2048, 2432), (1408, 6272, 1408)])
def test_large_products_fill_their_last_round(shape: tuple[int, int, int]) -> None:
    """Columns of tiles are chosen for the number of tiles."""
    p = problem(*shape)
    count = tasks(p, ranked(p, H200)[0].plan)
    assert count / (-(-count // H200.sms) * H200.sms) > 0.94


@pytest.mark.parametrize("size", [4096, 8192])
def test_blocks_share_tiles_of_promoted_sums(size: int) -> None:
    p = problem(size, size, size, "f8_e4m3")
    chosen = ranked(replace(p, promote=True, out=of(p.out, "bf16")), H200)[0].plan
    assert chosen.share and chosen.cluster != (1, 1)
    # The rows of lhs that blocks walk together: 16 MB.
    assert chosen.raster * chosen.cluster[0] * chosen.tile[0] * size == 16 << 20


def test_the_cpu_gets_few_large_tiles() -> None:
    a, b = testing.random_array((700, 40), "f16", 0), testing.random_array((40, 9), "f16", 1)
    p = arguments.problem(Call(describe(a), describe(b)), describe(np.empty((700, 9), np.float16)), made=True)
    assert tasks(p, choose(p)) <= min(tasks(p, x) for x in candidates(p, H200))
