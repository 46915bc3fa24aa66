"""The order of `fence.sc` and `membar` (PTX ISA, "Memory Consistency Model", Fence-SC order).

All these fences of the scope of the GPU have one order, which agrees with causality and with what reads observe.
Where one fence precedes a write, and a read that observed the write precedes another fence, the first fence comes
before the second one and synchronises with it.  Neither needs to be a fence of the thread that writes or reads:
a barrier can lie between.  `strong` has the usual case, in which each thread has a fence of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilemma.machine.clocks import Message, continued

_ALL = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Known:
    """The clocks that fences have released, as ``lanes`` (a bit each) know them."""

    lanes: int
    message: Message


@dataclass(slots=True)
class Fences:
    """Of one warp: fences that precede its lanes; fences before the writes that its lanes, or those that a
    barrier ordered before them, have read."""

    released: list[Known] = field(default_factory=list)
    observed: list[Known] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.released or self.observed)

    def observe(self, lanes: int, message: Message) -> None:
        """``lanes`` have read a write that the fences of ``message`` precede."""
        # A loop that polls reads it again and again.
        if not any(k.message is message and k.lanes & lanes == lanes for k in self.observed):
            self.observed.append(Known(lanes, message))

    def take(self, lanes: int) -> list[Known]:
        """The order that a fence of ``lanes`` adds; ``lanes`` have it afterwards."""
        taken = [Known(k.lanes & lanes, k.message) for k in self.observed if k.lanes & lanes]
        self.observed = _without(self.observed, lanes)
        return taken

    def fenced(self, lanes: int, message: Message) -> None:
        """A fence of ``lanes`` releases ``message``, which has the clocks of all earlier fences before them."""
        self.released = [*_without(self.released, lanes), Known(lanes, message)]

    def before_write(self, lanes: int) -> Message | None:
        """The clocks of the fences that precede a write by ``lanes``."""
        return _merged(k.message for k in self.released if k.lanes & lanes)

    def at(self, lanes: int) -> Fences:
        """The order that ``lanes`` pass on at a barrier."""
        return Fences(*([k for k in known if k.lanes & lanes] for known in (self.released, self.observed)))

    def learn(self, lanes: int, others: Iterable[Fences]) -> None:
        """``lanes`` leave a barrier at which they and ``others`` have arrived."""
        others = list(others)
        released = _merged(k.message for o in others for k in o.released)
        if released is not None:
            self.fenced(lanes, released)
        for known in [k for o in others for k in o.observed]:
            self.observe(lanes, known.message)


def _without(known: list[Known], lanes: int) -> list[Known]:
    return [Known(k.lanes & ~lanes, k.message) for k in known if k.lanes & ~lanes]


def _merged(messages: Iterable[Message]) -> Message | None:
    """One message with the clocks of all; the messages themselves are not changed."""
    found: Message | None = None
    for message in {id(m): m for m in messages}.values():
        found = message if found is None else continued(found, message)
    return found


def bits(lanes: Any) -> int:
    """Lanes as bits: a mask (None: all), or their numbers."""
    if lanes is None:
        return _ALL
    numbers = np.flatnonzero(lanes) if lanes.dtype == np.bool_ else lanes
    return sum(1 << n for n in numbers.tolist())


def pass_on(members: Sequence[tuple[Any, int]], arrived: Sequence[Fences] = ()) -> None:
    """A barrier at which ``members`` wait, each a warp and its lanes, and others have ``arrived``."""
    if not arrived and not any(w.fences for w, _ in members):
        return
    given = [*arrived, *(w.fences.at(lanes) for w, lanes in members)]
    for w, lanes in members:
        w.record.fences = 1
        w.fences.learn(lanes, given)
