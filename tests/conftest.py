"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones.

Of the families of cases in `sampling.EVERY`, a run takes every second, third, .. case; the others are slow.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.sampling import EVERY

# A change must not fail for an example that the change has nothing to do with: new examples belong to the
# nightly run.  Deadlines measure the machine, not the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(autouse=True, scope="module")
def undeclared() -> Iterator[None]:
    """Instructions that a test declares, or a program that it loads, are gone for the next file."""
    yield
    atoms = sys.modules.get("tilemma.atoms")
    for atom in atoms.catalogue.declared() if atoms is not None else ():
        atoms.catalogue.withdraw(atom.name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        family = item.nodeid.partition("[")[0]
        if seen[family] % EVERY.get(family, 1):
            item.add_marker(pytest.mark.slow)
        seen[family] += family in EVERY
