"""How the tile of a result that leaves by TMA may be cut into pieces, so that little shared memory holds it.

`plan_roles` counts with these bytes when it chooses the stages of a ring, `StageThroughShared` cuts.

Pieces are as wide as the widest swizzle; the columns that remain are pieces of narrower ones, with buffers of
their own.  A tile of 144 columns of 16 bits would otherwise have nine boxes of 32 bytes a row, each a request of
its own to the L2 cache.  The columns of an accumulator whose transpose is stored are rows of the buffer.
"""

from __future__ import annotations

from tilemma.ir.expr import value_of
from tilemma.ir.tile import Alloc
from tilemma.records import record

# A piece is as wide as the widest swizzle, or as a narrower one: one box of a TMA store.
PIECE_BYTES = 128
NARROWER = (64, 32, 16)
# Columns of an accumulator in a piece of its transpose.
TURNED = 32


@record
class Pieces:
    """Elements of ``bits`` in pieces: ``widths`` of them along ``axis``, widest first, and ``across`` along the
    other axis.  Along axis 0 the last may be a part of a slot."""

    bits: int
    across: int
    widths: tuple[int, ...]
    axis: int = 1

    def bytes(self, width: int) -> int:
        """Bytes of a piece of ``width`` elements."""
        return self.across * width * self.bits // 8

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

    def total(self, slots: int) -> int:
        """Bytes of ``slots`` of the widest pieces and all others."""
        return slots * self.bytes(self.widths[0]) + self.rest


def pieces_of(alloc: Alloc, transposed: bool) -> list[Pieces]:
    """The ways to cut the buffer of ``alloc``, of two dimensions, the widest pieces first: its rows, or, where the
    transpose of an accumulator is stored, its columns.  Empty where one piece would be all of it."""
    rows, columns = (value_of(e) or 0 for e in alloc.buffer.shape)
    bits = alloc.buffer.dtype.bits
    if transposed:
        left = rows % TURNED
        widths = (TURNED,) * (rows // TURNED) + (left,) * (left > 0)
        return [Pieces(bits, columns, widths, 0)] if len(widths) > 1 else []
    row = columns * bits // 8
    ways = dict.fromkeys(_widths(row, most, alloc.swizzle) for most in (PIECE_BYTES, *NARROWER))
    return [Pieces(bits, rows, tuple(n * 8 // bits for n in x)) for x in ways if len(x) > 1]


def _widths(row: int, most: int, swizzle: int | None) -> tuple[int, ...]:
    """Bytes of the pieces of ``row`` bytes, the first of ``most`` at most; none if they are no boxes."""
    if swizzle is not None:
        return (swizzle,) * (row // swizzle) if swizzle == most and row % swizzle == 0 else ()
    found: tuple[int, ...] = ()
    for width in (x for x in (PIECE_BYTES, *NARROWER) if x <= most):
        found += (width,) * (row // width)
        row %= width
    return () if row else found
