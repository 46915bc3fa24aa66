"""Single products of small and middle size: their tiles, and what the model predicts of plans that were timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from products import problem

from tilemma.arithmetic.integers import cdiv
from tilemma.ops import middle
from tilemma.ops.candidates import SHARED_RING, candidates, ranked
from tilemma.ops.plan import Hardware, Plan, estimate

ON = Hardware()


def plan(p: object, rows: int, columns: int, cluster: tuple[int, int] = (1, 1), *, swap: bool = False) -> Plan:
    """The candidate of these tiles, one part and steps of 64, whose last tiles may lie beyond the edges."""
    found = {
        x
        for x in candidates(p, ON)
        if x.tile == (rows, columns, 64) and x.cluster == cluster and x.swap == swap and x.split == 1 and x.share
        if not x.inside
    }
    assert len(found) == 1, found
    return found.pop()


def seconds(p: object, *tile: int, **options: bool) -> float:
    return estimate(p, plan(p, *tile, **options), ON).seconds


@pytest.mark.parametrize(("m", "n"), [(1000, 1000), (1376, 1048), (712, 904)])
def test_a_whole_number_of_tiles_makes_the_columns(m: int, n: int) -> None:
    found = list(middle.tiles(problem(m, n, 1000), ON.sms))
    assert found
    for (rows, columns, _), groups in found:
        across = cdiv(n, columns)
        assert rows == 64 * groups and across * columns - n < 8 * across
        assert cdiv(m, rows) * across <= ON.sms


def test_other_products_have_no_tiles_of_these() -> None:
    for shape in ((256, 4096, 4096), (4096, 4096, 4096), (512, 512, 16384)):
        assert not list(middle.tiles(problem(*shape), ON.sms))


def test_blocks_that_share_tiles_have_rings_as_deep_as_others() -> None:
    """1000x1000x1000 in pairs took 2 to 4 % less time with them."""
    assert plan(problem(1000, 1000, 1000), 64, 128, (2, 1)).stages > SHARED_RING


def test_rows_of_zeros_cost_time() -> None:
    """1176x1064x1728, transposed, took 8.8 us with tiles of 168 columns, and 10.8 us with 176: 56 of the last are
    beyond the edge."""
    p = problem(1176, 1064, 1728)
    exact = plan(p, 64, 168, swap=True)
    assert estimate(p, exact, ON).seconds < estimate(p, replace(exact, tile=(64, 176, 64)), ON).seconds


def test_tiles_that_fill_the_sms_beat_larger_ones() -> None:
    """696x704x648 and others took up to 1.2 times as long with tiles of 128 rows as with 64."""
    p = problem(712, 904, 1024)
    assert seconds(p, 64, 96) < seconds(p, 128, 64)
    # 2240x776x640 took 6.2 us with tiles of 128x112, 6.7 us with 64x256 of the transposed product.
    p = problem(2240, 776, 640)
    assert seconds(p, 128, 112) < seconds(p, 64, 256, swap=True)


def test_rows_that_start_within_sectors_make_sharing_worth_it() -> None:
    """1000x1000x1000 took 7.6 us in pairs and 9.1 us without; 1024x1024x1024 6.9 us and 5.4 us."""
    within, lines = problem(1000, 1000, 1000), problem(1024, 1024, 1024)
    pairs, alone = plan(within, 64, 128, (2, 1)), plan(within, 64, 128)
    assert estimate(within, pairs, ON).seconds < estimate(within, alone, ON).seconds
    assert estimate(lines, pairs, ON).seconds > estimate(lines, alone, ON).seconds


@pytest.mark.parametrize(("shape", "fours"), [((1048, 1304, 2248), (1, 4)), ((1400, 1400, 2200), (2, 2))])
def test_rows_that_start_within_sectors_take_clusters_of_four(
    shape: tuple[int, int, int], fours: tuple[int, int]
) -> None:
    """These took 18.0 and 20.5 us in pairs, 14.5 and 16.7 us so.  Small ones whose rows start with sectors gain
    nothing."""
    m, n, k = shape
    assert ranked(problem(m, n, k), ON)[0].plan.cluster == fours
    assert all(x.cluster[0] * x.cluster[1] < 4 for x in candidates(problem(m - 400, n - 400, k + 8), ON))


def test_every_block_of_a_cluster_loads_as_many_rows_of_a_shared_tile() -> None:
    found = list(middle.sharing(problem(1464, 1680, 1624), ON))
    assert {cluster for _, _, cluster in found} == set(middle.SHARING)
    for (rows, columns, _), groups, (high, wide) in found:
        assert columns % high == rows % wide == 0 and rows == 64 * groups


def test_results_of_several_rounds_whose_rows_start_within_sectors() -> None:
    """2264x2264x1288 took 26.8 us by the choice of the general model, 23.1 us by this one."""
    within, beyond = problem(2264, 2264, 1288), problem(2264, 2264, 1296)
    assert middle.applies(within) and not middle.applies(beyond)
