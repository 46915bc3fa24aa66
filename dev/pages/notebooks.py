"""The notebooks of examples/notebooks, each from the Python file beside it: `python -m dev.pages.notebooks`.

A source has cells as `# %%` and `# %% [markdown]` separate them.  The cells run in one namespace, without Jupyter:
what a cell prints, and the value of its last expression, as text and as its ``_repr_html_``, become its outputs.
"""

from __future__ import annotations

import ast
import io
import json
import linecache
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
_SEPARATOR = re.compile(r"^# %%(?: \[(\w+)\])?\n", re.MULTILINE)
# Differs from run to run: folders for temporary files.
_FOLDER = re.compile(r"(?:/private)?/(?:tmp|var/folders)/[\w/.-]*?/(?=[\w.-]+\.(?:co|html)\b)")


def sources() -> list[Path]:
    return sorted(FOLDER.glob("*.py"))


def cells(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each cell: code, or Markdown without its comment signs."""
    parts = _SEPARATOR.split(text)
    found = []
    for kind, body in zip(parts[1::2], parts[2::2], strict=True):
        body = body.strip("\n")
        if kind == "markdown":
            body = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.split("\n"))
        found.append((kind or "code", body))
    return found


@contextmanager
def _beside() -> Iterator[None]:
    """As Jupyter does, cells run in the notebook's folder."""
    before = os.getcwd()
    os.chdir(FOLDER)
    try:
        yield
    finally:
        os.chdir(before)


def run(text: str, name: str) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, in nbformat's form; an exception of a cell is raised."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs: list[list[dict[str, Any]]] = []
    with _beside():
        for count, (kind, body) in enumerate(cells(text), 1):
            if kind != "markdown":
                outputs.append(_run_cell(body, f"<{name}, cell {count}>", namespace, len(outputs) + 1))
    return outputs


def _run_cell(body: str, file: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    # Where `inspect` looks for the source of a function that the cell defines, as IPython does.
    linecache.cache[file] = (len(body), None, body.splitlines(keepends=True), file)
    tree = ast.parse(body, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, file, "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def _lines(text: str) -> list[str]:
    return _FOLDER.sub("", text).splitlines(keepends=True)


def notebook(path: Path) -> dict[str, Any]:
    """The notebook of a source, executed, in nbformat 4.5."""
    text = path.read_text(encoding="utf-8")
    outputs = iter(run(text, path.stem))
    made, number = [], 0
    for index, (kind, body) in enumerate(cells(text)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{index}", "metadata": {}}
        if kind == "code":
            number += 1
            cell |= {"execution_count": number, "outputs": next(outputs)}
        made.append({**cell, "source": body.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    for path in sources():
        target = path.with_suffix(".ipynb")
        target.write_text(json.dumps(notebook(path), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(target.relative_to(ROOT), f"{target.stat().st_size >> 10} KiB", file=sys.stderr)


if __name__ == "__main__":
    main()
