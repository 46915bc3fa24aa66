"""The table of constant operands in docs/language.md, from `tilemma.ir.constructs`.

Run ``python -m dev.pages.operands`` after an operand was added or changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tilemma.ir.constructs import CHOICES, OPERANDS

PATH = Path(__file__).resolve().parents[2] / "docs" / "language.md"
_BLOCK = re.compile(r"(<!-- operands -->\n).*?(<!-- /operands -->\n)", re.S)


def table() -> str:
    rows = ["| Croqtile | Python | N | |", "|---|---|---|---|"]
    for o in OPERANDS.values():
        forms = " | ".join(f"`{form}`" if form else "" for form in (o.croqtile, o.python))
        limit = "" if o.total is None else f"; at most {o.total} in all"
        rows.append(f"| {forms} | {o.wanted}{limit} | {o.meaning} |")
    for c in CHOICES.values():
        words = ", ".join(f"`{w}`" for w in c.words)
        rows.append(f"| `{c.croqtile}` | `{c.python}` | W is one of {words} | {c.meaning} |")
    return "\n".join(rows) + "\n"


def updated(page: str) -> str:
    """``page`` with the table as it has to be."""
    assert _BLOCK.search(page), "the page has no place for the table"
    return _BLOCK.sub(lambda m: m[1] + table() + m[2], page)


def main() -> int:
    PATH.write_text(updated(PATH.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
