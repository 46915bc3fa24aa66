"""Kernels from text whose expected error is marked in it: «..» around what the caret must stand under."""

from __future__ import annotations

import linecache
import textwrap
from dataclasses import dataclass
from typing import Any

from tilemma.errors import Span
from tilemma.kernels import Kernel

HEADER = """\
import tilemma as tm
from tilemma import *
@tm.kernel
def k(a: tm.Global["f32", "M", "N"], b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], n: tm.Int, *, T=4):
"""
_COUNT = iter(range(10**9))


@dataclass(frozen=True)
class Marked:
    """``text`` without its marks, and where they stood (None: none)."""

    file: str
    text: str
    span: Span | None


def marked(body: str, header: str = HEADER) -> Marked:
    text = header + textwrap.indent(textwrap.dedent(body).strip("\n"), "    " if header else "") + "\n"
    file = f"<kernel {next(_COUNT)}>"
    start, end = text.find("«"), text.find("»")
    plain = text.replace("«", "").replace("»", "")
    if start < 0:
        return Marked(file, plain, None)
    first = text[:start].split("\n")
    last = text[:end].replace("«", "").split("\n")
    return Marked(file, plain, Span(file, len(first), len(first[-1]) + 1, len(last), len(last[-1]) + 1))


def run(program: Marked) -> dict[str, Any]:
    """The names that the text defines."""
    lines = program.text.splitlines(keepends=True)
    linecache.cache[program.file] = (len(program.text), None, lines, program.file)
    scope: dict[str, Any] = {"__name__": "kernels"}
    exec(compile(program.text, program.file, "exec"), scope)
    return scope


def kernel(program: Marked) -> Kernel:
    found: Kernel = run(program)["k"]
    return found
