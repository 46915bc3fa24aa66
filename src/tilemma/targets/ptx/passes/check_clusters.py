"""Clusters on an architecture: refused before sm_90; a cluster of one block is a block."""

from __future__ import annotations

from dataclasses import replace

from tilemma.ir.expr import Expr, const
from tilemma.ir.tile import Copy, Kernel, Op, Parallel, TriggerEvent
from tilemma.ir.walk import rewrite
from tilemma.passes.check_clusters import ClusterRefused, cluster_names, cluster_size, clusters
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import count, kind
from tilemma.passes.simplify import replaced
from tilemma.records import record
from tilemma.targets.ptx.target import Target


@record(slots=False)
class CheckClusters:
    """Refuses clusters on an architecture without them; a cluster of one block is replaced by the block."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises ClusterRefused."""
        for cluster in clusters(kernel):
            if not Target.of(self.arch).has("cluster"):
                remedy = "compile for sm_90a, or remove the level of the cluster: the blocks alone"
                what, rule = f"{self.arch} has no clusters", "sm_90 or later"
                names = cluster_names(cluster)
                raise ClusterRefused(cluster.span, names=names, what=what, rule=rule, remedy=remedy)
            n = cluster_size(cluster)
            log.append(
                Decision("clusters", described(cluster), f"{n} blocks each", {"blocks": n}, span=cluster.span)
            )
        return replace(kernel, body=rewrite(kernel.body, _alone))


def _alone(op: Op) -> Op:
    """A cluster of one block as that block: the same blocks started as clusters of one are 1 to 2 % slower at
    steady state (measured with examples/py/persistent.py on an H200)."""
    if not isinstance(op, Parallel) or kind(op) != "cluster" or len(op.body) != 1:
        return op
    block = op.body[0]
    if not isinstance(block, Parallel) or count(block) != 1:
        return op
    first: dict[str, Expr] = {i.name: const(0) for i in block.indices}

    def plain(inner: Op) -> Op:
        if isinstance(inner, TriggerEvent) and inner.cluster:
            return replace(inner, cluster=False)
        return replace(inner, multicast=False) if isinstance(inner, Copy) and inner.multicast else inner

    return replace(block, indices=op.indices, body=rewrite(replaced(block.body, first), plain), overlap=op.overlap)
