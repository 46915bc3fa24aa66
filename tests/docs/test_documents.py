"""Every Python block of README and docs runs, in order, one document in one namespace."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
DOCUMENTS = sorted(
    p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")) if BLOCK.search(p.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_blocks_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = path.read_text(encoding="utf-8")
    scope: dict[str, object] = {"__name__": "document"}
    for i, match in enumerate(BLOCK.finditer(text)):
        first = text[: match.start(1)].count("\n")
        source = "\n" * first + match.group(1)
        name = f"{path}#{i}"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), scope)
