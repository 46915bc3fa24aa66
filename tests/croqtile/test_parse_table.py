"""The parse table in the package is that of the grammar, and gives the same results as lark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lark
import pytest

import tilemma as tm
from dev.grammar_table import FILE, made, printed
from tilemma.croqtile import tables as table_module
from tilemma.croqtile.extract import extract
from tilemma.croqtile.lr import Leaf, Unexpected, evaluate, recognise
from tilemma.croqtile.parse import _fuse
from tilemma.croqtile.tables import StaleParseTable, tables
from tilemma.croqtile.tree import _Build

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.co"))
PLAIN = next(p for p in EXAMPLES if p.stem == "plain")
STATEMENTS = """
__co__ auto f(global f16 [M, ?] a, mdspan<2> s, stream q, int n) {
  ; mutable int x = 1, y{2}; shared event e[2] = ready; frag.f32 c[2]; mdspan<2> t: [n, |a|]; x += #n * -2 # 3;
  [[launch_bounds(2)]] parallel<q> {i, j} by [n, 2] : block, p by 4 : group-4(x)
    foreach k(1:-1), {u, v} in [2, 3] : unroll(4) { dma.copy.swiz<128> a.chunkat(i, _) => shared after f, g; }
  with z = {u, v} in [1, 2] where u <-> v { if (a.at(0) < 1 || !true) x++; else while (call f<1>()) break; }
  ma = mma.load.swiz<64> a.subspan(1, 2 : 3, 4).at(_, i); mma.row.row c, ma; wait<3> e[0]; trigger e after f;
  assert(x == (y), "a" "b"); println!("x", sizeof(n)); return x ? y : 1.5f;
}
"""


class Shape:
    """A builder that only says which rule had which children, and the tokens it covers."""

    def __getattr__(self, name: str) -> Any:
        return lambda reach, children: (name, reach.first, reach.last, children)


class Oracle:
    """lark's own parser of the same grammar."""

    def __init__(self) -> None:
        class Fed(lark.lexer.Lexer):
            def __init__(self, conf: Any) -> None:
                pass

            def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[lark.Token]:
                raise NotImplementedError

        text = FILE.with_name("grammar.lark").read_text(encoding="utf-8")
        self.parser = lark.Lark(text, lexer=Fed, parser="lalr", maybe_placeholders=True, propagate_positions=True)

    def shape(self, terminals: list[str]) -> Any:
        state: Any = self.parser.parse_interactive()
        for i, terminal in enumerate(terminals):
            state.feed_token(lark.Token(terminal, "", i, 1, 1, end_pos=i + 1))
        return _shape(state.feed_eof(lark.Token("$END", "", len(terminals))))

    def accepted(self, terminals: list[str]) -> set[str]:
        state: Any = self.parser.parse_interactive()
        with pytest.raises(lark.UnexpectedToken):
            for i, terminal in enumerate([*terminals, "$END"]):
                state.feed_token(lark.Token(terminal, "", i, 1, 1))
        return set(state.accepts())


def _shape(x: Any) -> Any:
    if isinstance(x, lark.Tree):
        first, last = (-1, -1) if x.meta.empty else (x.meta.start_pos, x.meta.end_pos - 1)
        return (str(x.data), first, last, [_shape(c) for c in x.children])
    return x if x is None else x.start_pos


def _plain(x: Any) -> Any:
    if isinstance(x, Leaf):
        return x.place
    return (*x[:3], [_plain(c) for c in x[3]]) if isinstance(x, tuple) else x


def _terminals(text: str) -> list[list[str]]:
    return [[t for t, _ in _fuse(tokens)] for tokens in extract(text, "t.co", {}).kernels]


def _run(terminals: list[str]) -> Any:
    leaves = []
    for i, terminal in enumerate(terminals):
        leaf = Leaf("")
        leaf.place, leaf.type = i, terminal
        leaves.append(leaf)
    return _plain(evaluate(tables(), recognise(tables(), terminals), leaves, Shape()))


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def test_table_is_the_grammars() -> None:
    assert FILE.read_text(encoding="utf-8") == printed(made()), "run python -m dev.grammar_table"


def test_a_table_of_another_grammar_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernel = tmp_path / "k.co"
    kernel.write_text("__co__ void f(global f32 [N] x) { parallel p by 1 : block { x.at(0) = 1.0f; } }")
    monkeypatch.setattr(table_module, "grammar", lambda: "another")
    tables.cache_clear()
    try:
        with pytest.raises(StaleParseTable) as e:
            tm.load(kernel)
    finally:
        tables.cache_clear()
    assert "python -m dev.grammar_table" in e.value.render()


def test_files_are_read_without_lark(tmp_path: Path) -> None:
    """It is an extra of developers."""
    code = f"""
import sys
sys.modules["lark"] = None
import tilemma as tm
print(tm.load({str(PLAIN)!r}).only().compile("sm_80").ptx[:8])
"""
    environment = {**os.environ, "TILEMMA_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_parse_as_lark_parses_them(oracle: Oracle, path: Path) -> None:
    for terminals in _terminals(path.read_text(encoding="utf-8")):
        assert _run(terminals) == oracle.shape(terminals)


def test_every_statement_parses_as_lark_parses_it(oracle: Oracle) -> None:
    (terminals,) = _terminals(STATEMENTS)
    assert _run(terminals) == oracle.shape(terminals)


@pytest.mark.parametrize("dropped", range(0, 240, 7))
def test_what_may_stand_instead(oracle: Oracle, dropped: int) -> None:
    (terminals,) = _terminals(STATEMENTS)
    wrong = [*terminals[:dropped], "BINDS", *terminals[dropped:]]
    with pytest.raises(Unexpected) as problem:
        recognise(tables(), wrong)
    assert problem.value.accepted == oracle.accepted(wrong)


def test_every_rule_has_a_builder() -> None:
    unused = {"start"}  # always stands for its only child
    names = {r.name for r in tables().rules if not r.part and not (r.inline and len(r.kept) == 1)}
    assert {n for n in names - unused if not hasattr(_Build, n)} == set()
