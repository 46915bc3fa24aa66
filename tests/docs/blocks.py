"""The fenced blocks of a document, and its Python run in one namespace."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """``line``: of its first line in the document, from 1.  ``start`` and ``end``: where the fences stand."""

    language: str
    text: str
    line: int
    start: int
    end: int


def blocks(document: str) -> Iterator[Block]:
    for m in _FENCE.finditer(document):
        yield Block(m[1], m[2], document[: m.start(2)].count("\n") + 1, m.start(), m.end())


def run_python(path: Path, block: Block, scope: dict[str, Any]) -> None:
    """Execute a Python block; its lines keep the document's numbers."""
    source = "\n" * (block.line - 1) + block.text
    name = f"{path}#{block.line}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), scope)
