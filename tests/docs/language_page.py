"""docs/language.md as data: its programs, each in one or both languages with what it computes.

A program is a ``co`` block, a ``python`` block, or one after the other, followed by a line

    Given `a = f32(5)`, it computes `b = a * 2`.

In it arrays are in float64, parameters that are only written are left out, and further names may be given for the
expression.  At its end may stand ``within `1e-6` `` (of the largest magnitude) and ``on `sm_90a` ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blocks import Block, blocks, run_python
from construct import ARCHS, Case, small, unwritten

from tilemma import croqtile, dtypes
from tilemma.kernels import Kernel

PATH = Path(__file__).resolve().parents[2] / "docs" / "language.md"
TEXT = PATH.read_text(encoding="utf-8")
_NAME = re.compile(r"__co__[^(]*?(\w+)\s*\(")
_GIVEN = re.compile(
    r"\n\n(?:Given (?P<given>`.*?`), it|It) computes (?P<wanted>`.*?`)(?: within `(?P<within>[^`]+)`)?"
    r"(?: on `(?P<arch>\w+)`)?\.\n",
    re.S,
)
_SPAN = re.compile(r"`([^`]+)`")


@cache
def programs() -> tuple[Case, ...]:
    return tuple(_programs())


def _programs() -> Iterator[Case]:
    scope: dict[str, Any] = {"__name__": "document"}
    waiting: list[Block] = []
    for block in blocks(TEXT):
        kernels_before = {k: v for k, v in scope.items() if isinstance(v, Kernel)}
        if block.language == "python":
            run_python(PATH, block, scope)
        elif block.language != "co":
            continue
        new = [v for k, v in scope.items() if isinstance(v, Kernel) and kernels_before.get(k) is not v]
        given = _GIVEN.match(TEXT, block.end)
        if block.language == "co" and not given:
            waiting.append(block)
        elif given:
            co = block.text if block.language == "co" else waiting.pop().text if waiting else None
            yield _case(new[-1] if new else None, co, given)
    assert not waiting, f"line {waiting[0].line}: a program without `Given`"


def _case(kernel: Kernel | None, co: str | None, line: re.Match[str]) -> Case:
    if kernel is None:
        assert co is not None
        *_, name = _NAME.findall(co)
        kernel = Kernel(croqtile.load(co, f"{name}.co").sources[name])
    scope: dict[str, Any] = {"np": np, **{n: _maker(n) for n in dtypes.names()}}
    given = {}
    for assignment in _SPAN.findall(line["given"] or ""):
        name, value = assignment.split(" = ", 1)
        given[name] = eval(value, scope | given)
    results = [a.split(" = ", 1) for a in _SPAN.findall(line["wanted"])]

    def expect(**values: Any) -> dict[str, Any]:
        values = {k: _exact(v) if isinstance(v, np.ndarray) else v for k, v in values.items()}
        found: dict[str, Any] = {}
        for name, text in results:
            found[name] = np.asarray(eval(text, scope | values | found))
        return {name: v.astype(types[name].numpy) for name, v in found.items()}

    constants = {k: given.pop(k) for k in list(given) if k in kernel.source.constants}
    ir = kernel.traced(**constants)
    types = {p.buffer.name: p.buffer.dtype for p in ir.arrays}
    names = {*types, *(p.scalar.name for p in ir.scalars)}
    scope |= {name: given.pop(name) for name in list(given) if name not in names}
    shapes = {name: v.shape for name, v in expect(**given).items()}
    given |= {name: unwritten(types[name].name, *shape) for name, shape in shapes.items() if name not in given}
    archs = (line["arch"],) if line["arch"] else ARCHS
    return Case(kernel.name, kernel, given, expect, co, archs, float(line["within"] or 0), constants)


def _maker(dtype: str) -> Any:
    seeds = iter(range(1000))
    return lambda *shape: small(dtype, *shape, seed=next(seeds))


def _exact(a: Any) -> Any:
    return a if a.dtype.kind in "iub" else a.astype(np.float64)


def section(title: str) -> str:
    """The text under the heading ``title``."""
    return TEXT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def refused() -> list[str]:
    """The programs of "Not built yet", each in the kernel that the section shows."""
    text = section("Not built yet")
    kernel = next(b.text for b in blocks(text))
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    fragments = [f for row in rows for f in _SPAN.findall(row)]
    return [f if "__co__" in f else kernel.replace("...", f) for f in fragments]


def code() -> str:
    """All code of the page, inline and in blocks."""
    text = TEXT.replace("<code>", "`").replace("</code>", "`").replace("&#124;", "|")
    inline = _SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    return "\n".join([*inline, *(b.text for b in blocks(text))])
