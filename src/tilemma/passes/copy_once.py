"""Copies that several instances would repeat: what is the same for all of them is done by the first."""

from __future__ import annotations

from dataclasses import replace

from tilemma.ir.expr import Expr, binary, value_of
from tilemma.ir.tile import Copy, InThreads, Op, Parallel
from tilemma.ir.types import Space
from tilemma.ir.walk import rewrite
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Node, Tree, distinct


def once(block: Parallel, dependence: Dependence) -> Parallel:
    """``block`` with each such copy under a condition that admits one instance.

    A condition above a copy may admit several instances of a level whose index the copy does not depend on:
    without this each would write the same data to the same place.  Copies that complete an event or a future
    stay as they are: others count on them.
    """
    guarded: dict[int, Op] = {}
    for node in Tree(block, dependence).walk():
        op = node.op
        if isinstance(op, Copy) and not (op.asynchronous or op.event or op.future):
            cond = _first(op, node, dependence)
            if cond is not None:
                guarded[id(op)] = InThreads(cond, (op,), span=op.span)
    if not guarded:
        return block
    return replace(block, body=rewrite(block.body, lambda op: guarded.get(id(op), op)))


def _first(op: Copy, node: Node, dependence: Dependence) -> Expr | None:
    """The condition that holds in the first instance alone; None where there is only one, or that is not known."""
    assert op.plan is not None, op
    if op.plan.level.kind == "block" or Space.LOCAL in (op.src.base.space, op.dst.base.space):
        return None
    mine = set().union(*(dependence.of(e) for v in (op.src, op.dst) for e in v.expressions()))
    body = node.parent
    for depth, around in enumerate(body.chain):
        p = around.op
        assert isinstance(p, Parallel)
        if p.level != op.plan.level or {i.name for i in p.indices} & mine:
            continue
        starts = distinct(body.partition(depth + 1)[body.mask])[0]
        if len(starts) < 2 or depth > 0:
            return None
        cond: Expr | None = None
        for i in p.indices:
            if value_of(i.extent) == 1:
                continue
            here = binary("eq", i, int(body.index[i.name][starts[0]]))
            cond = here if cond is None else binary("land", cond, here)
        return cond
    return None
