"""Lane maps of the metadata of a sparse A (PTX ISA, "Sparse matrix storage" of mma.sp and of wgmma.mma_async.sp).

Four bits describe a chunk of a row of A: which of its elements are stored. A register of A's fragment covers
one row of a quad of lanes; the fields follow the registers, and within a register the columns, from the low
bits up. They fill one, two or four words of 32 bits a quad, which lie in the lanes that the sparsity selector
names. Here every lane of a quad that might be named holds its word, so that any selector is right.
"""

from __future__ import annotations

from functools import cache

from tensor_layouts import Layout

from tilemma.atoms.atom import Immediate, Operand
from tilemma.dtypes import DType, u4


def chunk(t: DType) -> int:
    """Columns of a chunk, half of which are stored: 2:4, 1:2 for tf32, 4:8 in pairs below a byte."""
    return {32: 2, 4: 8}.get(t.bits, 4)


@cache
def metadata(t: DType, rows: int, k: int) -> Operand:
    """E for ``rows`` (16 of a warp, 64 of a warpgroup) x ``k`` columns of ``t``: an element is a chunk's field."""
    chunks = k // chunk(t)
    # Fields of one register of A in a quad: 32 / bits elements a lane, 4 lanes, two (tf32: one) elements a field.
    fields = 4 if t.bits >= 16 else 8
    down, right = 8, fields * rows
    words = 16 * chunks // 8 // 8
    values = ((4, 2), (rows, down)) if fields == 4 else (8, rows)
    # Word w is register 2w and 2w + 1 of A where a field is half a register's, else register w.
    strides = {1: (0, 0), 2: (right if fields == 4 else down, 0), 4: (down, right)}[words]
    lanes = ((2, 2, 8), (*strides, 1)) if rows == 16 else ((2, 2, 8, 4), (*strides, 1, 16))
    layout = Layout((lanes[0], values[0]), (lanes[1], values[1]))
    return Operand("E", u4, (rows, chunks), layout, 1, "b32", shared_by=4 // words)


def selector(t: DType, k: int) -> Immediate:
    """The sparsity selector: which lanes of each quad hold the metadata."""
    words = 16 * (k // chunk(t)) // 64
    return Immediate("selector", tuple(range(4 // words)), 0)
