"""Which instructions of a kernel have run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilemma.machine.program import Program
from tilemma.records import record

# Sets of lines that a program keeps.
_KEPT = 64
# Source lines that a report names.
NAMED = 8


@record
class Coverage:
    """The PTX lines that ``ran``; those that did not, and the source lines of those."""

    ran: frozenset[int]
    missed: tuple[int, ...]
    sources: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, program: Program, lines: Collection[int]) -> Coverage:
        """The coverage of ``program`` after runs that executed the PTX ``lines``."""
        found = [step.instruction for step in program.steps]
        places = {i.line: (i.location.file, i.location.line) for i in found if i.location is not None}
        missed = sorted({i.line for i in found} - set(lines))
        sources = sorted({places[line] for line in missed if line in places})
        return cls(frozenset(lines), tuple(missed), tuple(sources))

    @property
    def instructions(self) -> int:
        return len(self.ran) + len(self.missed)

    @property
    def complete(self) -> bool:
        return not self.missed

    def __str__(self) -> str:
        if self.complete:
            return f"every one of its {self.instructions} instructions ran"
        text = f"{len(self.missed)} of its {self.instructions} instructions did not run"
        if not self.sources:
            lines = ", ".join(map(str, self.missed[:NAMED]))
            return f"{text}: PTX line{'s' * (len(self.missed) > 1)} {lines}" + ", ..." * (len(self.missed) > NAMED)
        named = ", ".join(f"{file}:{line}" for file, line in self.sources[:NAMED])
        return f"{text}: {named}" + ", ..." * (len(self.sources) > NAMED)

    def to_json(self) -> dict[str, Any]:
        return {
            "instructions": self.instructions,
            "missed": list(self.missed),
            "sources": [*map(list, self.sources)],
        }


def executed_lines(program: Program, covered: bytearray) -> frozenset[int]:
    """PTX lines that some lane has executed: ``covered`` has a 1 for each step, a segment counts by its first."""
    steps = bytes(covered)
    found = program.executed.get(steps)
    if found is None:
        if len(program.executed) == _KEPT:
            program.executed.clear()
        found = program.executed[steps] = _lines(program, covered)
    return found


def _lines(program: Program, covered: bytearray) -> frozenset[int]:
    lines, at = set(), covered.find(1)
    while 0 <= at < len(program.steps):
        segment = program.segments[at]
        for i in range(at, segment.next if segment is not None else at + 1):
            lines.add(program.steps[i].instruction.line)
        at = covered.find(1, at + 1)
    return frozenset(lines)
