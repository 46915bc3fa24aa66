"""docs/hazards.md from the hazard classes: ``python -m dev.pages.hazards > docs/hazards.md``."""

from __future__ import annotations

import re

from tilemma.machine import catalogue
from tilemma.machine.hazards import HazardError

_HEAD = """# Hazards

Generated from `src/tilemma/machine/catalogue.py` by `python -m dev.pages.hazards`; do not edit.

A hazard is an error of a program that a GPU can hide because the result happens to be right. `tilemma check`,
`kernel.on("machine")` and `tilemma.machine.run` report hazards with PTX line, source line, warp, lanes and bytes.
The codes are stable. [machine.md](machine.md) describes the rules of the PTX machine and the differences between
its policy and the PTX ISA.
"""


def hazards() -> list[type[HazardError]]:
    """Every hazard class, in the order of the catalogue."""
    found = [c for c in vars(catalogue).values() if isinstance(c, type) and issubclass(c, HazardError)]
    return [c for c in found if c is not HazardError]


def _readable(template: str) -> str:
    """A message template with its fields in italics."""
    return re.sub(r"\{(\w+)(:[^}]*)?\}", lambda m: f"*{m[1].replace('_', ' ')}*", template)


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for c in hazards():
        strict = " An error under `--strict` only." if c.strict_only else ""
        parts.append(
            f"## {c.code}\n\n"
            f"**Found:** {_readable(c.found)}.{strict}\n\n"
            f"**Expected:** {_readable(c.expected)}.\n\n"
            f"**Reason why hardware hides it:** {c.why}\n\n"
            f"**Fix:** {c.in_general or _readable(c.fix)}.\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
