"""The table of instructions in docs/machine.md: ``python -m dev.pages.instructions`` rewrites it."""

from __future__ import annotations

from pathlib import Path

from tilemma.machine.isa.contents import CHECKED, CONTENTS, EXECUTED, HINT, REFUSED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "machine.md"
_START, _END = "<!-- contents -->\n", "<!-- /contents -->"


def table() -> str:
    """The table as Markdown."""
    lines = [
        "| PTX ISA, section | " + " | ".join((CHECKED, EXECUTED, HINT, REFUSED)) + " |",
        "|---|---|---|---|---|",
    ]
    for section in dict.fromkeys(x.section for x in CONTENTS):
        cells = []
        for status in (CHECKED, EXECUTED, HINT):
            cells.append(" ".join(f"`{x.name}`" for x in CONTENTS if (x.section, x.status) == (section, status)))
        refused: dict[str, list[str]] = {}
        for x in CONTENTS:
            if (x.section, x.status) == (section, REFUSED):
                refused.setdefault(x.why, []).append(f"`{x.name}`")
        cells.append("; ".join(f"{' '.join(names)}: {why}" for why, names in refused.items()))
        lines.append(f"| {section} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """The page with the table as it should be."""
    head, rest = text.split(_START)
    return f"{head}{_START}{table()}\n{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
