"""Children that have done their work, kept for a while: to start 24 of them beside torch takes a third of the time
that a search for the fastest plan has, and their first item takes twice as long as later ones."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tilemma.forking import ForkSafeLock
from tilemma.ops.children import IDLE, Children, surroundings

T = TypeVar("T")
R = TypeVar("R")

# Seconds for which children are kept: less than those after which they leave by themselves.
KEPT = IDLE - 2.0


@dataclass
class KeptChildren(Generic[T, R]):
    """Children that work for one user at a time, and afterwards for the next.

    They end `KEPT` seconds after their last run, with this process, and where their surroundings have changed.
    """

    _idle: Children[T, R] | None = None
    _timer: threading.Timer | None = None
    _lock: ForkSafeLock = field(default_factory=ForkSafeLock)

    def __post_init__(self) -> None:
        atexit.register(self.end)

    def take(self, work: Callable[[T], R], count: int, deadline: float, items: Sequence[T] = ()) -> Children[T, R]:
        """``count`` children that begin a run of ``work``, which can be pickled: those that were kept, or new."""
        children = self._taken(None)
        if children is not None:
            if children.count == count and children.surroundings == surroundings():
                children.begin(work, deadline)
                if children.alive == count:
                    for item in items:
                        children.send(item)
                    return children
            children.close()
        return Children(work, count, deadline, items)

    def keep(self, children: Children[T, R]) -> None:
        """Take ``children`` back after their run."""
        self.end()
        with self._lock:
            self._idle = children
            self._timer = threading.Timer(KEPT, self.end, (children,))
            self._timer.daemon = True
            self._timer.start()

    def end(self, children: Children[T, R] | None = None) -> None:
        """End those that are kept, if they are these ``children``."""
        found = self._taken(children)
        if found is not None:
            found.close()

    def _taken(self, wanted: Children[T, R] | None) -> Children[T, R] | None:
        """Those that are kept: they are kept no longer.  None for others than ``wanted``, and in a fork of their
        parent."""
        with self._lock:
            found = self._idle
            if found is None or wanted not in (None, found):
                return None
            self._idle = None
            if self._timer is not None:
                self._timer.cancel()
        return found if found.surroundings[0] == os.getpid() else None
