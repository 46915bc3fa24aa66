"""Work for child processes: the compiler's front end keeps one process busy, and a machine has many cores."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

# Seconds that children have for removing their files.
ENDING = 0.2
# More items than this have no number of one byte.
MOST = 256


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def results_of(work: Callable[[T], R], items: Sequence[T], count: int, deadline: float) -> Iterator[tuple[T, R]]:
    """(item, work(item)) as they come from ``count`` children of this process, until ``deadline`` (perf_counter).

    A child begins with the state that this process has now.  It must not use the GPU.  It starts no item that
    would be late if it took as long as its others.  A child that fails, hangs or is late ends without a result.
    """
    items = items[:MOST]
    tickets, fill = os.pipe()
    os.write(fill, bytes(range(len(items))))
    os.close(fill)
    children: dict[Connection, int] = {}
    try:
        for _ in range(min(count, len(items))):
            reader, writer = Pipe(duplex=False)
            with warnings.catch_warnings():
                # Of threads in this process: a child that waits for one is ended in time.
                warnings.simplefilter("ignore")
                child = os.fork()
            if child == 0:
                _serve(work, items, tickets, writer, deadline)
            writer.close()
            children[reader] = child
        while children and (left := deadline - time.perf_counter()) > 0:
            for reader in cast(list["Connection"], wait(list(children), left)):
                try:
                    number, result = reader.recv()
                except Exception:  # it has ended, perhaps within a result
                    reader.close()
                    _end([children.pop(reader)])
                else:
                    yield items[number], result
    finally:
        os.close(tickets)
        for reader in children:
            reader.close()
        _end(list(children.values()))


def _serve(
    work: Callable[[Any], Any], items: Sequence[Any], tickets: int, out: Connection, end: float
) -> NoReturn:
    """Compute items, whose numbers are read from ``tickets``, and leave."""
    try:
        signal.signal(signal.SIGTERM, _leave)
        # The parent's objects are its own: none is collected here.
        gc.freeze()
        longest = 0.0
        while (begin := time.perf_counter()) + longest < end and (ticket := os.read(tickets, 1)):
            out.send((ticket[0], work(items[ticket[0]])))
            longest = max(longest, time.perf_counter() - begin)
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
