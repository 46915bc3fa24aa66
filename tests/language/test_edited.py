"""Kernels with one token edited are refused with the same error at the same place as before."""

from __future__ import annotations

import pytest
from edited import outcome, parse, programs

EDITED = [(language, name) for language in ("co", "py") for name in parse(language)]


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, str]]:
    return {language: programs(language) for language in ("co", "py")}


@pytest.mark.parametrize(("language", "name"), EDITED)
def test_refusals(language: str, name: str, texts: dict[str, dict[str, str]]) -> None:
    for edit, told in parse(language)[name]:
        text = edit.applied(texts[language][name])
        assert text is not None, f"{name} has changed: run python tests/language/edited.py"
        assert outcome(language, text) == told, f"{name} {edit}"
