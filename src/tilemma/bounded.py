"""A dictionary of bounded size that drops its oldest entries."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """At most ``capacity`` entries: a new one replaces the oldest."""

    __slots__ = ("capacity",)

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self.capacity and key not in self:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread was faster
                del self[next(iter(self))]
        super().__setitem__(key, value)
