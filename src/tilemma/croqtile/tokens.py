"""The lexer: splits `.co` text into tokens with their source positions.

The whole file is cut, host C++ included, so the cutting never fails: what no kernel may contain (a stray
character, a string without its end) becomes a token of kind "bad" and is reported only where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from tilemma.errors import CompileError, Span
from tilemma.records import record

Kind = Literal["name", "int", "float", "string", "op", "bad"]

# The longest files in the language's own suites have some 2,000 lines; these leave room and stay quick.
MAX_CHARACTERS = 1_000_000


class FileTooLarge(CompileError):
    code = "file-too-large"
    found = "{size} characters of source"
    expected = "at most {limit} characters in a file"
    fix = "split the file: one `.co` file per family of kernels"


class UnterminatedString(CompileError):
    code = "unterminated-string"
    found = "a raw string that does not end"
    expected = '`){delimiter}"` after `R"{delimiter}(`'
    fix = 'close the string with `){delimiter}"`'


class UnterminatedComment(CompileError):
    code = "unterminated-comment"
    found = "a comment that does not end"
    expected = "`*/` after `/*`"
    fix = "close the comment with `*/`"


@record
class Token:
    """One token.

    ``row``: the logical line (lines joined by a backslash are one), which ends a directive.  ``glued``:
    no blank precedes it.  ``first``: the first of its logical line.  ``hidden``: the
    macros whose expansion produced it; its span is then the use of the outermost of them.
    """

    kind: Kind
    text: str
    span: Span
    row: int
    glued: bool = False
    first: bool = False
    hidden: frozenset[str] = field(default=frozenset(), compare=False)


_PATTERN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+)
  | (?P<joined>\\\r?\n)
  | (?P<newline>\n)
  | (?P<comment>//[^\n]*)
  | (?P<block>/\*[^*]*+(?:\*(?!/)[^*]*+)*(?P<end>\*/)?)
  | (?P<raw>R"(?P<delim>[^()\\\s"]{0,16})\((?:[\s\S]*?\)(?P=delim)(?P<closed>")|[\s\S]*+))
  | (?P<string>"(?:\\.|[^"\\\n])*+")
  | (?P<badstring>"[^\\\n]*+(?:\\(?!\r?\n)[^\\\n]*+)*)
  | (?P<char>'(?:\\.|[^'\\\n]){1,8}')
  | (?P<float>[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)[fF]?(?![\w]))
  | (?P<int>(?:0[xX][0-9a-fA-F]+|[0-9]+)(?:[uU]?[lL]{0,2})(?![\w]))
  | (?P<badnumber>[0-9]\w*)
  | (?P<level>(?:group-[0-9]+|cluster-(?:grid|rank))(?![\w]))
  | (?P<bang>print(?:ln)?!(?!=))
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<op><->|\.\.\.|=>|==|!=|<=|>=|&&|\|\||<<|>>|\+\+|--|\+=|-=|\*=|/=|%=|\#\#|\#[-+*/%]|::|\?\?
      |[][(){}<>=+\-*/%!&|^~?:;,.\#])
  | (?P<bad>.)
    """,
    re.VERBOSE,
)

_KINDS: dict[str, Kind] = {
    "raw": "string",
    "string": "string",
    "char": "bad",
    "badstring": "bad",
    "float": "float",
    "int": "int",
    "badnumber": "bad",
    "level": "name",
    "bang": "name",
    "name": "name",
    "op": "op",
    "bad": "bad",
}


def tokens(text: str, file: str) -> Iterator[Token]:
    """The tokens of ``text``; FileTooLarge, UnterminatedComment, UnterminatedString."""
    if len(text) > MAX_CHARACTERS:
        raise FileTooLarge(Span(file, 1, 1, 1, 1), size=len(text), limit=MAX_CHARACTERS)
    line, line_start, row = 1, 0, 1
    glued, first = False, True
    for m in _PATTERN.finditer(text):
        what = {"end": "block", "delim": "raw", "closed": "raw"}.get(m.lastgroup or "", m.lastgroup)
        assert what is not None
        kind = _KINDS.get(what)
        start, end = m.span()
        if kind is not None:
            begin, column = line, start - line_start + 1
            if what == "raw" and m["closed"] is None:
                raise UnterminatedString(Span(file, line, column, line, column + 2), delimiter=m["delim"])
            if kind == "string":  # the only tokens that may have several lines
                line, line_start = _advance(m[0], line, line_start, start)
            span = Span(file, begin, column, line, end - line_start + 1)
            yield Token(kind, m[0], span, row, glued, first)
            glued, first = True, False
            continue
        glued = False
        if what in ("joined", "newline"):
            line, line_start = line + 1, end
            if what == "newline":
                row, first = row + 1, True
        elif what == "block":
            if m["end"] is None:
                raise UnterminatedComment(Span(file, line, start - line_start + 1, line, start - line_start + 3))
            line, line_start = _advance(m[0], line, line_start, start)


def _advance(text: str, line: int, line_start: int, start: int) -> tuple[int, int]:
    """Line and start of line after ``text``, which began at ``start``."""
    count = text.count("\n")
    if not count:
        return line, line_start
    return line + count, start + text.rindex("\n") + 1


def join(a: Span, b: Span) -> Span:
    """From the start of the one to the end of the other, whichever comes first."""
    start = min((a.line, a.column), (b.line, b.column))
    end = max((a.end_line, a.end_column), (b.end_line, b.end_column))
    return Span(a.file, *start, *end)
