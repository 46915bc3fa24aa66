"""Epilogue staging through shared memory: a tile on its way to a TMA store uses only the shared memory that is
left, in the widest boxes.

If the buffer through which a program stages its accumulator does not fit, it is replaced by a ring of narrow
pieces::

    mma.store mc, out_s[rows]              for j, unrolled:
    tma.copy out_s[rows] => output[..]         mma.store (columns of piece j of mc), ring[j % R][rows]
                                               tma.copy ring[j % R][rows] => output[.., piece j]

`staging_pieces` has the widths.  The columns of an accumulator whose transpose is stored are cut only where the
buffer does not fit.
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
from tilemma.targets.ptx.passes.staging_pieces import Pieces, pieces_of
from tilemma.targets.ptx.target import Target
from tilemma.targets.ptx.tensor_copies import SHARED_ALIGNMENT

# The narrowest swizzle.
LEAST = 32
# Bytes after which a swizzle repeats.
PERIOD = 1024


@record
class _Staged:
    """A staging buffer and the pieces into which it may be cut."""

    alloc: Alloc
    pieces: Pieces

    def rooms(self, slots: int) -> dict[int, Buffer]:
        """The buffers of the pieces of each width: a ring of ``slots`` for the widest."""
        b, cut = self.alloc.buffer, self.pieces
        found = {}
        for width in dict.fromkeys(cut.widths[: None if cut.axis else 1]):
            name = b.name if width == cut.widths[0] else f"{b.name}.{width}"
            copies = slots if width == cut.widths[0] else 1
            shape = (cut.across, width) if cut.axis else (width, cut.across)
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
            staged = next((x for x in _cuts(alloc, body) if x.pieces.slots(room)), None)
            if staged is None:
                continue
            cut = staged.pieces
            if total <= limit and (not cut.axis or cut.equal == len(cut.widths)):
                continue
            slots = cut.slots(room)
            text = f"staged through {slots} pieces of {cut.across}x{cut.widths[0]}"
            text += "".join(f", one of {cut.across}x{w}" for w in cut.widths[cut.equal :])
            text += f": all of it would make {total} bytes, {self.arch} has {limit}"
            data = {"pieces": len(cut.widths), "slots": slots}
            log.append(Decision("staging", alloc.buffer.name, text, data))
            body = _cut(body, staged, staged.rooms(slots))
            total += cut.total(slots) - _bytes(alloc.buffer)
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
    return [_Staged(alloc, pieces) for pieces in pieces_of(alloc, axis == 0)]


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
    name, cut = staged.alloc.buffer.name, staged.pieces
    for op, after in zip_longest(body, body[1:]):
        if skip:
            skip = False
        elif isinstance(op, Alloc) and op.buffer.name == name:
            bits = op.buffer.dtype.bits
            for width, room in rooms.items():
                row = width * bits // 8
                swizzle = (row if row >= LEAST else 0) if cut.axis else op.swizzle
                out.append(replace(op, buffer=room, swizzle=swizzle))
        elif _is_pair(op, after, name):
            assert isinstance(op, Store) and isinstance(after, Copy)
            first = 0
            for j, width in enumerate(cut.widths):
                slot = j if j < cut.equal else 0
                room = rooms.get(width, rooms[cut.widths[0]])
                out += _piece(op, after, room, slot, (cut.axis, first, width))
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
