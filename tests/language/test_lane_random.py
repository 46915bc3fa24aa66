"""Random kernels over the lanes of warps: both languages, reference and machine give what NumPy gives."""

from __future__ import annotations

import pytest

from dev.fuzz.families import FAMILIES


@pytest.mark.parametrize("seed", range(20))
def test_random_exchanges_and_fragments(seed: int) -> None:
    family = FAMILIES["lanes"]
    failure = family.examine(family.make(seed), False).failure
    assert failure is None, str(failure)
