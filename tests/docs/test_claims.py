"""Claims of README and docs outside Python blocks: commands, paths, and the types with multiplies on each
target."""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilemma as tm
from tilemma import dma, dtypes, mma, parallel, shared
from tilemma.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOLDERS = ("bench", "dev", "docs", "examples", "src", "tests")


def commands() -> list[tuple[str, str]]:
    """(page, command) of the README's list; docs/tutorial.md has its own test, which compares the output too."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [("README.md", line.strip()) for line in re.findall(r"^ {4}(tilemma .*)$", text, re.MULTILINE)]


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda x: x.split()[1] if " " in x else x)
def test_commands_run(page: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command, comments=True)[1:]
    if words[0] == "check":
        words += ["--schedules", "2"]
    if "--html" in words:
        words += ["-o", str(tmp_path / "page.html")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert result.output.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_exist(page: Path) -> None:
    """Files and folders that a page names, patterns among them, are there."""
    text = re.sub(r"--json \S+", "", page.read_text(encoding="utf-8"))  # written by the command that names it
    named = set(re.findall(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w./*-]*\w[\w*/]*)", text))
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = set(re.findall(r"\]\((?!https?:|#)([^)#]+)", prose))
    missing = [p for p in named if not list(ROOT.glob(p)) and not list(page.parent.glob(p))]
    missing += [p for p in links if not (page.parent / p).exists()]
    assert not missing, f"{page.name}: {sorted(missing)}"


# Names that the project no longer uses; docs/architecture.md and docs/machine.md have the terms in their place.
RETIRED = r"rehears\w*|skeletons?|slabs?|alike|whoever|nobody|everybody|somebody|ours|turns? of (?:a|the) loop"
GENERATED = ("errors.md", "hazards.md")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in GENERATED], ids=lambda p: p.name)
def test_pages_use_the_terms_of_the_field(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.findall(rf"\b(?:{RETIRED})\b", prose, re.IGNORECASE)


def prose_of(path: Path) -> str:
    """The docstrings and comments of a Python file, without quoted code."""
    text = path.read_text(encoding="utf-8")
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(n) or "" for n in ast.walk(ast.parse(text)) if isinstance(n, nodes)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found += [t.string for t in tokens if t.type == tokenize.COMMENT]
    return re.sub(r"`[^`]*`", "", "\n".join(found))


@pytest.mark.parametrize("folder", ["src", "dev", "bench", "examples"])
def test_sources_use_the_terms_of_the_field(folder: str) -> None:
    retired = re.compile(rf"\b(?:{RETIRED})\b", re.IGNORECASE)
    # Only a file that has such a word anywhere is parsed.
    paths = [p for p in ROOT.glob(f"{folder}/**/*.py") if retired.search(p.read_text(encoding="utf-8"))]
    words = {str(p): retired.findall(prose_of(p)) for p in paths}
    assert {name: found for name, found in words.items() if found} == {}


def test_modules_of_the_architecture_exist() -> None:
    """Files and folders that docs/architecture.md names without their root are in the package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_][\w/]*(?:\.py|/))`", text))
    known = {p.name for p in (ROOT / "src" / "tilemma").rglob("*.py")}
    missing = [
        n for n in named if not any((r / n).exists() for r in (ROOT, ROOT / "src" / "tilemma")) and n not in known
    ]
    assert len(named) > 40
    assert not missing


def test_the_architecture_names_every_module_at_the_top() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## The folders") : text.index("## Where to find each decision")]
    top = {p.name for p in (ROOT / "src" / "tilemma").glob("*.py")} - {"__init__.py"}
    folders = {p.parent.name + "/" for p in (ROOT / "src" / "tilemma").glob("*/__init__.py")}
    assert [name for name in top | folders if f"`{name}" not in table] == []


def multiplies(t: dtypes.DType, arch: str) -> bool:
    """Whether a multiply of elements of ``t`` runs there, into some accumulator."""
    level = "group-4" if arch == "sm_90a" else "group"

    @tm.kernel
    def product(a: tm.Global["T", 64, 64], c: tm.Global["C", 64, 64], *, T=t.name, C="f32"):
        for _ in parallel(1, level="block"):
            s, r = shared(T, 64, 64), shared(T, 64, 64)
            dma.copy(a, s)
            dma.copy(a, r)
            for _ in parallel(1, level=level):
                mc = mma.fill(0, C)
                mma.row.row(mc, mma.load(s), mma.load(r))
                mma.store(mc, c)

    for accumulator in ("f32", "f64", "s32"):
        try:
            if arch != "cpu":
                product.compile(arch, C=accumulator)
                return True
            a = np.random.default_rng(0).integers(0, 3, (64, 64)).astype(t.numpy)
            c = np.zeros((64, 64), dtypes.dtype(accumulator).numpy)
            product.on("cpu")(a, c, C=accumulator)
            return bool((c == a.astype(np.float64) @ a.astype(np.float64).T).all())
        except tm.CompileError:
            continue
    return False


def test_which_types_are_multiplied_where() -> None:
    """README, *Status*: types on every GPU from sm_80 on, on newer ones, and those that the CPU has besides."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    form = r"multiplies of (.*?) from sm_80 on, of (.*?) from sm_89 on, and on the CPU also of the other integers"
    found = re.search(form, text)
    assert found is not None
    stored = {"f6_e2m3", "f6_e3m2", "f4_e2m1"}  # docs/language.md: sm_120a alone multiplies them
    every = [t for t in dtypes.BY_NAME.values() if t.bits >= 8 and t.kind != "bool" and t.name not in stored]
    integers = {t.name for t in every if t.is_integer}
    first, newer = (set(re.findall(r"`(\w+)`", part)) for part in found.groups())
    for arch, wanted in (("sm_80", first), ("sm_89", first | newer), ("sm_90a", first | newer)):
        assert {t.name for t in every if multiplies(t, arch)} == wanted, arch
    assert {t.name for t in every if multiplies(t, "cpu")} == first | newer | integers
