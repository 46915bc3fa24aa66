"""Legality of thread block clusters: their size, their shape, and the triggers that need one."""

from __future__ import annotations

from dataclasses import replace

from tilemma.errors import CompileError, spelled
from tilemma.ir.expr import Expr, const
from tilemma.ir.tile import Copy, Kernel, Op, Parallel, TriggerEvent
from tilemma.ir.walk import rewrite
from tilemma.passes.decision import Decision
from tilemma.passes.infer_levels import described
from tilemma.passes.scope import count, kind, sites
from tilemma.passes.simplify import replaced
from tilemma.records import record
from tilemma.targets.ptx.target import Target


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
    """Refuses clusters that the target cannot launch; a cluster of one block is replaced by the block."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        """Raises ClusterRefused or TriggerOutsideCluster."""
        for site in sites(kernel.body):
            op = site.op
            if isinstance(op, Parallel) and kind(op) == "cluster":
                self._check(op, log)
            elif isinstance(op, TriggerEvent) and op.cluster and not _clustered(site.parents):
                raise TriggerOutsideCluster(op.span, event=op.event.event.name)
        return replace(kernel, body=rewrite(kernel.body, _alone))

    def _check(self, cluster: Parallel, log: list[Decision]) -> None:
        def refuse(what: str, rule: str, remedy: str) -> ClusterRefused:
            return ClusterRefused(cluster.span, names=described(cluster), what=what, rule=rule, remedy=remedy)

        target = Target.of(self.arch)
        if not target.has("cluster"):
            remedy = "compile for sm_90a, or remove the level of the cluster: the blocks alone"
            raise refuse(f"{self.arch} has no clusters", "sm_90 or later", remedy)
        blocks = [op for op in cluster.body if isinstance(op, Parallel) and kind(op) == "block"]
        if len(blocks) != 1:
            raise refuse(
                f"it contains {len(blocks)} levels of blocks",
                "exactly one: the blocks of a cluster start together",
                "give each level of blocks a cluster of its own",
            )
        n = count(blocks[0])
        if n is None:
            rank = spelled(cluster.span, "`: cluster-rank`", '`level="cluster-rank"`')
            raise refuse(
                f"its blocks, `parallel {described(blocks[0])}`, have a number that is not known when compiled",
                "a constant number of blocks in a cluster",
                f"use constants for these blocks; if they are the whole grid, write {rank} with a constant extent",
            )
        if not 1 <= n <= target.max_cluster:
            rule = f"1 to {target.max_cluster} blocks (CUDA C++ Programming Guide, Thread Block Clusters)"
            raise refuse(f"it has {n} blocks", rule, "use fewer blocks, and give each more of the tile")
        log.append(Decision("clusters", described(cluster), f"{n} blocks each", {"blocks": n}, span=cluster.span))


def _clustered(parents: tuple[Op, ...]) -> bool:
    return any(isinstance(p, Parallel) and kind(p) == "cluster" for p in parents)


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
