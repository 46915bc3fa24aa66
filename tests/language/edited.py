"""Kernels of the language's tests with one token edited, and the outcome of each: a digest of the code, or
code, place, and facts of the error.

``edits/LANGUAGE.txt`` has, below ``== kernel``, the edits of a kernel: ``line:column `old` => `new` ``, and indented
their outcome.  The sentences of the error are not in it.  After a change of an error or of a kernel,
``python tests/language/edited.py`` writes the files: read the difference.
"""

# ruff: noqa: E402
from __future__ import annotations

import ast
import hashlib
import io
import json
import linecache
import re
import sys
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [x for x in (str(ROOT), str(Path(__file__).parent)) if x not in sys.path]

from construct import FILES, cases

from dev.fuzz import mutate_croqtile
from dev.fuzz.mutate_python import HEADER
from tilemma import croqtile
from tilemma.compiler import Compiled
from tilemma.errors import Span, TilemmaError
from tilemma.kernels import Kernel

CASES = cases(*(file for file in FILES if file != "reductions"))
FOLDER = Path(__file__).parent / "edits"
ARCH = "sm_90a"
# Need more than their text.
NOT_ALONE = ("macros", "helpers")
# The path of a source file differs on each machine.
_FILE = re.compile(r"^\.file.*$", re.M)
_EDIT = re.compile(r"(\d+):(\d+) `(.*)` => `(.*)`")


@dataclass(frozen=True)
class Edit:
    line: int
    column: int
    old: str
    new: str

    def applied(self, text: str) -> str | None:
        """The edited text; None where ``text`` has something else there."""
        lines = text.split("\n")
        if self.line > len(lines):
            return None
        line, start = lines[self.line - 1], self.column - 1
        if not line.startswith(self.old, start):
            return None
        lines[self.line - 1] = line[:start] + self.new + line[start + len(self.old) :]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.line}:{self.column} `{self.old}` => `{self.new}`"


@cache
def programs(language: str) -> dict[str, str]:
    """The kernels that are edited: name -> text."""
    if language == "co":
        seeds = {f"seed{n}": text.strip("\n") for n, text in enumerate(mutate_croqtile.SEEDS)}
        return seeds | {c.name: dedent(c.co).strip("\n") for c in CASES.values() if c.co is not None}
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name in CASES:
                name, node.name, node.decorator_list = node.name, "k", [ast.parse("tm.kernel", mode="eval").body]
                found[name] = HEADER + ast.unparse(node)
    return found


def outcome(language: str, text: str) -> str:
    """``compiled`` with a digest of IR, decisions and PTX; an error; or the name of an exception of Python."""
    found = []
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            for kernel in read(language, text):
                compiled = kernel.compile(ARCH)
                found += [compiled.ir, _FILE.sub("", compiled.ptx), str(without_names(compiled))]
                found += [f"{d} {d.data}" for d in compiled.decisions]
    except TilemmaError as e:
        return told(e)
    except Exception as e:
        return type(e).__name__
    return f"compiled {digest(' '.join(found))}"


def without_names(compiled: Compiled) -> dict[str, Any]:
    """The launch plans without their names of places in shared memory, which are for reports alone."""
    plans = [
        {k: v for k, v in plan.to_json().items() if k not in ("shared_names", "clustered", "joined")}
        for plan in compiled.launches
    ]
    found: dict[str, Any] = json.loads(json.dumps(plans[0] if len(plans) == 1 else {"launches": plans}))
    return found


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def read(language: str, text: str) -> list[Kernel]:
    if language == "co":
        return [Kernel(s) for s in croqtile.load(text, "edited.co", {}).sources.values()]
    linecache.cache["edited"] = (len(text), None, text.splitlines(keepends=True), "edited")
    scope: dict[str, Any] = {}
    exec(compile(text, "edited", "exec"), scope)
    return [scope["k"]]


def told(e: TilemmaError) -> str:
    facts = "; ".join(f"{k} = {_plain(v)}" for k, v in e.facts.items())
    notes = "".join(f" | note {_place(n.span)}" for n in e.notes)
    refusals = "".join(f" | {r.candidate}: {_plain(r.rule)}" for r in e.refusals)
    return f"{e.code} at {_place(e.span)}: {facts}{notes}{refusals}".rstrip()


def _place(span: Span | None) -> str:
    return f"{span.line}:{span.column}-{span.end_line}:{span.end_column}" if span else "nowhere"


def _plain(value: object) -> str:
    """A value; of a sentence the numbers and what stands in backquotes."""
    words = str(value).split()
    return " ".join(words if len(words) <= 3 else re.findall(r"`[^`]*`|-?\d+", str(value)))


@cache
def parse(language: str) -> dict[str, list[tuple[Edit, str]]]:
    """Kernel -> its edits with their outcomes."""
    found: dict[str, list[tuple[Edit, str]]] = {}
    for part in ("\n" + (FOLDER / f"{language}.txt").read_text(encoding="utf-8")).split("\n== ")[1:]:
        name, _, body = part.partition("\n")
        found[name] = []
        for edit, told in zip(*[iter(body.strip("\n").split("\n"))] * 2, strict=True):
            line, column, old, new = _EDIT.fullmatch(edit).groups()
            found[name].append((Edit(int(line), int(column), old, new), told.strip()))
    return found


def write(language: str, found: dict[str, list[tuple[Edit, str]]]) -> None:
    parts = []
    for name, edits in found.items():
        lines = (
            f"{edit}\n    {told}" for edit, told in sorted(edits, key=lambda x: (x[0].line, x[0].column, x[0].new))
        )
        parts.append("\n".join((f"== {name}", *lines)))
    (FOLDER / f"{language}.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def update() -> None:
    """Write both files again; edits of text that is no longer there are left out."""
    for language in ("co", "py"):
        texts, found = programs(language), {}
        for name, edits in parse(language).items():
            applied = [(edit, edit.applied(texts[name])) for edit, _ in edits if name in texts]
            found[name] = [(edit, outcome(language, text)) for edit, text in applied if text is not None]
        write(language, found)


if __name__ == "__main__":
    update()
