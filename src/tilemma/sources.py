"""Reading files that a user names: only regular files up to a maximum size; source files are UTF-8 text."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
import traceback
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

from tilemma.errors import CompileError, TilemmaError, WrongArgumentType, debugging, described


class CannotRead(CompileError):
    code = "cannot-read-file"
    found = "`{file}` cannot be read: {reason}"
    expected = "a regular file that can be read"
    fix = "check the path"


class NotText(CompileError):
    code = "not-utf-8"
    found = "`{file}` is not a text in UTF-8: {reason}"
    expected = "a program in UTF-8"
    fix = "save the file with the encoding UTF-8"


class ProgramFailed(CompileError):
    code = "program-failed"
    found = "`{file}` raised {what}"
    expected = "a Python file that runs and defines kernels"
    fix = "correct it:\n{trace}"


F = TypeVar("F", bound=Callable[..., Any])

# Bytes of a source file: more than any program has, and less than harms.
MAX_FILE = 16 << 20


def read_source(function: str, path: str | Path) -> bytes:
    """The content of a regular file of UTF-8 text, without the mark that some editors put first.

    Raises CannotRead, NotText, WrongArgumentType.
    """
    if not isinstance(path, (str, os.PathLike)):
        in_memory = isinstance(getattr(type(path), "article", None), str)
        wanted = "the path of a file" + ("; tiles are loaded by `mma.load(tile)`" if in_memory else "")
        raise WrongArgumentType(function=function, name="path", got=described(path), wanted=wanted)
    data = read_regular(path, MAX_FILE)
    try:
        data.decode("utf-8")
    except ValueError as e:
        raise NotText(file=str(path), reason=str(e)) from None
    return data.removeprefix(codecs.BOM_UTF8)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes.  Raises CannotRead."""
    try:
        # Without O_NONBLOCK opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise CannotRead(file=str(path), reason="it is no regular file")
            if state.st_size > most:
                size = f"it has {state.st_size} bytes, more than the limit of {most}"
                raise CannotRead(file=str(path), reason=size)
            # The file may grow while it is read.
            return file.read(most)
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise CannotRead(file=str(path), reason=reason) from None


def program_failed(error: BaseException, file: str | None = None) -> ProgramFailed | None:
    """The error for an exception of the user's program, with the frames of the program alone.

    ``file``: the file that was executed; default the one that raised.  None where the package raised ``error``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    entered = next((i for i, frame in enumerate(frames) if frame.filename.startswith(_PACKAGE)), 0)
    called = [f for f in frames[entered:] if not f.filename.startswith(_libraries())]
    own = [f for f in called if not f.filename.startswith(_PACKAGE)]
    if isinstance(error, SyntaxError):
        trace = "".join(traceback.format_exception_only(error))
    # A name that the package does not have is the program's mistake.
    elif own and (called[-1] is own[-1] or called[-1].name == "__getattr__"):
        trace = "".join(traceback.format_list(own))
    else:
        return None
    what = f"{type(error).__name__}: {error}"
    where = file or (own[-1].filename if own else getattr(error, "filename", None) or "<text>")
    return ProgramFailed(file=where, what=what, trace=trace.rstrip())


def shown(error: BaseException) -> BaseException:
    """``error`` with a traceback of the program's frames alone, unless the variable TILEMMA_DEBUG is set.

    An exception of another kind out of this package keeps its traceback: it is a mistake here.
    """
    kept = [(tb.tb_frame, tb.tb_lasti, tb.tb_lineno) for tb in _tracebacks(error)]
    last = kept[-1][0].f_code if kept else None
    ours = last is not None and last.co_filename.startswith(_PACKAGE) and last.co_name != "__getattr__"
    if debugging() or (ours and not isinstance(error, TilemmaError)):
        return error
    trace: TracebackType | None = None
    for frame, instruction, line in reversed(kept):
        if not frame.f_code.co_filename.startswith((_PACKAGE, _CONTEXTLIB)):
            trace = TracebackType(trace, frame, instruction, line)
    if isinstance(error, TilemmaError):
        error.__suppress_context__ = True
    return error.with_traceback(trace)


def program_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the program alone: without those of this package, and of libraries such as IPython."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
    return [f for f in frames if not f.filename.startswith(_libraries())] or frames


def _tracebacks(error: BaseException) -> Iterator[TracebackType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb
        tb = tb.tb_next


def shows_user_frames(function: F) -> F:
    """Decorator: exceptions leave the function as `shown`."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except Exception as error:
            __tracebackhide__ = not debugging()  # IPython and pytest leave this frame out
            raise shown(error)  # noqa: B904 (the same exception)

    return cast(F, call)


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CONTEXTLIB = contextlib.__file__


@cache
def _libraries() -> tuple[str, ...]:
    # Imported here: reading the build's configuration takes about as long as a cached start.
    import sysconfig

    return ("<frozen ", *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")))
