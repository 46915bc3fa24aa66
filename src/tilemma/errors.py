"""Source spans, and the one family of errors that users see.

Every error is a class: a stable ``code``, and templates for what was found, what was expected and what to
do.  A class stands next to the code that raises it; ``KINDS`` collects all of them, and ``docs/errors.md``
is generated from it.  Rendering as text (with a caret) and as JSON is defined here once.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import linecache
import os
import re
import stat
import string
import sys
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from tilemma.display import Displayed
from tilemma.records import record

_SOURCES: dict[str, str] = {}
_FOLDERS: set[str] = set()
# Bytes of a source file that is opened to show a line of it.
MAX_SOURCE = 8 << 20
# Characters of a source line that are shown.
MAX_SHOWN = 100


def debugging() -> bool:
    """Whether tracebacks show the frames of this package: the environment variable TILEMMA_DEBUG is 1."""
    return os.environ.get("TILEMMA_DEBUG", "") not in ("", "0")


def register_source(name: str, text: str) -> None:
    """Remember ``text`` as the content of ``name``, so that spans into it can show their line."""
    _SOURCES[name] = text


def show_sources_below(folder: str) -> None:
    """Let spans into files below ``folder`` show their lines: the folder of PTX that names its sources."""
    _FOLDERS.add(os.path.realpath(folder))


def is_text_source(span: Span | None) -> bool:
    """Whether ``span`` lies in a registered text (a `.co` file), not in a Python function."""
    return span is not None and span.file in _SOURCES


def spelled(span: Span | None, croqtile: str, python: str) -> str:
    """Advice for the program at ``span``: one spelling for each language."""
    return croqtile if span is None or is_text_source(span) else python


def source_line(file: str, line: int) -> str | None:
    """Line ``line`` (from 1) of ``file``, without its newline; None when it cannot be had.

    The name may come from untrusted PTX: see `_may_be_shown`.
    """
    if file in _SOURCES:
        lines = _SOURCES[file].split("\n")
        return lines[line - 1].rstrip("\r") if 1 <= line <= len(lines) else None
    if not _may_be_shown(file):
        return None
    text = linecache.getline(file, line)
    return text.rstrip("\r\n") if text else None


def _may_be_shown(file: str) -> bool:
    """Whether ``file`` was read as a source before, or is a regular file of a source's size below the working
    folder or one of `show_sources_below`."""
    if file in linecache.cache:
        return True
    try:
        path = os.path.realpath(file)
        state = os.stat(path)
        folders = {os.path.realpath(os.getcwd()), *_FOLDERS}
    except (OSError, ValueError):
        return False
    below = any(path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
    return below and stat.S_ISREG(state.st_mode) and state.st_size <= MAX_SOURCE


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


class TilemmaError(Displayed, Exception):
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
    # The same advice for programs in Python, where that is spelled otherwise.
    python_fix: ClassVar[str] = ""
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
        # Python writes no integer of more than some thousand digits.
        facts = {n: described(f) if type(f) is int and f.bit_length() > 1000 else f for n, f in self.facts.items()}
        return singular(string.Formatter().vformat(template, (), facts))

    @property
    def message(self) -> str:
        return self._fill(self.found)

    @property
    def expectation(self) -> str:
        return self._fill(self.expected)

    @property
    def remedy(self) -> str:
        return self._fill(spelled(self.span, self.fix, self.python_fix or self.fix))

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The error as text: headline, place with a caret, expectation, remedy, refusals, notes.

        It contains untrusted text: control characters for terminals are escaped (see `visible`).
        """
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
            lines.append(f"  note: {singular(note.text)}")
            if note.span is not None:
                lines += excerpt(note.span)
        return visible("\n".join(lines))

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

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython and Jupyter show: the program's frames and the message."""
        lines: list[str] = importlib.import_module("tilemma.tools.notebook").traceback_of(self)
        return lines

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


# The nouns that messages count, and the words before a number that is a name and no count (`warp 1 lanes 0-3`).
_COUNTED = """
    argument arrival barrier block byte character chunk dimension element extent generation group instance
    instruction item iteration kernel lane level loop mbarrier number offset operand operation parameter place
    register row column schedule slot step stream thread trigger value warp
"""
_PLURALS = {"batches": "batch", "launches": "launch", "copies": "copy", **{f"{n}s": n for n in _COUNTED.split()}}
_ONE = re.compile(
    r"(?<![\w.,+*/=-])(?<!line )(?<!warp )(?<!step )(?<!operand )(?<!dimension )(?<!CTA )(?<!to )1 ([a-z]+)\b"
)


def singular(text: str) -> str:
    """``text`` with a noun in the singular after the number 1: ``1 arguments`` becomes ``1 argument``."""
    return _ONE.sub(lambda m: f"1 {_PLURALS.get(m[1], m[1])}", text) if "1 " in text else text


class CompileError(TilemmaError):
    """The program is wrong, whatever its arguments."""


class FrontEndFailure(CompileError):
    """``cause`` is the internal exception, with its traceback."""

    code = "front-end-failure"
    found = "tilemma failed while it read this: {what}"
    expected = "a program that is compiled, or an error that says what is wrong with it"
    fix = "this is a mistake in tilemma, not in your program: please report it with the program"
    cause: BaseException | None = None


