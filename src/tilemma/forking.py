"""Locks, cached properties and pauses of garbage collection that survive a fork.

A child process has only the thread that forked.  A lock held by another thread would never be released in it,
garbage collection would stay paused, and an import begun by another thread would never end.  A fork therefore
waits a while for other threads to finish compiling, and the child starts with new locks.

Python 3.11's `functools.cached_property` computes inside one lock for all instances, which a child cannot renew;
`cached_property` here has none.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")

# Seconds that a fork waits for other threads that compile.
WAIT = 10.0

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A re-entrant lock for `with`.  In a forked child it is free, but for the thread that forked inside it."""

    __slots__ = ("__weakref__", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # The threads that hold the lock, outermost first: one thread, once for each entry.
        self._owner: list[int] = []
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._owner.pop()
        self._lock.release()

    def _renew(self) -> None:
        # A thread that has just got the lock, and waits for the interpreter's, is not among the owners yet.
        if self._owner[:1] != [threading.get_ident()]:
            self._lock, self._owner = threading.RLock(), []


class cached_property(Generic[_T]):
    """`functools.cached_property` without its lock.

    Threads that ask at one time may each compute the value.  All of them get the one that is stored first.
    """

    def __init__(self, function: Callable[[Any], _T]) -> None:
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> cached_property[_T]: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> _T: ...
    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._function(instance))


class _Pauses:
    """Threads for which garbage collection is paused, and how often each has asked for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.threads: dict[int, int] = {}
        self.was_on = False
        # Threads that wait to fork: pauses of further threads begin after that, or forks would never come.
        self.forks = 0

    def begin(self) -> None:
        own = threading.get_ident()
        with self.changed:
            if own not in self.threads:
                self.changed.wait_for(lambda: not self.forks, timeout=WAIT)
            if not self.threads:
                self.was_on = gc.isenabled()
                gc.disable()
            self.threads[own] = self.threads.get(own, 0) + 1

    def end(self) -> None:
        with self.changed:
            own = threading.get_ident()
            self.threads[own] -= 1
            if not self.threads[own]:
                del self.threads[own]
                self.changed.notify_all()
            if not self.threads and self.was_on:
                gc.enable()

    def others(self) -> bool:
        return any(thread != threading.get_ident() for thread in self.threads)


_pauses = _Pauses()


@contextmanager
def collection_paused() -> Iterator[None]:
    """Python's cyclic garbage collection waits until no thread is inside."""
    _pauses.begin()
    try:
        yield
    finally:
        _pauses.end()


def collect_young() -> None:
    """Collect the youngest objects during a pause, as Python would do when the pause ends: for a caller that waits
    for another process."""
    if _pauses.was_on:
        gc.collect(0)


def _before() -> None:
    """Wait for other threads.  The lock is kept until after the fork: no thread begins to compile in between."""
    _pauses.changed.acquire()
    # A child of a thread that itself compiles must not wait: the other thread may wait for it.
    if threading.get_ident() not in _pauses.threads:
        _pauses.forks += 1
        _pauses.changed.wait_for(lambda: not _pauses.others(), timeout=WAIT)
        _pauses.forks -= 1
        _pauses.changed.notify_all()


def _in_parent() -> None:
    _pauses.changed.release()


def _in_child() -> None:
    for lock in list(_locks):
        lock._renew()
    own = threading.get_ident()
    kept = {own: _pauses.threads[own]} if own in _pauses.threads else {}
    paused, was_on = bool(_pauses.threads), _pauses.was_on
    _pauses.__init__()  # type: ignore[misc]
    _pauses.threads, _pauses.was_on = kept, was_on
    if paused and not kept and was_on:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
