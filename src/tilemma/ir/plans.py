"""Plans: the decisions of passes about storage, copies and register tiles, which operations hold as records."""

from __future__ import annotations

from typing import Literal

from tilemma.dtypes import DType
from tilemma.ir.types import Level
from tilemma.records import record


@record
class SharedLayoutPlan:
    """Decided byte layout of one copy of a shared buffer, seen as ``rows`` rows (all dimensions but the last).

    ``swizzle_atom`` is the width of a swizzle atom in bytes.  0: plain, row r starts at byte r * ``pitch``.
    Otherwise (16, 32, 64 or 128) the buffer is tiled with atoms of 8 rows of that width: the columns of atoms are
    stored one after the other, each ``rows`` rows high; within an atom the 16-byte units are swizzled by
    Sw<B,4,3> with B = 0, 1, 2, 3.  These are the canonical layouts of wgmma, K-major or MN-major according to
    which axis of the operand the last dimension is; a TMA box of that width writes one column of atoms; ldmatrix
    reads it without bank conflicts.
    ``size`` in bytes, ``alignment`` in bytes (the swizzle acts on address bits).
    """

    swizzle_atom: int
    pitch: int
    rows: int
    size: int
    alignment: int

    @property
    def stride(self) -> int:
        """Bytes from one copy of the buffer to the next: its size, on its alignment."""
        return -(-self.size // self.alignment) * self.alignment

    def total(self, copies: int) -> int:
        """Bytes of a buffer of so many copies; 0 stands for one, without a subscript."""
        return self.stride * (max(1, copies) - 1) + self.size


@record
class CopyPlan:
    """Decided way of a `Copy`.

    ``engine``: "cp.async" and "ldst" are issued by the ``threads`` threads of the enclosing instance of
    ``level`` (which may be further out than where the copy is written: what does not depend on inner indices
    happens once), ``vector`` bytes each at a time; "tma" by one elected thread of them, in boxes of ``box``
    elements (innermost dimension first).

    ``counted``, for bytes that complete an event: "trigger", a later trigger expects them; "expect", the copy
    itself does; "arrive", and it also arrives, because nothing triggers the event.  ``peers``, for a multicast:
    the
    indices of blocks within the cluster that share the tile; each of those blocks loads a part for all.
    ``in_step``: the blocks of the cluster wait for each other before a multicast whose buffer no event guards.
    ``edge``: the check of a tile that crosses an array's edge.  "": all threads test, and branch.  Without a
    branch, each
    vector by itself: "whole vectors", which lie inside or outside, "cut vectors", which may lie on the edge.
    """

    engine: Literal["cp.async", "ldst", "tma"]
    vector: int
    level: Level
    threads: int
    box: tuple[int, ...] = ()
    counted: Literal["", "trigger", "expect", "arrive"] = ""
    peers: tuple[str, ...] = ()
    in_step: bool = False
    edge: Literal["", "whole vectors", "cut vectors"] = ""


@record
class FragmentPlan:
    """Decided: the level and the registers of a fragment.

    ``role``: "A", "B" or "C" (accumulator), "E" (sparse metadata), "R" (a vector of M values: each lane has those
    of the rows of which it has elements in an accumulator).  ``shape`` is that of the whole tile held
    by one instance of ``level``: [M, K], [N, K] (B: CuTe's order), [M, N], [M, 1].  ``residence``: "registers", or
    "shared" for a wgmma operand read through descriptors, whose `Load` emits nothing.  ``atom`` names the
    record whose thread-value layout gives the elements of each lane; ``repeat`` = atoms along the two axes of
    ``shape``
    for one unit, the atom's own threads (a warp for mma.sync, a warpgroup for wgmma).  ``grid``: how many
    units share the contraction, along M and N; unit u is at (u % grid[0], u // grid[0]).  A is divided
    along M and repeated along N, B the other way round.
    """

    role: Literal["A", "B", "C", "E", "R"]
    dtype: DType
    shape: tuple[int, int]
    level: Level
    residence: Literal["registers", "shared"]
    atom: str
    repeat: tuple[int, int]
    grid: tuple[int, int] = (1, 1)


@record
class KOrder:
    """Which elements along K each lane takes, where both operands of every multiply take the same.

    The instruction gives lane q of a quad a pair of every 8 elements.  Here lane q of a quad takes ``run``
    consecutive elements of each 4 * ``run``, and a register holds two of them that are ``distance`` apart in the 8
    elements of which they are a part.
    """

    run: int
    distance: int = 1


@record
class LoadPlan:
    """Decided way of a `Load`: "ldmatrix" (``atom`` names the record), "descriptor" (nothing to do), "shared"
    or "global" (scalar or vector loads of each lane's own elements), "metadata" (each lane its words of it),
    "widened" (vector loads of narrow elements, which are converted in pairs), "vectors" (each lane 16 bytes of its
    rows).  ``k_order``: the last two may take K in an order of their own."""

    method: Literal["ldmatrix", "descriptor", "shared", "global", "metadata", "widened", "vectors"]
    atom: str = ""
    k_order: KOrder | None = None


@record
class StorePlan:
    """Decided way of a `Store`: "direct" (each lane its own elements, ``vector`` bytes at a time) or
    "stmatrix"."""

    method: Literal["direct", "stmatrix"]
    vector: int = 0
    atom: str = ""


@record
class ArrayFacts:
    """The facts about an array parameter that the code relies on.

    ``contiguous``: the dimension whose stride is 1, None when there is none.  ``alignment``: 16, 8, 4, 2 or 1:
    base address and every other stride, in bytes, are multiples of it.  ``nonempty``: no extent is 0.
    ``ragged``: the extent of the contiguous dimension, or the stride of a dimension of one element, is no multiple
    of 16 bytes, although all else is.
    """

    contiguous: int | None
    alignment: int
    nonempty: bool = False
    ragged: bool = False

    @property
    def has_whole_rows(self) -> bool:
        """Whether the contiguous dimension of an actual array, which `nonempty` tells from the default, is a
        multiple of 16 bytes."""
        return self.nonempty and self.alignment == 16 and not self.ragged
