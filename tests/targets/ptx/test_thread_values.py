"""Whether two register tiles agree, against the elements of each lane one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tilemma import dtypes
from tilemma.ir.plans import FragmentPlan
from tilemma.ir.types import GROUP, WARPGROUP
from tilemma.targets.ptx.thread_values import agree, positions

WARP = "SM80_16x8x16_F32F16F16F32_TN"


def plan(role: str, repeat: tuple[int, int]) -> FragmentPlan:

    return FragmentPlan(role, dtypes.f32, (1, 1), GROUP, "registers", WARP, repeat)


def same_places(x: FragmentPlan, y: FragmentPlan) -> bool:
    """Each element of ``x`` in each lane stands in ``y`` at one index of all lanes; of a vector its row."""
    (xr, xc), (yr, yc) = positions(x), positions(y)
    if y.role == "R":
        xc = 0 * xc
    columns = [
        set(zip(yr[:, n].tolist(), yc[:, n].tolist(), range(len(yr)), strict=True)) for n in range(yr.shape[1])
    ]
    wanted = [
        set(zip(xr[:, n].tolist(), xc[:, n].tolist(), range(len(xr)), strict=True)) for n in range(xr.shape[1])
    ]
    return all(w in columns for w in wanted)


PLANS = [plan(role, repeat) for role in ("A", "B", "C", "R") for repeat in ((1, 1), (2, 1), (1, 2), (2, 2))]


@pytest.mark.parametrize("x", PLANS, ids=lambda p: f"{p.role}{p.repeat}")
def test_agreement_is_that_of_every_lane(x: FragmentPlan) -> None:
    for y in PLANS:
        assert agree(x, y) == same_places(x, y), (x, y)


def test_other_levels_and_divisions_do_not_agree() -> None:
    x = plan("C", (1, 1))
    assert agree(x, x)
    assert not agree(x, replace(x, level=WARPGROUP)) and not agree(x, replace(x, grid=(2, 1)))
    # The A of units side by side is repeated, and an accumulator is not.
    for role, across in product("ABC", (1, 2)):
        first, second = (replace(plan(r, (1, 1)), grid=(1, across)) for r in (role, "C"))
        assert not agree(first, second) or across == 1 or role != "A"


def test_tiles_of_more_than_1024_atoms_are_left_to_the_limit_of_registers() -> None:
    narrow, wide = plan("C", (1, 1024)), plan("C", (1024, 1))
    assert not agree(narrow, wide)
    assert agree(plan("C", (1, 1025)), wide)
