"""The parse table of the grammar: made by lark, kept in `grammar.json`, run by `lr`.

lark needs a third of a second for the table, more than the rest of a compilation; reading the file takes a
few milliseconds.  After a change of `grammar.lark`::

    python -m tilemma.tools.grammar_table
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

# State by terminal or rule: where a shift goes, or -1 - r to reduce by rule r.
Row: TypeAlias = dict[str, int]


@dataclass(frozen=True, slots=True)
class Rule:
    """``origin`` := ``size`` symbols.  ``name``: the alias if there is one, what its value is built by.

    ``kept``: the symbols that become children, as (place, whether its own children stand for it, how many
    children left out come before); ``left_out`` more are missing at the end.  ``inline``: a single child stands
    for the rule itself.  ``part``: its children belong to the rule it stands in.
    """

    origin: str
    name: str
    size: int
    kept: tuple[tuple[int, bool, int], ...]
    left_out: int
    inline: bool
    part: bool


@dataclass(frozen=True, slots=True)
class Tables:
    """``states``: the row of each state, the first is where a text begins; ``end`` the state after a whole text.

    ``punctuation``: terminal of each text that the grammar quotes."""

    end: int
    states: tuple[Row, ...]
    rules: tuple[Rule, ...]
    punctuation: dict[str, str]


def _text() -> str:
    return files("tilemma.croqtile").joinpath("grammar.lark").read_text(encoding="utf-8")


def _identity(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(rule: Any) -> tuple[list[tuple[int, bool, int]], int]:
    """What lark's `[...]` leaves out: True in ``empty_indices`` stands for a child that is None."""
    marks, kept, missing = list(rule.options.empty_indices or ()), [], 0
    for place, symbol in enumerate(rule.expansion):
        while marks and marks.pop(0):
            missing += 1
        if not (symbol.is_term and symbol.filter_out):
            kept.append((place, not symbol.is_term and symbol.name.startswith("_"), missing))
            missing = 0
    return kept, missing + sum(marks)


def _ordered(rules: Any) -> list[Any]:
    return sorted(rules, key=lambda r: (str(r.origin.name), str(r.alias), [str(x.name) for x in r.expansion]))


def _rows(table: Any, rules: list[Any]) -> tuple[list[Row], int]:
    """The rows in the order in which the states are reached from the first, and the last state's number."""
    from lark.parsers.lalr_analysis import Shift

    number = {rule: i for i, rule in enumerate(rules)}
    reached = {table.start_states["start"]: 0}
    rows = []
    for state in (queue := list(reached)):
        row = {}
        for symbol, (action, arg) in sorted(table.states[state].items()):
            if action is Shift and arg not in reached:
                reached[arg] = len(reached)
                queue.append(arg)
            row[str(symbol)] = reached[arg] if action is Shift else -1 - number[arg]
        rows.append(row)
    return rows, reached[table.end_states["start"]]


def made() -> dict[str, Any]:
    """The table as JSON-ready data, from `grammar.lark`."""
    import lark

    class Fed(lark.lexer.Lexer):
        """Tokens come from elsewhere."""

        def __init__(self, conf: Any) -> None:
            pass

        def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[lark.Token]:
            raise NotImplementedError

    text = _text()
    parser = lark.Lark(text, parser="lalr", lexer=Fed, maybe_placeholders=True, start="start")
    machine: Any = parser.parser.parser
    ordered = _ordered(parser.rules)
    rules = []
    for rule in ordered:
        kept, left_out = _kept(rule)
        origin = str(rule.origin.name)
        inline = bool(rule.options.expand1) and not rule.alias
        name = str(rule.alias or origin)
        rules.append([origin, name, len(rule.expansion), kept, left_out, inline, origin.startswith("_")])
    rows, end = _rows(machine._parse_table, ordered)
    distinct = list({json.dumps(row): row for row in rows}.values())
    return {
        "grammar": _identity(text),
        "end": end,
        "punctuation": dict(sorted((t.pattern.value, t.name) for t in parser.terminals)),
        "rules": rules,
        "rows": distinct,
        "states": [distinct.index(row) for row in rows],
    }


def printed(data: dict[str, Any]) -> str:
    """The text of `grammar.json`: a rule or a row on each line."""
    lines = []
    for key, value in data.items():
        long = key in ("rules", "rows")
        body = ",\n".join(json.dumps(x, separators=(",", ":")) for x in value) if long else ""
        lines.append(f'"{key}":' + (f"[\n{body}\n]" if long else json.dumps(value, separators=(",", ":"))))
    return "{" + ",\n".join(lines) + "}\n"


@cache
def tables() -> Tables:
    """The table of `grammar.lark`; made anew, slowly, where `grammar.json` belongs to another text of it."""
    data = json.loads(files("tilemma.croqtile").joinpath("grammar.json").read_bytes())
    if data["grammar"] != _identity(_text()):
        data = made()
    rules = tuple(
        Rule(origin, name, size, tuple((i, e, n) for i, e, n in kept), left_out, inline, part)
        for origin, name, size, kept, left_out, inline, part in data["rules"]
    )
    rows = data["rows"]
    states = tuple(rows[i] for i in data["states"])
    return Tables(data["end"], states, rules, data["punctuation"])
