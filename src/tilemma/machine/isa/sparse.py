"""Sparse A: where mma.sp and wgmma.sp keep the metadata, and which elements it selects.

Sources: PTX ISA, "Sparse matrix storage" and "Matrix fragments for multiply-accumulate operation with sparse
matrix A" of ``mma.sp`` and of ``wgmma.mma_async.sp``.

A is stored compressed, [m, k/2], and lies in registers as a dense A of half the k.  Four bits describe each
chunk of a row:

    f16, bf16, fp8, s8, u8   chunks of 4 columns, 2 stored: two 2-bit positions, the first stored one lowest
    tf32                     chunks of 2 columns, 1 stored: 0b0100 for the first, 0b1110 for the second
    s4, u4                   chunks of 8 columns, 4 stored as two pairs: two 2-bit positions of a pair

A register of A's fragment covers one row of a quad of lanes.  The four-bit fields follow the registers in
order, and within a register the columns, and are packed from the low bits up into as many 32-bit words as
that takes: one, two or four to a quad.  The words lie in the lanes of the quad that the sparsity selector
names: lane ``selector``; lanes ``2 * selector`` and the next; or all four, with selector 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype
from .fragments import elements_per_register, mma_fragment
from .numerics import convert, mma

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The storage of a chunk of a row: ``width`` columns, of which ``stored``, in runs of ``run``."""

    width: int
    stored: int
    run: int


def pattern(dtype_name: str) -> Pattern:
    """The sparsity pattern of an element type: 2:4, 1:2 for tf32, 4:8 in pairs below a byte."""
    bits = dtype(dtype_name).bits
    return {32: Pattern(2, 1, 1), 4: Pattern(8, 4, 2)}.get(bits, Pattern(4, 2, 1))


