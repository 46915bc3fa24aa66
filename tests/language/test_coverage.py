"""What the constructs' cases reach of both languages: a form that no case uses is a gap here, or refused by name."""

from __future__ import annotations

import ast as python
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from construct import FILES, cases

import tilemma as tm
from tilemma import croqtile
from tilemma.croqtile import ast
from tilemma.croqtile.copies import OPTIONS as COPY_OPTIONS
from tilemma.croqtile.extract import extract
from tilemma.croqtile.node import Node
from tilemma.croqtile.parse import parse
from tilemma.croqtile.reader import FUNCTIONS, readers
from tilemma.croqtile.tokens import tokens
from tilemma.croqtile.views import TILE_MEMBERS
from tilemma.croqtile.words import OPERATORS, WORDS
from tilemma.errors import CompileError
from tilemma.lang.atomics import AtomicNamespace

TESTS = Path(__file__).resolve().parents[1]
CASES = cases()
MODULES = [sys.modules[file] for file in FILES]
# Cases that say something about Python alone, or whose combination Python writes in fewer lines.
PYTHON_ONLY = {
    *("names_keep_their_values", "helpers", "arithmetic_of_rows"),
    *("chosen_columns", "scales_of_parts", "copies_in_branches"),
}
# Texts that are executed elsewhere: what is printed, asserted, returned, and pipelines.
ELSEWHERE = [
    TESTS / "language/test_diagnostics.py",
    TESTS / "language/test_named_barriers.py",
    TESTS / "language/test_small_floats.py",
    TESTS / "language/test_whole_program_forms.py",
    *sorted((TESTS / "pipelines").glob("test_*.py")),
    *sorted((TESTS.parent / "examples/co").glob("*.co")),
]
# What the grammar knows and tilemma refuses by name, with the error's code.
REFUSED = {
    "parallel p by 2 : device(gpu) {}": "wrong-value",
    "parallel p by 2 : term {}": "not-built-yet",
    "parallel p by 2 : block { with {x, y} in [2, 3] where x <-> y {} }": "wrong-value",
    "parallel p by 2 : block { yield; }": "not-built-yet",
    "parallel p by 2 : block { call g(p); }": "not-built-yet",
    "parallel p by 2 : block { dma.copy.sp a => shared; }": "not-built-yet",
    "parallel p by 2 : block { sync.global; }": "not-built-yet",
    "parallel p by 2 : block { sync.local; }": "not-built-yet",
    "parallel p by 2 : block { x = a.mdata; }": "not-built-yet",
    "parallel p by 2 : block { x = nullptr; }": "wrong-value",
}
REFUSED_WORDS = {
    "device", "term", "where", "yield", "call", "nullptr", "stream",
    "<->",
}  # fmt: skip
REFUSED_NODES = {"Yield", "CallStatement", "Nullptr", "SetRegisters"}
ABSTRACT = {"Node", "Expr", "Statement", "Ratio"}


def texts() -> Iterator[str]:
    """Every `.co` text that a test executes."""
    yield from (c.co for c in CASES.values() if c.co is not None)
    for path in ELSEWHERE:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".co":
            yield text
        else:
            strings = (n.value for n in python.walk(python.parse(text)) if isinstance(n, python.Constant))
            yield from (s for s in strings if isinstance(s, str) and "__co__" in s and "{" in s)


def nodes(x: object) -> Iterator[Node]:
    if isinstance(x, tuple):
        for y in x:
            yield from nodes(y)
    elif isinstance(x, Node):
        yield x
        for name in x.__match_args__:
            yield from nodes(getattr(x, name))


@pytest.fixture(scope="module")
def trees() -> list[Node]:
    found: list[Node] = []
    for text in texts():
        try:
            kernels = extract(text, "t.co", {}).kernels
            found += [n for k in kernels for n in nodes(parse(k))]
        except CompileError:
            continue  # a part of a text, completed where it is used
    return found


def test_every_file_of_cases_is_named() -> None:
    files = (p for p in Path(__file__).parent.glob("[!t]*.py") if "\n@construct(" in p.read_text(encoding="utf-8"))
    assert {p.stem for p in files} == set(FILES)


