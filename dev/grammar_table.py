"""Generates the parse table of the `.co` language: ``python -m dev.grammar_table``.

lark (of the `dev` extra) makes it.  It needs a third of a second, more than the rest of a compilation; reading
`grammar.json` takes a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lark
from lark.parsers.lalr_analysis import Shift

from tilemma.croqtile import tables
from tilemma.croqtile.tables import Row, grammar, identity

FILE = Path(tables.__file__).with_name("grammar.json")


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

    class Fed(lark.lexer.Lexer):
        """Tokens come from elsewhere."""

        def __init__(self, conf: Any) -> None:
            pass

        def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[lark.Token]:
            raise NotImplementedError

    text = grammar()
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
    return {
        "grammar": identity(text),
        "end": end,
        "punctuation": dict(sorted((t.pattern.value, t.name) for t in parser.terminals)),
        "rules": rules,
        "states": [" ".join(f"{symbol} {action}" for symbol, action in row.items()) for row in rows],
    }


def printed(data: dict[str, Any]) -> str:
    """The text of `grammar.json`: a rule or a state on each line."""
    lines = []
    for key, value in data.items():
        long = key in ("rules", "states")
        body = ",\n".join(json.dumps(x, separators=(",", ":")) for x in value) if long else ""
        lines.append(f'"{key}":' + (f"[\n{body}\n]" if long else json.dumps(value, separators=(",", ":"))))
    return "{" + ",\n".join(lines) + "}\n"


def main() -> int:
    FILE.write_text(printed(made()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
