"""Every Python block of README and docs runs, in order, one document in one namespace."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import Block, blocks, run_python

ROOT = Path(__file__).resolve().parents[2]


def python_blocks(path: Path) -> list[Block]:
    return [b for b in blocks(path.read_text(encoding="utf-8")) if b.language == "python"]


DOCUMENTS = sorted(p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")) if python_blocks(p))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.name == "torch.md":
        pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(ROOT)
    scope: dict[str, object] = {"__name__": "document"}
    for block in filter(lambda b: b.runs, python_blocks(path)):
        run_python(path, block, scope)
