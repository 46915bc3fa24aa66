"""No synchronisation too many: without any one operation that the compiler inserts, the PTX machine, strict,
reports a hazard or computes something else, under some schedule of 20.

The Python examples have the tile IR of their `.co` twins (tests/test_examples.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from sampling import by_night

from dev.example_cases import CASES, Case
from dev.sync_deletion import survey
from tilemma.errors import CompileError
from tilemma.targets.ptx.target import targets

# Of the variants of a case, every run takes each n-th; by night all.
DAILY = 7


# The cases of every run: copies, sparse operands and the compiler's pipeline; warps that exchange values, TMA and
# roles.
DAY = {
    "sm_80": ("2_tiles-", "sparse-", "plain-"),
    "sm_90a": (
        "softmax-",
        "hello_mma-micro_gemm",
        "tma_pipeline--stages3",
        "warp_specialized--stages3-consumers2-tile_n128",
    ),
}


def pairs() -> Iterator[Any]:
    """`DAY` in every run, all by night."""
    assert {name for names in DAY.values() for name in names} <= {str(case) for case in CASES}
    for case, arch in itertools.product(CASES, targets()):
        marks = () if str(case) in DAY.get(arch, ()) else pytest.mark.slow
        yield pytest.param(case, arch, id=f"{case}-{arch}", marks=marks)


@pytest.mark.parametrize("case, arch", list(pairs()))
def test_nothing_can_be_left_out(case: Case, arch: str, request: pytest.FixtureRequest) -> None:
    every = 1 if by_night(request.config) else DAILY
    case = case.on(arch)
    try:
        problems = [(problem, *problem.compiled(arch)) for problem in (case, *case.others)]
    except CompileError as e:
        pytest.skip(f"{arch} does not have it: {e.code}")
    superfluous: set[str] | None = None
    # Further problems are for what the first does not reach: they come before further schedules.
    for schedules, (problem, compiled, values) in itertools.product((range(1), range(1, 20)), problems):

        def arguments(values: Mapping[str, Any] = values) -> dict[str, Any]:
            return {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in values.items()}

        found = survey(compiled, arguments, schedules, every, problem.blocks, superfluous)
        superfluous = {x.insertion for x in found if not x.found}
        if not superfluous:
            break
    assert not superfluous, "\n".join(sorted(superfluous or ()))