def sparse_fragment(shape: Shape, dtype_name: str) -> tuple[Ints, Ints]:
    """Rows and columns of the compressed A [m, k/2] that each lane holds: two [32, values]."""
    m, n, k = shape
    return mma_fragment((m, n, k // 2), "A", dtype_name)


@cache
def metadata_map(k: int, dtype_name: str, selector: int) -> tuple[Ints, Ints]:
    """Lane and lowest bit of the four-bit field of each chunk of A: two [16, chunks], for m16n8k``k``."""
    p = pattern(dtype_name)
    row, chunk = np.arange(16)[:, None], np.arange(k // p.width)[None, :]
    # A register holds this many chunks of each of the quad's four lanes.
    per_register = 4 * elements_per_register(dtype_name) // p.stored
    register = row // 8 + 2 * (chunk // per_register)
    bit = 4 * (register * per_register + chunk % per_register)
    words = 4 * 2 * chunk.size // 32
    first = {1: selector, 2: 2 * selector, 4: 0}[words]
    lane, shift = np.broadcast_arrays(4 * (row % 8) + first + bit // 32, bit % 32)
    for a in (lane, shift):
        a.setflags(write=False)
    return lane, shift


def metadata_fields(metadata: Array, k: int, dtype_name: str, selector: int) -> Ints:
    """The four-bit field of each chunk, [rows, chunks], from the metadata registers of a warp or warpgroup.

    ``metadata`` holds one uint32 for each lane: 32 give the 16 rows of a warp's ``mma.sp``, 128 the 64 rows
    of ``wgmma.sp``, in which each warp describes its own 16 rows.
    """
    lane, shift = metadata_map(k, dtype_name, selector)
    warps = np.ascontiguousarray(metadata, dtype=np.int64).reshape(-1, 32)
    fields: Ints = warps[:, lane] >> shift & 15
    return fields.reshape(-1, lane.shape[1])


def metadata_problems(fields: Ints, dtype_name: str, *, ordered: bool = False) -> list[tuple[int, int, str]]:
    """(row, chunk, reason) of every field whose value the ISA leaves undefined.

    Positions must differ; with ``::ordered_metadata``, and always for fp8 in ``mma.sp``, they must rise.
    """
    low, high = fields & 3, fields >> 2
    if pattern(dtype_name).stored == 1:
        bad, rule = (fields != 0b0100) & (fields != 0b1110), "must be 0b0100 or 0b1110"
    elif ordered:
        bad, rule = low >= high, "must name two rising positions"
    else:
        bad, rule = low == high, "must name two different positions"
    return [
        (int(r), int(c), f"metadata 0b{int(fields[r, c]):04b} of row {r}, chunk {c} {rule}")
        for r, c in zip(*np.nonzero(bad), strict=True)
    ]


def stored_columns(fields: Ints, dtype_name: str) -> Ints:
    """The column of A of each stored element: [rows, k/2]."""
    p = pattern(dtype_name)
    base = p.width * np.arange(fields.shape[1])[None, :, None]
    if p.stored == 1:
        positions = (fields[:, :, None] == 0b1110).astype(np.int64)
    else:
        runs = np.stack((fields & 3, fields >> 2), axis=-1)
        positions = (runs[..., None] * p.run + np.arange(p.run)).reshape(*fields.shape, p.stored)
    columns: Ints = (base + positions).reshape(fields.shape[0], -1)
    return columns


def expand(compressed: Array, columns: Ints, k: int) -> Array:
    """A [rows, k] from its stored elements and their columns, both [rows, k/2]; zeros elsewhere."""
    out = np.zeros((compressed.shape[0], k), compressed.dtype)
    out[np.arange(compressed.shape[0])[:, None], columns] = compressed
    return out


def compress(
    a: Array, dtype_name: str, selector: int, lanes: Literal[32, 128] = 32
) -> tuple[Array, npt.NDArray[np.uint32]]:
    """The stored elements [rows, k/2] and metadata registers [lanes] of a matrix that fits the pattern.

    ``a`` is [16, k] for a warp, [64, k] for a warpgroup.  A chunk with fewer non-zeros than it stores is
    filled up with its first zeros.  ValueError for a chunk with more.  Lanes that the selector does not
    name hold 0.
    """
    p = pattern(dtype_name)
    rows, k = a.shape
    # A run of columns (one, or a pair) is kept whole; each chunk keeps stored/run of them.
    runs = (a.reshape(rows, k // p.width, p.width // p.run, p.run) != 0).any(-1)
    keep = p.stored // p.run
    if (runs.sum(-1) > keep).any():
        raise ValueError(f"more than {p.stored} non-zeros in {p.width} columns")
    chosen = np.sort(np.argsort(~runs, axis=-1, kind="stable")[..., :keep], axis=-1)
    fields: Ints
    if p.stored == 1:
        fields = np.where(chosen[..., 0] == 1, 0b1110, 0b0100)
    else:
        fields = chosen[..., 0] | chosen[..., 1] << 2
    lane, shift = metadata_map(k, dtype_name, selector)
    registers = np.zeros((lanes // 32, 32), np.int64)
    for warp in range(lanes // 32):
        np.add.at(registers[warp], lane, fields[16 * warp : 16 * warp + 16] << shift)
    columns = stored_columns(fields, dtype_name)
    return np.take_along_axis(a, columns, axis=1), registers.reshape(-1).astype(np.uint32)


def sparse_mma(
    a: Array, columns: Ints, b: Array, c: Array, a_type: str, b_type: str, d_type: str, *, satfinite: bool = False
) -> Array:
    """``D = A * B + C`` with A compressed: ``a`` and ``columns`` are [m, k/2], ``b`` [k, n], ``c`` [m, n].

    Elements of B that no stored element meets take no part, so that an infinity or NaN there does no harm.
    Rounding as in ``numerics.mma``.
    """
    wide = b.astype(np.float64)
    if np.isfinite(wide).all():
        dense = expand(a, columns, b.shape[0])
        return mma(dense, b, c, a_type, b_type, d_type, satfinite=satfinite)
    with np.errstate(all="ignore"):
        total = np.einsum("mj,mjn->mn", a.astype(np.float64), wide[columns]) + c.astype(np.float64)
        return convert(total, "f64", d_type, "rn")
