"""Products of a long K with results of some hundred rows and columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from products import problem

import tilemma as tm
from tilemma.arithmetic.integers import cdiv
from tilemma.ops import long_k
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.kernels import inside
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps, workspaces
from tilemma.runtime.arrays import ArrayRef, row_major


@tm.kernel
def divided(starts: tm.Global["s32", "T"], counts: tm.Global["s32", "T"], extent: tm.Scalar["s32"], *, SIZE=64):
    tiles = starts.shape[0]
    for t in tm.parallel(tiles, level="block"):
        first, count = inside(t, tiles, SIZE, extent)
        starts[t] = first
        counts[t] = count


@pytest.mark.parametrize("extent", [1, 7, 64, 65, 72, 128, 130, 191, 408, 512])
def test_tiles_store_each_row_once_and_load_few_beyond_the_edge(extent: int) -> None:
    tiles = cdiv(extent, 64)
    starts, counts = np.empty(tiles, np.int32), np.empty(tiles, np.int32)
    divided.on("cpu")(starts, counts, extent)
    stored = [row for s, c in zip(starts, counts, strict=True) for row in range(s, min(s + c, extent))]
    assert stored == list(range(extent)) and not (starts % 8).any()
    assert tiles == 1 or starts[-1] + 64 - extent < 8


def added(p: Problem) -> object:
    """How the kernel that adds the parts of ``p`` overlaps with others."""
    plan = ranked(p, Hardware())[0].plan
    planned = transposed_product(p) if plan.swap else p
    work = {
        name: ArrayRef(9 << 40, shape, row_major(shape), planned.out.dtype, ("cuda", 0), None, "torch")
        for name, (shape, _) in workspaces(planned, plan).items()
    }
    return list(steps(planned, plan, work))[-1].constants["OVERLAP"]


def test_the_next_kernel_starts_after_the_parts_are_added_where_neighbours_share_what_they_read() -> None:
    assert added(problem(512, 512, 16384)) == "before"
    assert added(problem(128, 128, 16384)) is True


@pytest.mark.parametrize("shape", [(512, 512, 16384), (408, 496, 48640), (480, 480, 64000), (256, 512, 65536)])
def test_nearly_every_sm_has_one_part(shape: tuple[int, int, int]) -> None:
    """The tiles divide rows and columns evenly."""
    on = Hardware()
    best = ranked(problem(*shape), on)[0].plan
    m, n, _ = shape if not best.swap else (shape[1], shape[0], 0)
    tasks = cdiv(m, best.tile[0]) * cdiv(n, best.tile[1]) * best.split
    assert 0.9 * on.sms <= tasks <= on.sms
    assert cdiv(n, best.tile[1]) * best.tile[1] - n < 8 * cdiv(n, best.tile[1])


@pytest.mark.parametrize("shape", [(128, 72), (300, 96), (200, 200), (64, 136), (65, 500), (512, 80), (131, 463)])
def test_fewer_rows_and_columns_have_tiles_whose_order_does_not_matter(shape: tuple[int, int]) -> None:
    p = problem(*shape, 16384)
    found = [x for x in candidates(p, Hardware()) if x.kernel == "pipelined"]
    assert long_k.applies(p) and {long_k.overlap(p, x) for x in found} == {True}
    assert {x.swap for x in found} == {False, True} and all(x.split > 1 for x in found)


@pytest.mark.parametrize("layout", ["nt", "tt", "nn", "tn"])
def test_columns_are_whole_boxes_where_they_are_contiguous(layout: str) -> None:
    for plan in candidates(problem(504, 496, 16384, layout=layout), Hardware()):
        contiguous = layout[0] == "t" if plan.swap else layout[1] == "n"
        assert plan.kernel == "tiles" or not contiguous or plan.tile[1] % 64 == 0


def test_rows_that_tma_cannot_read_are_packed() -> None:
    p = problem(500, 500, 16383)
    assert long_k.applies(p) and all(x.pack for x in candidates(p, Hardware()) if x.kernel == "pipelined")


def test_other_products_have_other_plans() -> None:
    p = problem(512, 512, 16384)
    for other in (
        replace(p, promote=True),
        replace(p, outer=p.outer * 2),
        problem(520, 512, 16384),
        problem(64, 128, 65536),
    ):
        assert not long_k.applies(other)
