"""Lowering of copies by loads and stores: chunks move between any two memories, through registers."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.ir.lane import Imm, Mem, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower import memory
from tilemma.targets.ptx.lower.chunks import Chunk
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.movers import Mover

# Bytes of a vector.
WIDEST = 16
PIECES = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
REGISTER = {"b8": "b16", "b16": "b16", "b32": "b32", "b64": "b64"}


class LoadStore(Mover):
    """Loads and stores: between any two memories, through registers."""

    @property
    def is_narrow_load(self) -> bool:
        """Whether pieces narrower than a vector come from global memory for a buffer of the tile's extents: single
        elements, or such as fill registers or halves of them."""
        shape, per_piece = tuple(self.chunks.shape), self.chunks.elements
        spaces = self.op.src.base.space, self.op.dst.base.space
        if spaces != (Space.GLOBAL, Space.SHARED) or self.op.dst.static_shape != shape or self.vector >= WIDEST:
            return False
        return per_piece == 1 or (self.size in (2, 4) and self.op.src.static_shape == shape)

    @property
    def is_store(self) -> bool:
        """Whether pieces come from shared memory for a tile of the same extents in global memory."""
        shape, views = tuple(self.chunks.shape), (self.op.src, self.op.dst)
        spaces = tuple(x.base.space for x in views)
        return spaces == (Space.SHARED, Space.GLOBAL) and all(x.static_shape == shape for x in views)

    def cuts_no_piece(self, view: View) -> Reg | bool:
        """Whether each piece of ``view`` lies either inside or outside its array: pieces start at multiples of
        their length, as rows of the arrays that a launch checks do (`launches`)."""
        if self.chunks.elements == 1 or memory.has_whole_rows(self.lo, view):
            return True
        extent = linear(self.lo, view.base.shape[view.axes[-1].dim])
        _, rest = self.lo.e.divide(extent, self.chunks.elements)
        return self.lo.e.compare("eq", rest, Linear(), hint="uncut")

    def load_whole(self, chunks: Sequence[Chunk], registers: Sequence[tuple[Reg, ...]]) -> None:
        """Load pieces that lie inside the array."""
        kind, _ = vector_of(self.vector)
        for chunk, address, regs in zip(chunks, list(self.run(self.op.src, chunks)), registers, strict=True):
            if chunk.exists is not True:
                self._clear(regs)
            self._transfer("ld", self.op.src, address, regs, kind, chunk.exists)

    def load_pieces(self, chunks: Sequence[Chunk], registers: Sequence[tuple[Reg, ...]]) -> None:
        """Load pieces that lie inside the array; others are zero."""
        kind, _ = vector_of(self.vector)
        for chunk, address, regs in zip(chunks, list(self.run(self.op.src, chunks)), registers, strict=True):
            self._clear(regs)
            valid = self.lo.e.both(chunk.exists, self.valid(self.op.src, chunk, 0))
            self._transfer("ld", self.op.src, address, regs, kind, valid)

    def load_elements(self, chunks: Sequence[Chunk], registers: Sequence[tuple[Reg, ...]]) -> None:
        """Load the elements that lie inside the array; others are zero."""
        e, kind = self.lo.e, PIECES[self.size]
        for chunk, address, regs in zip(chunks, list(self.run(self.op.src, chunks)), registers, strict=True):
            whole = self.size == 4
            found = regs if whole else tuple(e.reg("element", REGISTER[kind]) for _ in range(2 * len(regs)))
            for k, element in enumerate(found):
                self._clear((element,))
                valid = e.both(chunk.exists, self.valid(self.op.src, chunk, k))
                place = Mem(address.base, address.offset + k * self.size)
                self._transfer("ld", self.op.src, place, (element,), kind, valid)
            if not whole:
                for reg, pair in zip(regs, zip(found[::2], found[1::2], strict=True), strict=True):
                    e.do("mov.b32", (reg,), (self._joined(*pair),))

    def _joined(self, low: Reg, high: Reg) -> Reg:
        """Two 16-bit registers as one of 32 bits."""
        e = self.lo.e
        first, second = (e.pure("cvt.u32.u16", "b32", x, hint="half") for x in (low, high))
        second = e.pure("shl.b32", "b32", second, Imm(16), hint="half")
        return e.pure("or.b32", "b32", first, second, hint="pair")

    def _clear(self, regs: Sequence[Reg]) -> None:
        for reg in regs:
            self.lo.e.do(f"mov.{reg.type}", (reg,), (Imm(0, reg.type),))

    def store(self, chunks: Sequence[Chunk], registers: Sequence[tuple[Reg, ...]]) -> None:
        """Store all pieces."""
        kind, _ = vector_of(self.vector)
        for chunk, address, regs in zip(chunks, list(self.run(self.op.dst, chunks)), registers, strict=True):
            self._transfer("st", self.op.dst, address, regs, kind, chunk.exists)

    def whole(self, chunks: Sequence[Chunk]) -> None:
        self._move(chunks, [x.exists for x in chunks])

    def store_pieces(self, chunks: Sequence[Chunk]) -> None:
        """Move pieces of shared memory, and store those that lie inside the array."""
        self._move(chunks, [self.lo.e.both(x.exists, self.valid(self.op.dst, x, 0)) for x in chunks])

    def _move(self, chunks: Sequence[Chunk], stored: Sequence[Reg | bool]) -> None:
        """Load all chunks that exist, and store those that are ``stored``."""
        e = self.lo.e
        kind, count = vector_of(self.vector)
        loaded = []
        for chunk, address in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            regs = tuple(e.reg("moved", REGISTER[kind]) for _ in range(count))
            self._transfer("ld", self.op.src, address, regs, kind, chunk.exists)
            loaded.append(regs)
        targets = list(self.run(self.op.dst, chunks))
        for address, regs, guard in zip(targets, loaded, stored, strict=True):
            self._transfer("st", self.op.dst, address, regs, kind, guard)

    def edge(self, chunks: Sequence[Chunk]) -> None:
        e = self.lo.e
        kind = PIECES[self.size]
        loaded = []
        sources: dict[int, Mem] = {}
        targets: dict[int, Mem] = {}
        for chunk in chunks:
            for k in range(self.chunks.elements):
                reg = e.reg("moved", REGISTER[kind])
                valid = e.both(chunk.exists, self.valid(self.op.src, chunk, k))
                if valid is not True:
                    e.do(f"mov.{REGISTER[kind]}", (reg,), (Imm(0, REGISTER[kind]),))
                self._transfer(
                    "ld", self.op.src, self._element(self.op.src, chunk, k, sources), (reg,), kind, valid
                )
                loaded.append((chunk, k, reg))
        for chunk, k, reg in loaded:
            valid = e.both(chunk.exists, self.valid(self.op.dst, chunk, k))
            self._transfer("st", self.op.dst, self._element(self.op.dst, chunk, k, targets), (reg,), kind, valid)

    def _element(self, view: View, chunk: Chunk, k: int, known: dict[int, Mem]) -> Mem:
        """The address of a chunk's element: `whole` moves a chunk as a vector, whose elements lie side by side.

        ``known``: the addresses of first elements."""
        first = known.get(id(chunk))
        if first is None:
            first = known[id(chunk)] = self.at(view, chunk).address
        return Mem(first.base, first.offset + k * self.size)

    def _transfer(
        self, way: str, view: View, address: Mem, regs: tuple[Reg, ...], kind: str, guard: Reg | bool
    ) -> None:
        if guard is False:
            return
        e = self.lo.e
        vector = f".v{len(regs)}" if len(regs) > 1 else ""
        operand = Vec(regs) if len(regs) > 1 else regs[0]
        mnemonic = f"{way}.{view.base.space}{vector}.{kind}"
        predicate = guard if isinstance(guard, Reg) else None
        if way == "ld":
            e.do(mnemonic, (operand,), (address,), guard=predicate)
        else:
            e.do(mnemonic, (), (address, operand), guard=predicate)


def vector_of(bytes_: int) -> tuple[str, int]:
    """(element type, count) of an access of ``bytes_`` bytes: a vector of 32-bit elements, or one smaller
    element."""
    return ("b32", bytes_ // 4) if bytes_ >= 4 else (PIECES[bytes_], 1)
