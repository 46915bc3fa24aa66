"""Clusters by rank: ``parallel c by [s] : cluster { parallel {i, j} by [m, n] : block }`` where the inner level is
the whole grid.

Index d of the cluster groups s_d neighbours along index d of the grid, and is a block's rank among them.  In the
IR the clusters are outside and the blocks of one cluster inside, with ``i = i_cluster * s + c``.  The number of
blocks along an index is rounded up to a multiple of s; the surplus blocks execute the body, so that copies and
events of the cluster are complete, but write no global memory and read zero from elements there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilemma.errors import CompileError, Span
from tilemma.ir import tile as t
from tilemma.ir.effects import Order, written_views
from tilemma.ir.expr import Const, Element, Expr, Index, Select, binary, mod, value_of, with_operands
from tilemma.ir.operation import Body
from tilemma.ir.tiles import Bounded
from tilemma.ir.types import Space
from tilemma.ir.walk import map_expressions, rewrite
from tilemma.records import record


class ClusterWithoutGrid(CompileError):
    code = "cluster-without-grid"
    found = "`parallel {names}` by rank, {problem}"
    expected = "one `parallel ... : block` inside: the whole grid, of at least as many indices"
    fix = "put the grid inside, or write the level `cluster-grid`, whose blocks are those of one cluster"
    python_fix = 'put the grid inside, or write `level="cluster"`, whose blocks are those of one cluster'


@record(frozen=False, slots=False)
class RankedCluster:
    """A level of ranks that is open; ``used``: its grid was found."""

    ranks: tuple[Index, ...]
    options: dict[str, Any]
    span: Span | None
    used: bool = False

    def refused(self, problem: str) -> ClusterWithoutGrid:
        names = ", ".join(i.source_name for i in self.ranks)
        return ClusterWithoutGrid(self.span, names=names, problem=problem)


def surplus(ranks: tuple[Index, ...], grid: tuple[Bounded, ...]) -> tuple[Expr, Expr] | None:
    """(what holds in blocks of the grid, what holds of sizes without surplus blocks); None: there are none."""
    inside: list[Expr] = []
    whole: list[Expr] = []
    for rank, place in zip(ranks, grid, strict=False):
        n, s = value_of(place.extent), value_of(rank.extent)
        if n is None or s is None or n % s:
            inside.append(binary("lt", place.value, place.extent))
            whole.append(binary("eq", mod(place.extent, rank.extent), 0))
    if not inside:
        return None
    conditions = []
    for xs in (inside, whole):
        found = xs[0]
        for x in xs[1:]:
            found = binary("land", found, x)
        conditions.append(found)
    return conditions[0], conditions[1]


def without_surplus_writes(body: Body, inside: Expr) -> tuple[Body, bool]:
    """``body`` whose accesses to global elements, copies and stores to global memory, prints and assertions are
    those of blocks ``inside``.  True with it: it has an asynchronous copy to
    global memory, which is not guarded."""
    unguarded = False

    def reads(e: Expr) -> Expr:
        found = with_operands(e, reads)
        if isinstance(found, Element) and found.view.base.space is Space.GLOBAL:
            return Select(inside, found, Const(0.0 if found.type.is_float else 0, found.type))
        return found

    def guarded(op: t.Op) -> t.Op:
        nonlocal unguarded
        op = map_expressions(op, reads)
        seen = getattr(op, "order", None) is Order.OUTPUT
        writes = seen or any(v.base.space is Space.GLOBAL for v in written_views(op))
        if isinstance(op, t.Copy) and writes and op.asynchronous:
            unguarded = True
            return op
        return t.If(inside, (op,), span=op.span) if writes else op

    made = rewrite(body, guarded)
    return made, unguarded


def nested(
    cluster: RankedCluster, groups: tuple[Index, ...], body: Body, options: dict[str, Any], span: Span | None
) -> t.Parallel:
    """The clusters around the blocks of each."""
    blocks = t.Parallel(cluster.ranks, body, span=span, **options)
    own = {k: v for k, v in cluster.options.items() if v and k in ("min_blocks", "max_registers", "cooperative")}
    blocks = replace(blocks, **own)
    rest = {k: v for k, v in cluster.options.items() if k not in own}
    return t.Parallel(groups, (blocks,), span=cluster.span, **rest)
