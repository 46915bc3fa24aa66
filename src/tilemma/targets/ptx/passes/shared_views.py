"""Legality of shared-memory layouts: which swizzle atoms let wgmma descriptors and ldmatrix read a view."""

from __future__ import annotations

from math import prod

from tilemma.dtypes import DType, u8
from tilemma.ir.expr import Expr, add, const, mul, value_of
from tilemma.ir.types import Buffer, View
from tilemma.passes.contraction import Stored, divides, divisor

SWIZZLE_ATOMS = (128, 64, 32, 16)
# Bytes by which rows are padded that quads of lanes store 32 bytes of: the next row is in other banks.
PADDING = 32


def geometry(buffer: Buffer) -> tuple[int, int]:
    """(rows, bytes of a row) of a buffer of known extents: all dimensions but the last, and the last."""
    extents = [value_of(e) for e in buffer.shape]
    known = [e for e in extents if e is not None]
    assert len(known) == len(extents), buffer
    return prod(known[:-1]), -(-(known[-1] if known else 1) * buffer.dtype.bits // 8)


def row_offset(view: View) -> Expr:
    """The row, as `geometry` counts them, at which ``view`` starts."""
    total: Expr = const(0)
    for d in range(len(view.offsets) - 1):
        pace = prod(value_of(e) or 1 for e in view.base_shape[d + 1 : -1])
        total = add(total, mul(view.offsets[d], pace))
    return total


def holds(memory: DType, t: DType) -> bool:
    """Whether memory of ``memory`` holds elements of ``t`` as instructions read them: bytes hold packed ones."""
    return memory is t or (t.bits < 8 and memory is u8)


def keeps_rows(view: View) -> bool:
    """Whether ``view`` reads the rows of its buffer, as `geometry` counts them: a `span_as` may combine the
    dimensions before the last one."""
    return view.reshape is None or value_of(view.reshape[-1]) == value_of(view.base.shape[-1])


def rows_consecutive(view: View) -> bool:
    """Whether the matrix ``view`` runs along the last dimension and, row by row, along the one before it."""
    last = len(view.offsets) - 1
    dims = sorted(a.dim for a in view.axes)
    return (
        keeps_rows(view)
        and len(view.axes) == 2
        and dims == [last - 1, last]
        and all(value_of(a.step) == 1 for a in view.axes)
    )


def wgmma_rule(operand: Stored, atom: int, rows: int, depth: int) -> str | None:
    """The rule that keeps a descriptor from reading ``operand`` from swizzle atoms of ``atom`` bytes, or None.

    ``rows`` is the M or N of one instruction, ``depth`` its elements along K. PTX ISA, 9.7.15.5.1: the swizzle
    pattern starts with eight lines; an operand may start inside a line only along K.
    """
    view, bits = operand.view, operand.view.dtype.bits
    _, row_bytes = geometry(view.base)
    if not rows_consecutive(view):
        return "its rows are not consecutive in shared memory"
    if row_bytes % atom:
        return f"rows of {row_bytes} bytes are not a multiple of {atom} bytes"
    if not divides(8, row_offset(view)):
        return "it does not start on a multiple of 8 rows"
    column = view.offsets[-1]
    if operand.major == "K":
        if 16 < atom < depth * bits // 8:
            return f"an instruction takes {depth * bits // 8} bytes along K, more than a swizzle of {atom} bytes"
        need = min(depth * bits // 8, atom) * 8 // bits
        return None if divides(need, column) else f"it does not start on a multiple of {need} elements along K"
    need = atom * 8 // bits
    if not divides(need, column) or rows % need:
        return f"along M/N it is not made of whole swizzle atoms of {need} elements"
    return None


def ldmatrix_rule(view: View, transposed: bool = False) -> str | None:
    """The rule that keeps ldmatrix from reading the matrix ``view``, or None (PTX ISA, ldmatrix).

    Rows of 16 bytes may hold any type.  ``transposed``: the instruction transposes elements of 16 bits.
    """
    if transposed and view.dtype.bits != 16:
        return f"it transposes elements of 16 bits, not {view.dtype}"
    if view.dtype.bits > 32:
        return f"a register of 32 bits holds no {view.dtype}"
    return vector_rule(view)


def vector_rule(view: View) -> str | None:
    """The rule that keeps lanes from reading 16 bytes of a row of ``view`` at once, or None."""
    _, row_bytes = geometry(view.base)
    if not rows_consecutive(view):
        return "its rows are not consecutive in shared memory"
    if row_bytes % 16:
        return f"rows of {row_bytes} bytes are not aligned to 16"
    if divisor(view.offsets[-1]) * view.dtype.bits % 128:
        return f"it does not start on a multiple of {128 // view.dtype.bits} elements"
    return None
