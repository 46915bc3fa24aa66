"""The parse table of the `.co` language, made anew: ``python -m tilemma.tools.grammar_table``."""

from __future__ import annotations

from pathlib import Path

from tilemma.croqtile import tables

FILE = Path(tables.__file__).with_name("grammar.json")


def main() -> int:
    FILE.write_text(tables.printed(tables.made()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
