"""Clusters: which block this is, and the barriers among the blocks of a cluster."""

from __future__ import annotations

from tilemma.ir import tile
from tilemma.ir.expr import Index, value_of
from tilemma.ir.walk import walk
from tilemma.lower.context import Cluster, Lowering
from tilemma.lower.control import number
from tilemma.lower.linear import Linear


def bind_cluster(lo: Lowering, clusters: tuple[Index, ...], blocks: tuple[Index, ...]) -> None:
    """Give the indices their values: the cluster's row-major number is %ctaid.x / size, the block's its rank."""
    e = lo.e
    extents = tuple((i.name, value_of(i.extent) or 1) for i in blocks)
    size = 1
    for _, n in extents:
        size *= n
    speaks = any(
        (isinstance(op, tile.TriggerEvent) and op.cluster)
        or (isinstance(op, tile.Copy) and op.plan is not None and bool(op.plan.peers))
        for op in walk(lo.kernel.body)
    )
    lo.cluster = Cluster(size, extents, speaks)
    rank = e.special("cluster_ctarank", "rank", size, uniform=True)
    number(lo, blocks, Linear.of(rank))
    cta = Linear.of(e.special("ctaid.x", "cta_x", 2**31 - 1, uniform=True))
    number(lo, clusters, e.divide(cta, size, hint="cluster")[0])


def cluster_barrier(lo: Lowering) -> None:
    """All threads of all blocks of the cluster meet."""
    lo.e.do("barrier.cluster.arrive.release")
    lo.e.do("barrier.cluster.wait.acquire")


def leave_cluster(lo: Lowering) -> None:
    """No block may end while others still write into its memory or arrive on its events."""
    if lo.cluster is not None and lo.cluster.speaks:
        cluster_barrier(lo)
