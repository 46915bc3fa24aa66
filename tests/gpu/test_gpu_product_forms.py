"""Random calls of the further products on a GPU, of sizes that are cut into many tiles."""

from __future__ import annotations

import form_cases
import pytest

from tilemma.runtime import gpu_unavailable_reason

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
pytest.importorskip("torch")


@pytest.mark.parametrize("name", form_cases.FORMS)
@pytest.mark.parametrize("first", range(0, 80, 10))
def test_random_calls_are_within_the_bound(name: str, first: int) -> None:
    for seed in range(first, first + 10):
        assert form_cases.share(name, seed, "cuda", deep=True) <= 1, seed
