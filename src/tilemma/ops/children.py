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
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, NoReturn, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

# Seconds that children have for removing their files; how much less those have that another child has started.
ENDING, EARLIER = 0.2, 0.05
# How much of the time that an item took is expected of the next one, at least.
RECENT = 0.7
# Bytes of an item, at most: a pipe of any system takes so many as a whole.
SIZE = 512


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Children(Generic[T, R]):
    """``count`` children of this process, which compute ``work(item)`` for the items that they are sent; the first
    child begins with ``items`` while others are started.

    A fork takes the longer the more memory the process has: 24 of them took half a second beside torch.  All
    children but the first therefore come from a few, which this process starts.

    A child begins with the state that this process has now.  It must not use the GPU.  It starts no item that
    would be later than ``deadline`` (perf_counter) if it took as long as its last ones.  A child that fails takes
    its item along.
    """

    def __init__(self, work: Callable[[T], R], count: int, deadline: float, items: Iterable[T] = ()) -> None:
        self._items, self._fill = os.pipe()
        os.set_blocking(self._fill, False)
        self._open = True
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
                self._start(work, writers, slice(at, at + each if at else 1), deadline)
        except BaseException:
            self.close()
            raise
        finally:
            for writer in writers:
                writer.close()

    def _start(self, work: Callable[[T], R], writers: Sequence[Connection], part: slice, deadline: float) -> None:
        """Start a child that serves the first of ``part`` of the ``writers``, and starts others for the rest."""
        parent = os.getpid()
        try:
            child = _fork()
            if child == 0:
                os.close(self._fill)
                for reader in self._readers:
                    reader.close()
                _serve(work, self._items, writers, part, deadline)
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
    def alive(self) -> bool:
        """Whether there is a child."""
        return bool(self._readers)

    def send(self, item: T) -> None:
        """Give an item to the next child that is free; none gets it if too many wait already."""
        message = pickle.dumps((len(self._sent), item))
        assert len(message) <= SIZE, item
        with suppress(BlockingIOError):
            os.write(self._fill, message.ljust(SIZE, b"\0"))
            self._sent.append(item)

    def receive(self, until: float) -> list[tuple[T, R]]:
        """(item, work(item)) of those that have been computed; waits for one until ``until`` (perf_counter)."""
        found: list[tuple[T, R]] = []
        while self.waiting:
            left = 0.0 if found else max(0.0, until - time.perf_counter())
            readers = cast(list["Connection"], wait(self._readers, left))
            for reader in readers:
                try:
                    answer = reader.recv()
                except Exception:  # it has ended, perhaps within a result
                    answer, self._done = None, self._done + 1
                if answer is None:
                    reader.close()
                    self._readers.remove(reader)
                else:
                    self._done += 1
                    found.append((self._sent[answer[0]], answer[1]))
            if not readers:
                break
        return found

    def stop(self) -> None:
        """Ask the children to end."""
        if self._open:
            self._open = False
            os.close(self._items)
            os.close(self._fill)
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
    work: Callable[[Any], Any], items: int, writers: Sequence[Connection], part: slice, end: float
) -> NoReturn:
    """Start children for ``part`` of the ``writers`` but the first, compute the items that come, and leave when
    these children have left."""
    started: list[int] = []
    try:
        try:
            # No child is started and forgotten.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            signal.signal(signal.SIGTERM, _leave)
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
                _compute(work, items, out, end)
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


def _compute(work: Callable[[Any], Any], items: int, out: Connection, end: float) -> None:
    """Send what is computed for the items that come, and None at the end."""
    longest = 0.0
    while time.perf_counter() + longest < end and (message := os.read(items, SIZE)):
        if (begin := time.perf_counter()) + longest >= end:
            break
        number, item = pickle.loads(message)
        out.send((number, work(item)))
        # The first of a child takes the longest: it writes to the memory that it shares with its parent.
        longest = max(RECENT * longest, time.perf_counter() - begin)
    out.send(None)


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
