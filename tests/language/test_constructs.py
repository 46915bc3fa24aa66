"""Every construct computes what NumPy says: on the CPU reference, after all passes, and as PTX on the machine."""

from __future__ import annotations

import pytest
from construct import ARCHS, Case, cases

PYTHON = list(cases().values())
CROQTILE = [c for c in PYTHON if c.co is not None]


def name(x: object) -> str:
    return x.name if isinstance(x, Case) else str(x)


@pytest.mark.parametrize("case", PYTHON, ids=name)
def test_on_the_cpu(case: Case) -> None:
    case.on_cpu()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", PYTHON, ids=name)
def test_decided(case: Case, arch: str) -> None:
    if arch in case.archs:
        case.decided(arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", PYTHON, ids=name)
def test_on_the_machine(case: Case, arch: str) -> None:
    if arch in case.archs:
        case.on_machine(arch)


@pytest.mark.parametrize("case", CROQTILE, ids=name)
def test_croqtile(case: Case) -> None:
    """The other spelling gives the same IR, or the same results everywhere."""
    if case.twins():
        return
    other = case.croqtile_case()
    other.on_cpu()
    for arch in case.archs:
        other.decided(arch)
        other.on_machine(arch)
