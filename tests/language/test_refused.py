"""What the compiler says about wrong programs, word by word."""

from __future__ import annotations

import re

import pytest
from refused import bodies, recorded, told

from tilemma.errors import singular

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


@pytest.mark.parametrize("language", ["co", "py"])
def test_one_thing_is_in_the_singular(language: str) -> None:
    plural = re.compile(r"(?<![\w.+*/=-])1 (argument|number|element|dimension|value|lane|thread|byte|instance)s\b")
    assert [found[0] for text in recorded(language) for found in plural.finditer(text)] == []


def test_singular() -> None:
    assert singular("1 arguments, 2 arguments, 21 arguments, 1.1 bytes, -1 bytes") == (
        "1 argument, 2 arguments, 21 arguments, 1.1 bytes, -1 bytes"
    )
    assert singular("warp 1 lanes 0-3") == "warp 1 lanes 0-3"
    assert singular("1 copies of 1 batches") == "1 copy of 1 batch"
