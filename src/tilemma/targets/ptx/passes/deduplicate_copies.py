"""Deduplication of collective copies: a copy that is identical in several instances is executed by the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilemma.ir.expr import Expr, binary, value_of
from tilemma.ir.tile import Body, Copy, InThreads, Kernel, Op, Parallel, WaitFuture
from tilemma.ir.types import Space
from tilemma.ir.walk import rewrite, rewrite_blocks
from tilemma.passes.decision import Decision
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Block, Node, Tree, distinct
from tilemma.records import record
from tilemma.targets.ptx import tensor_copies


@record(slots=False)
class DeduplicateCopies:
    """Guards copies that several instances would repeat with a condition that one instance satisfies: copies by
    TMA, and copies with a future or an event.  All instances still wait and trigger."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        dependence = Dependence(kernel.body)
        return rewrite_blocks(kernel, lambda block: _deduplicated(block, dependence))


def _deduplicated(block: Parallel, dependence: Dependence) -> Parallel:
    guarded: dict[int, Op | Body] = {}
    for node in Tree(block, dependence).walk():
        op = node.op
        if not isinstance(op, Copy) or op.plan is None:
            continue
        by_tma = op.plan.engine == "tma"
        if not by_tma and (op.plan.level.kind == "block" or not (op.asynchronous and op.future)):
            continue
        if op.dst.base.space is Space.LOCAL:
            continue
        cond = _first_of_all(op, node.parent, dependence)
        if cond is None:
            continue
        if by_tma and tensor_copies.is_load(op) and not op.asynchronous:
            future = f"{op.dst.base.name}.future.once{len(guarded)}"
            copy = replace(op, asynchronous=True, future=future)
            guarded[id(op)] = InThreads(cond, (copy,), span=op.span), WaitFuture((future,), span=op.span)
        else:
            guarded[id(op)] = InThreads(cond, (op,), span=op.span)
    if not guarded:
        return block
    return replace(block, body=rewrite(block.body, lambda op: guarded.get(id(op), op)))


def _first_of_all(op: Copy, body: Block, dependence: Dependence) -> Expr | None:
    """The condition that only the first of the instances with the same copy satisfies; None if there is only one
    such instance, or if the instances that reach the copy are not known."""
    mine = set().union(*(dependence.of(e) for v in (op.src, op.dst) for e in v.expressions()))
    first = int(np.argmax(body.mask))
    chosen, parts = body.mask.copy(), []
    for depth, p in enumerate(_levels(body)):
        for i in p.indices if not {i.name for i in p.indices} & mine else ():
            values = body.index[i.name]
            if (values[body.mask] != values[first]).any():
                if any(v in (-1, depth) for v in body.varying):
                    return None
                chosen &= values == values[first]
                parts.append(binary("eq", i, int(values[first])))
    places = [body.index[i.name] for p in _levels(body) for i in p.indices if i.name in mine]
    where = np.stack([*places, np.zeros(len(chosen), int)], axis=1)
    if not parts or len(np.unique(where[chosen], axis=0)) != len(np.unique(where[body.mask], axis=0)):
        return None
    cond = parts[0]
    for part in parts[1:]:
        cond = binary("land", cond, part)
    return cond


def _levels(body: Block) -> Iterator[Parallel]:
    """The parallels around ``body`` whose instances elect a thread each."""
    for node in body.chain:
        assert isinstance(node.op, Parallel) and node.op.level is not None
        if node.op.level.kind == "thread":
            return
        yield node.op


def once(block: Parallel, dependence: Dependence) -> Parallel:
    """``block`` with each such copy under a condition that admits one instance.

    A condition above a copy may admit several instances of a level whose index the copy does not depend on:
    without the guard each would write the same data to the same place.  Copies that complete an event or a future
    are not changed: every instance's wait relies on them.
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
    """The condition that holds in the first instance alone; None if there is only one, or it cannot be
    determined."""
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
