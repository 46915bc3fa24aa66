"""Epilogue staging: results that warpgroups store from registers into global memory go through shared memory.

A thread of a warpgroup holds two neighbouring elements of a row, and four threads a part of a row.  Elements of 16
bits or fewer that they store directly fill no sector of 32 bytes, and the warpgroup waits for many small writes.
Through shared memory TMA writes whole rows, while the next tile is multiplied::

    mma.store mc, output[tile]    =>    mma.store mc, s[rows of the warpgroup]
                                        copy s[rows of the warpgroup] => output[tile]

A store of as many rows and columns as the program computes (``.mask``) is staged where that is the whole tile,
and stores directly elsewhere: TMA clips boxes at the edges of an array only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilemma.ir.expr import Const, Expr, binary, const, mul, value_of
from tilemma.ir.tile import Alloc, ArrayFacts, Body, Copy, For, If, Op, Store, While
from tilemma.ir.types import Buffer, Space
from tilemma.ir.walk import touched, walk, with_bodies
from tilemma.targets.ptx.passes.promote_copies import promoted, reordered_stores
from tilemma.targets.ptx.passes.warp_program import FreshNames

# Wider elements fill whole sectors, and would take twice the shared memory.
_WIDEST_BITS = 16


def staged_results(
    body: Body, member: Expr, groups: int, facts: Mapping[str, ArrayFacts], fresh: FreshNames
) -> tuple[Body, tuple[Store, ...]]:
    """``body``, the program of warpgroup ``member`` of ``groups``, with the results that TMA can store staged
    through shared memory; and the stores concerned."""
    uses = Counter(v.base.name for op in walk(body) for v in touched(op))
    stored = Counter(op.dst.base.name for op in walk(body) if isinstance(op, Store))
    reordered = reordered_stores(body)
    found: list[Store] = []

    def visit(inner: Body) -> Body:
        out: list[Op] = []
        for op in inner:
            if isinstance(op, (For, While, If)):
                out.append(with_bodies(op, visit))
                continue
            # An array that the block accesses in another way too might depend on the order of the accesses.
            name = op.dst.base.name if isinstance(op, Store) else ""
            alone = uses[name] == stored[name] and name not in reordered
            staged = _staged(op, member, groups, facts, fresh) if isinstance(op, Store) and alone else None
            if staged is not None:
                assert isinstance(op, Store)
                found.append(op)
            out += staged or (op,)
        return tuple(out)

    return visit(body), tuple(found)


def _staged(
    op: Store, member: Expr, groups: int, facts: Mapping[str, ArrayFacts], fresh: FreshNames
) -> Body | None:
    shape, dtype = op.dst.static_shape, op.dst.dtype
    if op.dst.base.space is not Space.GLOBAL or dtype.bits > _WIDEST_BITS or op.transpose or op.part is not None:
        return None
    if shape is None or len(shape) != 2 or op.dst.reshape is not None or op.dst.base.name not in facts:
        return None
    rows, columns = shape
    name = fresh(f"{op.dst.base.name}_s")
    buffer = Buffer(name, dtype, (const(rows * groups), const(columns)), Space.SHARED)
    whole = buffer.whole()
    here = replace(
        whole,
        offsets=(mul(member, rows), const(0)),
        axes=(replace(whole.axes[0], extent=const(rows)), whole.axes[1]),
    )
    copy = Copy("dma", here, op.dst, span=op.span)
    if isinstance(promoted(copy, facts), str):
        return None
    if any((value_of(n) or 0) < of for n, of in ((op.rows, rows), (op.columns, columns)) if isinstance(n, Const)):
        return None
    by_tma: Body = (replace(op, dst=here, rows=None, columns=None), copy)
    for limit, of in ((op.rows, rows), (op.columns, columns)):
        if limit is not None:
            by_tma = (If(binary("ge", limit, of), by_tma, (op,), span=op.span),)
    return Alloc(buffer, span=op.span), *by_tma
