"""The parse table of the grammar: kept in `grammar.json`, run by `lr`.

After a change of `grammar.lark` it is made anew, by `dev.grammar_table`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from tilemma.errors import ToolError
from tilemma.records import record

# State by terminal or rule: where a shift goes, or -1 - r to reduce by rule r.
Row: TypeAlias = dict[str, int]


@record
class Rule:
    """``origin`` := ``size`` symbols.  ``name``: the alias if there is one, what its value is built by.

    ``kept``: the symbols that become children, as (place, whether its own children stand for it, how many
    children left out come before); ``left_out`` more are missing at the end.  ``inline``: a single child stands
    for the rule itself.  ``part``: its children belong to the rule it stands in.
    """

    origin: str
    name: str
    size: int
    kept: Sequence[tuple[int, bool, int]]
    left_out: int
    inline: bool
    part: bool

    @property
    def passes_on(self) -> bool:
        """Its value is that of its only symbol, whatever that is: nothing happens."""
        return self.inline and self.size == 1 and [*map(tuple, self.kept)] == [(0, False, 0)] and not self.left_out


class Rows(dict[int, Row]):
    """The row of each state, made of its text when it is first met: a kernel meets every third one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def __missing__(self, state: int) -> Row:
        words = self._texts[state].split()
        row = self[state] = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return row


@record
class Tables:
    """``states``: the row of each state, the first is where a text begins; ``end`` the state after a whole text.

    ``reductions``: (size, origin, whether it passes on) of each rule.  ``punctuation``: terminal of each text
    that the grammar quotes.
    """

    end: int
    states: Rows
    rules: tuple[Rule, ...]
    reductions: tuple[tuple[int, str, bool], ...]
    punctuation: dict[str, str]


class StaleParseTable(ToolError):
    code = "stale-parse-table"
    found = "`grammar.json`, the parse table of `.co` files, was not made from this `grammar.lark`"
    expected = "the table of the grammar beside it"
    fix = "run, where lark is installed: python -m dev.grammar_table"


def grammar() -> str:
    return Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")


def identity(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def tables() -> Tables:
    """The table of `grammar.lark`; StaleParseTable where `grammar.json` belongs to another text of it."""
    data = json.loads(Path(__file__).with_name("grammar.json").read_bytes())
    if data["grammar"] != identity(grammar()):
        raise StaleParseTable()
    rules = tuple(Rule(*fields) for fields in data["rules"])
    reductions = tuple((r.size, r.origin, r.passes_on) for r in rules)
    return Tables(data["end"], Rows(data["states"]), rules, reductions, data["punctuation"])
