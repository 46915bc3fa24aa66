"""Large single products of a few rounds: what their model predicts of plans that were timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from products import problem

from tilemma.ops import few_rounds
from tilemma.ops.candidates import candidates, ranked
from tilemma.ops.plan import Hardware, Plan, estimate

ON = Hardware()


def plan(p: object, rows: int, columns: int, cluster: tuple[int, int] = (1, 1), *, swap: bool = False) -> Plan:
    """The candidate of these tiles and steps of 64, in one part, whose last tiles may lie beyond the edges."""
    found = {
        x
        for x in candidates(p, ON)
        if x.tile == (rows, columns, 64) and x.cluster == cluster and x.swap == swap and x.split == 1 and x.share
        if not x.inside
    }
    assert found
    return min(found, key=lambda x: estimate(p, x, ON).seconds)


def seconds(p: object, *tile: int, swap: bool = False, cluster: tuple[int, int] = (1, 1)) -> float:
    return estimate(p, plan(p, *tile, swap=swap, cluster=cluster), ON).seconds


def test_products_that_the_model_is_for() -> None:
    for shape in ((1024, 1024, 1024), (2048, 4032, 4096), (1056, 1240, 8112), (1056, 1240, 8120)):
        assert few_rounds.applies(problem(*shape))
    # Few rows, a result of many rounds, a long K, a shorter one whose rows start within sectors, and one that is
    # shorter than those that were timed.
    for shape in ((1000, 1024, 1024), (4096, 4096, 4096), (1024, 1024, 16384), (1024, 1024, 2056)):
        assert not few_rounds.applies(problem(*shape))
    assert not few_rounds.applies(problem(2048, 4032, 960))


@pytest.mark.parametrize(
    ("shape", "few", "many"),
    [((1040, 1600, 3136), (64, 208), (128, 104)), ((1600, 1024, 2944), (64, 200), (128, 104))],
)
def test_rows_of_zeros_keep_the_others_waiting(
    shape: tuple[int, int, int], few: tuple[int, int], many: tuple[int, int]
) -> None:
    """Transposed, these took 23.6 and 21.4 us with 64 rows or columns beyond the edge of 8 to 10 tiles, 20.9 and
    19.8 us without."""
    p = problem(*shape)
    assert seconds(p, *few, swap=True) < seconds(p, *many, swap=True)


def test_four_blocks_share_rows_that_start_within_lines() -> None:
    """1040x1152x1648 took 7.6 us in the steady state, transposed, with tiles of 128x88 that four blocks in a row
    share, 10.1 us in clusters of 2x2, and 9.4 us with 128x80 and no clusters."""
    p = problem(1040, 1152, 1648)
    beside = seconds(p, 128, 88, swap=True, cluster=(1, 4))
    assert beside < seconds(p, 128, 88, swap=True, cluster=(2, 2))
    assert beside < seconds(p, 128, 80, swap=True)
    assert 4 in ranked(p, ON)[0].plan.cluster
    # Rows that start on lines have no such plans.
    assert all(x.cluster[0] * x.cluster[1] < 4 for x in candidates(problem(1040, 1152, 1664), ON))


def test_tiles_beyond_the_edge_count_as_rows_of_zeros() -> None:
    """1136x1440x4048 took 35.4 us with tiles of 128x112 in pairs along M, where the tenth row of tiles is empty,
    and 28.1 us with 128x104 in pairs along N."""
    p = problem(1136, 1440, 4048)
    assert seconds(p, 128, 112, cluster=(2, 1)) > 1.1 * seconds(p, 128, 104, cluster=(1, 2))


def test_an_odd_multiple_of_8_columns_takes_longer_for_its_size() -> None:
    p = problem(2048, 2048, 4096)
    wide = plan(p, 128, 256)
    each = [estimate(p, replace(wide, tile=(128, x, 64)), ON).seconds for x in (240, 248, 256)]
    assert each[1] - each[0] > each[2] - each[1]


def test_plans_with_many_rows_of_zeros_also_end_at_the_edges() -> None:
    """1280x1168x5760 took 30.1 us with tiles of 128x96 that end at the edges, 34.7 us with others."""
    p = problem(1280, 1168, 5760)
    (inside,) = {x for x in _of_one_block(p) if x.inside}
    assert estimate(p, inside, ON).seconds < seconds(p, 128, 96)
    assert not any(x.inside for x in _of_one_block(problem(1280, 1152, 5760)))


def _of_one_block(p: object) -> list[Plan]:
    found = (e.plan for e in ranked(p, ON))
    return [x for x in found if x.tile == (128, 96, 64) and x.cluster == (1, 1) and not x.swap]
