"""Movers of chunks: their addresses on both sides of a copy, and the base of its engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from tilemma.ir import tile
from tilemma.ir.expr import value_of
from tilemma.ir.lane import Mem, Reg
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower import memory
from tilemma.targets.ptx.lower.chunks import Chunk, Chunks, index_of
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear


class Mover(ABC):
    """The base of both engines: addresses and bounds checks of chunks on both sides."""

    def __init__(self, lo: Lowering, op: tile.Copy, chunks: Chunks) -> None:
        self.lo, self.op, self.chunks = lo, op, chunks
        self.places = memory.Places(lo, op.src), memory.Places(lo, op.dst)
        self.size = memory.storage_bytes(op.src.base)
        self.vector = chunks.elements * self.size

    def index(self, view: View, chunk: Chunk, element: int = 0) -> list[Linear]:
        if not view.axes:
            return []
        return index_of(self.lo, self.chunks.shape, chunk.row, chunk.col + element)

    def at(self, view: View, chunk: Chunk, element: int = 0, *, check: bool = False) -> memory.Place:
        return self._of(view).at(self.index(view, chunk, element), check=check)

    def _of(self, view: View) -> memory.Places:
        return self.places[view is self.op.dst]

    def run(self, view: View, chunks: Sequence[Chunk]) -> Iterator[Mem]:
        """Addresses of the chunks; in global memory, the previous address plus a constant number of strides if
        possible."""
        strides = self._strides(view)
        previous: tuple[Mem, Chunk] | None = None
        for chunk in chunks:
            here: Mem | None = None
            if previous is not None and strides is not None:
                before, last = previous
                down, right = (chunk.row - last.row).known, (chunk.col - last.col).known
                if down is not None and right is not None:
                    here = self._moved(self._moved(before, strides[0], down, view), strides[1], right, view)
            if here is None:
                here = self.at(view, chunk).address
            previous = (here, chunk)
            yield here

    def _moved(self, m: Mem, stride: Reg | int, count: int, view: View) -> Mem:
        if count == 0 or isinstance(stride, int):
            return Mem(m.base, m.offset + (stride * count if isinstance(stride, int) else 0))
        e = self.lo.e
        by = memory.times(e, stride, count, f"{view.base.name}_rows")
        return Mem(e.pure("add.s64", "u64", m.base, by, hint=f"{view.base.name}_at"), m.offset)

    def _strides(self, view: View) -> tuple[Reg | int, Reg | int] | None:
        """Bytes from one row of the tile to the next, and from one column to the next."""
        if view.base.space is not Space.GLOBAL or view.reshape is not None or len(view.axes) != 2:
            return None
        found: list[Reg | int] = []
        for axis in view.axes:
            steps = value_of(axis.step)
            if steps is None:
                return None
            bytes_ = memory.stride_bytes(self.lo, view.base, axis.dim)
            found.append(bytes_ * steps if isinstance(bytes_, int) else memory.times(self.lo.e, bytes_, steps))
        return found[0], found[1]

    def inside_view(self, view: View, index: Sequence[Linear]) -> Reg | bool:
        """Whether ``index`` is inside the view's extents, which may be smaller than the tile."""
        e = self.lo.e
        ok: Reg | bool = True
        for axis, i in zip(view.axes, index, strict=True):
            ok = e.both(ok, e.compare("lt", i, linear(self.lo, axis.extent), unsigned=True, hint="in_view"))
        return ok

    def valid(self, view: View, chunk: Chunk, element: int) -> Reg | bool:
        """Whether the element may be accessed: it is inside the view and inside the array."""
        index = self.index(view, chunk, element)
        ok = self.inside_view(view, index)
        return self.lo.e.both(ok, self._of(view).valid(index))

    @abstractmethod
    def whole(self, chunks: Sequence[Chunk]) -> None:
        """Chunks that lie inside both arrays."""

    @abstractmethod
    def edge(self, chunks: Sequence[Chunk]) -> None:
        """Chunks with elements that may lie outside."""
