"""Tokens of PTX (PTX ISA, section 4)."""

from __future__ import annotations

import re
from typing import NamedTuple

from tilemma.errors import CompileError, Span


class PtxSyntax(CompileError):
    """Text that is not PTX."""

    code = "ptx-syntax"
    found = "{what}"
    expected = "PTX as the PTX ISA, chapter 4, defines it"
    fix = "correct the line; `ptxas` reports the same text with its own words"


class Token(NamedTuple):
    kind: str
    text: str
    line: int
    column: int
    start: int
    end: int


_BLANKS = re.compile(r"[ \t\r\f]*")
# After any blanks.
_TOKEN = re.compile(
    r"""[ \t\r\f]*(?:
    (?P<newline>\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"[^"\n]*")
  | (?P<directive>\.[A-Za-z_][\w$]*(?:::[\w$]+)*)
  | (?P<word>[A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*)
  | (?P<punct>[-+*/!|@{}()\[\],;:=<>~&^?])
    )""",
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
    line, line_start, position, size = 1, 0, 0, len(text)
    match_token, add = _TOKEN.match, tokens.append
    while match := match_token(text, position):
        kind, end = match.lastgroup or "", match.end()
        start = match.start(kind)
        if kind == "newline":
            line, line_start = line + 1, end
        elif kind == "comment":
            newlines = text.count("\n", start, end)
            if newlines:
                line += newlines
                line_start = text.rindex("\n", start, end) + 1
        else:
            column = start - line_start + 1
            if kind in ("int", "float") and end - start > MAX_DIGITS:
                raise syntax_error(name, line, column, f"a number of more than {MAX_DIGITS} characters")
            if kind == "punct" and text.startswith("/*", start):
                raise syntax_error(name, line, column, "a comment that never ends", 2)
            add(Token(kind, text[start:end], line, column, start, end))
        position = end
    blanks = _BLANKS.match(text, position)
    assert blanks is not None
    position = blanks.end()
    if position < size:
        column = position - line_start + 1
        raise syntax_error(name, line, column, f"the character {text[position]!r} starts no PTX token")
    add(Token("end", "", line, 1, size, size))
    return tokens
