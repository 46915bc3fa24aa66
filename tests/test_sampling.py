"""The sample of a product of cases: which are in every run, which are slow."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.sampling import EVERY, daily, pairwise


def test_any_two_values_meet_and_no_case_is_lost() -> None:
    axes = ["abcd", [("x", 1), ("y", 2), ("z", 3)], [True, False], range(5)]
    cases = pairwise(*axes)
    flat = [(p.values[0], p.values[1:3], *p.values[3:]) for p in cases]
    assert flat == list(itertools.product(*axes))
    every_run = [row for row, p in zip(flat, cases, strict=True) if not p.marks]
    assert len(every_run) < len(flat) / 4
    for one, other in itertools.combinations(range(len(axes)), 2):
        met = {(row[one], row[other]) for row in every_run}
        assert met == set(itertools.product(axes[one], axes[other]))


def test_one_axis_is_taken_whole() -> None:
    assert not any(p.marks for p in pairwise("abc"))


def test_a_part_of_a_family_has_every_value_of_a_short_axis() -> None:
    for n, length, names in itertools.product(range(1, 7), range(1, 7), range(1, 30)):
        rows = list(itertools.product(range(names), range(length)))
        taken = daily(rows, n)
        assert len(taken) == -(-len(rows) // n)
        assert len(taken) < length or {rows[i][1] for i in taken} == set(range(length)), (n, length, names)


def test_a_family_of_names_is_spread() -> None:
    assert daily([(x,) for x in "abcdefgh"], 3) == {0, 3, 6}


def test_sampled_families_exist() -> None:
    root = Path(__file__).parents[1]
    for family in EVERY:
        file, _, name = family.partition("::")
        assert f"def {name}(" in (root / file).read_text(encoding="utf-8"), family
