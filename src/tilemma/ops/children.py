"""Work for child processes: the compiler's front end keeps one process busy, and a machine has many cores."""

from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from tempfile import mkstemp
from typing import Any, Generic, NoReturn, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

# Seconds that children have for removing their files; how much less those have that another child has started.
ENDING, EARLIER = 0.2, 0.05
# Seconds after which children without an item leave by themselves.
IDLE = 8.0
# How much of the time that an item took is expected of the next one, at least.
RECENT = 0.7
# Bytes of an item, at most: a pipe of any system takes so many as a whole.
SIZE = 512


def surroundings() -> tuple[Any, ...]:
    """What a child has from its parent, besides the modules."""
    return os.getpid(), os.getcwd(), dict(os.environ)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Run:
    """A run of children; its work is ``size`` bytes of a file from ``at`` on."""

    number: int
    deadline: float
    at: int = 0
    size: int = 0


class Children(Generic[T, R]):
    """``count`` children of this process, which compute ``work(item)`` for the items that they are sent, in one
    run or several (`begin`); the first child begins with ``items`` while others are started.

    A fork takes the longer the more memory the process has: 24 of them took half a second beside torch.  All
    children but the first therefore come from a few, which this process starts.

    A child begins with the state that this process has now.  It must not use the GPU.  It starts no item that
    would be later than the run's ``deadline`` (perf_counter) if it took as long as its last ones.  A child that
    fails takes its item along.  Children without items leave after `IDLE` seconds.
    """

    def __init__(self, work: Callable[[T], R], count: int, deadline: float, items: Iterable[T] = ()) -> None:
        self.count, self.surroundings = count, surroundings()
        # A file without a name, where children find the work of later runs.
        self._works, path = mkstemp()
        os.unlink(path)
        self._items, self._fill = os.pipe()
        os.set_blocking(self._fill, False)
        self._open = True
        self._run = Run(0, deadline)
        self._sent: list[T] = []
        self._done = 0
        self._readers: list[Connection] = []
        # The children that this process has started itself.
        self._started: list[int] = []
        writers: list[Connection] = []
        try:
            for item in items:
                self.send(item)
            for _ in range(count):
                reader, writer = Pipe(duplex=False)
                self._readers.append(reader)
                writers.append(writer)
            each = 1 + math.isqrt(max(1, count - 1))
            for at in (0, *range(1, count, each)):
                self._start(work, writers, slice(at, at + each if at else 1))
        except BaseException:
            self.close()
            raise
        finally:
            for writer in writers:
                writer.close()

    def begin(self, work: Callable[[T], R], deadline: float, items: Iterable[T] = ()) -> None:
        """Begin another run, of work that can be pickled; the results of the one before are no longer wanted."""
        data, at = pickle.dumps(work), os.lseek(self._works, 0, os.SEEK_END)
        os.write(self._works, data)
        self._run, self._sent, self._done = Run(self._run.number + 1, deadline, at, len(data)), [], 0
        # Children that have left say so, and none waits until its last result is read.
        while self._answers(0.0) is not None:
            pass
        self._done = 0
        for item in items:
            self.send(item)

    def _start(self, work: Callable[[T], R], writers: Sequence[Connection], part: slice) -> None:
        """Start a child that serves the first of ``part`` of the ``writers``, and starts others for the rest."""
        parent = os.getpid()
        try:
            child = _fork()
            if child == 0:
                os.close(self._fill)
                for reader in self._readers:
                    reader.close()
                _serve(work, self._works, self._items, writers, part)
        finally:
            if os.getpid() != parent:
                # An interrupt at once must not take a child through its parent's program.
                os._exit(1)
        self._started.append(child)

    @property
    def waiting(self) -> int:
        """Items that were sent and have not come back, but still can."""
        return max(0, len(self._sent) - self._done) if self._readers else 0

    @property
    def alive(self) -> int:
        """How many children there are."""
        return len(self._readers)

    def send(self, item: T) -> None:
        """Give an item to the next child that is free; none gets it if too many wait already."""
        message = pickle.dumps((self._run, len(self._sent), item))
        assert len(message) <= SIZE, item
        with suppress(BlockingIOError):
            os.write(self._fill, message.ljust(SIZE, b"\0"))
            self._sent.append(item)

    def receive(self, until: float) -> list[tuple[T, R]]:
        """(item, work(item)) of those that have been computed; waits for one until ``until`` (perf_counter)."""
        found: list[tuple[T, R]] = []
        while self.waiting:
            answers = self._answers(0.0 if found else max(0.0, until - time.perf_counter()))
            for run, number, value in answers or ():
                if run == self._run.number and value is not None:
                    found.append((self._sent[number], value[0]))
            if answers is None:
                break
        return found

    def _answers(self, seconds: float) -> list[tuple[int, int, tuple[R] | None]] | None:
        """What children have answered in so many seconds, at most one answer of each; None if none has.

        (run, number, None): the item was not computed.
        """
        found: list[tuple[int, int, tuple[R] | None]] = []
        readers = cast(list["Connection"], wait(self._readers, seconds)) if self._readers else []
        for reader in readers:
            try:
                answer = reader.recv()
            except Exception:  # it has ended, perhaps within a result
                answer, self._done = None, self._done + 1
            if answer is None:
                reader.close()
                self._readers.remove(reader)
            else:
                self._done += answer[0] == self._run.number
                found.append(answer)
        return found if readers else None

    def stop(self) -> None:
        """Ask the children to end."""
        if self._open:
            self._open = False
            os.close(self._items)
            os.close(self._fill)
            os.close(self._works)
            for reader in self._readers:
                reader.close()
            self._readers.clear()
            _ask(self._started)

    def close(self) -> None:
        """End the children, and wait until they have ended."""
        self.stop()
        _end(self._started, ENDING)
        self._started.clear()


