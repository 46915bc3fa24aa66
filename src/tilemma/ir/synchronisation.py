"""Operations that synchronise: written by the user, or inserted by the pass that owns them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from tilemma.ir.effects import Acquires, Declares, Execution, Order, Releases, Updates
from tilemma.ir.operation import Future, Op
from tilemma.ir.types import Event, EventRef, Level
from tilemma.records import record


@record
class Sync(Op):
    """``sync.*`` as the program wrote it: a barrier of ``level``, or a fence."""

    syntax: ClassVar[str] = "sync.$what"
    execution: ClassVar[Execution] = Execution.INSTANCE
    order: ClassVar[Order] = Order.THREADS
    what: Literal["barrier", "fence"]
    level: Level | None = None


@record
class Barrier(Op):
    """Decided: the ``threads`` threads of the enclosing instance wait for each other.

    ``id``: 0 for the whole block, 1..15 for named barriers (plus the instance's number where ``id_step``
    is 1).  ``threads`` 32: a warp barrier, which needs no id.  ``cluster``: of all threads of the cluster.
    """

    syntax: ClassVar[str] = "barrier"
    execution: ClassVar[Execution] = Execution.INSTANCE
    order: ClassVar[Order] = Order.THREADS
    id: int
    threads: int
    id_step: int = 0
    cluster: bool = False


@record
class ProxyFence(Op):
    """Decided: this thread's earlier writes to shared memory are visible to the async proxy (wgmma, TMA).

    PTX ISA, fence.proxy.async.
    """

    syntax: ClassVar[str] = "proxy_fence"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.PROXY


@record
class CopyCommit(Op):
    """Decided: closes a group of cp.async copies of this thread."""

    syntax: ClassVar[str] = "copy_commit"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.COPIES


@record
class CopyWait(Op):
    """Decided: all but the newest ``pending`` cp.async groups of this thread have arrived."""

    syntax: ClassVar[str] = "copy_wait"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.COPIES
    pending: int


@record
class BulkWait(Op):
    """Decided: all but the newest ``pending`` TMA stores of this thread have read their source, or, where
    ``complete``, have written their destination.

    PTX ISA, cp.async.bulk.wait_group.
    """

    syntax: ClassVar[str] = "bulk_wait"
    execution: ClassVar[Execution] = Execution.LANE
    order: ClassVar[Order] = Order.BULK_STORES
    pending: int
    complete: bool = False


@record
class MmaFence(Op):
    """Decided: wgmma.fence, orders register accesses before the multiplies that follow."""

    syntax: ClassVar[str] = "mma_fence"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    order: ClassVar[Order] = Order.MULTIPLIES


@record
class MmaCommit(Op):
    """Decided: wgmma.commit_group."""

    syntax: ClassVar[str] = "mma_commit"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    order: ClassVar[Order] = Order.MULTIPLIES


@record
class MmaWait(Op):
    """Decided: wgmma.wait_group: all but the newest ``pending`` groups have finished."""

    syntax: ClassVar[str] = "mma_wait"
    execution: ClassVar[Execution] = Execution.COLLECTIVE
    order: ClassVar[Order] = Order.MULTIPLIES
    pending: int


Arriving = Literal["instance", "warp", "thread"]


@record
class DeclareEvent(Op):
    """Decided: ``arrivals`` that complete a generation, and the byte ``offset`` of its mbarriers in shared
    memory; ``by``: the threads that arrive when an instance triggers, one thread for all, one of each warp, or
    each.
    """

    syntax: ClassVar[str] = "event $event"
    execution: ClassVar[Execution] = Execution.INSTANCE
    event: Declares[Event]
    arrivals: int | None = None
    offset: int | None = None
    by: Arriving = "instance"


@record
class WaitEvent(Op):
    """Decided: ``one_parity``: the waits of a thread go through the ring slot by slot, from slot 0 on."""

    syntax: ClassVar[str] = "wait $event"
    execution: ClassVar[Execution] = Execution.INSTANCE
    event: Acquires[EventRef]
    one_parity: bool = False


@record
class TriggerEvent(Op):
    """Decided: ``bytes`` of copies above it that the generation waits for; ``count``: what each arrival counts;
    ``ordered``: the waits for the released accesses already precede it."""

    syntax: ClassVar[str] = "trigger $event"
    execution: ClassVar[Execution] = Execution.INSTANCE
    event: Releases[EventRef]
    after: Acquires[tuple[Future, ...]] = ()
    cluster: bool = False
    bytes: int = 0
    count: int = 1
    ordered: bool = False


@record
class WaitFuture(Op):
    syntax: ClassVar[str] = "wait_future $futures"
    execution: ClassVar[Execution] = Execution.INSTANCE
    futures: Acquires[tuple[Future, ...]]


@record
class SwapFutures(Op):
    """Rotates the names: the first refers to the buffer of the second, ..., the last to that of the first."""

    syntax: ClassVar[str] = "rotate $futures"
    execution: ClassVar[Execution] = Execution.INSTANCE
    futures: Updates[tuple[Future, ...]]


# The operations that synchronise, with their names in a plan.
SYNC_NAMES: Mapping[type[Op], str] = {
    Barrier: "barrier",
    Sync: "barrier",
    ProxyFence: "proxy fence",
    CopyCommit: "copy group",
    CopyWait: "copy wait",
    BulkWait: "store wait",
    MmaFence: "wgmma fence",
    MmaCommit: "wgmma group",
    MmaWait: "wgmma wait",
    WaitEvent: "event wait",
}
