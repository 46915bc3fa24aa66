"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones.

Of the families of cases in `sampling.EVERY`, a run takes one of two, three, .. cases; the others are slow.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Hashable, Iterator

import pytest
from hypothesis import settings

from tests.sampling import EVERY, daily

# A change must not fail for an example that the change has nothing to do with: new examples belong to the
# nightly run.  Deadlines measure the machine, not the code.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=40)
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
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        family = item.nodeid.partition("[")[0]
        if family in EVERY and not item.get_closest_marker("slow"):
            families.setdefault(family, []).append(item)
    for family, cases in families.items():
        taken = daily([parameters(item) for item in cases], EVERY[family])
        for position, item in enumerate(cases):
            if position not in taken:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """The cases and imported modules live as long as the run: the collector need not visit them each time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def parameters(item: pytest.Item) -> list[Hashable]:
    """The values of a case."""
    callspec = getattr(item, "callspec", None)
    return [hashable(x) for x in callspec.params.values()] if callspec else []


def hashable(value: object) -> Hashable:
    """The value; its identity, if it has no hash."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
