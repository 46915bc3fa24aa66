"""Cooperative copies: the threads of an instance move a tile, a vector of bytes each at a time.

Chunk c = thread + i * threads, chunks row-major over the tile's compile-time extents.  Where the tile lies
inside its parameters (one comparison that all threads agree on) chunks move whole; a tile over an edge takes
the other path: cp.async reads fewer bytes and fills the rest with zeros (none at all from the array's first
element, which exists whenever the array is not empty), loads and stores go element by element.  No address
outside an array is formed for an access that happens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from tilemma.atoms import catalogue
from tilemma.ir import tile
from tilemma.ir.expr import value_of
from tilemma.ir.lane import CopyInstr, Imm, Mem, Reg, Vec
from tilemma.ir.types import Space, View
from tilemma.lower import tma
from tilemma.lower.context import Lowering, NotLowered, lowers
from tilemma.lower.emitter import Value
from tilemma.lower.linear import Linear
from tilemma.lower.memory import Place, Places, coordinates, pointer, storage_bytes, stride_bytes, times
from tilemma.records import record

# Chunks of one thread that are written out; more of them become a loop around this many.
UNROLL = {"cp.async": 16, "ldst": 8}
LOOP_UNROLL = 4
EDGE_UNROLL = 1


@record
class Chunks:
    """How a tile of ``shape`` is cut: ``elements`` a chunk, ``across`` chunks a row, ``rows`` rows in all."""

    shape: tuple[int, ...]
    elements: int
    threads: int

    @property
    def across(self) -> int:
        return self.shape[-1] // self.elements

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def total(self) -> int:
        return self.rows * self.across

    @property
    def turns(self) -> int:
        """Chunks of the busiest thread."""
        return -(-self.total // self.threads)

    @property
    def row_step(self) -> int | None:
        """Rows from one chunk of a thread to its next, where the column stays the same."""
        return self.threads // self.across if self.threads % self.across == 0 else None


def tile_shape(op: tile.Copy) -> tuple[int, ...]:
    """The compile-time extents of the copy: the destination's, else the source's."""
    for view in (op.dst, op.src):
        shape = view.static_shape
        if shape is not None:
            return shape if shape else (1,)
    raise NotLowered(
        op.span,
        what="a copy whose two sides both have extents known only at run time",
        arch="any target",
        expected_what="one side of known extents, which says how large the tile is",
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
            expected_what="dma.copy of a tile, synchronous or in cp.async groups",
            remedy="use a plain dma.copy",
        )
    e = lo.e
    shape = tile_shape(op)
    instance = lo.enclosing(plan.level)
    thread = lo.thread_in(instance)
    size = storage_bytes(op.src.base)
    chunks = Chunks(shape, max(1, plan.vector // size), plan.threads)
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
    if isinstance(mover, _CpAsync) and edge == "whole vectors":
        _walk(lo, chunks, thread, mover.whole_vectors, unroll)
        return
    if isinstance(mover, _CpAsync) and edge == "cut vectors":
        # Seldom or once: a loop is less to assemble, and no branch that the assembler turns into predicates.
        _walk(lo, chunks, thread, mover.cut_vectors, 1)
        return
    whole = e.both(_whole(lo, op.src, chunks.shape), _whole(lo, op.dst, chunks.shape), hint="whole")
    if whole is True:
        _walk(lo, chunks, thread, mover.whole, unroll)
        return
    if whole is False:
        _walk(lo, chunks, thread, mover.edge, EDGE_UNROLL)
        return
    with e.collect() as then:
        _walk(lo, chunks, thread, mover.whole, unroll)
        then_ops = tuple(then)
    with e.collect() as otherwise:
        e.comment("a tile over the edge")
        _walk(lo, chunks, thread, mover.edge, EDGE_UNROLL)
        other_ops = tuple(otherwise)
    e.select_branch(whole, then_ops, other_ops)


def _whole(lo: Lowering, view: View, shape: Sequence[int]) -> Reg | bool:
    """Whether all of ``shape`` from the view's origin is in both view and array; the same for all threads."""
    e = lo.e
    sure: Reg | bool = True
    for axis, n in zip(view.axes, shape, strict=False):
        have = lo.linear(axis.extent)
        sure = e.both(sure, e.compare("le", Linear(const=n), have), hint="whole")
    if view.base.space is not Space.GLOBAL:
        return sure
    if view.reshape is not None:
        return False
    zero = [Linear()] * len(view.axes)
    first = coordinates(lo, view, zero)
    last = list(first)
    for axis, n in zip(view.axes, shape, strict=False):
        step = lo.linear(axis.step)
        if step.known is None or step.known < 0:
            return False
        last[axis.dim] = last[axis.dim] + step.known * (n - 1)
    for low, high, extent in zip(first, last, view.base.shape, strict=True):
        if e.range_of(low)[0] < 0:
            sure = e.both(sure, e.compare("ge", low, Linear()), hint="whole")
        sure = e.both(sure, e.compare("lt", high, lo.linear(extent), unsigned=True, hint="inside"), hint="whole")
    return sure


