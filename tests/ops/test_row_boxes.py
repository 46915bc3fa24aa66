"""Batches whose rows start within lines: tiles that leave in boxes of whole rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilemma import testing
from tilemma.kernels import facts_of
from tilemma.ops import arguments, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import candidates
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.ops.steps import steps
from tilemma.runtime.arrays import describe


def batch(shape: tuple[int, int, int, int]) -> tuple[Problem, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """The problem, its result, which has neighbours on all sides, and the operands."""
    b, m, n, k = shape
    left, right = testing.random_array((b, m, k), "f16", 0), testing.random_array((b, n, k), "f16", 1)
    around = np.full((b, m + 2, n + 16), np.nan, np.float16)
    call = Call(describe(left), describe(right.swapaxes(1, 2)))
    return arguments.problem(call, describe(around[:, 1:-1, 8:-8]), made=False), around, (left, right)


def in_rows(p: Problem) -> list[Plan]:
    return [x for x in candidates(p, Hardware()) if x.store == "rows"]


@pytest.mark.parametrize("shape", [(2, 136, 328, 72), (3, 72, 88, 40)], ids=str)
@pytest.mark.parametrize("rows", [64, 128, 192, 256])
def test_tiles_leave_as_rows(shape: tuple[int, int, int, int], rows: int) -> None:
    plans = [x for x in in_rows(batch(shape)[0]) if x.tile[0] == rows]
    assert plans
    for plan in plans[:3]:
        p, around, (left, right) = batch(shape)
        product.run(p, replace(plan, grid=1, stages=2), "machine", arch="sm_90a")
        for a, b, found in zip(left, right, around, strict=True):
            bound = testing.error_bound(a, b.T, out="f16")
            wanted = testing.reference("mk,kn->mn", a, b.T)
            assert testing.share_of_bound(found[1:-1, 8:-8], wanted, bound) <= 1
            inside = np.zeros_like(found, bool)
            inside[1:-1, 8:-8] = True
            assert np.isnan(found[~inside]).all()


def test_one_box_for_each_warpgroup() -> None:
    p = batch((2, 136, 328, 72))[0]
    for plan in in_rows(p):
        (step,) = steps(p, plan)
        names = [x.buffer.name for x in step.kernel.build(**step.constants).arrays]
        facts = facts_of(dict(zip(names, step.args, strict=False)))
        ptx = step.kernel.compile("sm_90a", facts=facts, **step.constants).ptx
        stores = [x for x in ptx.splitlines() if "cp.async.bulk.tensor" in x and "global.shared" in x]
        # The rows of warpgroups with 128 of them are one box, too.
        assert len(stores) <= plan.groups, plan


def test_rows_that_start_on_lines_leave_in_lines() -> None:
    p = batch((2, 136, 320, 72))[0]
    assert in_rows(p)
    contiguous = describe(np.zeros((2, 136, 320), np.float16))._replace(pointer=1 << 20)
    assert not in_rows(replace(p, out=contiguous))
    assert not in_rows(batch((1, 136, 328, 72))[0])
