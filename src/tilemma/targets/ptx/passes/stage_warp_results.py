"""Epilogue staging without TMA: each warp puts its result together in shared memory, and writes whole rows.

See `stage_results`, which does the same for warpgroups.  The rows are in use after the main loop, and share the
memory of its tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilemma.ir.effects import declared, name_of
from tilemma.ir.expr import Expr, add, const, mul, value_of
from tilemma.ir.tile import Alloc, ArrayFacts, Body, Kernel, Op, Parallel, Store
from tilemma.ir.types import GROUP
from tilemma.ir.walk import rewrite, rewrite_blocks, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.passes.scope import count
from tilemma.records import record
from tilemma.targets.ptx.passes.join_blocks import is_left, is_product
from tilemma.targets.ptx.passes.stage_results import staged_results
from tilemma.targets.ptx.passes.warp_program import FreshNames, outermost

# Bytes of a warp's row from which the detour pays: two sectors.
_LEAST_ROW = 64


@record(slots=False)
class StageWarpResults:
    """Stages results of 16 bits or fewer that the warps of a product by mma.sync store directly."""

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        if is_left(kernel.pipeline):
            return kernel
        facts = {p.buffer.name: p.facts or ArrayFacts(None, 1) for p in kernel.arrays}
        fresh = FreshNames({name_of(x) for op in walk(kernel.body) for x in declared(op)} | {*facts})
        said: list[Decision] = []
        staged = rewrite_blocks(kernel, lambda block: _staged(block, facts, fresh, said))
        log += said
        return staged if said else kernel


def _staged(block: Parallel, facts: Mapping[str, ArrayFacts], fresh: FreshNames, log: list[Decision]) -> Parallel:
    if not is_product(block) or any(p.level != GROUP for p in outermost(block.body)):
        return block
    known = {op.buffer.name for op in walk(block.body) if isinstance(op, Alloc)}
    allocs: list[Op] = []

    def visit(body: Body) -> Body:
        return tuple(group(op) if isinstance(op, Parallel) else with_bodies(op, visit) for op in body)

    def group(op: Parallel) -> Op:
        member: Expr = const(0)
        for i in op.indices:
            member = add(mul(member, i.extent), i)
        body, stores = staged_results(op.body, member, count(op) or 1, facts, fresh)
        if not stores or min(map(_row_bytes, stores)) < _LEAST_ROW:
            return op
        for store in stores:
            text = "staged through shared memory, from where each warp writes whole rows"
            log.append(Decision("pipeline", store.dst.base.name, text, span=store.span))
        new = [x for x in walk(body) if isinstance(x, Alloc) and x.buffer.name not in known]
        allocs.extend(new)
        return replace(op, body=rewrite(body, lambda x: () if x in new else x))

    body = visit(block.body)
    return replace(block, body=(*allocs, *body)) if allocs else block


def _row_bytes(store: Store) -> int:
    return (value_of(store.dst.shape[-1]) or 0) * store.dst.dtype.bits // 8
