"""The part of a large product of cases that every run takes; `-m slow`, by night, takes the rest."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def pairwise(*axes: Iterable[Any]) -> list[Any]:
    """The product of ``axes`` for `parametrize`, in which any two values of different axes meet in a case of every
    run; the other cases are slow.  A value that is a tuple fills several names."""
    choices = [list(a) for a in axes]
    every = list(itertools.product(*(range(len(a)) for a in choices)))
    taken = set(_covering(every))
    found = []
    for row in every:
        values = [choices[axis][i] for axis, i in enumerate(row)]
        flat = [x for v in values for x in (v if isinstance(v, tuple) else (v,))]
        found.append(pytest.param(*flat, marks=[] if row in taken else pytest.mark.slow))
    return found


def _covering(every: Sequence[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Rows of ``every`` that hold each pair of its columns' values, chosen greedily."""

    def pairs(row: tuple[int, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2)) or {row}

    missing = set().union(*map(pairs, every))
    while missing:
        best = max(every, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        yield best


def examples(count: int) -> int:
    """Examples that a property test draws: ``count`` with HYPOTHESIS_PROFILE=explore, a sixth in every run."""
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else max(10, count // 6)
