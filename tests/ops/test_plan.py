from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import problem

from tilemma import dtypes, ops, testing
from tilemma.assemble import find_tool
from tilemma.errors import ToolError
from tilemma.kernels import facts_of
from tilemma.ops import arguments, product
from tilemma.ops.plan import PIPELINED, Hardware, Plan, candidates, choose, estimate, ranked, turned
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime.arrays import describe

H200 = Hardware()


extents = st.integers(1, 9000)


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=40, deadline=None)
@given(extents, extents, extents)
def test_the_choice_is_the_best_estimate(m: int, n: int, k: int) -> None:
    p = problem(m, n, k)
    found = ranked(p, H200)
    assert found[0].seconds == min(estimate(p, x, H200).seconds for x in candidates(p, H200))
    assert all(e.seconds > 0 and e.why for e in found)


def test_what_the_model_says_about_known_shapes() -> None:
    """Measured on an H200: large tiles for large products, 64x64 at 512^3, one round of small ones at 1024^3."""
    for size in (2048, 4096, 8192):
        assert sorted(ranked(problem(size, size, size), H200)[0].plan.tile) == [64, 128, 256]
    assert ranked(problem(512, 512, 512), H200)[0].plan.tile == (64, 64, 64)
    assert ranked(problem(1024, 1024, 1024), H200)[0].plan.tile[:2] in ((64, 128), (128, 64))
    decode = ranked(problem(16, 8192, 8192), H200)[0].plan
    assert decode.swap and decode.tile[1] == 16
    # Rows of 2000 bytes lie across cache lines: pairs of blocks ask for each only once.
    across = ranked(problem(1000, 1000, 1000), H200)[0].plan
    assert across.tile[:2] == (64, 128) and across.cluster == (2, 1) and across.share
    # The two blocks that read the same weights are neighbours; parts of K would cost more than they bring.
    tokens = ranked(problem(128, 8192, 8192), H200)[0].plan
    assert tokens.tile[:2] == (64, 128) and tokens.cluster == (2, 1) and tokens.split == 1


def test_misaligned_arrays_get_a_plan_that_can_take_them() -> None:
    rows = ranked(problem(4095, 4097, 4104), H200)[0].plan
    assert rows.kernel == "pipelined" and rows.store == "direct" and not rows.pack
    # Rows of the result that are aligned but end within a 16-byte unit, which a tensor store would overwrite.
    edge = candidates(problem(1024, 1020, 1024, row_c=1024), H200)
    assert {p.store for p in edge} == {"direct"}
    nothing = ranked(problem(4095, 4097, 4099), H200)[0].plan
    assert set(nothing.pack) == {"lhs", "rhs"}
    assert ranked(problem(100, 100, 0), H200)[0].plan.kernel == "tiles"


def test_what_the_cache_loses_is_walked_there_and_back() -> None:
    for shape in ((16384, 16384, 8192), (8192, 28672, 8192)):
        (step,) = steps(problem(*shape), ranked(problem(*shape), H200)[0].plan)
        assert step.constants["CLUSTER_M"] == 2 and step.constants["RASTER"] == 8
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
    assert turned(turned(p)) == p
    assert turned(p).shape == (n, m, k)


def test_the_report_names_choice_and_alternatives() -> None:
    a, b = testing.random_array((64, 640), "f16", 0), testing.random_array((640, 128), "f16", 1)
    report = ops.plan(a, b, activation="gelu")
    assert "64 x 128 x 640 f16, row.col, gelu" in str(report)
    assert str(report.chosen.plan) in str(report) and len(report.alternatives) >= 2
    assert report.to_json()["chosen"]["plan"]["tile"] == report.chosen.plan.tile
    with pytest.raises(arguments.MatmulShape):
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
}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_computes_the_same(name: str) -> None:
    """On the CPU reference, with all of an epilogue, batches that broadcast, and a ragged shape."""
    plan = PLANS[name]
    a, b = testing.random_array((2, 70, 264), "f16", 0), testing.random_array((264, 72), "f16", 1)
    c, bias = testing.random_array((70, 72), "f16", 2), testing.random_array((70, 1), "f32", 3)
    out = np.zeros((2, 70, 72), np.float16)
    p = arguments.problem(*map(describe, (a, b, out)), -0.5, 2.0, describe(c), describe(bias), "silu", made=False)
    product.run(p, plan)
    wanted = -0.5 * testing.to_float64(a) @ testing.to_float64(b) + 2 * testing.to_float64(c) + bias
    bound = testing.error_bound(a, b, alpha=-0.5, beta=2.0, c=c, bias=bias, activation="silu")
    assert testing.share_of_bound(out, testing.ACTIVATIONS["silu"].value(wanted), bound) <= 1


@pytest.mark.parametrize("name", PLANS)
def test_steps_use_the_workspaces_they_ask_for(name: str) -> None:
    plan = PLANS[name]
    p = problem(100, 72, 264)
    p = turned(p) if plan.swap else p
    asked = workspaces(p, plan)
    work = {}
    for i, (n, (s, t)) in enumerate(asked.items()):
        strides = (s[1] * s[2], s[2], 1)
        work[n] = p.out._replace(pointer=(9 + i) << 40, shape=s, strides=strides, dtype=dtypes.dtype(t))
    used = {s for step in steps(p, plan, work) for s, _ in step.sources if s.startswith("work.")}
    assert used == {f"work.{n}" for n in asked}


@pytest.mark.parametrize("index", range(len(PIPELINED)))
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_kernels_keep_to_registers(index: int, activation: str | None) -> None:
    """No spills and no warnings of the assembler for the kernels that the plan takes for large products."""
    try:
        find_tool("ptxas")
    except ToolError as e:
        pytest.skip(e.message)
    p = problem(4096, 4096, 4096)
    p = replace(p, epilogue=replace(p.epilogue, activation=activation or ""))
    tile, _ = PIPELINED[index]
    narrow = problem(16, 4096, 4096)
    plans = [x for q in (p, narrow) for x in candidates(q, H200) if x.tile == tile and x.kernel == "pipelined"]
    first = next(x for x in plans if x.split == 1)
    (step,) = steps(turned(p) if first.swap else p, first)
    names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
    facts = facts_of(dict(zip(names, step.args, strict=False)))
    cubin = step.kernel.compile("sm_90a", facts=facts, **step.constants).assembled()
    assert not cubin.spills and not cubin.warnings and cubin.stack_bytes == 0


def test_the_cpu_gets_few_large_tiles() -> None:
    a, b = testing.random_array((700, 40), "f16", 0), testing.random_array((40, 9), "f16", 1)
    p, _, _ = product.prepare(a, b)
    assert choose(p).tile == (512, 64, 64)