@record
class Chunk:
    """One chunk of this thread: its row and first column, and whether it exists."""

    turn: Linear
    row: Linear
    col: Linear
    exists: Reg | bool


def _walk(lo: Lowering, chunks: Chunks, thread: Linear, move: _Move, unroll: int) -> None:
    """``move`` on every chunk of this thread: written out where few, in a loop where many."""
    e = lo.e
    turns = chunks.turns
    if turns <= unroll:
        move([_chunk(lo, chunks, thread, Linear(const=i)) for i in range(turns)])
        return
    group = min(LOOP_UNROLL, unroll)
    full = turns // group * group
    if full:
        with e.loop("chunk", Imm(0), Imm(full), Imm(group)) as i:
            move([_chunk(lo, chunks, thread, Linear.of(i) + j) for j in range(group)])
    if full < turns:
        move([_chunk(lo, chunks, thread, Linear(const=i)) for i in range(full, turns)])


def _chunk(lo: Lowering, chunks: Chunks, thread: Linear, turn: Linear) -> Chunk:
    e = lo.e
    last = chunks.total - (chunks.turns - 1) * chunks.threads
    exists: Reg | bool = True
    if last < chunks.threads and e.range_of(turn)[1] >= chunks.turns - 1:
        number = thread + turn * chunks.threads
        exists = e.compare("lt", number, Linear(const=chunks.total), hint="exists")
    if chunks.row_step is not None:
        row, across = e.divide(thread, chunks.across, hint="chunk_row")
        return Chunk(turn, row + turn * chunks.row_step, across * chunks.elements, exists)
    row, across = e.divide(thread + turn * chunks.threads, chunks.across, hint="chunk_row")
    return Chunk(turn, row, across * chunks.elements, exists)


def index_of(lo: Lowering, shape: Sequence[int], row: Linear, col: Linear) -> list[Linear]:
    """The tile index of (flattened row, column)."""
    found = [col]
    rest = row
    for n in reversed(shape[1:-1]):
        rest, digit = lo.e.divide(rest, n)
        found.append(digit)
    if len(shape) > 1:
        found.append(rest)
    return list(reversed(found))


