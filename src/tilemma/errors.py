"""Source spans, and the one family of errors that users see.

Every error is a class: a stable ``code``, and templates for what was found, what was expected and what to
do.  A class stands next to the code that raises it; ``KINDS`` collects all of them, and ``docs/errors.md``
is generated from it.  Rendering as text (with a caret) and as JSON is defined here once.
"""

from __future__ import annotations

import json
import linecache
import string
import unicodedata
from collections.abc import Sequence
from typing import Any, ClassVar

from tilemma.records import record

_SOURCES: dict[str, str] = {}


def register_source(name: str, text: str) -> None:
    """Remember ``text`` as the content of ``name``, so that spans into it can show their line."""
    _SOURCES[name] = text


def source_line(file: str, line: int) -> str | None:
    """Line ``line`` (from 1) of ``file``, without its newline; None when it cannot be had."""
    if file in _SOURCES:
        lines = _SOURCES[file].split("\n")
        return lines[line - 1].rstrip("\r") if 1 <= line <= len(lines) else None
    text = linecache.getline(file, line)
    return text.rstrip("\r\n") if text else None


@record
class Span:
    """A range of source text.  Lines and columns count from 1, columns in characters; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
        }


@record
class Refusal:
    """One candidate that was considered and turned down, with the rule that turned it down."""

    candidate: str
    rule: str
    section: str = ""

    def to_json(self) -> dict[str, str]:
        return {"candidate": self.candidate, "rule": self.rule, "section": self.section}


@record
class Note:
    """A second place worth looking at, or a remark without a place."""

    text: str
    span: Span | None = None

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "span": self.span.to_json() if self.span else None}


KINDS: dict[str, type[TilemmaError]] = {}


class TilemmaError(Exception):
    """Root of every error a user sees.

    A concrete class sets ``code`` and the three templates, whose ``{names}`` are filled from the keyword
    arguments of the constructor::

        class UnknownName(CompileError):
            code = "unknown-name"
            found = "`{name}` is not defined here"
            expected = "a parameter or a variable in scope"
            fix = "{suggestion}"

        raise UnknownName(span, name="lsh", suggestion="did you mean `lhs`?")
    """

    code: ClassVar[str] = ""
    found: ClassVar[str] = ""
    expected: ClassVar[str] = ""
    fix: ClassVar[str] = ""
    exit_status: ClassVar[int] = 2

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            return
        assert cls.found and cls.expected and cls.fix, f"{cls.__name__} needs found, expected and fix"
        known = KINDS.get(cls.code)
        assert known is None or known.__qualname__ == cls.__qualname__, f"error code {cls.code} used twice"
        KINDS[cls.code] = cls

    def __init__(
        self,
        span: Span | None = None,
        *,
        notes: Sequence[Note] = (),
        refusals: Sequence[Refusal] = (),
        **facts: Any,
    ) -> None:
        self.span = span
        self.notes = tuple(notes)
        self.refusals = tuple(refusals)
        self.facts = facts
        super().__init__(self.message)

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.span, self.notes, self.refusals, self.facts)

    def _fill(self, template: str) -> str:
        return string.Formatter().vformat(template, (), self.facts)

    @property
    def message(self) -> str:
        return self._fill(self.found)

    @property
    def expectation(self) -> str:
        return self._fill(self.expected)

    @property
    def remedy(self) -> str:
        return self._fill(self.fix)

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The error as text: headline, place with a caret, expectation, remedy, refusals, notes."""
        lines = [f"error[{self.code}]: {self.message}"]
        if self.span is not None:
            lines += excerpt(self.span)
        lines.append(f"  expected: {self.expectation}")
        lines.append(f"  fix: {self.remedy}")
        if self.refusals:
            lines.append("  candidates refused:")
            width = max(len(r.candidate) for r in self.refusals)
            for r in self.refusals:
                section = f"  [{r.section}]" if r.section else ""
                lines.append(f"    {r.candidate:<{width}}  {r.rule}{section}")
        for note in self.notes:
            lines.append(f"  note: {note.text}")
            if note.span is not None:
                lines += excerpt(note.span)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The error as a JSON-ready dict; lines and columns count from 1."""
        return {
            "code": self.code,
            "kind": type(self).__name__,
            "message": self.message,
            "expected": self.expectation,
            "fix": self.remedy,
            "span": self.span.to_json() if self.span else None,
            "refusals": [r.to_json() for r in self.refusals],
            "notes": [n.to_json() for n in self.notes],
            "exit_status": self.exit_status,
        }

    def json(self) -> str:
        return json.dumps(self.to_json(), ensure_ascii=False)


def _rebuild(
    cls: type[TilemmaError],
    span: Span | None,
    notes: tuple[Note, ...],
    refusals: tuple[Refusal, ...],
    facts: dict[str, Any],
) -> TilemmaError:
    return cls(span, notes=notes, refusals=refusals, **facts)


class CompileError(TilemmaError):
    """The program is wrong, whatever its arguments."""


class FrontEndFailure(CompileError):
    """``cause`` is what went wrong inside, with its traceback."""

    code = "front-end-failure"
    found = "tilemma failed while it read this: {what}"
    expected = "a program that is compiled, or an error that says what is wrong with it"
    fix = "this is a mistake in tilemma, not in your program: please report it with the program"
    cause: BaseException | None = None


class LaunchError(TilemmaError):
    """The arguments of a call do not fit the kernel."""


class ToolError(TilemmaError):
    """Something outside the program is missing or failed: the assembler, the driver, a GPU."""


def _cells(text: str) -> int:
    """Terminal cells that ``text`` takes; wide East Asian characters take two."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text
    )


def excerpt(span: Span) -> list[str]:
    """The source line under ``span`` with carets below it."""
    number = str(span.line)
    gutter = " " * len(number)
    lines = [f" {gutter}--> {span.file}:{span.line}:{span.column}"]
    text = source_line(span.file, span.line)
    if text is None:
        return lines
    start = min(span.column - 1, len(text))
    stop = min(span.end_column - 1, len(text)) if span.end_line == span.line else len(text)
    shown = text.replace("\t", " ")
    pad = " " * _cells(shown[:start])
    carets = "^" * max(1, _cells(shown[start:stop]))
    return [*lines, f" {gutter} |", f" {number} | {shown}", f" {gutter} | {pad}{carets}"]


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The member of ``known`` most like ``name``, or None when none is close."""
    import difflib

    same = [k for k in known if k.lower() == name.lower()]
    matches = same or difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
