"""Events, futures and barriers."""

from __future__ import annotations

from typing import Any

from tilemma.ir.refusals import WrongArity
from tilemma.ir.tile import SwapFutures, Sync, TriggerEvent, WaitEvent, WaitFuture
from tilemma.ir.types import BLOCK
from tilemma.lang import spans
from tilemma.lang.contraction import MultiplyHandle
from tilemma.lang.control import level_of
from tilemma.lang.copies import futures_of, handles_of
from tilemma.lang.namespaces import Namespace
from tilemma.lang.scalars import article, constant_operand, flag, refused
from tilemma.lang.tracing import builder
from tilemma.lang.views import EventHandle, FutureHandle, event_of


def event(slots: int = 0, *, threads: int | None = None, ready: bool = False) -> EventHandle:
    """A ring of ``slots`` events (0: a single one), not ready at first unless ``ready``."""
    b = builder("event")
    single = isinstance(slots, int) and not isinstance(slots, bool) and slots == 0
    count = 0 if single else constant_operand(slots, "slots")
    admitted = None if threads is None else constant_operand(threads, "threads")
    name = (spans.bound_names() or ("event",))[0]
    return EventHandle(b.event(name, count, admitted, flag(ready, "ready")))


def wait(*what: Any) -> None:
    """Wait for events (this waiter's next generation) or for the futures of asynchronous copies."""
    b = builder("wait")
    if not what:
        raise WrongArity(b.span, what="wait", got=0, want="1 or more: events, futures", form="wait(e)")
    names: list[str] = []
    for x in what:
        if isinstance(x, MultiplyHandle):
            names.append(x.name)
        elif isinstance(x, FutureHandle):
            names += futures_of(x, "wait", "event or future")
        elif not isinstance(x, EventHandle):
            raise refused("event or future", "wait", article(x))
    if names:
        b.emit(WaitFuture(tuple(names)))
    for x in what:
        if isinstance(x, EventHandle):
            b.emit(WaitEvent(event_of(x, "wait")))


def trigger(e: Any, *, after: Any = None, cluster: bool = False) -> None:
    """Trigger an event; ``after`` futures: when their bytes have arrived.

    ``cluster``: the event of every block of the cluster.
    """
    b = builder("trigger")
    futures = () if after is None else futures_of(after, "trigger(after=)")
    b.emit(TriggerEvent(event_of(e, "trigger"), futures, flag(cluster, "cluster")))


def swap(*futures: Any) -> None:
    """Rotate the names: the first refers to the buffer of the second, .., the last to that of the first."""
    b = builder("swap")
    names = handles_of(futures, "swap")
    if len(names) < 2:
        want = "2 or more: the results of copies"
        raise WrongArity(b.span, what="swap", got=len(names), want=want, form="swap(f, g)")
    b.emit(SwapFutures(names))


rotate = swap


class SyncNamespace(Namespace):
    """`sync.barrier("block")`, `sync.fence("block")`, `sync.shared()`."""

    _spelled = "sync"
    _forms = '`sync.shared()`, `sync.barrier("block")` or `sync.fence("block")`'

    def barrier(self, level: str = "block") -> None:
        """Every thread of the instance waits for the others, and sees their earlier writes."""
        b = builder("sync.barrier")
        b.barrier(level_of(level, b.span, "barrier"))

    def fence(self, level: str = "block") -> None:
        """This thread's earlier writes are visible before its later writes, to the threads of ``level``."""
        b = builder("sync.fence")
        b.emit(Sync("fence", level_of(level, b.span, "fence")))

    def shared(self) -> None:
        """The barrier of the block."""
        builder("sync.shared").emit(Sync("barrier", BLOCK))


sync = SyncNamespace()
