"""Epilogue staging through shared memory: a tile on its way to a TMA store uses only the shared memory that is
left.

If the buffer through which a program stages its accumulator does not fit, it is replaced by a ring of narrow
pieces::

    mma.store mc, out_s[rows]              for j, unrolled:
    tma.copy out_s[rows] => output[..]         mma.store (columns of piece j of mc), ring[j % R][rows]
                                               tma.copy ring[j % R][rows] => output[.., piece j]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from math import prod

from tilemma.ir.expr import const, value_of
from tilemma.ir.tile import Alloc, Body, Copy, DeclareEvent, DeclareFragment, Kernel, Op, Parallel, Store
from tilemma.ir.types import Axis, Buffer, Space, View
from tilemma.ir.walk import bodies, rewrite_blocks, touched, walk, with_bodies
from tilemma.passes.decision import Decision
from tilemma.records import record
from tilemma.targets.ptx.target import Target
from tilemma.targets.ptx.tensor_copies import SHARED_ALIGNMENT

# A piece is as wide as the widest swizzle, or a narrower one that divides the tile: one box of a TMA store.
PIECE_BYTES = 128
NARROWER = (64, 32)
# Bytes after which a swizzle repeats.
PERIOD = 1024


@record
class _Staged:
    """A staging buffer, its extents, and the columns of a piece."""

    alloc: Alloc
    rows: int
    columns: int
    width: int

    @property
    def pieces(self) -> int:
        return self.columns // self.width

    @property
    def swizzle(self) -> int:
        return self.width * self.alloc.buffer.dtype.bits // 8

    @property
    def piece_bytes(self) -> int:
        return self.rows * self.width * self.alloc.buffer.dtype.bits // 8


@record(slots=False)
class StageThroughShared:
    """Cuts staging buffers that do not fit into rings of pieces."""

    arch: str

    def run(self, kernel: Kernel, log: list[Decision]) -> Kernel:
        return rewrite_blocks(kernel, lambda block: self._block(block, log))

    def _block(self, block: Parallel, log: list[Decision]) -> Op:
        allocs = [op for op in walk(block.body) if isinstance(op, Alloc) and op.buffer.space is Space.SHARED]
        events = sum(8 * max(1, op.event.slots) for op in walk(block.body) if isinstance(op, DeclareEvent))
        total = sum(_bytes(a.buffer) for a in allocs) + events
        limit = Target.of(self.arch).shared_limit
        if total <= limit:
            return block
        body = block.body
        for alloc in sorted(allocs, key=lambda a: -_bytes(a.buffer)):
            staged = _staged(alloc, body)
            if staged is None:
                continue
            room = limit - (total - _bytes(alloc.buffer)) - _gaps(allocs, body)
            slots = min(staged.pieces, room // staged.piece_bytes)
            if slots < 1:
                continue
            ring = Buffer(
                alloc.buffer.name,
                alloc.buffer.dtype,
                (const(staged.rows), const(staged.width)),
                Space.SHARED,
                slots,
            )
            text = (
                f"staged through {slots} pieces of {staged.rows}x{staged.width}: "
                f"all of it would make {total} bytes, {self.arch} has {limit}"
            )
            log.append(Decision("staging", alloc.buffer.name, text, {"pieces": staged.pieces, "slots": slots}))
            body = _cut(body, staged, ring)
            total += slots * staged.piece_bytes - _bytes(alloc.buffer)
            if total <= limit:
                break
        return replace(block, body=body)


def _bytes(b: Buffer) -> int:
    shape = [value_of(e) or 0 for e in b.shape]
    return prod(shape) * b.dtype.bits // 8 * max(1, b.copies)


def _gaps(allocs: list[Alloc], body: Body) -> int:
    """Bytes that alignment may add, to swizzles and to boxes of TMA; larger buffers come first."""
    stored = {op.dst.base.name for op in walk(body) if isinstance(op, Store)}
    if any(a.buffer.dtype.bits > 16 and a.buffer.name in stored for a in allocs):
        # Their rows may be padded (`AssignLayouts`).
        return PERIOD
    sizes = [_bytes(a.buffer) for a in allocs]
    return min(PERIOD, sum(-size % (PERIOD if size > PERIOD else SHARED_ALIGNMENT) for size in sizes))


def _staged(alloc: Alloc, body: Body) -> _Staged | None:
    """``alloc`` as a staging buffer, where every use is a store followed by a TMA store of the same view."""
    b = alloc.buffer
    shape = [value_of(e) for e in b.shape]
    if len(shape) != 2 or None in shape or b.copies or alloc.init is not None:
        return None
    rows, columns = (n or 0 for n in shape)
    found = [
        n for n in (PIECE_BYTES, *NARROWER) if columns * b.dtype.bits // 8 % n == 0 and alloc.swizzle in (None, n)
    ]
    if not found or columns == (width := found[0] * 8 // b.dtype.bits):
        return None
    plans = {op.name: op.plan for op in walk(body) if isinstance(op, DeclareFragment)}
    pairs = _pairs(body, b.name)
    uses = Counter(v.base.name for op in walk(body) for v in touched(op))
    if not pairs or uses[b.name] != 2 * len(pairs):
        return None
    for store, copy in pairs:
        plan = plans.get(store.fragment.name)
        whole = store.dst.axes[-1]
        if (
            plan is None
            or plan.grid[1] != 1
            or store.transpose
            or store.rows is not None
            or store.columns is not None
        ):
            return None
        if value_of(whole.extent) != columns or whole.dim != 1 or value_of(store.dst.offsets[1]) != 0:
            return None
        if len(copy.dst.axes) != 2 or value_of(copy.dst.axes[1].extent) != columns:
            return None
    return _Staged(alloc, rows, columns, width)


def _pairs(body: Body, name: str) -> list[tuple[Store, Copy]]:
    """The stores into buffer ``name`` that a TMA store of the same view follows at once."""
    found: list[tuple[Store, Copy]] = []
    for op, after in zip_longest(body, body[1:]):
        if _is_pair(op, after, name):
            assert isinstance(op, Store) and isinstance(after, Copy)
            found.append((op, after))
        for _, inner in bodies(op):
            found += _pairs(inner, name)
    return found


def _is_pair(op: Op, after: Op | None, name: str) -> bool:
    return (
        isinstance(op, Store)
        and isinstance(after, Copy)
        and op.dst.base.name == name
        and after.engine == "tma"
        and after.src == op.dst
        and after.dst.base.space is Space.GLOBAL
        and after.future is None
    )


def _cut(body: Body, staged: _Staged, ring: Buffer) -> Body:
    out: list[Op] = []
    skip = False
    name = staged.alloc.buffer.name
    for op, after in zip_longest(body, body[1:]):
        if skip:
            skip = False
        elif isinstance(op, Alloc) and op.buffer.name == name:
            out.append(replace(op, buffer=ring, swizzle=staged.swizzle))
        elif _is_pair(op, after, name):
            assert isinstance(op, Store) and isinstance(after, Copy)
            for j in range(staged.pieces):
                out += _piece(op, after, staged, ring, j)
            skip = True
        else:
            out.append(with_bodies(op, lambda inner: _cut(inner, staged, ring)))
    return tuple(out)


def _piece(store: Store, copy: Copy, staged: _Staged, ring: Buffer, j: int) -> list[Op]:
    width = staged.width
    old = store.dst
    axes = (*old.axes[:-1], Axis(1, const(width)))
    view = View(ring, old.offsets, axes, const(j % ring.copies))
    there = copy.dst.shift(1, j * width)
    there = replace(there, axes=(there.axes[0], replace(there.axes[1], extent=const(width))))
    return [replace(store, dst=view, part=(j * width, width)), replace(copy, src=view, dst=there, swizzle=None)]
