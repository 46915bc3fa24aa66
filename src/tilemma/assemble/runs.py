"""Runs of ptxas: for a text that is there, or started ahead of it.

ptxas spends a tenth of its time before it opens its text.  A run that is started ahead does so while the text is
made: until then, the file that it opens is a named pipe.  At its end ptxas opens the text once more, to keep it
beside the line numbers.  A pipe does not serve for that: a file takes its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import ToolError
from .cache import DiskCache
from .process import ToolProcess, remove, temporary_file
from .toolchain import Search, Tool

# ptxas takes some 7,000 pages of 4 KiB one by one, a tenth of its time.  glibc (manual, Memory Allocation
# Tunables) takes large ones where the kernel allows it; other libraries do not look here.
MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=67108864"}
# The release of ptxas from which on PTX may ask for fast compilation: the one whose code was measured.
FAST_COMPILE = (13, 5)
# Bytes that a pipe may hold (Linux, pipe-max-size); a longer text starts a run of its own.
_LARGEST = 1 << 20

_pipes: set[int] = set()


def _close_pipes() -> None:
    """In a forked process: while it had them too, ptxas would never come to the end of its text."""
    for pipe in _pipes:
        os.close(pipe)
    _pipes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_pipes)


class Run:
    """ptxas at work for ``arch``, with its files."""

    def __init__(self, path: str, arch: str, options: Sequence[str] = (), text: str | None = None) -> None:
        """Starts the program at ``path``, for ``text`` or, where that is None, for the text that `supply` gives.

        Raises OSError, ValueError.
        """
        self.purpose = path, arch, tuple(options)
        # A temporary folder would take longer to remove than all other steps here.
        self.files: list[Path] = []
        self._pipe = -1
        self._late = b""
        try:
            for suffix in (".ptx", ".cubin", ".txt"):
                self.files.append(temporary_file(suffix))
            source, self.target, self.said = self.files
            if text is None:
                source.unlink()
                os.mkfifo(source, 0o600)
                # Its second name: a file takes the first one.
                self.files.append(temporary_file(".fifo"))
                self.files[-1].unlink()
                os.link(source, self.files[-1])
            else:
                source.write_text(text, encoding="utf-8", errors="surrogateescape")
            command = [path, "-v", "-arch", arch, *options, "-o", str(self.target), str(source)]
            environment = {**MALLOC, **os.environ}
            self.process = ToolProcess(command, self.said, written=[self.target], environment=environment)
        except BaseException:
            self._clean()
            raise

    def supply(self, text: str) -> bool:
        """Gives it its text; False where that is not possible, and the run of no use."""
        if sys.platform != "linux":
            return False
        data = text.encode("utf-8", "surrogateescape")
        if len(data) > _LARGEST or len(self.files) < 4 or self.process.process.poll() is not None:
            return False
        whole = temporary_file(".ptx")
        try:
            whole.write_bytes(data)
            begun = self._open_pipe()
            # If ptxas has not begun to open the pipe by now, it opens the file.
            os.replace(whole, self.files[0])
            self.process.began = time.perf_counter()
            if begun:
                return self._write(data)
            # Or it has found the pipe, and opens it later.
            self._late = data
            self.process.meanwhile = self._is_late
            return True
        except OSError:
            return False
        finally:
            remove(whole)
            self._close_pipe()

    def _open_pipe(self) -> bool:
        """Opens the pipe for writing if ptxas has opened it, or waits for that."""
        try:
            self._pipe = os.open(self.files[3], os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False
            raise
        _pipes.add(self._pipe)
        return True

    def _write(self, data: bytes) -> bool:
        if sys.platform != "linux":
            return False
        import fcntl

        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, max(len(data), 1 << 16))
        return os.write(self._pipe, data) == len(data)

    def _is_late(self) -> bool:
        """Whether ptxas has still not opened the pipe, and may; gives it the text if it has."""
        with contextlib.suppress(OSError):
            if not self._open_pipe():
                return True
            try:
                self._write(self._late)
            finally:
                self._close_pipe()
        self.process.meanwhile = None
        return False

    def _close_pipe(self) -> None:
        if self._pipe in _pipes:
            _pipes.remove(self._pipe)
            os.close(self._pipe)

    def _clean(self) -> None:
        self._close_pipe()
        for file in self.files:
            remove(file)

    def end(self) -> None:
        """Stops it, if it still works, and removes its files."""
        self.process.stop()
        self._clean()


class Ahead:
    """A run of ptxas for ``arch`` that is started while there is no text yet, and the search for ptxas.

    Both processes are started in this thread: another one would wait for the interpreter's lock after each step,
    for as long as compiling takes.  As a context manager, it ends the run unless that was taken.
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self._search = Search("ptxas")
        self._run: Run | None = None
        self._search.ask()
        if not DiskCache("cubin").is_empty():  # results of it may be kept
            threading.Thread(target=self._hash, daemon=True).start()

    def expect(self, options: Sequence[str] = ()) -> Ahead:
        """Starts the run, for a text that will probably be assembled with ``options``."""
        with contextlib.suppress(OSError, ValueError):  # a run that is not ahead reports it
            path = self._search.likely
            if sys.platform == "linux" and path is not None:
                self._run = Run(path, self.arch, options)
        return self

    def _hash(self) -> None:
        with contextlib.suppress(ToolError):
            _ = self.tool.digest

    @property
    def tool(self) -> Tool:
        """The ptxas to use.  Raises NoPtxas, ToolDoesNotRun."""
        return self._search.tool()

    def take(self, tool: Tool, arch: str, options: Sequence[str], text: str) -> Run | None:
        """The run, now for ``text``; None where it is not there, or another."""
        run = self._run
        if run is None or run.purpose != (tool.path, arch, tuple(options)) or not run.supply(text):
            return None
        self._run = None
        return run

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._search.end()
        if self._run is not None:
            self._run.end()
