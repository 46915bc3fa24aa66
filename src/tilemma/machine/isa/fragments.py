"""Which lane and which register holds which element of a tile.

Sources: PTX ISA, "Matrix Fragments for mma.m8n8k4 ... mma.m16n8k256", "Warp-level matrix load instruction:
ldmatrix", "... store instruction: stmatrix", "Asynchronous warpgroup-level matrix: register fragments".

All fragments but one family obey a single rule.  With ``g = lane // 4`` (the ISA's groupID),
``t = lane % 4`` (threadID_in_group) and ``e`` elements to a 32-bit register (1 for tf32, and for f64, whose
registers have 64 bits), register ``r`` of A covers rows ``g + 8 * (r % (m/8))`` and columns
``4*e*(r // (m/8)) + e*t + (0..e-1)``: down the two row blocks first, then along K.  B is the same with
columns ``g`` and rows along K.  An accumulator holds pairs: columns ``2*t, 2*t + 1``, row blocks first, then
along N.  The exception is ``m8n8k4`` on f16, which is four independent products by quad pairs.

Elements are numbered low bits first, registers in the order of the operand's vector expression, so value
``i`` of a fragment is element ``i % e`` of register ``i // e``, the order of ``unpack``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype

Ints = npt.NDArray[np.int64]
Operand = Literal["A", "B", "C", "D"]
Layout = Literal["row", "col"]


def elements_per_register(dtype_name: str) -> int:
    """The number of elements of a type that share one register of a fragment: 32 bits, or 64 for f64."""
    return max(1, 32 // dtype(dtype_name).bits)


def _frozen(*arrays: Any) -> tuple[Ints, ...]:
    out = tuple(np.ascontiguousarray(a, dtype=np.int64) for a in arrays)
    for a in out:
        a.setflags(write=False)
    return out


@cache
def mma_fragment(
    shape: tuple[int, int, int], operand: Operand, dtype_name: str, layout: Layout | None = None
) -> tuple[Ints, Ints]:
    """Rows and columns of the elements that each lane holds for a dense ``mma.sync``: two [32, values].

    ``shape`` is (m, n, k).  A is indexed as [m, k], B as [k, n] (the ISA's own orientation: ``row`` runs
    along K), C and D as [m, n].  ``layout`` matters for ``m8n8k4`` on f16 only, the one form that takes
    other layouts than ``.row.col``; its lanes belong to four products, told apart by ``quad_pair``.
    The arrays are shared and read-only.
    """
    m, n, k = shape
    if shape == (8, 8, 4) and dtype_name != "f64":
        return _m8n8k4(operand, dtype_name, layout or ("col" if operand == "B" else "row"))
    lane = np.arange(32)[:, None]
    g, t = lane // 4, lane % 4
    if operand in ("C", "D"):
        i = np.arange(m * n // 32)[None, :]
        blocks = m // 8
        rows, cols = g + 8 * (i // 2 % blocks), 8 * (i // (2 * blocks)) + 2 * t + i % 2
    else:
        e = elements_per_register(dtype_name)
        outer = m if operand == "A" else n
        i = np.arange(outer * k // 32)[None, :]
        r, blocks = i // e, outer // 8
        along_outer, along_k = g + 8 * (r % blocks), 4 * e * (r // blocks) + e * t + i % e
        rows, cols = (along_outer, along_k) if operand == "A" else (along_k, along_outer)
    rows, cols = np.broadcast_arrays(rows, cols)
    out = _frozen(rows, cols)
    return out[0], out[1]


def _m8n8k4(operand: Operand, dtype_name: str, layout: Layout) -> tuple[Ints, Ints]:
    """PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type"."""
    lane = np.arange(32)[:, None]
    high = 4 * (lane // 16)
    if operand in ("A", "B"):
        i = np.arange(4)[None, :]
        # A row-major and B column-major hold a run along K; the other two hold a run along M or N.
        if (operand == "A") == (layout == "row"):
            outer, along_k = lane % 4 + high, i
        else:
            outer, along_k = i + high, lane % 4
        rows, cols = (outer, along_k) if operand == "A" else (along_k, outer)
    elif dtype_name == "f16":
        rows, cols = lane % 4 + high, np.arange(8)[None, :]
    else:
        i = np.arange(8)[None, :]
        rows, cols = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
    rows, cols = np.broadcast_arrays(rows, cols)
    out = _frozen(rows, cols)
    return out[0], out[1]


def quad_pair() -> Ints:
    """Which of the four products of ``mma.m8n8k4`` on f16 each lane belongs to: [32], values 0..3."""
    return np.arange(32) // 4 % 4


@cache
def wgmma_fragment(n: int, k: int, operand: Literal["A", "D"], dtype_name: str) -> tuple[Ints, Ints]:
    """Rows and columns of the elements that each thread of a warpgroup holds: two [128, values].

    Warp w of the warpgroup holds rows 16*w .. 16*w + 15.  D is [64, n] (``k`` is ignored), A is [64, k] and
    holds the fragment of an ``mma`` with 16 rows.  PTX ISA, "Register Fragments" of wgmma.
    """
    if operand == "D":
        rows, cols = mma_fragment((16, n, 8), "D", dtype_name)
    else:
        rows, cols = mma_fragment((16, 8, k), "A", dtype_name)
    warp = 16 * np.arange(4)[:, None, None]
    out = _frozen((rows[None] + warp).reshape(128, -1), np.tile(cols, (4, 1)))
    return out[0], out[1]


@dataclass(frozen=True, slots=True)
class MatrixMap:
    """The distribution of ``num`` 8x8 matrices of 16-bit elements over a warp.

    ``address_lane[j, r]`` is the lane whose address operand names row ``r`` of matrix ``j``: 16 contiguous,
    16-byte-aligned bytes.  Register ``j`` of a lane holds two elements of matrix ``j``; half ``h`` (0 is the
    low one) is the element ``rows[lane, j, h], cols[lane, j, h]``, row and column as stored in memory.
    """

    num: int
    trans: bool
    address_lane: Ints
    rows: Ints
    cols: Ints


@cache
def ldmatrix_map(num: int, trans: bool) -> MatrixMap:
    """The map of ``ldmatrix.sync.aligned.m8n8.x{num}{.trans}.shared.b16``; ``num`` is 1, 2 or 4."""
    assert num in (1, 2, 4), num
    lane, j, h = np.arange(32)[:, None, None], np.arange(num)[None, :, None], np.arange(2)[None, None, :]
    outer, inner = np.broadcast_arrays(lane // 4 + 0 * j, 2 * (lane % 4) + h)
    if trans:
        outer, inner = inner, outer
    address = np.arange(8)[None, :] + 8 * np.arange(num)[:, None]
    lanes, rows, cols = _frozen(address, outer, inner)
    return MatrixMap(num, trans, lanes, rows, cols)


def stmatrix_map(num: int, trans: bool) -> MatrixMap:
    """The map of ``stmatrix.sync.aligned.m8n8.x{num}{.trans}.shared.b16``: that of ``ldmatrix``, reversed."""
    return ldmatrix_map(num, trans)


def unpack(regs: npt.NDArray[Any], dtype_name: str) -> npt.NDArray[Any]:
    """Registers [..., r] as elements [..., r * e], low bits first.

    ``regs`` are uint32 (uint64 for f64).  Floats come out in their own NumPy or ml_dtypes type, tf32 as
    float32 with the 13 bits that the hardware ignores cleared, integers and b1 as int64.
    """
    t = dtype(dtype_name)
    regs = np.ascontiguousarray(regs)
    if t.name == "tf32":
        floats: npt.NDArray[Any] = (regs & np.uint32(0xFFFFE000)).view(np.float32)
        return floats
    if t.bits >= 8:
        values: npt.NDArray[Any] = regs.view(t.numpy)
        return values if t.is_float else values.astype(np.int64)
    e = 32 // t.bits
    shifts = np.arange(e, dtype=np.uint32) * np.uint32(t.bits)
    fields = (regs[..., None] >> shifts) & np.uint32((1 << t.bits) - 1)
    out: npt.NDArray[Any] = fields.reshape(*regs.shape[:-1], regs.shape[-1] * e).astype(np.int64)
    if t.kind == "int":
        out = (out ^ 8) - 8
    return out


def pack(values: npt.NDArray[Any], dtype_name: str) -> npt.NDArray[Any]:
    """Elements [..., r * e] as registers [..., r], the inverse of ``unpack``.

    Values already in the type's own NumPy type pass bit for bit; others are converted by ``astype``, so
    round them first (``numerics.convert``) where that matters.  Integers wrap to the type's width.
    """
    t = dtype(dtype_name)
    if t.bits >= 8:
        register = np.uint64 if t.bits == 64 else np.uint32
        exact = values if values.dtype == t.numpy else values.astype(t.numpy)
        return np.ascontiguousarray(exact).view(register)
    e, mask = 32 // t.bits, (1 << t.bits) - 1
    fields = values.astype(np.int64).reshape(*values.shape[:-1], -1, e) & mask
    regs: npt.NDArray[Any] = (fields << (np.arange(e) * t.bits)).sum(-1).astype(np.uint32)
    return regs
