"""Source positions, instructions and digests of the language's kernels are those of the files."""

from __future__ import annotations

import pytest
from digests import random_digests, random_entries
from edited import programs
from library import entries, library_digests
from recorded import instructions, positions, recorded, traced

AGAIN = "python tests/language/recorded.py writes the files: read the difference"
POSITIONS = [(language, name) for language in ("co", "py") for name in recorded(f"positions_{language}")]


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, str]]:
    return {language: programs(language) for language in ("co", "py")}


@pytest.mark.parametrize(("language", "name"), POSITIONS)
def test_positions(language: str, name: str, texts: dict[str, dict[str, str]]) -> None:
    found = positions(language, texts[language][name])
    assert found == recorded(f"positions_{language}")[name], AGAIN


@pytest.mark.parametrize("entry", recorded("instructions"))
def test_instructions_and_digests(entry: str) -> None:
    name, *archs = entry.split()
    for arch in archs:
        of = traced(name, arch)
        assert str(of) == recorded("digests")[f"{name} {arch}"], AGAIN
        assert " ".join(instructions(of).split()) == recorded("instructions")[entry], AGAIN


@pytest.mark.parametrize("entry", random_entries())
def test_random_programs(entry: str) -> None:
    assert random_digests(entry) == recorded("random")[entry], AGAIN


@pytest.mark.parametrize("entry", entries())
def test_library(entry: str) -> None:
    assert library_digests(entry) == recorded("library")[entry], AGAIN
