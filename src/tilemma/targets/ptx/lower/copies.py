"""Lowering of cooperative copies (cp.async, or load and store): the threads of an instance each move chunks of a
tile.

Thread t moves the chunks t + i * threads; chunks are numbered row-major over the tile's constant extents, and each
is one vector of bytes.  If the whole tile lies inside its parameters (a comparison uniform in the instance), each
chunk is one vector access.  A tile that crosses an array's edge takes the other path: cp.async reads fewer bytes
and fills the rest with zeros (a chunk fully outside reads zero bytes at the array's first element, a valid address
unless the array is empty); loads and stores go element by element.  No executed access has an address outside its
array.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from tilemma.atoms import catalogue
from tilemma.ir import tile
from tilemma.ir.expr import value_of
from tilemma.ir.lane import CopyInstr, Imm, Mem, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower import memory, tma
from tilemma.targets.ptx.lower.chunks import LOOP_UNROLL, Chunk, Chunks, chunk_of, index_of, visit_chunks
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.expressions import linear
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.regions import Value

# The most chunks of one thread that are unrolled; more chunks become a loop.
UNROLL = {"cp.async": 16, "ldst": 8}
# Elements of a tile over the edge that are read before the first is written: reads wait for memory together.
EDGE_ELEMENTS = 4
# Bytes of a vector; of narrower pieces, how many bytes are read before the first is written, and how many elements
# over the edge.
WIDEST, AT_ONCE, AT_ONCE_EDGE = 16, 64, 16


def tile_shape(op: tile.Copy) -> tuple[int, ...]:
    """The constant extents of the copy: the destination's, else the source's."""
    for view in (op.dst, op.src):
        shape = view.static_shape
        if shape is not None:
            return shape if shape else (1,)
    raise NotLowered(
        op.span,
        what="a copy with run-time extents on both sides",
        arch="any target",
        expected_what="constant extents on one side, which define the size of the tile",
        remedy="copy through a buffer of fixed shape, or with subspan(h, w)",
    )


@lowers(tile.Copy)
def lower_copy(lo: Lowering, op: tile.Copy) -> None:
    plan = op.plan
    assert plan is not None, "no plan for this copy"
    if plan.engine == "tma":
        tma.lower_copy(lo, op)
        return
    if op.transpose is not None or op.pad:
        raise NotLowered(
            op.span,
            what="this form of copy",
            arch=lo.arch,
            expected_what="`dma.copy` of a tile, synchronous or asynchronous",
            remedy="use `dma.copy` without a transposition or padding",
        )
    e = lo.e
    shape = tile_shape(op)
    instance = lo.enclosing(plan.level)
    # Each thread copies the whole tile into its own local buffer.
    alone = op.dst.base.space is Space.LOCAL
    thread = Linear() if alone else lo.thread_in(instance)
    size = memory.storage_bytes(op.src.base)
    chunks = Chunks(shape, max(1, plan.vector // size), 1 if alone else plan.threads)
    assert shape[-1] % chunks.elements == 0, f"{plan.vector} bytes do not divide rows of {shape}"
    e.comment(f"copy {_text(op.src)} => {_text(op.dst)}, {plan.engine} by {plan.vector} bytes")
    mover = _CpAsync(lo, op, chunks) if plan.engine == "cp.async" else _LoadStore(lo, op, chunks)
    if plan.threads < instance.threads:
        taking = e.compare("lt", thread, Linear(const=plan.threads), hint="copies")
        if isinstance(taking, Reg):
            with e.branch(taking):
                _move(lo, op, mover, chunks, thread)
            return
    _move(lo, op, mover, chunks, thread)


def _text(v: View) -> str:
    return f"{v.base.space} {v.base.name}"


def _move(lo: Lowering, op: tile.Copy, mover: _Mover, chunks: Chunks, thread: Linear) -> None:
    e = lo.e
    assert op.plan is not None
    edge, unroll = op.plan.edge, UNROLL[op.plan.engine]
    group = LOOP_UNROLL
    at_edge = max(1, EDGE_ELEMENTS // chunks.elements) if isinstance(mover, _LoadStore) else 1
    over = mover.edge
    if mover.vector < WIDEST:
        if isinstance(mover, _CpAsync):
            over, at_edge = mover.narrow_edge, unroll
        else:
            unroll = group = max(unroll, AT_ONCE // mover.vector)
            at_edge = max(1, AT_ONCE_EDGE // chunks.elements)
    if isinstance(mover, _LoadStore) and mover.is_narrow_load and chunks.per_thread <= unroll:
        _load_then_store(lo, op, mover, chunks, thread)
        return
    if isinstance(mover, _CpAsync) and edge == "whole vectors":
        visit_chunks(lo, chunks, thread, mover.whole_vectors, unroll)
        return
    if isinstance(mover, _CpAsync) and edge == "cut vectors":
        # This path is rarely taken: a loop compiles faster, and ptxas does not turn the branch into predicates.
        visit_chunks(lo, chunks, thread, mover.cut_vectors, 1)
        return
    whole = e.both(_whole(lo, op.src, chunks.shape), _whole(lo, op.dst, chunks.shape), hint="whole")
    if whole is True:
        visit_chunks(lo, chunks, thread, mover.whole, unroll, group)
        return
    if whole is False:
        visit_chunks(lo, chunks, thread, over, at_edge, at_edge)
        return
    with e.collect() as then:
        visit_chunks(lo, chunks, thread, mover.whole, unroll, group)
        then_ops = tuple(then)
    with e.collect() as otherwise:
        e.comment("a tile over the edge")
        visit_chunks(lo, chunks, thread, over, at_edge, at_edge)
        other_ops = tuple(otherwise)
    e.select_branch(whole, then_ops, other_ops)


def _load_then_store(lo: Lowering, op: tile.Copy, mover: _LoadStore, chunks: Chunks, thread: Linear) -> None:
    """Load all elements of a thread, by either path into the same registers, then store them: `loads_ahead` moves
    the loads."""
    e = lo.e
    moved = [chunk_of(lo, chunks, thread, Linear(const=i)) for i in range(chunks.per_thread)]
    kind = _PIECES[mover.size]
    registers = [e.reg("moved", _REGISTER[kind]) for _ in moved]
    whole = _whole(lo, op.src, chunks.shape)
    if isinstance(whole, bool):
        mover.load(moved, registers, whole)
    else:
        with e.collect() as then:
            mover.load(moved, registers, True)
            then_ops = tuple(then)
        with e.collect() as otherwise:
            e.comment("a tile over the edge")
            mover.load(moved, registers, False)
            other_ops = tuple(otherwise)
        e.select_branch(whole, then_ops, other_ops)
    mover.store(moved, registers)


def _whole(lo: Lowering, view: View, shape: Sequence[int]) -> Reg | bool:
    """Whether the tile of ``shape`` at the view's origin lies inside both view and array; uniform in the
    instance."""
    e = lo.e
    inside: Reg | bool = True
    for axis, n in zip(view.axes, shape, strict=False):
        have = linear(lo, axis.extent)
        inside = e.both(inside, e.compare("le", Linear(const=n), have), hint="whole")
    if view.base.space is not Space.GLOBAL:
        return inside
    zero = [Linear()] * len(view.axes)
    first = memory.coordinates(lo, view, zero)
    last = list(first)
    for axis, n in zip(view.axes, shape, strict=False):
        step = linear(lo, axis.step)
        if step.known is None or step.known < 0:
            return False
        last[axis.dim] = last[axis.dim] + step.known * (n - 1)
    for low, high, extent in zip(first, last, view.base_shape, strict=True):
        if e.range_of(low)[0] < 0:
            inside = e.both(inside, e.compare("ge", low, Linear()), hint="whole")
        inside = e.both(
            inside, e.compare("lt", high, linear(lo, extent), unsigned=True, hint="inside"), hint="whole"
        )
    return inside


class _Mover(ABC):
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


class _CpAsync(_Mover):
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


_PIECES = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
_REGISTER = {"b8": "b16", "b16": "b16", "b32": "b32", "b64": "b64"}


class _LoadStore(_Mover):
    """Loads and stores: between any two memories, through registers."""

    @property
    def is_narrow_load(self) -> bool:
        """Whether pieces are single elements from global memory, for a buffer of the tile's extents."""
        spaces = self.op.src.base.space, self.op.dst.base.space
        whole = self.op.dst.static_shape == tuple(self.chunks.shape) and self.vector < WIDEST
        return spaces == (Space.GLOBAL, Space.SHARED) and self.chunks.elements == 1 and whole

    def load(self, chunks: Sequence[Chunk], registers: Sequence[Reg], whole: bool) -> None:
        """Load an element for each chunk; zero where it is outside, unless the tile is ``whole``."""
        e, kind = self.lo.e, _PIECES[self.size]
        for chunk, address, reg in zip(chunks, list(self.run(self.op.src, chunks)), registers, strict=True):
            valid = chunk.exists if whole else e.both(chunk.exists, self.valid(self.op.src, chunk, 0))
            if valid is not True:
                e.do(f"mov.{_REGISTER[kind]}", (reg,), (Imm(0, _REGISTER[kind]),))
            self._transfer("ld", self.op.src, address, (reg,), kind, valid)

    def store(self, chunks: Sequence[Chunk], registers: Sequence[Reg]) -> None:
        """Store an element of each chunk."""
        kind = _PIECES[self.size]
        for chunk, address, reg in zip(chunks, list(self.run(self.op.dst, chunks)), registers, strict=True):
            self._transfer("st", self.op.dst, address, (reg,), kind, chunk.exists)

    def whole(self, chunks: Sequence[Chunk]) -> None:
        e = self.lo.e
        kind, count = _vector(self.vector)
        loaded = []
        for chunk, address in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            regs = tuple(e.reg("moved", _REGISTER[kind]) for _ in range(count))
            self._transfer("ld", self.op.src, address, regs, kind, chunk.exists)
            loaded.append(regs)
        for chunk, address, regs in zip(chunks, list(self.run(self.op.dst, chunks)), loaded, strict=True):
            self._transfer("st", self.op.dst, address, regs, kind, chunk.exists)

    def edge(self, chunks: Sequence[Chunk]) -> None:
        e = self.lo.e
        kind = _PIECES[self.size]
        loaded = []
        sources: dict[int, Mem] = {}
        targets: dict[int, Mem] = {}
        for chunk in chunks:
            for k in range(self.chunks.elements):
                reg = e.reg("moved", _REGISTER[kind])
                valid = e.both(chunk.exists, self.valid(self.op.src, chunk, k))
                if valid is not True:
                    e.do(f"mov.{_REGISTER[kind]}", (reg,), (Imm(0, _REGISTER[kind]),))
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


def _vector(bytes_: int) -> tuple[str, int]:
    """(element type, count) of an access of ``bytes_`` bytes: a vector of 32-bit elements, or one smaller
    element."""
    return ("b32", bytes_ // 4) if bytes_ >= 4 else (_PIECES[bytes_], 1)


@lowers(tile.CopyCommit)
def lower_copy_commit(lo: Lowering, op: tile.CopyCommit) -> None:
    lo.e.do("cp.async.commit_group")


@lowers(tile.CopyWait)
def lower_copy_wait(lo: Lowering, op: tile.CopyWait) -> None:
    lo.e.do("cp.async.wait_group", (), (Imm(op.pending),))
