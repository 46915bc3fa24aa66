"""Queries about one run of a check: the writer of an element or a register, a lane's instructions, the
timeline."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilemma import machine
from tilemma.machine.recording import Executed, Lane, Recording
from tilemma.tools.output import write_file
from tilemma.tools.problem import BadArgument, whole_number

_ELEMENT = re.compile(r"(\w+)\[([^\]]*)\]")
_REGISTER = re.compile(r"(%?[\w$%]+)@([0-9]{1,9})(?:#([0-9]{1,9}))?")
_LANE = re.compile(r"(?:([0-9]{1,9}),([0-9]{1,9}),([0-9]{1,9}):)?([0-9]{1,9}),([0-9]{1,9})")


def _bad(option: str, text: str, wanted: str) -> BadArgument:
    return BadArgument(option=option, text=text, problem=f"not {wanted}", wanted=wanted, fix_text="correct it")


@dataclass(frozen=True)
class Questions:
    """Options of `tilemma check` of ``file``: ``--writer``, ``--lane``, and ``--timeline`` with ``--force``."""

    writers: Sequence[str] = ()
    lanes: Sequence[str] = ()
    timeline: str | None = None
    file: str = ""
    force: bool = False

    def __bool__(self) -> bool:
        return bool(self.writers or self.lanes or self.timeline is not None)

    def parsed_lanes(self) -> list[Lane]:
        """The lanes to follow: by default lane 0 of warp 0 of CTA (0, 0, 0) if a register is requested."""
        found: list[Lane] = []
        for text in self.lanes:
            match = _LANE.fullmatch(text.replace(" ", ""))
            if match is None:
                raise _bad("lane", text, "WARP,LANE or X,Y,Z:WARP,LANE")
            x, y, z, warp, lane = (int(n or 0) for n in match.groups())
            if lane > 31:
                raise _bad("lane", text, "a lane from 0 to 31")
            found.append(((x, y, z), warp, lane))
        return found or [((0, 0, 0), 0, 0)] * any("@" in text for text in self.writers)


@dataclass
class Answers:
    """Text for people, and the same as data."""

    lines: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


def answer(
    questions: Questions,
    ptx: str,
    launch: Any,
    args: Mapping[str, Any],
    *,
    seed: int,
    schedule: str,
    strict: bool = False,
    arch: str | None = None,
    differing: Mapping[str, tuple[Any, Any]] | None = None,
) -> Answers:
    """Run once more with ``seed`` and ``schedule``, and answer.

    ``differing`` names arrays that differ from the values wanted, each with its tolerance: the first store of a
    wrong value is looked for.  Raises BadArgument, BadMachineCall, CannotWrite.
    """
    lanes = questions.parsed_lanes()
    options: dict[str, Any] = {"seed": seed, "schedule": schedule, "strict": strict, "arch": arch}
    recording = machine.record(ptx, launch, args, lanes=lanes, **options)
    out = Answers([f"  the run with seed {seed}, schedule {schedule}:"])
    for name, (wanted, tolerance) in (differing or {}).items():
        difference = recording.first_difference(name, wanted, tolerance)
        if difference is not None:
            out.lines.append(f"  {name}: {difference.render()}")
            store = difference.store and difference.store.to_json()
            out.data.setdefault("first_differences", {})[name] = {"index": difference.index, "store": store}
    for text in questions.writers:
        found = _writers(recording, text, lanes)
        out.data.setdefault("writers", {})[text] = [e.to_json() for e in found]
        out.lines += [f"  {text} was written by", *(e.render() for e in found)]
        if not found:
            out.lines[-1] = f"  {text} was not written"
    if questions.lanes:
        traces = [recording.trace(*lane) for lane in lanes]
        out.data["traces"] = [[e.to_json() for e in t] for t in traces]
        for (cta, warp, lane), trace in zip(lanes, traces, strict=True):
            out.lines += [f"  lane {lane} of warp {warp} of CTA {cta}:", *(f"    {e}" for e in trace)]
    if questions.timeline is not None:
        timeline = recording.report.timeline
        assert timeline is not None
        text = timeline.svg() if questions.timeline.endswith(".svg") else timeline.text() + "\n"
        if questions.timeline == "-":
            out.lines.append(text)
        else:
            write_file(questions.timeline, text.encode(), source=questions.file, force=questions.force)
    return out


def _writers(recording: Recording, text: str, lanes: Sequence[Lane]) -> list[Executed]:
    """The instructions that wrote ``a1[3,4]``, or ``%r5`` before line 34 in the lanes followed: ``%r5@34``."""
    element, register = _ELEMENT.fullmatch(text.strip()), _REGISTER.fullmatch(text.strip())
    if element is not None:
        index = [whole_number(n) for n in element[2].split(",")] if element[2].strip() else []
        if None in index:
            raise _bad("writer", text, "an element such as a1[3,4]")
        return recording.writers(element[1], [n for n in index if n is not None])
    if register is not None:
        line, occurrence = int(register[2]), int(register[3] or 0)
        found = [recording.register(register[1], lane, line, occurrence) for lane in lanes]
        return [e for e in found if e is not None]
    raise _bad("writer", text, "an element such as a1[3,4], or a register before a PTX line: %r5@34")
