"""Lowering of buffer declarations: lane-local memory, and initial values of shared and local buffers."""

from __future__ import annotations

from itertools import product

from tilemma.ir import tile
from tilemma.ir.expr import const, value_of
from tilemma.ir.lane import Imm, LaneLocal
from tilemma.ir.types import Space
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.convert import convert, register
from tilemma.targets.ptx.lower.expressions import scalar
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import place, storage_bytes
from tilemma.targets.ptx.lower.params import symbol
from tilemma.targets.ptx.lower.stores import store_scalar

# With constant addresses ptxas keeps a local buffer in registers.
_UNROLLED = 64


@lowers(tile.Alloc)
def lower_alloc(lo: Lowering, op: tile.Alloc) -> None:
    """A local buffer gets lane-local memory; a shared buffer already has its offset.  Both may be initialised."""
    b = op.buffer
    shape = [value_of(s) or 0 for s in b.shape]
    total = max(1, b.copies)
    for s in shape:
        total *= s
    if b.space is Space.LOCAL and all(local.name != symbol(b.name) for local in lo.locals):
        lo.locals.append(LaneLocal(symbol(b.name), max(1, total * storage_bytes(b))))
    if op.init is not None:
        _initialise(lo, op, shape)


def _initialise(lo: Lowering, op: tile.Alloc, shape: list[int]) -> None:
    e = lo.e
    b = op.buffer
    assert op.init is not None
    value = register(e, convert(e, scalar(lo, op.init), op.init.type, b.dtype, lo.arch), b.dtype)
    threads, thread = 1, Linear()
    if b.space is Space.SHARED:
        threads, thread = lo.collective.threads, lo.thread_in(lo.collective)
    count = 1
    for s in shape:
        count *= s
    if b.space is Space.LOCAL and count * max(1, b.copies) <= _UNROLLED:
        for copy, at in product(range(max(1, b.copies)), product(*map(range, shape))):
            view = b.whole(const(copy) if b.copies else None)
            spot = place(lo, view, [Linear(const=i) for i in at])
            store_scalar(lo, spot.space, spot.address, value, b.dtype, True)
        return
    for copy in range(max(1, b.copies)):
        view = b.whole(const(copy) if b.copies else None)
        with e.loop("init", e.value(thread), Imm(count), Imm(threads), unroll=None) as i:
            e.bounded(i, 0, max(0, count - 1))
            index: list[Linear] = []
            rest = Linear.of(i)
            for s in reversed(shape[1:]):
                rest, digit = e.divide(rest, s)
                index.append(digit)
            index.append(rest)
            spot = place(lo, view, list(reversed(index)))
            store_scalar(lo, spot.space, spot.address, value, b.dtype, True)
