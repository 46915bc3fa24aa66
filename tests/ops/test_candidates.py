"""Every plan that may be chosen is one that its kernel and the hardware can run, whatever the call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from drawn_calls import drawn
from products import problem

from tilemma.arithmetic.integers import cdiv
from tilemma.dtypes import bf16
from tilemma.kernels import facts_of
from tilemma.ops import few_rows
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.neighbours import neighbours
from tilemma.ops.operand_layouts import aligned, packed, transposed, transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps

H200 = Hardware()
# Blocks of a cluster that every device has room for; columns that wgmma multiplies, at most.
BLOCKS, WIDEST = 8, 256


def wrong(problem: Problem, plan: Plan) -> Iterator[str]:
    """What the kernel of a ``pipelined`` plan cannot do."""
    p = transposed_product(problem) if plan.swap else problem
    (m, n, k), (rows, columns, depth), size = p.shape, plan.tile, p.lhs.dtype.bytes
    (high, wide), alone = plan.cluster, plan.cluster == (1, 1)
    whole = 16 if p.acc == "s32" and columns > 24 else 8
    if rows not in (64 * plan.groups, 128 * plan.groups) or not 1 <= plan.groups <= 5:
        yield "rows of a warpgroup"
    if columns % whole or not 8 <= columns <= WIDEST:
        yield "columns that wgmma has"
    if depth * size % 32:
        yield "steps of whole instructions"
    if p.rhs_major == "col" and "rhs" not in plan.pack and columns * size % 128:
        yield "columns of whole swizzles"
    if plan.loaded % 8 or not 0 <= plan.loaded < rows or (plan.loaded and rows - plan.loaded >= 64):
        yield "rows that are loaded"
    if high * wide > BLOCKS or not 1 <= plan.grid <= H200.resident(high * wide) // (high * wide):
        yield "clusters that run at a time"
    # The compiler cuts shared tiles of few rows, whatever their number.
    if (
        plan.share
        and not few_rows.applies(problem)
        and (
            (wide > 1 and p.lhs_major == "row" and rows % (8 * wide))
            or (high > 1 and p.rhs_major == "row" and columns % (8 * high))
        )
    ):
        yield "parts of a shared tile"
    if m <= plan.height * (high - 1) or n <= columns * (wide - 1):
        yield "a tile for each block of a cluster"
    if plan.split > cdiv(k, depth):
        yield "a step for each part"
    # Scales of the steps come with the tiles; what only the threads can store is staged whole.
    scales = 4 * sum(x for x, scale in ((rows, p.left), (columns, p.right)) if scale.kind == "steps")
    staged = rows * columns * p.out.dtype.bytes if plan.store in ("copy", "rows") else 0
    if plan.stages < 2 or plan.stages * ((rows + columns) * depth * size + scales) + staged > H200.shared:
        yield "a ring that fits"
    if plan.store in ("tma", "rows") and not aligned(transposed(p.out) if plan.swap else p.out):
        yield "rows that TMA can write"
    if not set(packed(p)) <= set(plan.pack):
        yield "operands that TMA can read"
    only_by_hand = not alone or plan.pack or plan.loaded or plan.ordered or plan.turns or plan.queue or plan.prompt
    if only_by_hand and not plan.by_hand:
        yield "the kernel by hand"


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_all_can_run(first: int) -> None:
    for seed in range(first, first + 20):
        p = drawn(seed).imagined()
        for e in ranked(p, H200):
            if e.plan.kernel == "pipelined":
                assert not [*wrong(p, e.plan)], (seed, e.plan)


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3"])
@pytest.mark.parametrize("shape", [(8192, 8192), (20096, 9856), (5376, 4992)])
def test_all_of_few_rows_can_run(shape: tuple[int, int], dtype: str) -> None:
    for rows in (1, 24, 70, 100, 150, 203, 250):
        p = problem(rows, *shape, dtype)
        p = replace(p, out=p.out._replace(dtype=bf16))
        for plan in candidates(p, H200):
            assert plan.kernel != "pipelined" or not [*wrong(p, plan)], (rows, plan)


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_so_can_the_neighbours_that_tuning_tries(first: int) -> None:
    for seed in range(first, first + 20):
        p = drawn(seed).imagined()
        found = ranked(p, H200)
        for e in found[:2]:
            for plan in neighbours(p, e.plan, found, H200):
                assert plan.kernel != "pipelined" or not [*wrong(p, plan)], (seed, e.plan, plan)


@pytest.mark.parametrize("shared", [99, 163, 227])
def test_three_stages_of_f64_fit_in_shared_memory(shared: int) -> None:
    """Each of whole fragments, which have 4 elements along K."""
    on = Hardware(capability=(8, 6), shared=shared * 1024)
    found = [x for x in candidates(problem(4096, 4096, 4096, "f64"), on) if x.kernel == "ahead"]
    assert found
    for x in found:
        rows, columns, depth = x.tile
        assert depth >= 16 and depth % 4 == 0 and 3 * 8 * (rows + columns) * depth <= on.shared


@pytest.mark.parametrize(("swap", "tile", "stages"), [(False, (256, 160, 64), 3), (True, (256, 192, 64), 3)])
def test_the_compiler_takes_the_stages_of_a_plan(swap: bool, tile: tuple[int, int, int], stages: int) -> None:
    """As many as fit beside the result of the tile in pieces, of which the smallest count."""
    p = problem(3264, 1552, 6832)
    plan = Plan("pipelined", tile, 2, stages, 16, grid=132, store="tma", swap=swap)
    (step,) = steps(transposed_product(p) if swap else p, plan)
    names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
    facts = facts_of(dict(zip(names, step.args, strict=False)))
    said = str(step.kernel.compile("sm_90a", facts=facts, **step.constants).explain())
    assert f"in a ring of {stages} stages" in said and "warning" not in said
