"""Operations that synchronise: written by the user, or inserted by the pass that owns them."""

from __future__ import annotations

from typing import ClassVar, Literal

from tilemma.ir.effects import Order
from tilemma.ir.operation import Op
from tilemma.ir.types import Level
from tilemma.records import record


@record
class Sync(Op):
    """``sync.*`` as the program wrote it: a barrier of ``level``, or a fence."""

    syntax: ClassVar[str] = "sync.$what"
    order: ClassVar[Order] = Order.THREADS
    what: Literal["barrier", "fence"]
    level: Level | None = None


@record
class Barrier(Op):
    """Decided: the ``threads`` threads of the enclosing instance wait for each other.

    ``id``: 0 for the whole block, 1..15 for named barriers (plus the instance's number where ``id_step``
    is 1).  ``threads`` 32: a warp barrier, which needs no id.
    """

    syntax: ClassVar[str] = "barrier"
    order: ClassVar[Order] = Order.THREADS
    id: int
    threads: int
    id_step: int = 0


@record
class ProxyFence(Op):
    """Decided: this thread's earlier writes to shared memory are visible to the async proxy (wgmma, TMA).

    PTX ISA, fence.proxy.async.
    """

    syntax: ClassVar[str] = "proxy_fence"
    order: ClassVar[Order] = Order.PROXY


@record
class CopyCommit(Op):
    """Decided: closes a group of cp.async copies of this thread."""

    syntax: ClassVar[str] = "copy_commit"
    order: ClassVar[Order] = Order.COPIES


@record
class CopyWait(Op):
    """Decided: all but the newest ``pending`` cp.async groups of this thread have arrived."""

    syntax: ClassVar[str] = "copy_wait"
    order: ClassVar[Order] = Order.COPIES
    pending: int


@record
class BulkWait(Op):
    """Decided: all but the newest ``pending`` TMA stores of this thread have read their source, or, where
    ``complete``, have written their destination.

    PTX ISA, cp.async.bulk.wait_group.
    """

    syntax: ClassVar[str] = "bulk_wait"
    order: ClassVar[Order] = Order.BULK_STORES
    pending: int
    complete: bool = False


@record
class MmaFence(Op):
    """Decided: wgmma.fence, orders register accesses before the multiplies that follow."""

    syntax: ClassVar[str] = "mma_fence"
    order: ClassVar[Order] = Order.MULTIPLIES


@record
class MmaCommit(Op):
    """Decided: wgmma.commit_group."""

    syntax: ClassVar[str] = "mma_commit"
    order: ClassVar[Order] = Order.MULTIPLIES


@record
class MmaWait(Op):
    """Decided: wgmma.wait_group: all but the newest ``pending`` groups have finished."""

    syntax: ClassVar[str] = "mma_wait"
    order: ClassVar[Order] = Order.MULTIPLIES
    pending: int
