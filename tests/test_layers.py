"""Imports flow one way.  The table is the architecture; docs/architecture.md shows it as a picture."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilemma.fingerprint import WITHOUT

ROOT = Path(__file__).resolve().parents[1] / "src" / "tilemma"

BASE = {"display", "records", "errors", "checked", "dtypes", "launch", "forking", "blas"}
IR = BASE | {"arithmetic", "layouts", "atoms", "ir"}
COMPILER = IR | {"passes", "targets", "assemble", "explain", "compiler", "fingerprint"}
# What each top-level module or package may import, besides itself.
ALLOWED = {
    "records": set(),
    "display": set(),
    "errors": {"records", "display"},
    "checked": {"records", "errors"},
    "bounded": set(),
    "forking": set(),
    "blas": {"forking"},
    "fingerprint": {"assemble"},
    "environment": {"forking"},
    "dtypes": {"records", "errors"},
    "launch": {"records", "errors", "dtypes", "arithmetic"},
    "arithmetic": {"records", "errors", "dtypes"},
    "layouts": BASE,
    "atoms": BASE | {"layouts"},
    "cute": BASE | {"layouts", "atoms"},
    "testing": BASE | {"runtime"},
    "sparse": BASE | {"arithmetic", "runtime"},
    "quantized": BASE | {"runtime"},
    "ir": IR - {"ir"},
    "lang": IR | {"environment"},
    "croqtile": IR,
    "passes": IR,
    "targets": IR | {"passes"},
    "assemble": BASE,
    "runtime": BASE | {"arithmetic", "bounded"},
    "machine": BASE | {"assemble"},
    "measure": IR | {"assemble", "bounded", "fingerprint", "runtime"},
    "explain": IR | {"passes"},
    "instructions": IR | {"machine"},
    "compiler": COMPILER - {"compiler"},
    "front_end_cache": COMPILER | {"croqtile"},
    "sources": {"errors"},
    "call_signature": {"errors", "lang"},
    "kernels": COMPILER
    | {
        "sources",
        "bounded",
        "call_signature",
        "forking",
        "environment",
        "front_end_cache",
        "lang",
        "croqtile",
        "runtime",
        "machine",
        "measure",
    },
}
ALLOWED["c_export"] = ALLOWED["kernels"] | {"kernels"}
ALLOWED["modules"] = ALLOWED["kernels"] | {"kernels"}
# Inside `targets/ptx`, in the order data passes them: each may import those before it.
PTX = ("target", "tensor_copies", "thread_values", "version", "passes", "lower", "printer")
TOP = {"ops", "torch", "tools", "cli", "__init__", "__main__"}
MAX_LINES = 550


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements inside ``node``, without what is there for type checkers alone."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            if not (isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING"):
                yield inner
                yield from statements(inner)


def imports(path: Path) -> set[str]:
    """Top-level modules of tilemma that the file imports, function bodies included, type checking excluded."""
    found = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in statements(ast.parse(path.read_text())):
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


def test_a_target_knows_no_other() -> None:
    for path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "targets" and len(parts) > 2:
            other = {"cpu", "ptx"} - {parts[1]}
            text = path.read_text()
            assert not any(f"tilemma.targets.{x}" in text for x in other), path


def test_the_layers_of_ptx_flow_one_way() -> None:
    for path in modules():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[:2] != ("targets", "ptx") or parts[2] == "__init__":
            continue
        assert parts[2] in PTX, f"{path} has no place in the layers of PTX"
        for found in re.findall(r"tilemma\.targets\.ptx(?:\.| import )(\w+)", path.read_text()):
            assert PTX.index(found) <= PTX.index(parts[2]), f"{path} imports {found}"


@pytest.mark.parametrize("folder", ["targets/ptx/lower", "targets/ptx/passes"])
def test_modules_of_ptx_import_each_other_without_circles(folder: str) -> None:
    """At the top of the file, and in an order: none waits inside a function for another to be there."""
    package = "tilemma." + folder.replace("/", ".")
    needs = {}
    for path in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_text())
        inner = [x for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for x in ast.walk(f)]
        assert not [x for x in inner if isinstance(x, ast.ImportFrom) and x.module != "math"], path
        found = [x.module for x in tree.body if isinstance(x, ast.ImportFrom) and x.module]
        if path.stem != "__init__":
            needs[path.stem] = {m.rsplit(".", 1)[1] for m in found if m.startswith(package + ".")}
    while needs:
        ready = {m for m, of in needs.items() if not of & set(needs)}
        assert ready, f"a circle among {sorted(needs)}"
        needs = {m: of for m, of in needs.items() if m not in ready}


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


@pytest.mark.parametrize("folder", ["src", "dev", "tests", "bench", "examples"])
def test_files_can_be_read_in_one_sitting(folder: str) -> None:
    root = Path(__file__).resolve().parents[1] / folder
    lengths = {str(p.relative_to(root)): p.read_text().count("\n") for p in root.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_package_does_without_development_code() -> None:
    """`dev` is not installed: nothing of the package imports it, and no generator is left inside."""
    for path in modules():
        text = path.read_text()
        # `pytest_fixture` is loaded by pytest alone; a file without any of the names is not parsed.
        if path.stem == "pytest_fixture" or not re.search(r"\b(?:dev|lark|hypothesis|pytest)\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] in ("dev", "lark", "hypothesis", "pytest") for n in names), path


def test_the_fingerprint_covers_the_compiler() -> None:
    """Nothing that compiling may import is left out of the key of what was compiled."""
    without = {name.removesuffix(".py") for name in WITHOUT}
    for layer in ("lang", "croqtile", "compiler", "front_end_cache"):
        assert not ALLOWED[layer] & without, layer
