"""Tokens of PTX (PTX ISA, section 4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilemma.errors import CompileError, Span


class PtxSyntax(CompileError):
    """Text that is not PTX."""

    code = "ptx-syntax"
    found = "{what}"
    expected = "PTX as the PTX ISA, chapter 4, defines it"
    fix = "correct the line; `ptxas` reports the same text with its own words"


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    line: int
    column: int
    start: int
    end: int


_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\f]+|//[^\n]*|/\*.*?\*/)
  | (?P<newline>\n)
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"[^"\n]*")
  | (?P<directive>\.[A-Za-z_][\w$]*(?:::[\w$]+)*)
  | (?P<word>[A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*)
  | (?P<punct>[-+*/!|@{}()\[\],;:=<>~&^?])
    """,
    re.VERBOSE | re.DOTALL,
)


# Characters of a number: 64 binary digits with their prefix, and any decimal that a double is written with.
MAX_DIGITS = 400


def syntax_error(name: str, line: int, column: int, what: str, width: int = 1) -> PtxSyntax:
    """The error for ``what`` at a place in the PTX called ``name``."""
    return PtxSyntax(Span(name, line, column, line, column + width), what=what)


def tokenize(text: str, name: str) -> list[Token]:
    """Tokens of ``text``, the last of kind ``end``; PtxSyntax at a character that starts none."""
    tokens: list[Token] = []
    line, line_start, position = 1, 0, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        column = position - line_start + 1
        if text.startswith("/*", position) and (match is None or match.lastgroup != "skip"):
            raise syntax_error(name, line, column, "a comment that never ends", 2)
        if match is None:
            raise syntax_error(name, line, column, f"the character {text[position]!r} starts no PTX token")
        kind = match.lastgroup or ""
        if kind == "newline":
            line, line_start = line + 1, match.end()
        elif kind == "skip":
            newlines = match.group().count("\n")
            if newlines:
                line += newlines
                line_start = position + match.group().rindex("\n") + 1
        else:
            if kind in ("int", "float") and match.end() - position > MAX_DIGITS:
                raise syntax_error(name, line, column, f"a number of more than {MAX_DIGITS} characters")
            tokens.append(Token(kind, match.group(), line, column, position, match.end()))
        position = match.end()
    tokens.append(Token("end", "", line, 1, len(text), len(text)))
    return tokens
