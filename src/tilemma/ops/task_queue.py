"""The queue from which the blocks of a kernel take their tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from tilemma import atomic, event, if_, shared, trigger, var, wait
from tilemma.ops.ring import PipelineState

# The producer of a block may be so many tasks ahead of its consumers.
AHEAD = 2


class TaskQueue:
    """Numbers of tasks: blocks that are done early take more of them.

    Each of ``pace`` blocks begins with its own number; ``counter``, which is zero before and after the kernel,
    counts those taken besides.  The producer of a block takes them and passes them to its consumers.
    """

    def __init__(self, counter: Any, pace: int) -> None:
        self.counter, self.pace = counter, pace
        self.numbers = shared("s32", 1, copies=AHEAD)
        self.posted, self.taken = event(AHEAD), event(AHEAD, ready=True)


class TaskSource(Protocol):
    """A role's end of a queue of ``pace`` blocks."""

    @property
    def pace(self) -> int: ...

    def next(self) -> Any:
        """The number of the block's next task."""

    def finish(self, number: Any, count: Any) -> None:
        """Call it with ``number``, the first that is none of the ``count`` tasks."""


@dataclass(frozen=True)
class _End:
    """An end of ``queue``, in the role that makes it; ``state``: the next of the queue's places."""

    queue: TaskQueue
    state: PipelineState = field(default_factory=lambda: PipelineState(var(0), AHEAD))

    @property
    def pace(self) -> int:
        return self.queue.pace


class Producer(_End):
    """Takes numbers and passes them to the consumers."""

    def next(self) -> Any:
        queue, slot = self.queue, self.state.slot
        number = var(queue.pace + atomic.add(queue.counter, 1).astype("s32"))
        wait(queue.taken[slot])
        queue.numbers[slot][0] = number
        trigger(queue.posted[slot])
        self.state.advance()
        return number

    def finish(self, number: Any, count: Any) -> None:
        """Reset the counter after the last number: each block with a task takes one that is none, so that all
        blocks together take ``count``."""
        with if_(number == self.pace + count - 1):
            atomic.exch(self.queue.counter, 0)


class Consumer(_End):
    """Gets the numbers that the producer of its block takes."""

    def next(self) -> Any:
        queue, slot = self.queue, self.state.slot
        wait(queue.posted[slot])
        number = var(queue.numbers[slot][0])
        trigger(queue.taken[slot])
        self.state.advance()
        return number

    def finish(self, number: Any, count: Any) -> None:
        """The producer resets the counter."""
