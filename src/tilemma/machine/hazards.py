"""The base class of hazards and their reports; the hazards themselves are in ``catalogue``.

A hazard is an error class: its templates say what happened, what was expected and what to add; ``why`` says
why a GPU may print the right answer all the same.  ``docs/hazards.md`` is generated from these classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilemma.errors import Note, Span, TilemmaError
from tilemma.machine.syntax import Instruction, Location


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an instruction in a run: the PTX called ``module``, one of its instructions, warp and CTA."""

    module: str
    instruction: Instruction
    warp: int
    cta: tuple[int, int, int]

    @property
    def ptx_span(self) -> Span:
        i = self.instruction
        return Span(self.module, i.line, i.column, i.line, i.column + len(i.opcode))

    @property
    def span(self) -> Span:
        """The user's source line where `.loc` gives one, else the PTX line."""
        at = self.instruction.location
        return self.ptx_span if at is None else Span(at.file, at.line, at.column, at.line, at.column + 1)

    def __str__(self) -> str:
        return f"warp {self.warp} of CTA {self.cta}, PTX line {self.instruction.line}"


def shorten(instruction: Instruction, limit: int = 110) -> str:
    """An instruction's text, cut where it is long (a wgmma names up to 128 registers)."""
    text = instruction.text
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def ranges(numbers: Any, limit: int = 6) -> str:
    """Sorted integers as ranges: ``0-3, 8, 12-15``."""
    out: list[str] = []
    values = sorted({int(n) for n in numbers})
    i = 0
    while i < len(values):
        j = i
        while j + 1 < len(values) and values[j + 1] == values[j] + 1:
            j += 1
        out.append(str(values[i]) if i == j else f"{values[i]}-{values[j]}")
        i = j + 1
    if len(out) > limit:
        out = [*out[:limit], f"... ({len(values)} in all)"]
    return ", ".join(out)


def inlining(at: Location | None) -> list[Note]:
    """The calls that have been inlined at a place, innermost first."""
    notes = []
    while at is not None and at.inlined_at is not None:
        outer = at.inlined_at
        span = Span(outer.file, outer.line, outer.column, outer.line, outer.column + 1)
        notes.append(Note(f"in `{at.function}`, inlined at {outer.file}:{outer.line}", span))
        at = outer
    return notes


class HazardError(TilemmaError):
    """The program is wrong although a GPU might print the right answer."""

    exit_status: ClassVar[int] = 1
    why: ClassVar[str] = ""
    # A note by default, an error under ``strict``: forbidden by the text of the ISA, but relied upon in practice.
    strict_only: ClassVar[bool] = False
    # The fix in general, where the template is filled entirely by the case at hand.
    in_general: ClassVar[str] = ""
    # A repair that has been tried (`machine.advise`).
    advice: str = ""

    @property
    def remedy(self) -> str:
        return self.advice or super().remedy

    @classmethod
    def at(
        cls,
        place: Place,
        *,
        lanes: Any = (),
        at_bytes: Any = (),
        other: Place | None = None,
        notes: Sequence[str] = (),
        **facts: Any,
    ) -> HazardError:
        """The hazard at ``place``; ``other`` is the earlier access that it collides with."""
        said = inlining(place.instruction.location)
        if place.instruction.location is not None:
            said.append(Note(f"PTX line {place.instruction.line}: {shorten(place.instruction)}"))
        who = f"executed by warp {place.warp} of CTA {place.cta}"
        if len(lanes):
            who += f", lanes {ranges(lanes)}"
        if len(at_bytes):
            who += f", bytes {ranges(at_bytes)}"
        said.append(Note(who))
        if other is not None:
            said.append(Note(f"against {other}: {shorten(other.instruction)}", other.span))
        said += [Note(text) for text in notes]
        return cls(
            place.span,
            notes=said,
            ptx_line=place.instruction.line,
            instruction=shorten(place.instruction),
            warp=place.warp,
            cta=place.cta,
            lanes=tuple(int(x) for x in lanes),
            bytes=tuple(int(x) for x in at_bytes[:64]),
            other_line=other.instruction.line if other else 0,
            **facts,
        )

    def to_json(self) -> dict[str, Any]:
        keys = ("ptx_line", "instruction", "warp", "cta", "lanes", "bytes", "other_line")
        return {**super().to_json(), **{k: self.facts[k] for k in keys if k in self.facts}}


@dataclass(slots=True)
class PerformanceNote:
    """Something slow rather than wrong, at one instruction.

    ``count`` is the surplus (bank conflicts: extra passes; uncoalesced: extra 32-byte sectors) over
    ``executions`` warp-level executions.
    """

    kind: str
    line: int
    instruction: str
    count: int = 0
    executions: int = 0
    worst: int = 0

    def __str__(self) -> str:
        unit = "extra passes" if self.kind == "bank-conflict" else "extra 32-byte sectors"
        return (
            f"{self.kind}: PTX line {self.line}: {self.count} {unit} in {self.executions} executions, "
            f"at worst {self.worst} in one: {self.instruction}"
        )
