"""The division of a tile among threads: each moves chunks of it, vectors of neighbouring elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilemma.ir.lane import Imm, Reg
from tilemma.records import record
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.linear import Linear

# The chunks of a thread in an iteration of a loop, where there are too many to unroll.
LOOP_UNROLL = 4


@record
class Chunks:
    """The division of a tile of ``shape``: ``elements`` in a chunk, ``per_row`` chunks in a row, ``rows`` rows."""

    shape: tuple[int, ...]
    elements: int
    threads: int

    @property
    def per_row(self) -> int:
        return self.shape[-1] // self.elements

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def total(self) -> int:
        return self.rows * self.per_row

    @property
    def per_thread(self) -> int:
        """The most chunks that one thread moves."""
        return -(-self.total // self.threads)

    @property
    def row_step(self) -> int | None:
        """Rows from one chunk of a thread to its next, if all its chunks have one column; else None."""
        return self.threads // self.per_row if self.threads % self.per_row == 0 else None


@record
class Chunk:
    """One chunk of this thread: its number for this thread, its row and first column, and whether it exists."""

    number: Linear
    row: Linear
    col: Linear
    exists: Reg | bool


def visit_chunks(
    lo: Lowering, chunks: Chunks, thread: Linear, move: Move, unroll: int, most: int = LOOP_UNROLL
) -> None:
    """Apply ``move`` to every chunk of this thread.  Up to ``unroll`` are unrolled; for more there is a loop, with
    ``most`` of them in an iteration."""
    e = lo.e
    count = chunks.per_thread
    if count <= unroll:
        move([chunk_of(lo, chunks, thread, Linear(const=i)) for i in range(count)])
        return
    group = min(most, unroll)
    full = count // group * group
    if full:
        with e.loop("chunk", Imm(0), Imm(full), Imm(group)) as i:
            move([chunk_of(lo, chunks, thread, Linear.of(i) + j) for j in range(group)])
    rest = [chunk_of(lo, chunks, thread, Linear(const=i)) for i in range(full, count)]
    if rest:
        move(rest)


def chunk_of(lo: Lowering, chunks: Chunks, thread: Linear, number: Linear) -> Chunk:
    """Chunk ``number`` of ``thread``."""
    e = lo.e
    last = chunks.total - (chunks.per_thread - 1) * chunks.threads
    exists: Reg | bool = True
    if last < chunks.threads and e.range_of(number)[1] >= chunks.per_thread - 1:
        in_tile = thread + number * chunks.threads
        exists = e.compare("lt", in_tile, Linear(const=chunks.total), hint="exists")
    if chunks.row_step is not None:
        row, column = e.divide(thread, chunks.per_row, hint="chunk_row")
        return Chunk(number, row + number * chunks.row_step, column * chunks.elements, exists)
    row, column = e.divide(thread + number * chunks.threads, chunks.per_row, hint="chunk_row")
    return Chunk(number, row, column * chunks.elements, exists)


def index_of(lo: Lowering, shape: Sequence[int], row: Linear, col: Linear) -> list[Linear]:
    """The tile index of an element given by its flattened row and its column."""
    found = [col]
    rest = row
    for n in reversed(shape[1:-1]):
        rest, digit = lo.e.divide(rest, n)
        found.append(digit)
    if len(shape) > 1:
        found.append(rest)
    return list(reversed(found))


Move = Callable[[Sequence[Chunk]], None]
