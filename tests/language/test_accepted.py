"""Small programs become the tile IR that is recorded, and compute the recorded elements on the CPU."""

from __future__ import annotations

import pytest
from accepted import PROGRAMS, kernel_of, recorded, told

AGAIN = "python tests/language/accepted.py writes the files: read the difference"


@pytest.mark.parametrize("language", ["co", "py"])
def test_every_program_has_an_entry(language: str) -> None:
    assert len(recorded(language)) == len(PROGRAMS[language]), AGAIN


@pytest.mark.parametrize(("language", "n"), [(x, n) for x, bodies in PROGRAMS.items() for n in range(len(bodies))])
def test_programs(language: str, n: int) -> None:
    assert told(kernel_of(language, n)) == recorded(language)[n], AGAIN
