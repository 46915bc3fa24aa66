"""The output of commands: text on standard output, which may be closed or full, and files written atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

import click

from tilemma.assemble import DiskCache
from tilemma.errors import ToolError, visible


class CannotWrite(ToolError):
    code = "cannot-write-file"
    found = "`{file}` cannot be written: {reason}"
    expected = "a place that can be written"
    fix = "{fix_text}"


def say(text: str) -> None:
    """Print ``text`` and a newline; on a terminal control characters are escaped (see `visible`)."""
    stream = sys.stdout
    if stream is not None and stream.isatty():
        text = visible(text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    write_standard(text.encode(encoding, "backslashreplace") + (b"" if text.endswith("\n") else b"\n"))


def say_json(data: Any) -> None:
    """Print ``data`` as one line of JSON."""
    text = json.dumps(data, ensure_ascii=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line = text.encode(encoding)
    except UnicodeEncodeError:
        line = json.dumps(data).encode()
    write_standard(line + b"\n")


def complain(text: str) -> None:
    """Print ``text``, which is safe to show, on standard error, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(text.encode("utf-8", "backslashreplace").decode(), err=True)


def write_standard(data: bytes) -> None:
    """Write to standard output; if its reader has gone, the rest is dropped.  Raises CannotWrite."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
        stream = getattr(sys.stdout, "buffer", None)
        if stream is None:  # replaced by something that takes text only
            sys.stdout.write(data.decode("utf-8", "backslashreplace"))
        else:
            stream.write(data)
            stream.flush()
    except BrokenPipeError:
        # Python flushes its buffers at exit, and would print an error.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotWrite(
            file="standard output", reason=reason, fix_text="make room, or write elsewhere"
        ) from None


def write_file(name: str, data: bytes, *, source: str, force: bool = False) -> None:
    """Write ``data`` to the file ``name`` (`-`: standard output) as a whole or not at all.

    A file that a command did not write is replaced under ``force`` only, ``source``, which it reads, never.
    Raises CannotWrite.
    """
    if name == "-":
        write_standard(data)
        return
    try:
        target = Path(os.path.realpath(name))
        state = os.stat(name)
    except FileNotFoundError:
        state = None
    except (OSError, ValueError) as error:
        raise cannot_write(name, error) from None
    if state is not None and _is_standard_output(state):
        write_standard(data)
        return
    try:
        if state is not None and not stat.S_ISREG(state.st_mode):
            if not stat.S_ISCHR(state.st_mode) and not stat.S_ISFIFO(state.st_mode):
                raise CannotWrite(file=name, reason="it is a folder, a socket or a disk", fix_text="name a file")
            Path(name).write_bytes(data)
            return
        if state is not None:
            _check_replaceable(name, target, source, force)
        _replace(target, data, None if state is None else stat.S_IMODE(state.st_mode))
    except OSError as error:
        raise cannot_write(name, error) from None
    _records().put(_record_key(target), _record(len(data), hashlib.sha256(data).hexdigest()))


def _is_standard_output(state: os.stat_result) -> bool:
    """Whether a file is the standard output under another name, such as /dev/stdout."""
    try:
        return sys.stdout is not None and os.path.samestat(state, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # replaced by something without a file
        return False


def cannot_write(name: str, error: Exception) -> CannotWrite:
    """The error for the file ``name``, which the operating system or Python refused to write."""
    reason = getattr(error, "strerror", None) or str(error)
    folder = os.path.dirname(name)
    fix = "check the path, the rights and the room there"
    if isinstance(error, FileNotFoundError) and folder:
        fix = f"create the folder `{folder}` first"
    return CannotWrite(file=name, reason=reason, fix_text=fix)


def _check_replaceable(name: str, target: Path, source: str, force: bool) -> None:
    with contextlib.suppress(OSError):
        if os.path.samefile(target, source):
            raise CannotWrite(file=name, reason="it is the source", fix_text="name another file")
    if force:
        return
    known = _records().get(_record_key(target))
    with open(target, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A file of another size is not read: it may be huge.
        same = known is not None and known.startswith(_record(size, ""))
        if same and known == _record(size, hashlib.file_digest(file, "sha256").hexdigest()):
            return
    reason = "a file of that name exists that tilemma did not write, or that has changed since"
    raise CannotWrite(file=name, reason=reason, fix_text="name another file, or add --force to replace it")


def _records() -> DiskCache:
    """Size and hash of the last content written, by file."""
    return DiskCache("outputs")


def _record(size: int, digest: str) -> bytes:
    return f"{size} {digest}".encode()


def _record_key(target: Path) -> str:
    return DiskCache.key(os.fsencode(target))


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    """Write a temporary file beside ``target`` and rename it: on failure, the old content stays."""
    temporary = target.with_name(f".tilemma-{secrets.token_hex(8)}.new")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
