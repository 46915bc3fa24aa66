"""Work for child processes: the compiler's front end keeps one process busy, and a machine has many cores."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Generic, NoReturn, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

# Seconds that children have for removing their files.
ENDING = 0.2
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

    A child begins with the state that this process has now.  It must not use the GPU.  It starts no item that
    would be later than ``deadline`` (perf_counter) if it took as long as its last ones.  A child that fails takes
    its item along.
    """

    def __init__(self, work: Callable[[T], R], count: int, deadline: float, items: Iterable[T] = ()) -> None:
        self._items, self._fill = os.pipe()
        os.set_blocking(self._fill, False)
        self._sent: list[T] = []
        self._done = 0
        self._children: dict[Connection, int] = {}
        # Those that have said that they leave, which takes each of them some 10 ms.
        self._leaving: list[int] = []
        try:
            for item in items:
                self.send(item)
            for _ in range(count):
                self._start(work, deadline)
        except BaseException:
            self.close()
            raise

    def _start(self, work: Callable[[T], R], deadline: float) -> None:
        parent, (reader, writer) = os.getpid(), Pipe(duplex=False)
        try:
            with warnings.catch_warnings():
                # Of threads in this process: a child that waits for one is ended in time.
                warnings.simplefilter("ignore")
                child = os.fork()
            if child == 0:
                os.close(self._fill)
                _serve(work, self._items, writer, deadline)
        finally:
            if os.getpid() != parent:
                # An interrupt at once must not take a child through its parent's program.
                os._exit(1)
            writer.close()
        self._children[reader] = child

    @property
    def waiting(self) -> int:
        """Items that were sent and have not come back, but still can."""
        return max(0, len(self._sent) - self._done) if self._children else 0

    @property
    def alive(self) -> bool:
        """Whether there is a child."""
        return bool(self._children)

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
            readers = cast(list["Connection"], wait(list(self._children), left))
            for reader in readers:
                try:
                    answer = reader.recv()
                except Exception:  # it has ended, perhaps within a result
                    answer, self._done = None, self._done + 1
                if answer is None:
                    reader.close()
                    self._leaving.append(self._children.pop(reader))
                else:
                    self._done += 1
                    found.append((self._sent[answer[0]], answer[1]))
            if not readers:
                break
        return found

    def close(self) -> None:
        """End the children."""
        os.close(self._items)
        os.close(self._fill)
        for reader in self._children:
            reader.close()
        _end([*self._children.values(), *self._leaving])
        self._children.clear()
        self._leaving.clear()


def _serve(work: Callable[[Any], Any], items: int, out: Connection, end: float) -> NoReturn:
    """Compute the items that come, and leave."""
    try:
        signal.signal(signal.SIGTERM, _leave)
        # The parent's objects are its own: none is collected here.
        gc.freeze()
        longest = 0.0
        while time.perf_counter() + longest < end and (message := os.read(items, SIZE)):
            if (begin := time.perf_counter()) + longest >= end:
                break
            number, item = pickle.loads(message)
            out.send((number, work(item)))
            # The first of a child takes the longest: it writes to the memory that it shares with its parent.
            longest = max(RECENT * longest, time.perf_counter() - begin)
        out.send(None)
    finally:
        # No handler of the parent's runs, and no buffer of its files is written twice.
        os._exit(0)


def _leave(*_: Any) -> NoReturn:
    """Leave by way of the blocks that remove temporary files and stop tools."""
    raise SystemExit


def _end(children: Sequence[int]) -> None:
    """Ask children to end, and wait until they have; those that do not are killed."""
    left, until = list(children), time.perf_counter() + ENDING
    while left:
        late = time.perf_counter() > until
        for child in left:
            # Again and again: what a handler raises in a finalizer is lost.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(0.005)
        left = [child for child in left if not _has_ended(child, wait=late)]


def _has_ended(child: int, wait: bool) -> bool:
    with suppress(ChildProcessError):
        return os.waitpid(child, 0 if wait else os.WNOHANG) != (0, 0)
    return True
