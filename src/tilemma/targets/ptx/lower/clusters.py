"""Lowering of thread block clusters: block indices from the cluster rank, and barriers of the whole cluster."""

from __future__ import annotations

from collections.abc import Callable

from tilemma.ir import tile
from tilemma.ir.expr import Index, value_of
from tilemma.ir.walk import walk
from tilemma.targets.ptx.lower.context import Cluster, Lowering
from tilemma.targets.ptx.lower.control import number
from tilemma.targets.ptx.lower.linear import Linear


def bind_cluster(lo: Lowering, clusters: tuple[Index, ...], blocks: tuple[Index, ...]) -> None:
    """Define the indices: the cluster's row-major number is %ctaid.x / size, the block's is its rank in the
    cluster."""
    e = lo.e
    extents = tuple((i.name, value_of(i.extent) or 1) for i in blocks)
    size = 1
    for _, n in extents:
        size *= n
    uses_distributed_shared_memory = any(
        (isinstance(op, tile.TriggerEvent) and op.cluster)
        or (isinstance(op, tile.Copy) and op.plan is not None and bool(op.plan.peers))
        for op in walk(lo.kernel.body)
    )
    lo.cluster = Cluster(size, extents, uses_distributed_shared_memory)
    rank = e.special("cluster_ctarank", "rank", size, uniform=True)
    number(lo, blocks, Linear.of(rank))
    cta = Linear.of(e.special("ctaid.x", "cta_x", 2**31 - 1, uniform=True))
    number(lo, clusters, e.divide(cta, size, hint="cluster")[0])


def cluster_barrier(lo: Lowering, initialised: bool = False, meanwhile: Callable[[], None] = lambda: None) -> None:
    """A barrier of all threads of all blocks of the cluster.

    ``initialised``: what comes before are mbarriers alone, which `fence.mbarrier_init` releases: arrivals that
    release would wait for all writes of a thread to reach the whole GPU.  ``meanwhile`` lowers what a thread does
    while it waits, without memory.
    """
    lo.e.do(f"barrier.cluster.arrive.{'relaxed' if initialised else 'release'}")
    meanwhile()
    lo.e.do("barrier.cluster.wait.acquire")


def leave_cluster(lo: Lowering) -> None:
    """The barrier at the end of the kernel: other blocks may still write a block's memory or arrive on its
    events."""
    if lo.cluster is not None and lo.cluster.uses_distributed_shared_memory:
        cluster_barrier(lo)
