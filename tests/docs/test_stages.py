"""docs/architecture.md shows the present stages of its kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.pages.stages import document, stages

ROOT = Path(__file__).resolve().parents[2]
HINT = "rewrite it: python -m dev.pages.stages"


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return stages(ROOT)


@pytest.mark.parametrize("name", ["tile", "decided", "lane", "ptx", "plan"])
def test_stage_is_current(name: str, found: dict[str, str]) -> None:
    assert (ROOT / "docs/stages" / f"{name}.txt").read_text() == found[name], HINT


def test_page_is_current(found: dict[str, str]) -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert document(text, found) == text, HINT
