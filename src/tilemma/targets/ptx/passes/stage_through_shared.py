"""Epilogue staging through shared memory: a tile on its way to a TMA store uses only the shared memory that is
left, in the widest boxes.

If the buffer through which a program stages its accumulator does not fit, it is replaced by a ring of narrow
pieces::

    mma.store mc, out_s[rows]              for j, unrolled:
    tma.copy out_s[rows] => output[..]         mma.store (columns of piece j of mc), ring[j % R][rows]
                                               tma.copy ring[j % R][rows] => output[.., piece j]

Pieces are as wide as the widest swizzle; the columns that remain are pieces of narrower ones, with buffers of
their own.  A tile of 144 columns of 16 bits would otherwise have nine boxes of 32 bytes a row, each a request of
its own to the L2 cache.  The columns of an accumulator whose transpose is stored are rows of the buffer, and are
cut only where the buffer does not fit.
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

# A piece is as wide as the widest swizzle, or as a narrower one: one box of a TMA store.
PIECE_BYTES = 128
NARROWER = (64, 32, 16)
# The narrowest swizzle.
LEAST = 32
# Bytes after which a swizzle repeats.
PERIOD = 1024
# Columns of an accumulator in a piece of its transpose.
TURNED = 32


@record
class _Staged:
    """A staging buffer, its rows, and the columns of each piece, the widest first; or, cut along ``axis`` 0, its
    columns and the rows of each piece, of which the last may be a part of a slot."""

    alloc: Alloc
    rows: int
    widths: tuple[int, ...]
    axis: int = 1

    def bytes(self, width: int) -> int:
        """Bytes of a piece of ``width`` columns."""
        return self.rows * width * self.alloc.buffer.dtype.bits // 8

    @property
    def equal(self) -> int:
        """The number of the pieces that go through the ring: the widest."""
        return self.widths.count(self.widths[0]) if self.axis else len(self.widths)

    @property
    def rest(self) -> int:
        """Bytes of the other pieces."""
        return sum(self.bytes(w) for w in self.widths[self.equal :])

    def slots(self, room: int) -> int:
        """Slots for the widest pieces in ``room`` bytes."""
        return max(0, min(self.equal, (room - self.rest) // self.bytes(self.widths[0])))

    def rooms(self, slots: int) -> dict[int, Buffer]:
        """The buffers of the pieces of each width: a ring of ``slots`` for the widest."""
        b = self.alloc.buffer
        found = {}
        for width in dict.fromkeys(self.widths[: None if self.axis else 1]):
            name = b.name if width == self.widths[0] else f"{b.name}.{width}"
            copies = slots if width == self.widths[0] else 1
            shape = (self.rows, width) if self.axis else (width, self.rows)
            found[width] = Buffer(name, b.dtype, tuple(map(const, shape)), Space.SHARED, copies)
        return found


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
        body = block.body
        for alloc in sorted(allocs, key=lambda a: -_bytes(a.buffer)):
            room = limit - (total - _bytes(alloc.buffer)) - (_gaps(allocs, body) if total > limit else 0)
            staged = next((x for x in _cuts(alloc, body) if x.slots(room)), None)
            if staged is None or (total <= limit and (not staged.axis or staged.equal == len(staged.widths))):
                continue
            slots = staged.slots(room)
            text = f"staged through {slots} pieces of {staged.rows}x{staged.widths[0]}"
            text += "".join(f", one of {staged.rows}x{w}" for w in staged.widths[staged.equal :])
            text += f": all of it would make {total} bytes, {self.arch} has {limit}"
            data = {"pieces": len(staged.widths), "slots": slots}
            log.append(Decision("staging", alloc.buffer.name, text, data))
            body = _cut(body, staged, staged.rooms(slots))
            total += slots * staged.bytes(staged.widths[0]) + staged.rest - _bytes(alloc.buffer)
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


def _cuts(alloc: Alloc, body: Body) -> list[_Staged]:
    """The ways to cut ``alloc``, a staging buffer, the widest pieces first; none if it is no such buffer.

    Every use is a store followed by a TMA store of the same view, and none asks for plain rows.
    """
    b = alloc.buffer
    shape = [value_of(e) for e in b.shape]
    if len(shape) != 2 or not all(shape) or b.copies or alloc.init is not None:
        return []
    extents = [n or 0 for n in shape]
    plans = {op.name: op.plan for op in walk(body) if isinstance(op, DeclareFragment)}
    pairs = _pairs(body, b.name)
    uses = Counter(v.base.name for op in walk(body) for v in touched(op))
    if not pairs or uses[b.name] != 2 * len(pairs) or any(copy.swizzle == 0 for _, copy in pairs):
        return []
    axis = 0 if pairs[0][0].transpose else 1
    for store, copy in pairs:
        plan = plans.get(store.fragment.name)
        whole = store.dst.axes[axis]
        if (
            plan is None
            or plan.grid[1] != 1
            or store.transpose != (axis == 0)
            or store.rows is not None
            or store.columns is not None
        ):
            return []
        cut = extents[axis]
        if value_of(whole.extent) != cut or whole.dim != axis or value_of(store.dst.offsets[axis]) != 0:
            return []
        if len(copy.dst.axes) != 2 or value_of(copy.dst.axes[axis].extent) != cut:
            return []
    rows, columns = extents
    if axis == 0:
        left = rows % TURNED
        pieces = (TURNED,) * (rows // TURNED) + (left,) * (left > 0)
        return [_Staged(alloc, columns, pieces, 0)] if len(pieces) > 1 else []
    bits = b.dtype.bits
    ways = dict.fromkeys(_widths(columns * bits // 8, most, alloc.swizzle) for most in (PIECE_BYTES, *NARROWER))
    return [_Staged(alloc, rows, tuple(n * 8 // bits for n in x)) for x in ways if len(x) > 1]


def _widths(row: int, most: int, swizzle: int | None) -> tuple[int, ...]:
    """Bytes of the pieces of ``row`` bytes, the first of ``most`` at most; none if they are no boxes."""
    if swizzle is not None:
        return (swizzle,) * (row // swizzle) if swizzle == most and row % swizzle == 0 else ()
    found: tuple[int, ...] = ()
    for width in (x for x in (PIECE_BYTES, *NARROWER) if x <= most):
        found += (width,) * (row // width)
        row %= width
    return () if row else found


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


def _cut(body: Body, staged: _Staged, rooms: dict[int, Buffer]) -> Body:
    out: list[Op] = []
    skip = False
    name = staged.alloc.buffer.name
    for op, after in zip_longest(body, body[1:]):
        if skip:
            skip = False
        elif isinstance(op, Alloc) and op.buffer.name == name:
            bits = op.buffer.dtype.bits
            for width, room in rooms.items():
                row = width * bits // 8
                swizzle = (row if row >= LEAST else 0) if staged.axis else op.swizzle
                out.append(replace(op, buffer=room, swizzle=swizzle))
        elif _is_pair(op, after, name):
            assert isinstance(op, Store) and isinstance(after, Copy)
            first = 0
            for j, width in enumerate(staged.widths):
                slot = j if j < staged.equal else 0
                room = rooms.get(width, rooms[staged.widths[0]])
                out += _piece(op, after, room, slot, (staged.axis, first, width))
                first += width
            skip = True
        else:
            out.append(with_bodies(op, lambda inner: _cut(inner, staged, rooms)))
    return tuple(out)


def _piece(store: Store, copy: Copy, room: Buffer, slot: int, part: tuple[int, int, int]) -> list[Op]:
    """Store and copy of a part (axis, first, width) of a tile."""
    axis, first, width = part

    def cut(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(x, extent=const(width)) if i == axis else x for i, x in enumerate(axes))

    view = View(room, store.dst.offsets, cut(store.dst.axes), const(slot % room.copies))
    there = copy.dst.shift(axis, first)
    there = replace(there, axes=cut(there.axes))
    return [replace(store, dst=view, part=(first, width)), replace(copy, src=view, dst=there, swizzle=None)]
