"""The text of a function that is in no file: `python -c`, `exec`, standard input, and the REPL before Python 3.13.

Python does not keep these texts.  Candidates are searched for where they still are, and one is accepted only if it
compiles to the function's own bytecode, with the same places in the text.
"""

from __future__ import annotations

import linecache
import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from types import CodeType, FrameType, FunctionType

_NUMBERS = count(1)
# Bytes of standard input, and lines of a REPL's history, that are looked at.
MAX_INPUT, MAX_LINES = 1 << 20, 400


def keep_text(function: FunctionType, given: str | None = None) -> bool:
    """Give ``function`` a file name of its own under which `linecache` has its text; whether a text was found.

    ``given``: the text that the program says it is in, the only candidate then.
    """
    code = function.__code__
    for text in _candidates(code) if given is None else (given, textwrap.dedent(given)):
        padded = _aligned(text, code)
        if padded is None:
            continue
        name = f"<tilemma {code.co_filename.strip('<>')} {next(_NUMBERS)}>"
        # Without a time of modification: `linecache.checkcache` keeps it.
        linecache.cache[name] = (len(padded), None, padded.splitlines(keepends=True), name)
        function.__code__ = _renamed(code, name)
        return True
    return False


def _aligned(text: str, code: CodeType) -> str | None:
    """``text`` with the function on the line that ``code`` names; None where it does not compile to ``code``."""
    if code.co_name not in text:
        return None
    try:
        compiled = compile(text, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    for found in _functions(compiled):
        shift = code.co_firstlineno - found.co_firstlineno
        same = all(getattr(found, a) == getattr(code, a) for a in ("co_name", "co_code", "co_linetable"))
        if same and shift >= 0:
            return "\n" * shift + text
    return None


def _functions(code: CodeType) -> Iterator[CodeType]:
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield x
            yield from _functions(x)


def _renamed(code: CodeType, name: str) -> CodeType:
    constants = tuple(_renamed(x, name) if isinstance(x, CodeType) else x for x in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def _candidates(code: CodeType) -> Iterator[str]:
    for argument in sys.orig_argv:
        yield argument
        yield textwrap.dedent(argument)
    if code.co_filename == "<stdin>":
        yield from _history()
        yield from _standard_input()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield from [v for v in (*frame.f_locals.values(), *frame.f_globals.values()) if type(v) is str]
        frame = frame.f_back


def _standard_input() -> Iterator[str]:
    """Standard input as a whole, if it is a file."""
    try:
        state = os.fstat(0)
        if stat.S_ISREG(state.st_mode):
            yield os.pread(0, min(state.st_size, MAX_INPUT), 0).decode()
    except (OSError, ValueError, AttributeError):
        return


def _history() -> Iterator[str]:
    """The last lines that were typed into a REPL, from one line upwards."""
    readline = sys.modules.get("readline")
    if readline is None:
        return
    last = readline.get_current_history_length()
    lines: list[str] = []
    for number in range(last, max(0, last - MAX_LINES), -1):
        lines.insert(0, readline.get_history_item(number) or "")
        yield "\n".join(lines) + "\n"


__all__ = ["keep_text"]
