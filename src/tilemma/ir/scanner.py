"""Scanner of IR text: literals, names and quoted words, with their positions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

from tilemma.errors import CompileError, Span, nearest, register_source
from tilemma.ir.forms import BACKQUOTED, NAME, QUOTED, WORD

T = TypeVar("T")
Match = Callable[[str, int], re.Match[str] | None]
BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"\s*")
_TOKEN = re.compile(r"\w+|\S|$")
# Generous for people, and enough to keep hostile text from costing more than its length.
MAX_DEPTH = 100
MAX_DIGITS = 1000
_INTEGER = re.compile(r"-?\d+")


class IRSyntax(CompileError):
    code = "ir-syntax"
    found = "`{text}`"
    expected = "{wanted}"
    fix = "write the IR as the printer does"


class IRUnknownName(CompileError):
    code = "ir-unknown-name"
    found = "the {kind} `{name}` is not declared before its use"
    expected = "a name declared earlier in the kernel"
    fix = "{suggestion}"


class Scanner:
    """Reads ``text`` from the position ``at`` on."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.at, self.depth = text, file, 0, 0
        register_source(file, text)

    def span(self, start: int, stop: int | None = None) -> Span:
        def place(i: int) -> tuple[int, int]:
            return self.text.count("\n", 0, i) + 1, i - (self.text.rfind("\n", 0, i) + 1) + 1

        return Span(self.file, *place(start), *place(self.at if stop is None else stop))

    def fail(self, wanted: str) -> NoReturn:
        self.skip()
        m = _TOKEN.match(self.text, self.at)
        found = m.group() if m and m.group() else "the end of the text"
        raise IRSyntax(self.span(self.at, self.at + max(1, len(m.group()) if m else 1)), text=found, wanted=wanted)

    def unknown(self, kind: str, name: str, start: int, known: Iterable[str]) -> NoReturn:
        near = nearest(name, list(known))
        suggestion = f"did you mean `{near}`?" if near else "declare it, or correct the name"
        raise IRUnknownName(self.span(start), kind=kind, name=name, suggestion=suggestion)

    def skip(self) -> None:
        m = _SPACE.match(self.text, self.at)
        assert m is not None
        self.at = m.end()

    def looking_at(self, literal: str) -> bool:
        self.skip()
        if not self.text.startswith(literal, self.at):
            return False
        after = self.text[self.at + len(literal) : self.at + len(literal) + 1]
        return not (literal[-1:].isalnum() and (after.isalnum() or after == "_"))

    def accept(self, literal: str) -> bool:
        if not self.looking_at(literal):
            return False
        self.at += len(literal)
        return True

    def take(self, literal: str) -> None:
        if not self.accept(literal):
            self.fail(f"`{literal}`")

    def match(self, read: Match, wanted: str) -> str:
        """The text that ``read``, a pattern's `match`, takes at this place."""
        self.skip()
        m = read(self.text, self.at)
        if m is None:
            self.fail(wanted)
        self.at = m.end()
        return m.group()

    def sequence(self, opening: str, closing: str, item: Callable[[], T]) -> list[T]:
        self.take(opening)
        items: list[T] = []
        while not self.accept(closing):
            if items:
                self.take(",")
            items.append(item())
        return items

    def enclosed(self, opening: str, closing: str, item: Callable[[], T]) -> T:
        """One item between brackets."""
        self.take(opening)
        found = item()
        self.take(closing)
        return found

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level further in; text that nests without end is refused."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels of nesting")
        yield
        self.depth -= 1

    def end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            self.fail("the end of the text")

    def quoted(self, read: Match) -> str:
        raw = self.match(read, "a quoted name")[1:-1]
        try:
            return str(json.loads(f'"{raw}"'))
        except ValueError:
            self.fail("a string with JSON's escapes")

    def name(self) -> str:
        return self.quoted(BACKQUOTED.match) if self.looking_at("`") else self.match(NAME.match, "a name")

    def word(self) -> str:
        return self.quoted(QUOTED.match) if self.looking_at('"') else self.match(WORD.match, "a word")

    def integer(self) -> int:
        return self.digits(self.match(_INTEGER.match, "an integer"))

    def digits(self, text: str) -> int:
        if len(text) > MAX_DIGITS:
            self.fail(f"a number of at most {MAX_DIGITS} digits")
        return int(text)
