"""2:4 structured sparsity: the dense matrix from its compressed half and its metadata, and back.

Each row is cut into chunks, of which half is stored:

    8- and 16-bit elements   4 columns, 2 stored: two 2-bit positions, the first stored one lowest
    tf32                     2 columns, 1 stored: 0b0100 for the first, 0b1110 for the second
    s4, u4                   8 columns, 4 stored as two pairs: two 2-bit positions of a pair

A chunk's field has four bits.  The fields of a row follow one another from the low bits of its first word up (PTX
ISA, "Sparse matrix storage").  Positions rise.  A field of 0 denotes a chunk whose stored elements are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilemma.dtypes import DType
from tilemma.records import record

Array = NDArray[Any]
_FIRST, _SECOND = 0b0100, 0b1110
# Elements of a matrix that an instruction takes by half.
TYPES = (
    "f16", "bf16", "tf32", "f8_e4m3", "f8_e5m2", "f6_e2m3", "f6_e3m2", "f4_e2m1", "s8", "u8", "s4", "u4",
)  # fmt: skip
SECTION = "PTX ISA, 9.7.14.6.1, Sparse matrix storage"


@record
class Pattern:
    """``width`` columns of a chunk, of which ``stored`` are kept, in runs of ``run``."""

    width: int
    stored: int
    run: int

    @property
    def name(self) -> str:
        return f"{self.stored}:{self.width}"


def pattern(t: DType) -> Pattern:
    """2:4, 1:2 for 32-bit elements, 4:8 in pairs below a byte."""
    return {32: Pattern(2, 1, 1), 4: Pattern(8, 4, 2)}.get(t.bits, Pattern(4, 2, 1))


@record
class Order:
    """One of Croqtile's orders of prepacked metadata in words of u32, those of the lanes that hold it.

    ``part``: the bits that move; two parts are a word, or a pair of words.  ``axes``: the order of the axes (16
    rows, upper or lower 8, row, words, part).  ``types``: the types of A that Croqtile packs so.  ``in_blocks``:
    the words of 16 rows lie together, so that a row of an array stands for 16 rows.
    """

    part: int
    axes: tuple[int, ...]
    types: tuple[str, ...]
    in_blocks: bool = True

    @property
    def pairs(self) -> int:
        """The words of a row that move together."""
        return self.part // 16

    def shape(self, packed: tuple[int, int]) -> tuple[int, int] | None:
        """[M, W], if words [M, W] or, in blocks, [M/16, 16 W] are prepacked metadata; None for other extents."""
        rows, columns = (16 * packed[0], packed[1] // 16) if self.in_blocks else packed
        whole = rows % 16 == 0 and columns % self.pairs == 0 and rows * columns == packed[0] * packed[1]
        return (rows, columns) if whole else None

    def packed(self, words: Array) -> Array:
        """Words [M, W] in this order."""
        return self._blocks(words).transpose(self.axes).copy().view(np.uint32).reshape(words.shape)

    def unpacked(self, words: Array) -> Array:
        """The inverse of `packed`."""
        blocks = self._blocks(words)
        moved = blocks.reshape([blocks.shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))
        found: Array = moved.copy().view(np.uint32).reshape(words.shape)
        return found

    def _blocks(self, words: Array) -> Array:
        parts = np.ascontiguousarray(words).view(np.dtype(f"u{self.part // 8}"))
        return parts.reshape(words.shape[0] // 16, 2, 8, words.shape[1] // self.pairs, 2)


ORDERS = {
    "prepack": Order(16, (0, 2, 4, 3, 1), ("f16", "bf16"), in_blocks=False),
    "prepack_v2": Order(16, (0, 3, 2, 4, 1), ("f16", "bf16")),
    "prepack_v2_fp8": Order(32, (0, 3, 2, 4, 1), ("f8_e4m3", "f8_e5m2")),
}


def unprepacked(words: Array, order: str) -> Array:
    """Words [M, W] of an array of prepacked ones; words beyond its edges are 0."""
    found = ORDERS[order]
    shape = found.shape((words.shape[0], words.shape[1]))
    assert shape is not None, words.shape
    return found.unpacked(words.reshape(shape))


def unit(t: DType, metadata: DType) -> int:
    """The columns of a matrix of ``t`` that one element of its ``metadata`` describes."""
    return metadata.bits // 4 * pattern(t).width


def fields_of(words: Array, bits: int) -> Array:
    """The fields [M, chunks] in metadata words [M, W] of ``bits`` bits."""
    shifts = np.arange(0, bits, 4)
    found: Array = (words.astype(np.int64)[..., None] >> shifts & 15).reshape(
        words.shape[0], words.shape[1] * len(shifts)
    )
    return found


def words_of(fields: Array, metadata: DType) -> Array:
    """The inverse of `fields_of`, as elements of ``metadata``."""
    per = metadata.bits // 4
    grouped = fields.astype(np.int64).reshape(fields.shape[0], fields.shape[1] // per, per) << 4 * np.arange(per)
    found: Array = grouped.sum(-1).astype(metadata.numpy)
    return found


def broken(fields: Array, values: Array, t: DType) -> tuple[int, int] | None:
    """(row, chunk) of the first field that breaks the pattern; 0 is a field of stored zeros."""
    p = pattern(t)
    stored = (values != 0).reshape(*fields.shape, p.stored).any(-1)
    if p.stored == 1:
        bad = (fields != _FIRST) & (fields != _SECOND)
    else:
        bad = (fields & 3) >= (fields >> 2)
    found = np.argwhere(bad & ((fields != 0) | stored))
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def rule_of(t: DType) -> str:
    """The rule that `broken` checks, in words."""
    if pattern(t).stored == 1:
        return f"0b0100 or 0b1110: which of two columns of {t} is stored ({SECTION})"
    return f"two rising positions, the first in the lower two bits ({pattern(t).name} of {t}; {SECTION})"


def columns_of(fields: Array, t: DType) -> Array:
    """The column in the whole matrix of each stored element, [M, K/2]."""
    p = pattern(t)
    if p.stored == 1:
        positions = (fields == _SECOND).astype(np.int64)[..., None]
    else:
        runs = np.stack((fields & 3, fields >> 2), axis=-1)
        positions = (runs[..., None] * p.run + np.arange(p.run)).reshape(*fields.shape, p.stored)
    base = p.width * np.arange(fields.shape[1])[None, :, None]
    found: Array = (base + positions).reshape(fields.shape[0], fields.shape[1] * p.stored)
    return found


def expand(values: Array, columns: Array) -> Array:
    """The whole matrix [M, K] of its stored elements; those of a field of 0 are 0 and leave none."""
    out = np.zeros((values.shape[0], 2 * values.shape[1]), values.dtype)
    np.add.at(out, (np.arange(values.shape[0])[:, None], columns), values)
    return out


def kept(x: Array, t: DType) -> Array:
    """Which elements of ``x`` [M, K] pruning keeps: of each chunk the half of largest magnitude, of equal ones the
    earlier."""
    p = pattern(t)
    runs = np.abs(x.astype(np.float64)).reshape(x.shape[0], x.shape[1] // p.width, p.width // p.run, p.run).sum(-1)
    order = np.argsort(-runs, axis=-1, kind="stable")[..., : p.stored // p.run]
    mask = np.zeros(runs.shape, bool)
    np.put_along_axis(mask, order, True, axis=-1)
    found: Array = np.repeat(mask[..., None], p.run, axis=-1).reshape(x.shape)
    return found


def fields_from(mask: Array, t: DType) -> Array:
    """The fields of a matrix whose stored elements are those of ``mask`` [M, K], half of each chunk."""
    p = pattern(t)
    runs = mask.reshape(mask.shape[0], mask.shape[1] // p.width, p.width // p.run, p.run)[..., 0]
    if p.stored == 1:
        found: Array = np.where(runs[..., 1], _SECOND, _FIRST)
        return found
    positions = np.argsort(~runs, axis=-1, kind="stable")[..., :2]
    both: Array = positions[..., 0] | positions[..., 1] << 2
    return both
