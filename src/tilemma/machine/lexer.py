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
    # Of a whole instruction, kind ``statement``: `!` or nothing, the predicate, the opcode, the operands.
    parts: tuple[str | None, ...] = ()


_BLANKS = re.compile(r"[ \t\r\f]*")
# After any blanks.
_TOKEN = re.compile(
    r"""[ \t\r\f]*(?:
    (?P<newline>\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+\.\d*(?:[eE][+-]?\d+)?|\.?\d+[eE][+-]?\d+|\.\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<string>"[^"\n]*")
  | (?P<directive>\.[A-Za-z_][\w$]*(?:::[\w$]+)*)
  | (?P<word>[A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*)
  | (?P<punct>[-+*/!|@{}()\[\],;:=<>~&^?])
    )""",
    re.VERBOSE | re.DOTALL,
)


# An instruction on one line without comments, dots in operands and parentheses, which is most of them.
_STATEMENT = re.compile(
    r"""[ \t]*(?=[@a-z])
    (?:@(!?)([A-Za-z_$%][\w$]*)[ \t]+)?
    ([a-z]\w*(?:(?:\.|::)\w+)*)
    (?:[ \t]+(?![ \t])(
        [\w$%+|!\-, \t]*
        (?:
            (?:
                \{[\w$%+|!\-, \t]*\}
              | \[[\w$%+|!\-, \t]*(?:\{[\w$%+|!\-, \t]*\}[\w$%+|!\-, \t]*)*\]
            )
            [\w$%+|!\-, \t]*
        )*
    ))?;""",
    re.VERBOSE | re.ASCII,
)
# The tokens after which a statement begins.
_ENDS = frozenset(";{}:")
# Characters of a number: 64 binary digits with their prefix, and any decimal that a double is written with.
MAX_DIGITS = 400


def syntax_error(name: str, line: int, column: int, what: str, width: int = 1) -> PtxSyntax:
    """The error for ``what`` at a place in the PTX called ``name``."""
    return PtxSyntax(Span(name, line, column, line, column + width), what=what)


def tokenize(text: str, name: str) -> list[Token]:
    """Tokens of ``text``, the last of kind ``end``; PtxSyntax at a character that starts none.

    A plain instruction is one token of kind ``statement``: `statement_tokens` gives those that it consists of.
    """
    # NVRTC's text ends with a NUL, at which the driver stops reading.
    text = text.rstrip("\0")
    tokens: list[Token] = []
    line, line_start, position, size = 1, 0, 0, len(text)
    match_token, match_statement, add = _TOKEN.match, _STATEMENT.match, tokens.append
    begins = located = False
    refused = 0
    while True:
        # One attempt in vain a line: it may have read all of the line.
        if begins and line != refused:
            found = match_statement(text, position)
            if found is not None and not _too_long(found[0]):
                position, start = found.end(), found.start(1 if found[2] else 3) - bool(found[2])
                column = start - line_start + 1
                add(Token("statement", text[start:position], line, column, start, position, found.groups()))
                continue
            refused = line
        match = match_token(text, position)
        if match is None:
            break
        kind, end = match.lastgroup or "", match.end()
        start = match.start(kind)
        if kind == "newline":
            line, line_start = line + 1, end
            # `.loc` ends with its line.
            begins, located = begins or located, False
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
            word = text[start:end]
            add(Token(kind, word, line, column, start, end))
            begins = kind == "punct" and word in _ENDS
            located = located or word == ".loc"
        position = end
    blanks = _BLANKS.match(text, position)
    assert blanks is not None
    position = blanks.end()
    if position < size:
        column = position - line_start + 1
        raise syntax_error(name, line, column, f"the character {text[position]!r} starts no PTX token")
    add(Token("end", "", line, 1, size, size))
    return tokens


def _too_long(text: str) -> bool:
    """Whether a number in ``text`` may have more than `MAX_DIGITS` characters."""
    return len(text) > MAX_DIGITS and max(map(len, re.split(r"\W", text))) > MAX_DIGITS


def statement_tokens(text: str, name: str, statement: Token) -> list[Token]:
    """The tokens that a ``statement`` of ``text`` consists of, without an end."""
    found = tokenize(statement.text, name)[:-1]
    line, column, start = statement.line, statement.column - 1, statement.start
    return [
        Token(kind, word, line, at + column, first + start, end + start)
        for kind, word, _, at, first, end, _ in found
    ]
