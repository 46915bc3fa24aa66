"""The multistage buffer (ring of stages) in shared memory for the operands of the pipelined kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilemma import mma, select, shared, tma
from tilemma.ops.epilogue import BLOCK, Scale

# Scales of blocks that come with a tile: TMA writes to multiples of 128 bytes.
BLOCKS = 32
# The same where steps are neighbours: blocks, each with as many steps as 16 bytes have.
TURNED_BLOCKS = 8
# f32 numbers in the 16 bytes at multiples of which TMA starts to read.
QUAD = 4


@dataclass(frozen=True)
class PipelineState:
    """``slot``, a variable: the next of the ring's ``stages``."""

    slot: Any
    stages: int

    def advance(self, step: int = 1) -> None:
        """``step`` divides the stages, or is 1."""
        # A remainder by a number that is no power of two takes a hundred cycles.
        if step == 1:
            self.slot.set(select(self.slot == self.stages - 1, 0, self.slot + 1))
        else:
            self.slot.set(
                select(self.slot >= self.stages - step, self.slot + step - self.stages, self.slot + step)
            )


@dataclass(frozen=True)
class Operand:
    """One operand: tiles of ``rows`` x ``depth`` of ``array`` go through ``ring``.

    ``major``: "row" where the depth is contiguous.  ``batched``: there is a matrix for each batch.  ``shared``:
    the blocks of a cluster need the same tile; each loads a part of it and multicasts it to all of them.
    ``scale``: those that go through ``scales``, the numbers of one step for the tile's rows; ``turned``: those of
    a few steps.  ``pieces``: the tile's rows are loaded in so many pieces.  ``narrow``: the ring's tiles have more
    rows.  ``loaded``, if not 0: so many rows of the array belong to a tile, a multiple of 8; the tile's further
    rows are not loaded.  ``evict``: see `tma.copy`.
    """

    array: Any
    ring: Any
    major: str
    rows: int
    depth: int
    batched: bool
    shared: bool
    scale: Scale
    scales: Any
    pieces: int = 1
    narrow: bool = False
    loaded: int = 0
    evict: str | None = None
    turned: bool = False

    def issue_load(
        self, batch: Any, tile: Any, k: Any, slot: Any, filled: Any, begin: Any = None, piece: int = 0
    ) -> None:
        """Start to load step ``k`` of piece ``piece`` of tile ``tile`` into ``slot``; tiles are counted from row
        ``begin``."""
        batch = batch if self.batched else 0
        rows = self.rows // self.pieces
        start = tile * self.rows if begin is None else begin + tile * self.rows
        room = self.ring[slot]
        if self.pieces > 1:
            start += piece * rows
            room = room.subspan(rows, self.depth).at(piece, 0)
        elif self.narrow:
            room = room.subspan(*((rows, self.depth) if self.major == "row" else (self.depth, rows))).at(0, 0)
        if self.loaded:
            room = room.subspan(self.loaded, self.depth).at(0, 0)
            there = self.array.subspan(1, self.loaded, self.depth).at(batch, tile, k).sqz()
        elif self.major == "row" and begin is not None:
            there = self.array.view(1, rows, self.depth).from_(batch, start, k * self.depth).sqz()
        elif self.major == "row":
            there = self.array.subspan(1, rows, self.depth).at(batch, tile * self.pieces + piece, k).sqz()
        elif begin is not None:
            there = self.array.view(1, self.depth, self.rows).from_(batch, k * self.depth, start).sqz()
        else:
            there = self.array.subspan(1, self.depth, self.rows).at(batch, k, tile).sqz()
        tma.copy(there, room, async_=filled, multicast=self.shared, evict=self.evict)
        if self.scales is not None and piece == 0:
            which = batch if self.scale.batched else 0
            if self.turned:
                place = which, start // BLOCK, k // QUAD * QUAD
                source = self.scale.array.view(1, TURNED_BLOCKS, QUAD).from_(*place).sqz()
            else:
                if self.scale.kind == "blocks":
                    first, count = start // BLOCK // QUAD * QUAD, BLOCKS
                else:
                    first = start if begin is None else start // QUAD * QUAD
                    count = scales_of(self.rows, begin is not None)
                source = self.scale.array.view(1, 1, count).from_(which, k, first).sqz()
            tma.copy(source, self.scales[slot], async_=filled)

    def block_scale(self, slot: Any, start: Any, row: Any, k: Any) -> Any:
        """The scale in ``slot``, which has step ``k`` of the tile that starts at ``start``, of the block of
        ``row``."""
        if self.turned:
            return self.scales[slot][row // BLOCK - start // BLOCK, k % QUAD]
        return self.scales[slot][row // BLOCK - start // BLOCK // QUAD * QUAD]

    def load(self, slot: Any, part: Any, rows: int) -> Any:
        """Rows part * rows to (part + 1) * rows of the tile in ``slot``."""
        if self.major == "row":
            return mma.load(self.ring[slot].subspan(rows, self.depth).at(part, 0))
        return mma.load(self.ring[slot].subspan(self.depth, rows).at(0, part))


def ring(dtype: str, major: str, rows: int, depth: int, stages: int) -> Any:
    """Shared memory for ``stages`` tiles of an operand."""
    return shared(dtype, *((rows, depth) if major == "row" else (depth, rows)), copies=stages)


def scales_of(rows: int, divided: bool) -> int:
    """Scales that come with a tile of ``rows``, in multiples of 128 bytes: TMA writes to these.

    Tiles of groups (``divided``) start anywhere, and TMA reads from multiples of 16 bytes on.
    """
    return -(-(rows + (QUAD if divided else 0)) // 32) * 32


def scale_ring(scale: Scale, rows: int, stages: int, divided: bool, way: str) -> Any:
    """Shared memory for the scales that come with ``stages`` tiles of an operand, from an array of "steps" or one
    that is "turned"; "": they do not come."""
    if not way:
        return None
    if way == "turned":
        return shared("f32", TURNED_BLOCKS, QUAD, copies=stages)
    count = scales_of(rows, divided) if scale.kind == "steps" else BLOCKS
    return shared("f32", count, copies=stages)
