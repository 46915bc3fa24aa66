"""Lowering of copies by cp.async: chunks move from global to shared memory without registers."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.atoms import catalogue
from tilemma.ir import tile
from tilemma.ir.lane import CopyInstr, Imm, Mem, Reg
from tilemma.targets.ptx.lower import memory
from tilemma.targets.ptx.lower.chunks import Chunk, Chunks
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.movers import Mover
from tilemma.targets.ptx.lower.regions import Value


class CpAsync(Mover):
    """cp.async: from global to shared memory without registers."""

    def __init__(self, lo: Lowering, op: tile.Copy, chunks: Chunks) -> None:
        super().__init__(lo, op, chunks)
        cache = "GLOBAL" if self.vector == 16 else "ALWAYS"
        self.atom = f"SM80_CP_ASYNC_CACHE{cache}_{self.vector}B"
        assert self.atom in catalogue, self.atom

    def whole(self, chunks: Sequence[Chunk]) -> None:
        sources = list(self.run(self.op.src, chunks))
        for chunk, source in zip(chunks, sources, strict=True):
            self._issue(chunk, source, None)

    def edge(self, chunks: Sequence[Chunk]) -> None:
        e, src = self.lo.e, self.op.src
        for chunk in chunks:
            read = self._bytes_inside(chunk)
            if isinstance(read, Imm):  # known to lie outside: zeros, read from nowhere
                nothing = e.pure("mov.b32", "s32", Imm(0), hint="bytes")
                self._issue(chunk, Mem(memory.pointer(self.lo, src.base)), nothing)
                continue
            some = e.compare("gt", Linear.of(read), Linear(), hint="some")
            there = self.at(src, chunk).address
            address = (
                e.pure("add.s64", "u64", there.base, Imm(there.offset, "s64")) if there.offset else there.base
            )
            assert isinstance(address, Reg) and isinstance(some, Reg)
            safe = e.pick(some, address, memory.pointer(self.lo, src.base), "u64", hint="source")
            assert isinstance(safe, Reg)
            self._issue(chunk, Mem(safe), read)

    def narrow_edge(self, chunks: Sequence[Chunk]) -> None:
        """As `edge`, for many chunks of one column: their addresses follow from each other.  cp.async of 0 bytes
        reads nothing, so that the address may be outside."""
        for chunk, source in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            read = self._bytes_inside(chunk)
            if isinstance(read, Imm):
                read = self.lo.e.pure("mov.b32", "s32", read, hint="bytes")
            self._issue(chunk, source, read)

    def _bytes_inside(self, chunk: Chunk) -> Reg | Imm:
        """How many bytes of the chunk lie inside the array and the view; 0 if that is known."""
        e = self.lo.e
        row_ok, left = self._row_and_rest(chunk)
        count = e.register(Linear.of(e.register(left)), hint="left")
        count = e.pure("min.s32", "s32", count, Imm(self.chunks.elements), hint="left")
        count = e.pure("max.s32", "s32", count, Imm(0), hint="left")
        if self.size > 1:
            count = e.pure("shl.b32", "s32", count, Imm(self.size.bit_length() - 1), hint="bytes")
        read = e.pick(row_ok, count, Imm(0), hint="bytes")
        assert isinstance(read, (Reg, Imm))
        return read

    def whole_vectors(self, chunks: Sequence[Chunk]) -> None:
        """Vectors lie either inside or outside; cp.async of 0 bytes reads nothing, so that the address may be
        outside."""
        e = self.lo.e
        for chunk, source in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            _, remaining = self._remaining(chunk)
            inside: Reg | bool = True
            # Comparisons of loop-variant operands come first.  The loop-invariant ones are combined with them by
            # `setp.and`: hoisted, each would occupy one of the seven predicate registers throughout the loop.
            for left_here in sorted(
                remaining, key=lambda r: -max((e.depth(reg) for reg, _ in r.terms), default=0)
            ):
                inside = e.compare("gt", left_here, Linear(), also=inside, hint="inside")
            self._issue(chunk, source, e.pick(inside, Imm(self.vector), Imm(0), hint="bytes"))

    def cut_vectors(self, chunks: Sequence[Chunk]) -> None:
        """Each vector copies its bytes inside the array: none for a vector outside, whose address is not read."""
        e = self.lo.e
        for chunk, source in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            columns, remaining = self._remaining(chunk)
            count = e.pure(
                "min.s32", "s32", e.register(remaining[columns]), Imm(self.chunks.elements), hint="left"
            )
            count = e.pure("max.s32", "s32", count, Imm(0), hint="left")
            bytes_ = e.register(Linear.of(count) * self.size, hint="bytes")
            inside: Reg | bool = True
            for dim, left_here in enumerate(remaining):
                if dim != columns:
                    inside = e.compare("gt", left_here, Linear(), also=inside, hint="inside")
            self._issue(chunk, source, e.pick(inside, bytes_, Imm(0), hint="bytes"))

    def _remaining(self, chunk: Chunk) -> tuple[int, list[Linear]]:
        """(dimension of the chunk's elements, elements of the array from the chunk's first one on, a
        dimension)."""
        src = self.op.src
        at = self._of(src).coordinates(self.index(src, chunk))
        remaining = [linear(self.lo, extent) - c for c, extent in zip(at, src.base.shape, strict=True)]
        return src.axes[-1].dim, remaining

    def _row_and_rest(self, chunk: Chunk) -> tuple[Reg | bool, Linear]:
        """Whether the chunk's row is inside, and the number of elements inside from its first column on."""
        lo, e = self.lo, self.lo.e
        src = self.op.src
        index = self.index(src, chunk)
        coords = self._of(src).coordinates(index)
        inner = src.axes[-1] if src.axes else None
        ok: Reg | bool = True
        left: Linear | None = None
        for dim, (c, extent) in enumerate(zip(coords, src.base_shape, strict=True)):
            if inner is not None and dim == inner.dim:
                left = linear(lo, extent) - c
                if e.range_of(c)[0] < 0:
                    # Vectors start at multiples of their length: none crosses the first column.
                    ok = e.both(ok, e.compare("ge", c, Linear(), hint="inside"))
            else:
                ok = e.both(ok, e.compare("lt", c, linear(lo, extent), unsigned=True, hint="inside"))
        for k, axis in enumerate(src.axes):
            left_here = linear(lo, axis.extent)
            if axis is inner:
                assert left is not None
                own = left_here - index[k]
                if e.range_of(own)[0] < self.chunks.elements:
                    smaller = e.pure("min.s32", "s32", e.register(left), e.register(own), hint="left")
                    left = Linear.of(smaller)
            else:
                ok = e.both(ok, e.compare("lt", index[k], left_here, hint="in_view"))
        assert left is not None
        return ok, left

    def _issue(self, chunk: Chunk, source: Mem, read: Value | None) -> None:
        target = self.at(self.op.dst, chunk).address
        guard = self.lo.e.both(chunk.exists, self.lo.guard)
        if guard is False:
            return
        self.lo.e.add(
            CopyInstr(
                self.atom,
                target,
                source=source,
                source_size=read,
                guard=guard if isinstance(guard, Reg) else None,
                span=self.lo.e.span,
            )
        )
