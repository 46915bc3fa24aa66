"""The tables of operands in docs/language.md, from `tilemma.ir.constructs`.

Run ``python -m dev.pages.operands`` after an operand was added or changed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tilemma.ir.constructs import CHOICES, CONSTRUCTS, KINDS, LIMITS, OPERANDS

PATH = Path(__file__).resolve().parents[2] / "docs" / "language.md"


def kinds() -> str:
    """The kinds of operands, and those of each construct; the functions of a library are one row."""
    rows = ["| operand | what it may be |", "|---|---|"]
    rows += [f"| {name} | {kind.wanted} |" for name, kind in KINDS.items()]
    rows += ["", "| Croqtile | Python | operands |", "|---|---|---|"]
    for c in CONSTRUCTS:
        forms = (f"<code>{_shown(form)}</code>".replace("|", "&#124;") for form in (c.croqtile, c.python))
        rows.append(f"| {' | '.join(forms)} | {', '.join(c.kinds)} |")
    return "\n".join(dict.fromkeys(rows)) + "\n"


def _shown(form: str) -> str:
    """A form without the body of its block, and without the name of a function of a library."""
    form = re.sub(r" ?(\{ \}|:|;)$", "", form)
    return re.sub(r"\b(__atomic_|__(?!atomic)|atomic\.|tm\.math\.)\w+\(", r"\1...(", form)


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


def limits() -> str:
    rows = ["| most | in |", "|---|---|"]
    rows += [f"| {x.most} {x.things} | {x.subject} |" for x in LIMITS.values()]
    return "\n".join(rows) + "\n"


def updated(page: str) -> str:
    """``page`` with the tables as they have to be."""
    for name, made in (("operands", table()), ("limits", limits()), ("kinds", kinds())):
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->\n)", re.S)
        found = block.search(page)
        assert found is not None, f"the page has no place for the table of {name}"
        page = page.replace(found[0], found[1] + made + found[2])
    return page


def main() -> int:
    PATH.write_text(updated(PATH.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