class _Mover(ABC):
    """What both engines share: the places of chunks on both sides."""

    def __init__(self, lo: Lowering, op: tile.Copy, chunks: Chunks) -> None:
        self.lo, self.op, self.chunks = lo, op, chunks
        self.places = Places(lo, op.src), Places(lo, op.dst)
        self.size = storage_bytes(op.src.base)
        self.vector = chunks.elements * self.size

    def index(self, view: View, chunk: Chunk, element: int = 0) -> list[Linear]:
        if not view.axes:
            return []
        return index_of(self.lo, self.chunks.shape, chunk.row, chunk.col + element)

    def at(self, view: View, chunk: Chunk, element: int = 0, *, check: bool = False) -> Place:
        return self._of(view).at(self.index(view, chunk, element), check=check)

    def _of(self, view: View) -> Places:
        return self.places[view is self.op.dst]

    def run(self, view: View, chunks: Sequence[Chunk]) -> Iterator[Mem]:
        """Addresses of the chunks; in global memory each follows from the one before, where it can."""
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
        by = times(e, stride, count, f"{view.base.name}_rows")
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
            bytes_ = stride_bytes(self.lo, view.base, axis.dim)
            found.append(bytes_ * steps if isinstance(bytes_, int) else times(self.lo.e, bytes_, steps))
        return found[0], found[1]

    def inside_view(self, view: View, index: Sequence[Linear]) -> Reg | bool:
        """Whether ``index`` is within the view's own extents, which may be smaller than the tile."""
        e = self.lo.e
        ok: Reg | bool = True
        for axis, i in zip(view.axes, index, strict=True):
            ok = e.both(ok, e.compare("lt", i, self.lo.linear(axis.extent), unsigned=True, hint="in_view"))
        return ok

    def valid(self, view: View, chunk: Chunk, element: int) -> Reg | bool:
        """Whether the element may be touched: inside the view and inside the array."""
        index = self.index(view, chunk, element)
        ok = self.inside_view(view, index)
        return self.lo.e.both(ok, self._of(view).at(index).valid)

    @abstractmethod
    def whole(self, chunks: Sequence[Chunk]) -> None:
        """Chunks that lie inside both arrays."""

    @abstractmethod
    def edge(self, chunks: Sequence[Chunk]) -> None:
        """Chunks of which any element may lie outside."""


_Move = Callable[[Sequence[Chunk]], None]


