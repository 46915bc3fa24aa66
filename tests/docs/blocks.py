"""The fenced blocks of a document, and its Python run in one namespace."""

from __future__ import annotations

import importlib.util
import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^(?:<!-- needs: (?P<needs>\w+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """``line``: of its first line in the document, from 1.  ``start`` and ``end``: where the fences stand.

    ``needs`` names a package without which the block is not run: `<!-- needs: triton -->` on the line before it.
    """

    language: str
    text: str
    line: int
    start: int
    end: int
    needs: str = ""

    @property
    def runs(self) -> bool:
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def blocks(document: str) -> Iterator[Block]:
    for m in _FENCE.finditer(document):
        line = document[: m.start("text")].count("\n") + 1
        yield Block(m["language"], m["text"], line, m.start(), m.end(), m["needs"] or "")


def run_python(path: Path, block: Block, scope: dict[str, Any]) -> None:
    """Execute a Python block; its lines keep the document's numbers."""
    source = "\n" * (block.line - 1) + block.text
    name = f"{path}#{block.line}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), scope)
