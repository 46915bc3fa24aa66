"""The queue from which the blocks of a kernel take their tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tilemma import atomic, event, foreach, if_, shared, trigger, var, wait, while_
from tilemma.ops.batch_plans import AHEAD
from tilemma.ops.ring import PipelineState

# Numbers of a task, and of what a cluster shares: multiples of four, for whole vectors.
WORDS, SHARED = 8, 4
# Kinds of tasks: none, a whole one, and a part that another block shares.
NONE, WHOLE, PART = range(3)


@dataclass(frozen=True)
class Task:
    """Numbers, as variables: the ``kind``, and where in ``group`` the tile is.

    The tile begins at ``row``, followed by ``rows`` of the group, and is ``column``-th along the other axis.
    """

    kind: Any
    group: Any
    row: Any
    rows: Any
    column: Any

    @classmethod
    def none(cls) -> Task:
        """Variables for a task."""
        return cls(*(var(NONE) for _ in range(5)))

    @property
    def words(self) -> tuple[Any, ...]:
        return self.kind, self.group, self.row, self.rows, self.column

    def set(self, words: tuple[Any, ...]) -> None:
        """Become the task with these numbers."""
        for mine, word in zip(self.words, words, strict=True):
            mine.set(word)

    def is_of(self, kind: int) -> Any:
        return self.kind == kind

    def copy(self) -> Task:
        return Task(*(var(x) for x in self.words))


class TaskQueue:
    """Tasks by number: blocks that are done early take more of them.

    Each of ``pace`` blocks begins with its own number; ``counter``, which is zero before and after the kernel,
    counts those taken besides.  The producer of a block takes them, and passes the tasks to its consumers.
    """

    def __init__(self, counter: Any, pace: int) -> None:
        self.counter, self.pace = counter, pace
        self.words = shared("s32", WORDS, copies=AHEAD)
        self.posted, self.taken = event(AHEAD), event(AHEAD, ready=True)


@dataclass(frozen=True)
class _End:
    """An end of ``queue``, in the role that makes it; ``state``: the next of the queue's places."""

    queue: TaskQueue
    state: PipelineState = field(default_factory=lambda: PipelineState(var(0), AHEAD))


class Producer(_End):
    """Takes numbers, and passes tasks to the consumers."""

    def take(self) -> Any:
        """The number of the block's next task."""
        return self.queue.pace + atomic.add(self.queue.counter, 1).astype("s32")

    def post(self, task: Task) -> None:
        """Pass ``task`` to the consumers."""
        queue, slot = self.queue, self.state.slot
        wait(queue.taken[slot])
        for i, word in enumerate(task.words):
            queue.words[slot][i] = word
        trigger(queue.posted[slot])
        self.state.advance()

    def finish(self, number: Any, count: Any) -> None:
        """Call it with ``number``, the first that is none of the ``count`` tasks.

        It resets the counter after the last number: each block with a task takes one that is none, so that all
        blocks together take ``count``.
        """
        with if_(number == self.queue.pace + count - 1):
            atomic.exch(self.queue.counter, 0)


class Consumer(_End):
    """Gets the tasks that the producer of its block takes."""

    def next(self, task: Task) -> None:
        """Set ``task`` to the next one, or to one of kind ``NONE``."""
        queue, slot = self.queue, self.state.slot
        wait(queue.posted[slot])
        task.set(tuple(queue.words[slot][i] for i in range(len(task.words))))
        trigger(queue.taken[slot])
        self.state.advance()

    def tasks(self, whole: Any, part: Any = None) -> None:
        """Call ``whole(task)`` for each whole task, and ``part(task)`` for each part of one."""
        task = Task.none()
        self.next(task)
        for kind, work in ((WHOLE, whole), (PART, part)):
            if work is not None:
                with while_(partial(task.is_of, kind)):
                    # Variables that are not set again: places of a tile are compared by them.
                    work(task.copy())
                    self.next(task)


def tile(number: Any) -> Task:
    """The tile ``number`` of a batch as a task."""
    return Task(WHOLE, number, 0, 0, 0)


def draw_tiles(queue: TaskQueue, first: Any, count: Any, load: Any) -> None:
    """The producer takes tiles by number, ``first`` and others of ``count``, passes them to the consumers, and
    calls ``load(number)`` for each."""
    producer, number = Producer(queue), var(first)
    with while_(lambda: number < count):
        following = var(producer.take())
        producer.post(tile(number))
        load(number)
        number.set(following)
    producer.post(Task.none())
    producer.finish(number, count)


class ClusterQueue:
    """Tiles by number for the blocks of a cluster: the first block, which ``leads``, takes the numbers of
    ``queue``, one more ahead, and writes them to row 1 + ``cluster`` of ``words``, where all blocks read them.

    The row is zero before and after the kernel.
    """

    def __init__(self, queue: TaskQueue, words: Any, cluster: Any, leads: Any) -> None:
        self.queue, self.words, self.row, self.leads = queue, words, 1 + cluster, leads
        self.written, self.read = event(AHEAD), event(AHEAD, ready=True)
        self.agreed = shared("s32", SHARED)

    def draw(self, first: Any, count: Any, load: Any) -> None:
        """As `draw_tiles`, of all producers of the cluster."""
        producer, number, following = Producer(self.queue), var(first), var(0)
        state = PipelineState(var(0), AHEAD)
        with if_(self.leads):
            following.set(producer.take())
        with while_(lambda: number < count):
            slot = state.slot
            wait(self.read[slot])
            with if_(self.leads):
                atomic.exch(self.words[self.row, slot], following.astype("s64"))
            trigger(self.written[slot], cluster=True)
            with if_(self.leads):
                following.set(producer.take())
            producer.post(tile(number))
            load(number)
            wait(self.written[slot])
            number.set(self._after(number, slot))
            trigger(self.read[slot], cluster=True)
            state.advance()
        producer.post(Task.none())
        # The other blocks have read the row, and trigger nothing of this block any more.
        for _ in foreach(AHEAD):
            wait(self.read[state.slot])
            state.advance()
        with if_(self.leads):
            for slot in range(AHEAD):
                atomic.exch(self.words[self.row, slot], 0)
            # Each cluster has taken two numbers that are no tiles.
            producer.finish(following, count + self.queue.pace)

    def _after(self, number: Any, slot: Any) -> Any:
        """The number that follows: numbers grow, and a smaller one is that of before.

        It passes through shared memory because the blocks' reads of one word agree.
        """
        value = var(0)
        with while_(lambda: value <= number):
            value.set(atomic.add(self.words[self.row, slot], 0).astype("s32"))
        self.agreed[0] = value
        return self.agreed[0]
