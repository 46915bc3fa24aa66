"""The language's kernels with their source positions and their instructions, as files to compare with.

``recorded/positions_LANGUAGE.txt``: the operations that the front end makes of each kernel, each with the range of
its source.  ``recorded/instructions.txt``: how often each instruction stands in the kernel's PTX, how many decisions
each pass took, and the threads, bytes and optimisation level of each launch.  What the instructions compute is tested by running
them; here a change of their number, which no result shows, becomes visible in a review.  ``python
tests/language/recorded.py`` writes the files: read the difference.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import edited
from construct import CASES, Case

from tilemma.ir.walk import walk

FOLDER = Path(__file__).parent / "recorded"
_INSTRUCTION = re.compile(r"^\s*(?:@!?%\w+ )?([a-z][\w.:]*)(?=[ ;])", re.M)


def positions(language: str, text: str) -> str:
    """The operations of the kernels of ``text``, outer ones first."""
    found = []
    for kernel in edited.read(language, text):
        for op in walk(kernel.build().body):
            s = op.span
            at = f"{s.line}:{s.column}-{s.end_line}:{s.end_column}" if s else "nowhere"
            found.append(f"{type(op).__name__}@{at}")
    return " ".join(found)


def instructions(case: Case, arch: str) -> str:
    compiled = case.kernel.compile(arch, **case.constants)
    counts = Counter(_INSTRUCTION.findall(compiled.ptx))
    taken = Counter(d.pass_name for d in compiled.decisions)
    launches = [[*x.launch.block, x.launch.shared, x.lane.optimization] for x in compiled.lowered]
    return "; ".join((
        " ".join(f"{x}*{n}" for x, n in sorted(counts.items())),
        " ".join(f"{x}*{n}" for x, n in sorted(taken.items())),
        str(launches),
    ))  # fmt: skip


def _made(table: str) -> Iterator[tuple[str, str]]:
    """(name, what it is now) of each entry of a table."""
    if table == "instructions":
        for c in CASES.values():
            found: dict[str, list[str]] = {}
            for arch in c.archs:
                found.setdefault(instructions(c, arch), []).append(arch)
            yield from ((" ".join((c.name, *archs)), x) for x, archs in found.items())
    else:
        language = table.removeprefix("positions_")
        for name, text in edited.programs(language).items():
            if name in CASES and name not in edited.NOT_ALONE:
                with suppress(NameError):
                    yield name, positions(language, text)


def recorded(table: str) -> dict[str, str]:
    parts = ("\n" + (FOLDER / f"{table}.txt").read_text(encoding="utf-8")).split("\n== ")[1:]
    return {name: " ".join(body.split()) for name, _, body in (x.partition("\n") for x in parts)}


def update() -> None:
    FOLDER.mkdir(exist_ok=True)
    for table in ("positions_co", "positions_py", "instructions"):
        entries = (
            f"== {name}\n{textwrap.fill(x, 115, break_long_words=False, break_on_hyphens=False)}\n"
            for name, x in _made(table)
        )
        (FOLDER / f"{table}.txt").write_text("".join(entries), encoding="utf-8")


if __name__ == "__main__":
    update()
