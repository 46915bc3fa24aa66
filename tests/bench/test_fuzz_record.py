"""The record of random kernels: runs add up over disjoint seeds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import fuzz_kernels
import pytest
from hypothesis import given
from hypothesis import strategies as st


def entry(seeds: list[int], failures: list[int]) -> dict[str, Any]:
    return {
        "seeds": fuzz_kernels.ranges(seeds),
        "kernels": len(seeds),
        "failures": failures,
        "refused_by_all": {"a": 1},
        "programs_with": {"loop": len(seeds)},
        "seconds": 2,
    }


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_runs_add_up(first: set[int], second: set[int]) -> None:
    second -= first
    both = fuzz_kernels.added(entry(sorted(first), sorted(first)[:1]), entry(sorted(second), []))
    assert [n for low, count in both["seeds"] for n in range(low, low + count)] == sorted(first | second)
    assert both["kernels"] == len(first | second) == both["programs_with"].get("loop", 0)
    assert both["failures"] == sorted(first)[:1] and both["seconds"] == 4 and both["refused_by_all"] == {"a": 2}


def test_seeds_count_once() -> None:
    with pytest.raises(AssertionError):
        fuzz_kernels.added(entry([1, 2], []), entry([2, 3], []))