class _CpAsync(_Mover):
    """Global to shared memory past the registers."""

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
            row_ok, left = self._row_and_rest(chunk)
            count = e.register(Linear.of(e.register(left)), hint="left")
            count = e.pure("min.s32", "s32", count, Imm(self.chunks.elements), hint="left")
            count = e.pure("max.s32", "s32", count, Imm(0), hint="left")
            read: Value = e.pick(row_ok, count, Imm(0))
            if isinstance(read, Imm):  # known to lie outside: zeros, read from nowhere
                nothing = e.pure("mov.b32", "s32", Imm(0), hint="bytes")
                self._issue(chunk, Mem(pointer(self.lo, src.base)), nothing)
                continue
            if self.size > 1 and isinstance(read, Reg):
                read = e.pure("shl.b32", "s32", read, Imm(self.size.bit_length() - 1), hint="bytes")
            assert isinstance(read, Reg)
            some = e.compare("gt", Linear.of(read), Linear(), hint="some")
            there = self.at(src, chunk).address
            address = (
                e.pure("add.s64", "u64", there.base, Imm(there.offset, "s64")) if there.offset else there.base
            )
            assert isinstance(address, Reg) and isinstance(some, Reg)
            safe = e.pick(some, address, pointer(self.lo, src.base), "u64", hint="source")
            assert isinstance(safe, Reg)
            self._issue(chunk, Mem(safe), read)

    def whole_vectors(self, chunks: Sequence[Chunk]) -> None:
        """Nothing of a vector outside is read: its address need not be in the array."""
        e = self.lo.e
        for chunk, source in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            _, rooms = self._rooms(chunk)
            inside: Reg | bool = True
            # What may change from turn to turn is asked first.  The others are combined with it where they are
            # asked: answers that stay the same would each hold one of seven predicates throughout a loop.
            for room in sorted(rooms, key=lambda r: -max((e.depth(reg) for reg, _ in r.terms), default=0)):
                inside = e.compare("gt", room, Linear(), also=inside, hint="inside")
            self._issue(chunk, source, e.pick(inside, Imm(self.vector), Imm(0), hint="bytes"))

    def cut_vectors(self, chunks: Sequence[Chunk]) -> None:
        """As many bytes as are inside; of a vector outside none, whatever its address."""
        e = self.lo.e
        for chunk, source in zip(chunks, list(self.run(self.op.src, chunks)), strict=True):
            columns, rooms = self._rooms(chunk)
            count = e.pure("min.s32", "s32", e.register(rooms[columns]), Imm(self.chunks.elements), hint="left")
            count = e.pure("max.s32", "s32", count, Imm(0), hint="left")
            bytes_ = e.register(Linear.of(count) * self.size, hint="bytes")
            inside: Reg | bool = True
            for dim, room in enumerate(rooms):
                if dim != columns:
                    inside = e.compare("gt", room, Linear(), also=inside, hint="inside")
            self._issue(chunk, source, e.pick(inside, bytes_, Imm(0), hint="bytes"))

    def _rooms(self, chunk: Chunk) -> tuple[int, list[Linear]]:
        """(dimension of the chunk's elements, how many elements of the array there are from its first one on)."""
        src = self.op.src
        at = self._of(src).coordinates(self.index(src, chunk))
        rooms = [self.lo.linear(extent) - c for c, extent in zip(at, src.base.shape, strict=True)]
        return src.axes[-1].dim, rooms

    def _row_and_rest(self, chunk: Chunk) -> tuple[Reg | bool, Linear]:
        """Whether the chunk's row is inside, and how many elements from its first column on are."""
        lo, e = self.lo, self.lo.e
        src = self.op.src
        index = self.index(src, chunk)
        coords = self._of(src).coordinates(index)
        inner = src.axes[-1] if src.axes else None
        ok: Reg | bool = True
        left: Linear | None = None
        for dim, (c, extent) in enumerate(zip(coords, src.base.shape, strict=True)):
            if inner is not None and dim == inner.dim:
                left = lo.linear(extent) - c
                if e.range_of(c)[0] < 0:
                    # Vectors start at multiples of their length: none lies on both sides of the first column.
                    ok = e.both(ok, e.compare("ge", c, Linear(), hint="inside"))
            else:
                ok = e.both(ok, e.compare("lt", c, lo.linear(extent), unsigned=True, hint="inside"))
        for k, axis in enumerate(src.axes):
            room = lo.linear(axis.extent)
            if axis is inner:
                assert left is not None
                own = room - index[k]
                if e.range_of(own)[0] < self.chunks.elements:
                    smaller = e.pure("min.s32", "s32", e.register(left), e.register(own), hint="left")
                    left = Linear.of(smaller)
            else:
                ok = e.both(ok, e.compare("lt", index[k], room, hint="in_view"))
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
    """Between any two memories through registers."""

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
        for chunk in chunks:
            regs = []
            for k in range(self.chunks.elements):
                reg = e.reg("moved", _REGISTER[kind])
                valid = e.both(chunk.exists, self.valid(self.op.src, chunk, k))
                if valid is not True:
                    e.do(f"mov.{_REGISTER[kind]}", (reg,), (Imm(0, _REGISTER[kind]),))
                self._transfer("ld", self.op.src, self.at(self.op.src, chunk, k).address, (reg,), kind, valid)
                regs.append(reg)
            for k, reg in enumerate(regs):
                valid = e.both(chunk.exists, self.valid(self.op.dst, chunk, k))
                self._transfer("st", self.op.dst, self.at(self.op.dst, chunk, k).address, (reg,), kind, valid)

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
    """(element kind, count) of an access of ``bytes_`` bytes: 32-bit pieces where there are several."""
    return ("b32", bytes_ // 4) if bytes_ >= 4 else (_PIECES[bytes_], 1)


@lowers(tile.CopyCommit)
def lower_copy_commit(lo: Lowering, op: tile.CopyCommit) -> None:
    lo.e.do("cp.async.commit_group")


@lowers(tile.CopyWait)
def lower_copy_wait(lo: Lowering, op: tile.CopyWait) -> None:
    lo.e.do("cp.async.wait_group", (), (Imm(op.pending),))
