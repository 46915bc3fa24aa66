"""docs/language.md: its programs compute the documented results, in both languages, on every target."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest
from construct import ARCHS, Case
from language_page import code, programs, refused

import tilemma as tm
from tilemma import croqtile
from tilemma.compiler import compile_kernel
from tilemma.croqtile import ast
from tilemma.croqtile.contraction import FIRST
from tilemma.croqtile.copies import OPTIONS, WHAT
from tilemma.croqtile.node import Node
from tilemma.croqtile.preprocess import DIRECTIVES
from tilemma.croqtile.reader import FUNCTIONS
from tilemma.croqtile.views import TILE_MEMBERS
from tilemma.croqtile.words import FOREIGN, OPERATORS, WORDS
from tilemma.errors import CompileError
from tilemma.ir.canonical import canonical
from tilemma.ir.printer import print_kernel
from tilemma.lang.registers import Fragment
from tilemma.lang.scalars import Value, Variable
from tilemma.lang.views import EventHandle, FutureHandle, Subspan, TileValue, Window


def name(x: object) -> str:
    return x.name if isinstance(x, Case) else str(x)


@pytest.mark.parametrize("case", programs(), ids=name)
def test_the_reference_computes_it(case: Case) -> None:
    case.on_cpu()


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("case", programs(), ids=name)
def test_the_compiler_and_the_machine_compute_it(case: Case, arch: str) -> None:
    if arch in case.archs:
        case.decided(arch)
        case.on_machine(arch)


@pytest.mark.parametrize("case", [c for c in programs() if c.co is not None], ids=name)
def test_both_spellings_give_the_same(case: Case) -> None:
    one = case.croqtile().build(sizes=case.sizes)
    other = case.kernel.build(sizes=case.sizes, **case.constants)
    assert canonical(one) == canonical(other), f"{print_kernel(one)}\n{print_kernel(other)}"


@pytest.mark.parametrize("text", refused())
def test_what_is_not_built_is_refused_by_name(text: str) -> None:
    with pytest.raises(CompileError) as e:
        for source in croqtile.load(text, "refused.co").sources.values():
            compile_kernel(source.build({}), "sm_90a")
    assert e.value.code in ("not-built-yet", "not-built"), str(e.value)


def test_every_kind_of_syntax_is_there() -> None:
    """Each node of the syntax tree is in some program of the page."""
    seen: set[type] = set()
    for text in (*(c.co for c in programs() if c.co), *refused()):
        try:
            sources = croqtile.load(text, "page.co").sources.values()
        except CompileError:
            continue
        stack: list[object] = [s.function for s in sources]
        while stack:
            node = stack.pop()
            if isinstance(node, tuple):
                stack += node
            elif isinstance(node, Node):
                seen.add(type(node))
                stack += vars(node).values()
    every = {c for c in vars(ast).values() if isinstance(c, type) and issubclass(c, Node)}
    assert every - seen <= {Node, ast.Expr, ast.Statement}


def test_every_word_of_croqtile_is_there() -> None:
    page = code()
    words = set(re.findall(r"[A-Za-z_]\w*!?", page))
    wanted = {*WORDS, *FOREIGN, *DIRECTIVES, *FUNCTIONS, *TILE_MEMBERS, *FIRST, *OPTIONS, *WHAT}
    assert wanted - words == set()
    assert {o for o in OPERATORS if o not in page} == set()


def members() -> Iterator[tuple[str, object]]:
    """The public names of the language in Python: functions, and the members of what they give."""
    for names in tm._LANGUAGE.values():
        yield from ((n, getattr(tm, n)) for n in names)
    for owner in (tm.dma, tm.mma, tm.mma.row.row, tm.sync, tm.atomic, tm.math):
        yield from ((n, getattr(owner, n)) for n in getattr(owner, "__all__", dir(owner)) if not n.startswith("_"))
    for kind in (TileValue, Subspan, Window, FutureHandle, EventHandle, Value, Variable, Fragment):
        yield from (
            (n, m) for n, m in vars(kind).items() if not n.startswith("_") and not inspect.ismemberdescriptor(m)
        )


# Of the objects that a kernel handles, what other modules of the front end use.
INTERNAL = {"annotations", "tile", "place", "expr", "bounded", "article", "ref", "fragment", "is_array", "known"}


def test_every_name_of_python_is_there() -> None:
    page = code()
    words = set(re.findall(r"\w+", page))
    found = dict(members())
    assert {n for n in found if n not in words} <= INTERNAL
    assert {n for n in tm.__all__ if n not in words} == set()
    keywords = {
        p.name
        for f in (*found.values(), tm.print)
        if inspect.isroutine(f)
        for p in inspect.signature(f).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    assert {k for k in keywords if f"{k}=" not in page} == set()
