"""Child processes of NVIDIA's tools, with limits of time and output; temporary files that do not stay."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .settings import number_setting

# The time limit of a tool in seconds; TILEMMA_TOOL_SECONDS overrides it.  The slowest known kernels take 10.
TIME_LIMIT = 120.0
# Bytes that a tool may print, and that a file it writes may have.
OUTPUT_LIMIT = 256 << 20
# Characters of a tool's output that an error shows.
_MOST_SHOWN = 500
# Seconds between two checks of the size of a tool's output.
_LOOK = 0.2
# Seconds between two calls of `ToolProcess.meanwhile`.
_OFTEN = 0.005

_temporary: set[Path] = set()


@atexit.register
def _remove_temporary() -> None:
    for path in list(_temporary):
        remove(path)


if hasattr(os, "register_at_fork"):
    # The files belong to the parent.
    os.register_at_fork(after_in_child=_temporary.clear)


def temporary_file(suffix: str) -> Path:
    """A new empty file that only this user can read.  It is removed by `remove`, or when the process ends."""
    while True:
        path = Path(tempfile.gettempdir(), f"tilemma-{os.urandom(8).hex()}{suffix}")
        # Recorded first: an interrupt may come between any two steps.
        _temporary.add(path)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            return path
        _temporary.discard(path)


def content(path: Path, *, end: int | None = None) -> bytes:
    """The content of a regular file that a tool wrote; with ``end`` its last ``end`` bytes alone.

    Raises OSError for anything else under that name: a link, a folder, a pipe, or nothing.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or (end is None and state.st_size > OUTPUT_LIMIT):
            raise OSError(f"{path} is no regular file of at most {OUTPUT_LIMIT >> 20} MiB")
        if end is not None:
            file.seek(max(0, state.st_size - end))
        return file.read()


def remove(path: Path) -> None:
    """Remove a file of `temporary_file`, or the folder that a tool made of it."""
    try:
        path.unlink()
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
    _temporary.discard(path)


def time_limit(otherwise: float = TIME_LIMIT) -> float:
    """Seconds that a tool may take: $TILEMMA_TOOL_SECONDS, else ``otherwise``."""
    return number_setting("TILEMMA_TOOL_SECONDS", "a number of seconds above 0", float) or otherwise


class Stopped(Exception):
    """A tool was stopped at one of its limits, which the text names."""


class ToolProcess:
    """A running tool.  Its output goes to the file ``said``: with a pipe, the tool would block when it is full.

    `wait` enforces the limits, on ``said`` and on the files in ``written`` that the tool writes.
    """

    def __init__(
        self,
        command: Sequence[str],
        said: Path,
        *,
        complaints: Path | None = None,
        written: Sequence[Path] = (),
        environment: dict[str, str] | None = None,
        seconds: float = TIME_LIMIT,
    ) -> None:
        """Starts ``command``; its standard error goes to ``complaints`` if that is given.

        ``seconds``: its time limit, unless TILEMMA_TOOL_SECONDS gives another.

        Raises OSError, and ValueError for a path with a null character."""
        self.files = (said, complaints or said, *written)
        self.limit = time_limit(seconds)
        self.began = time.perf_counter()
        # Called while it runs, every `_OFTEN` seconds as long as it returns True.
        self.meanwhile: Callable[[], bool] | None = None
        # A separate process group, so that the tool's child processes can be stopped with it.
        with open(said, "wb") as output, open(complaints or os.devnull, "wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output if complaints is None else errors,
                env=environment,
                start_new_session=os.name == "posix",
            )

    def wait(self) -> int:
        """The exit status, negative for a signal.  Raises Stopped at a limit; the tool has ended then."""
        try:
            return self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> int:
        with _Ending(self.process) as ending:
            while not self._has_ended():
                often = self.meanwhile is not None and self.meanwhile()
                ending.wait(_OFTEN if often else _LOOK)
                self._hold_limits()
        status = self.process.wait()
        self._hold_limits(ended=True)
        return status

    def _has_ended(self) -> bool:
        """Whether the tool has ended; child processes that it has left are ended too."""
        if self.process.returncode is None and hasattr(os, "waitid"):
            # Until the tool is waited for, no other process can get its number, which is that of its group.
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return False
                with contextlib.suppress(OSError):
                    os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.poll() is not None

    def _hold_limits(self, ended: bool = False) -> None:
        if not ended and time.perf_counter() - self.began > self.limit:
            raise Stopped(f"still running after {self.limit:g} s (TILEMMA_TOOL_SECONDS is the limit)")
        for file in self.files:
            with contextlib.suppress(OSError):
                if file.stat().st_size > OUTPUT_LIMIT:
                    raise Stopped(f"more than {OUTPUT_LIMIT >> 20} MiB of output")

    def stop(self) -> None:
        """End the tool, if it still runs, with its child processes."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                if os.name == "posix":
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
            self.process.wait()


class _Ending:
    """Waits for the end of a process: `subprocess` polls for it, at intervals as long as ptxas takes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.descriptor = process, -1
        with contextlib.suppress(AttributeError, OSError):  # Linux has it
            self.descriptor = os.pidfd_open(process.pid)

    def __enter__(self) -> _Ending:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def wait(self, seconds: float) -> None:
        """Return when the process has ended, or after ``seconds``."""
        if self.descriptor >= 0:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            poll.poll(seconds * 1000)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)


class Output:
    """What a command prints while there is other work to do: `result` waits for its end."""

    def __init__(self, command: Sequence[str], *, seconds: float = TIME_LIMIT) -> None:
        """Starts ``command``.  Raises OSError, ValueError."""
        self._files: list[Path] = []
        self._process: ToolProcess | None = None
        try:
            self._files += [temporary_file(".txt")]
            self._files += [temporary_file(".txt")]
            said, complaints = self._files
            self._process = ToolProcess(command, said, complaints=complaints, seconds=seconds)
        except BaseException:
            self.end()
            raise

    def result(self) -> tuple[int, str, str]:
        """Its status, its standard output and its standard error; once.

        Raises OSError, and Stopped with the end of what it printed.
        """
        assert self._process is not None
        try:
            status = self._process.wait()
            said, complaints = (content(file).decode("utf-8", "replace") for file in self._files)
            return status, said, complaints
        except Stopped as stopped:
            last = "".join(content(file, end=_MOST_SHOWN).decode("utf-8", "replace") for file in self._files)
            raise Stopped(f"{stopped}, `{tail(last)}`") from None
        finally:
            self.end()

    def end(self) -> None:
        """Stops it, if it still runs, and removes its files."""
        if self._process is not None:
            self._process.stop()
        for file in self._files:
            remove(file)
        self._files.clear()


def output_of(command: Sequence[str], *, seconds: float = TIME_LIMIT) -> tuple[int, str, str]:
    """Run ``command`` to its end: its status, its standard output and its standard error.

    Raises OSError, ValueError, and Stopped with the end of what it printed.
    """
    return Output(command, seconds=seconds).result()


def tail(text: str) -> str:
    """The end of a tool's output, for an error."""
    return text.strip()[-_MOST_SHOWN:] or "no message"
