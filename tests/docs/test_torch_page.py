"""The examples of docs/torch.md, executed on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch.md"


def test_the_examples_run() -> None:
    import tilemma.torch  # noqa: F401
    from tilemma.torch.operators import TABLE

    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    # Every operator for users is described.
    assert all(f"| `{name}` |" in page for name in TABLE if name != "grouped_outer")
