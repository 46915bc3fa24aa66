"""Legality of thread block clusters on every target: their size, their shape, and the triggers that need one."""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.errors import CompileError, spelled
from tilemma.ir.constructs import LIMITS
from tilemma.ir.expr import Binary, value_of
from tilemma.ir.tile import Kernel, Op, Parallel, TriggerEvent
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import count, kind, sites
from tilemma.records import record


class ClusterRefused(CompileError):
    code = "cluster-refused"
    found = "`parallel {names}`: {what}"
    expected = "{rule}"
    fix = "{remedy}"


class TriggerOutsideCluster(CompileError):
    code = "trigger-outside-cluster"
    found = "`trigger.cluster {event}` outside every `parallel ... : cluster`"
    expected = "a block of a cluster: the trigger goes to all its blocks"
    fix = "write `trigger {event}`, or put the block inside `parallel ... : cluster`"
    python_fix = 'write `trigger({event})`, or put the block inside `for ... in parallel(..., level="cluster"):`'


@record(slots=False)
class CheckClusters:
    """Refuses clusters that no architecture launches, and cluster triggers outside of clusters."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises ClusterRefused or TriggerOutsideCluster."""
        for cluster in clusters(kernel):
            cluster_size(cluster)
        for site in sites(kernel.body):
            op = site.op
            if isinstance(op, TriggerEvent) and op.cluster and not any(map(_is_cluster, site.parents)):
                raise TriggerOutsideCluster(op.span, event=op.event.event.name)
        return kernel


def clusters(kernel: Kernel) -> Iterator[Parallel]:
    """The levels of clusters, in program order."""
    return (s.op for s in sites(kernel.body) if isinstance(s.op, Parallel) and _is_cluster(s.op))


def cluster_size(cluster: Parallel) -> int:
    """The number of blocks of each cluster; ClusterRefused where it is no constant or out of range."""

    blocks = [op for op in cluster.body if isinstance(op, Parallel) and kind(op) == "block"]
    by_rank = len(blocks) == 1 and _by_rank(cluster, blocks[0])

    def refused(what: str, rule: str, remedy: str) -> ClusterRefused:
        return ClusterRefused(cluster.span, names=cluster_names(cluster), what=what, rule=rule, remedy=remedy)

    if len(blocks) != 1:
        raise refused(
            f"it contains {len(blocks)} levels of blocks",
            "exactly one: the blocks of a cluster start together",
            "give each level of blocks a cluster of its own"
            if blocks
            else spelled(
                cluster.span,
                "put the blocks inside: `parallel p by 2 : block { ... }`",
                'put the blocks inside: `for p in parallel(2, level="block"):`',
            ),
        )
    n = count(blocks[0])
    if n is None and by_rank:
        rule = "a constant number of blocks in a cluster"
        raise refused("the number of blocks is not known when compiled", rule, "use constants for these blocks")
    if n is None:
        rank = spelled(cluster.span, "`: cluster-rank`", '`level="cluster-rank"`')
        raise refused(
            f"its blocks, `parallel {described(blocks[0])}`, have a number that is not known when compiled",
            "a constant number of blocks in a cluster",
            f"use constants for these blocks; if they are the whole grid, write {rank} with a constant extent",
        )
    most = LIMITS["cluster"].most
    if not 1 <= n <= most:
        rule = f"1 to {most} blocks (CUDA C++ Programming Guide, Thread Block Clusters)"
        raise refused(f"it has {n} blocks", rule, "use fewer blocks, and give each more of the tile")
    return n


def cluster_names(cluster: Parallel) -> str:
    """The level of ``cluster`` as the program has it: the index of a cluster of ranks is our own."""
    blocks = [op for op in cluster.body if isinstance(op, Parallel) and kind(op) == "block"]
    return described(blocks[0] if len(blocks) == 1 and _by_rank(cluster, blocks[0]) else cluster)


def _by_rank(cluster: Parallel, blocks: Parallel) -> bool:
    """Whether ``cluster`` is one of neighbours in a grid (`tilemma.ir.ranked_clusters`)."""
    ranks = [i.extent for i in blocks.indices]
    return any(
        (isinstance(i.extent, Binary) and i.extent.op == "cdiv" and i.extent.b in ranks)
        # Of a constant number of clusters only the name of the index is left (`ir.structure`).
        or (value_of(i.extent) is not None and i.source_name.endswith("_cluster"))
        for i in cluster.indices
    )


def _is_cluster(op: Op) -> bool:
    return isinstance(op, Parallel) and kind(op) == "cluster"
