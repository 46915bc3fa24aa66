"""The text of a function that is in no file: `python -c`, `exec`, standard input, what was typed at a prompt.

Python does not keep these texts.  Candidates are searched for where they still are, and one is accepted only if it
compiles to the function's own bytecode, with the same places in the text.
"""

from __future__ import annotations
import __future__

import linecache
import os
import stat
import sys
import textwrap
from collections.abc import Iterator
from functools import reduce
from itertools import count
from operator import or_
from types import CodeType, FrameType, FunctionType

_NUMBERS = count(1)
_FUTURE = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))
# Bytes of standard input, and lines of a REPL's history, that are looked at.
MAX_INPUT, MAX_LINES = 1 << 20, 400


def keep_typed(code: CodeType) -> None:
    """Let `linecache` find what was typed at a prompt of Python 3.13 or later, which keeps it by code object.

    Each input has a file name of its own.
    """
    name, typed = code.co_filename, getattr(linecache, "_getlines_from_code", None)
    if typed is None or name in linecache.cache or not name.startswith(("<stdin-", "<python-input-")):
        return
    if lines := typed(code):
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def text_of(code: CodeType) -> str | None:
    """The text of a function without a file, its lines counted as in ``code``, if it can be found."""
    return next((text for c in _candidates(code) if (text := _aligned(c, code)) is not None), None)


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
    compiled = _compiled(text, code)
    for found in _functions(compiled) if compiled else ():
        shift = code.co_firstlineno - found.co_firstlineno
        if found.co_name != code.co_name or shift < 0:
            continue
        # Instructions name constants and names by number: functions that differ in these alone have equal ones.
        # Code is compared with its constants, names and first line, and so again at its line.
        padded = "\n" * shift + text
        again = _compiled(padded, code) if shift else compiled
        if again is not None and any(c == code and c.co_linetable == code.co_linetable for c in _functions(again)):
            return padded
    return None


def _compiled(text: str, code: CodeType) -> CodeType | None:
    try:
        # `exec` takes over the `from __future__` imports of its caller.
        made: CodeType = compile(text, code.co_filename, "exec", code.co_flags & _FUTURE, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return made


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
            yield os.pread(0, min(state.st_size, MAX_INPUT), 0).decode("utf-8-sig")
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
