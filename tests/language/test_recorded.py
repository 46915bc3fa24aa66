"""Source positions and instructions of the language's kernels are those of the files."""

from __future__ import annotations

import pytest
from edited import programs
from recorded import instructions, positions, recorded

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
def test_instructions(entry: str) -> None:
    name, *archs = entry.split()
    for arch in archs:
        assert " ".join(instructions(name, arch).split()) == recorded("instructions")[entry], AGAIN