def _fork() -> int:
    with warnings.catch_warnings():
        # Of threads in this process: a child that waits for one is ended in time.
        warnings.simplefilter("ignore")
        return os.fork()


def _serve(
    work: Callable[[Any], Any], works: int, items: int, writers: Sequence[Connection], part: slice
) -> NoReturn:
    """Start children for ``part`` of the ``writers`` but the first, compute the items that come, and leave when
    these children have left."""
    started: list[int] = []
    try:
        try:
            # No child is started and forgotten.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            # An event loop of the parent's would take signals of a child for its own.
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGALRM):
                signal.signal(number, _leave)
            # What the handler raises in a finalizer is not printed.
            sys.unraisablehook = lambda _: None
            # The parent's objects are its own: none is collected here.
            gc.freeze()
            out = _branch(writers[part], started)
            for writer in writers:
                if writer is not out:
                    writer.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            with suppress(Exception):
                _compute(work, works, items, out)
            out.close()
            for child in started:
                _has_ended(child, wait=True)
            started.clear()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        # No handler of the parent's runs, and no buffer of its files is written twice.
        with suppress(BaseException):
            # If the signal came just before it was ignored.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _end(started, ENDING - EARLIER)
        os._exit(0)


def _branch(writers: Sequence[Connection], started: list[int]) -> Connection:
    """Start children for the ``writers`` but the first; the one of each process.  ``started``: its children."""
    for i, writer in enumerate(writers[1:], 1):
        try:
            child = _fork()
        except OSError:  # the system allows no more processes
            for other in writers[i:]:
                other.send(None)
            break
        if child == 0:
            started.clear()
            return writer
        started.append(child)
    return writers[0]


def _compute(work: Callable[[Any], Any], works: int, items: int, out: Connection) -> None:
    """Send what is computed for the items that come, and None at the end."""
    longest, last = 0.0, 0
    while message := _next(items):
        run, number, item = pickle.loads(message)
        if run.number != last:
            work, last = pickle.loads(os.pread(works, run.size, run.at)), run.number
            longest *= RECENT
        begin = time.perf_counter()
        if begin + longest >= run.deadline:
            out.send((last, number, None))
        else:
            out.send((last, number, (work(item),)))
            # The first of a child takes the longest: it writes to the memory that it shares with its parent.
            longest = max(RECENT * longest, time.perf_counter() - begin)
        # What would be late here may not be late in another child.
        now = time.perf_counter()
        if now < run.deadline <= now + longest:
            time.sleep(run.deadline - now)
    out.send(None)


def _next(items: int) -> bytes:
    """The next item; the process leaves if none comes for `IDLE` seconds."""
    signal.setitimer(signal.ITIMER_REAL, IDLE)
    try:
        return os.read(items, SIZE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _leave(*_: Any) -> NoReturn:
    """Leave by way of the blocks that remove temporary files and stop tools."""
    raise SystemExit


def _end(children: Sequence[int], seconds: float) -> None:
    """Ask children to end, and wait until they have; those that do not in so many seconds are killed."""
    left, until = list(children), time.perf_counter() + seconds
    while left := [child for child in left if not _has_ended(child, wait=False)]:
        late = time.perf_counter() > until
        # Again and again: what a handler raises in a finalizer is lost.
        _ask(left, signal.SIGKILL if late else signal.SIGTERM)
        for child in left if late else ():
            _has_ended(child, wait=True)
        time.sleep(0.005)


def _ask(children: Sequence[int], how: int = signal.SIGTERM) -> None:
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, how)


def _has_ended(child: int, wait: bool) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(child, 0 if wait else os.WNOHANG) != (0, 0)
    return True
