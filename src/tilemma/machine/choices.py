"""The random choices of a schedule: which warp runs next, and for how long.

The native library makes the same choices from the same generator (``grid.c``).
"""

from __future__ import annotations

import random
from math import log
from typing import TYPE_CHECKING

from tilemma.machine import limits
from tilemma.machine.state import Frame

if TYPE_CHECKING:
    from tilemma.machine.program import Program


class Choices:
    """The part of a machine that chooses."""

    program: Program
    random: random.Random
    ready: list[Frame]
    timeouts: dict[Frame, None]

    def style(self) -> None:
        """Choose how warps interleave in this run."""
        choose = self.random
        self.by_priority = choose.random() < 0.5
        # The inverse of the mean number of visible steps.
        self.rate = 1 / choose.choice((1, 3, 12, 50))
        # The probability that a try_wait whose phase has not completed returns at once.
        self.impatience = choose.choice((0.0, 0.05, 0.5))
        self.eagerness = choose.choice((0.02, 0.2, 0.6))

    def pick(self) -> tuple[Frame, int]:
        """A ready frame, and for how many visible steps it may run."""
        ready, choose = self.ready, self.random
        if len(ready) == 1:
            at = 0
        elif self.by_priority:
            priorities = [f.w.record.priority for f in ready]
            at = priorities.index(highest := max(priorities))
            if self.program.apart:
                # The lanes of one warp may wait for each other.
                at = choose.choice([i for i, p in enumerate(priorities) if p == highest])
            if choose.random() < 0.02:
                ready[at].w.record.priority -= 1
        else:
            at = limits.below(len(ready), choose)
        frame = ready[at]
        ready[at] = ready[-1]
        ready.pop()
        if self.timeouts and choose.random() < 0.02:
            self.time_out()
        return frame, self.burst()

    def burst(self) -> int:
        """For how many visible steps a frame may run: `expovariate(1 / burst)`."""
        return 1 + int(-log(1.0 - self.random.random()) / self.rate)

    def time_out(self) -> None:
        """A try_wait may return before its phase completes: the program must test its result."""
        frame = self.random.choice(list(self.timeouts))
        frame.timeout = True
        self.wake(frame)

    if TYPE_CHECKING:

        def wake(self, frame: Frame) -> None: ...