def test_every_case_has_both_spellings() -> None:
    assert {c.name for c in CASES.values() if c.co is None} == PYTHON_ONLY


def test_every_word_is_used() -> None:
    used = {t.text for text in texts() for t in tokens(text, "t.co")}
    types = {"TYPE"}
    words = {w for w, terminal in WORDS.items() if terminal not in types} | set(OPERATORS)
    # Parts of texts are f-strings; their words are in the fragments, or alone in strings.
    used |= {t.text.strip('"') for p in ELSEWHERE for t in tokens(p.read_text(encoding="utf-8"), "t.co")}
    assert words - used - REFUSED_WORDS == set()


def test_every_kind_of_node_is_used(trees: list[Node]) -> None:
    kinds = {n for n, c in vars(ast).items() if isinstance(c, type) and issubclass(c, Node)}
    used = {type(n).__name__ for n in trees}
    pipelines = {"Exchange"}  # built from parts
    assert kinds - used - REFUSED_NODES - ABSTRACT - pipelines == set()


def test_every_kind_of_node_has_a_reader() -> None:
    kinds = {c for c in vars(ast).values() if isinstance(c, type) and issubclass(c, (ast.Expr, ast.Statement))}
    assert kinds - readers() == {ast.Expr, ast.Statement}


def test_every_member_and_function_is_used(trees: list[Node]) -> None:
    members = {n.name for n in trees if isinstance(n, ast.Member)}
    assert set(TILE_MEMBERS) - members == set()
    called = {n.function.text for n in trees if isinstance(n, ast.Call) and isinstance(n.function, ast.Name)}
    assert {*FUNCTIONS} - called == set()


def test_every_suffix_is_used(trees: list[Node]) -> None:
    copies = {s.name for n in trees if isinstance(n, ast.Copy) for s in n.suffixes}
    more = "".join(p.read_text(encoding="utf-8") for p in ELSEWHERE)
    copies |= {o for o in COPY_OPTIONS if f".{o}" in more}
    assert {"copy", "load", "transp", "pad", *COPY_OPTIONS} - copies - {"sp"} == set()
    mma = {s.name for n in trees if isinstance(n, ast.Mma) for s in n.suffixes}
    assert {"fill", "load", "row", "col", "store", "commit", "wait", "transp", "mask", "async", "order", "frag", "swiz",
            "f32", "f16"} - mma == set()  # fmt: skip


def test_every_public_name_is_used() -> None:
    """Of the kernel language in Python."""
    public = {n for n in tm.__all__ if n[0].islower()}
    tools = {"atoms", "dtypes", "kernel", "load", "machine", "ops", "sparse", "targets", "testing"}
    tools |= {"autotune", "bench", "export", "instruction", "quantize", "report"}
    source = "".join(inspect.getsource(m) for m in MODULES)
    source += "".join(p.read_text(encoding="utf-8") for p in (TESTS / "pipelines").glob("*.py"))
    source += "".join(p.read_text(encoding="utf-8") for p in (TESTS.parent / "examples/py").glob("*.py"))
    used = {n.id if isinstance(n, python.Name) else n.attr for n in python.walk(python.parse(source.replace("from __future__ import annotations", "")))
            if isinstance(n, (python.Name, python.Attribute))}  # fmt: skip
    # Python texts that are composed have these names in strings.
    strings = {n.value for n in python.walk(python.parse((TESTS / "language/test_small_floats.py").read_text("utf-8")))
               if isinstance(n, python.Constant)}  # fmt: skip
    assert public - used - strings - tools - {"assert_", "global_", "swap"} == set()
    operations = {n for n in vars(AtomicNamespace) if not n.startswith("_")}
    assert operations - used == set()


@pytest.mark.parametrize(("body", "code"), REFUSED.items())
def test_what_is_not_built_is_refused_by_name(body: str, code: str) -> None:
    with pytest.raises(CompileError) as caught:
        croqtile.load(f"__co__ void f(global f32 [8, 8] a) {{\n{body}\n}}", "t.co").kernels["f"]
    assert caught.value.code == code, caught.value.render()
    assert caught.value.span is not None and caught.value.span.line == 2
