"""What the compiler says about wrong programs, word by word."""

from __future__ import annotations

import pytest
from refused import bodies, recorded, told

AGAIN = "python tests/language/refused.py writes the files: read the difference"


@pytest.mark.parametrize("language", ["co", "py"])
def test_every_program_is_recorded(language: str) -> None:
    assert len(recorded(language)) == len(bodies(language)), AGAIN
    assert "compiled" not in recorded(language)


@pytest.mark.parametrize(
    ("language", "n"), [(language, n) for language in ("co", "py") for n in range(len(bodies(language)))]
)
def test_refusals(language: str, n: int) -> None:
    assert told(language, bodies(language)[n]) == recorded(language)[n], AGAIN
