"""Imports flow one way.  The table is the architecture; docs/architecture.md shows it as a picture."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "src" / "tilemma"

BASE = {"records", "errors", "dtypes", "launch"}
IR = BASE | {"layouts", "atoms", "ir"}
COMPILER = IR | {"passes", "lower", "targets", "assemble", "explain", "compiler"}
# What each top-level module or package may import, besides itself.
ALLOWED = {
    "records": set(),
    "errors": {"records"},
    "dtypes": {"records"},
    "launch": {"records"},
    "layouts": BASE,
    "atoms": BASE | {"layouts"},
    "cute": BASE | {"layouts", "atoms"},
    "testing": BASE | {"runtime"},
    "ir": IR - {"ir"},
    "lang": IR,
    "croqtile": IR,
    "passes": IR,
    "lower": IR | {"passes"},
    "targets": IR | {"lower", "passes"},
    "assemble": BASE,
    "runtime": BASE,
    "machine": BASE,
    "explain": IR | {"passes"},
    "compiler": COMPILER - {"compiler"},
    "recall": COMPILER | {"croqtile"},
    "kernels": COMPILER | {"recall", "lang", "croqtile", "runtime", "machine"},
}
TOP = {"ops", "tools", "cli", "__init__"}
MAX_LINES = 550


def imports(path: Path) -> set[str]:
    """Top-level modules of tilemma that the file imports, function bodies included, type checking excluded."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = ["tilemma", *package][: len(package) + 2 - node.level]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            names = [base] if base != "tilemma" else [f"tilemma.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("tilemma.")}
    return found


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if layer in TOP:
        return
    assert layer in ALLOWED, f"{layer} has no place in the layers"
    assert imports(path) - {layer} <= ALLOWED[layer]


def test_the_layers_have_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {m for m, needs in ALLOWED.items() if m not in done and needs <= done | {m}}
        assert ready, f"a cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready


def test_modules_of_the_tests_have_names_of_their_own() -> None:
    """Folders of tests stand in one search path: of two modules with one name, a test would import either."""
    names = Counter(p.stem for p in Path(__file__).parent.rglob("*.py") if p.stem != "conftest")
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "examples"])
def test_files_can_be_read_in_one_sitting(folder: str) -> None:
    root = Path(__file__).resolve().parents[1] / folder
    lengths = {str(p.relative_to(root)): p.read_text().count("\n") for p in root.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