class LaunchError(TilemmaError, ValueError):
    """The arguments of a call do not fit the kernel."""


class WrongArgumentType(LaunchError, TypeError):
    """An argument of a public function that is of a type it does not take."""

    code = "wrong-type"
    found = "`{function}` got {got} as `{name}`"
    expected = "{wanted}"
    fix = "pass {wanted}"


class WrongArgument(LaunchError):
    """An argument of a public function that is of the right type, and out of its range."""

    code = "wrong-argument"
    found = "`{function}` got {got} as `{name}`"
    expected = "{wanted}"
    fix = "pass {wanted}"


class ToolError(TilemmaError):
    """Something outside the program is missing or failed: the assembler, the driver, a GPU."""


def _cells(text: str) -> int:
    """Terminal cells that ``text`` takes: two for wide East Asian characters, none for marks on others."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.category(c) in ("Mn", "Me") else 1
        for c in text
    )


def shown_file(file: str) -> str:
    """``file`` in an error: a cell of a notebook, which IPython keeps under a temporary name, as `In[3]`."""
    if "ipykernel_" in file or file.startswith("<ipython-input-"):
        with contextlib.suppress(Exception):  # other people's code; the name below is right too
            shell = sys.modules["IPython"].get_ipython()
            return str(shell.compile.format_code_name(file)[1])
    return file


def excerpt(span: Span) -> list[str]:
    """The source line under ``span`` with carets below it; of a long line the part around the carets."""
    number = str(span.line)
    gutter = " " * len(number)
    lines = [f" {gutter}--> {shown_file(span.file)}:{span.line}:{span.column}"]
    text = source_line(span.file, span.line)
    if text is None:
        return lines
    start = min(span.column - 1, len(text))
    stop = max(start, min(span.end_column - 1, len(text)) if span.end_line == span.line else len(text))
    before, marked, after = (
        _one_line(part) for part in _around(text[:start], text[start:stop], text[stop:], MAX_SHOWN)
    )
    carets = "^" * max(1, _cells(marked))
    shown = f" {number} | {before}{marked}{after}"
    return [*lines, f" {gutter} |", shown, f" {gutter} | {' ' * _cells(before)}{carets}"]


def _around(before: str, marked: str, after: str, most: int) -> tuple[str, str, str]:
    """A line in three parts, cut to about ``most`` characters: before the marked range, the range, and after
    it."""
    if len(before) + len(marked) + len(after) <= most + 20:
        return before, marked, after
    if len(marked) > most // 2:
        marked, after = marked[: most // 2], " ..."
    room = (most - len(marked)) // 2
    if len(before) > room:
        before = "... " + before[-room:]
    if len(after) > room:
        after = after[:room] + " ..."
    return before, marked, after


def _one_line(text: str) -> str:
    return visible(text.replace("\t", " ").replace("\n", " "))


# Characters that a terminal or an editor obeys, or shows as nothing: C0 but newline and tab, DEL, C1, marks of
# writing direction (UAX #9), line and paragraph separators, the ignorable ones (Default_Ignorable_Code_Point)
# but selectors of variants; and halves of surrogate pairs, which no output can encode.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_BIDIRECTIONAL = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """``text`` with every character that a terminal would obey written as its number: `\\x1b`, `\\u202e`."""
    return _OBEYED.sub(lambda m: _number(ord(m[0])), text)


def _number(code: int) -> str:
    """A character's number as Python writes it."""
    return f"\\x{code:02x}" if code < 1 << 8 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def print_from_program(text: str) -> None:
    """Write what a kernel prints to standard output, for a terminal as `visible`."""
    if sys.stdout is not None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        shown = visible(text) if sys.stdout.isatty() else text
        sys.stdout.write(shown.encode(encoding, "backslashreplace").decode(encoding))


class SourceWarning(UserWarning):
    """Characters of a kernel's text are displayed in another order than they are read."""


def warn_of_direction(file: str, text: str) -> None:
    """Warn where ``text`` has characters that change the direction of writing, so that it may be misread."""
    found = _BIDIRECTIONAL.search(text)
    if found is not None:
        line = 1 + text.count("\n", 0, found.start())
        column = found.start() - text.rfind("\n", 0, found.start())
        name = unicodedata.name(found[0], "?")
        where = f"{visible(file)}:{line}:{column}"
        what = f"U+{ord(found[0]):04X} ({name}) changes the direction in which the text is shown"
        warnings.warn(f"{where}: {what}: it may mean something else than it seems to", SourceWarning, stacklevel=3)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The member of ``known`` most similar to ``name``, or None when none is close."""
    if not isinstance(name, str):
        return None
    import difflib

    same = [k for k in known if k.lower() == name.lower()]
    matches = same or difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def described(value: object) -> str:
    """``value`` in an error: its type, and itself where that is short and runs no code of others."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(said := getattr(type(value), "article", None), str):
        return said  # a value of a kernel: `a tile`
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    if type(value) not in (int, float, str, bytes):
        return f"{article} {name}"
    if type(value) is int and value.bit_length() > 200:
        return f"an int of {value.bit_length()} bits"
    text = repr(value[:40] if isinstance(value, (str, bytes)) else value)
    return f"{text} ({article} {name})"
