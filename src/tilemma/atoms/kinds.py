"""Builders of the records that sm_120a alone has: mma of 8-, 6- and 4-bit floats, without and with block scales.

PTX ISA, "Warp-level matrix instructions: mma" with `.kind`, and "Block Scaling for mma.sync".  The kinds f8f6f4
and mxf8f6f4 hold each element in a byte: 6 bits in the low bits, the 4 of e2m1 in bits 2 to 5.  mxf4 and mxf4nvf4
have two elements of e2m1 in a byte.  No GPU has proven these records.

A lane's word of scales has four bytes.  Selectors name those that count: ``byte_id``, and ``thread_id`` the lanes
of a quad that hold them.  Here every lane and every byte that might be named holds its scale, so that any selector
is right, as it is with metadata.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from tensor_layouts import Layout

from tilemma.atoms.atom import Immediate, MmaAtom, Operand
from tilemma.atoms.metadata import metadata, selector
from tilemma.atoms.warp import accumulator, letters, operand
from tilemma.dtypes import BY_NAME, DType, Format, e4m3, e5m2, f16
from tilemma.records import record

e3m2, e2m3, e2m1 = (BY_NAME[n] for n in ("f6_e3m2", "f6_e2m3", "f4_e2m1"))
# The elements of a kind that holds them in bytes.
CONTAINED = (e4m3, e5m2, e3m2, e2m3, e2m1)
# Types of instructions alone, of which no array has elements: two e2m1 in a byte, and the codes of scales.
PACKED = DType(
    "f4_e2m1x2", 4, "float", np.dtype(ml_dtypes.float4_e2m1fn), "e2m1", "b8", ("f32",),
    Format(2, 1, infinite=False, saturates=True, nan=False),
)  # fmt: skip
UE8M0 = DType("f8_ue8m0", 8, "uint", np.dtype(np.uint8), "ue8m0", "b8")
UE4M3 = DType("f8_ue4m3", 8, "uint", np.dtype(np.uint8), "ue4m3", "b8")


@record
class Scales:
    """``count`` scales of ``dtype`` for a row of A and a column of B."""

    count: int
    dtype: DType

    def operand(self, letter: str) -> Operand:
        """The scales of A [16, count] or B [8, count] of the dense form: a register of four bytes in each lane."""
        rows = 16 if letter == "SFA" else 8
        # Of a quad two lanes hold the rows g and g + 8 of A, twice; all four hold a column of B.
        lanes = ((2, 2, 8), (8, 0, 1)) if letter == "SFA" else ((4, 8), (0, 1))
        shared = (2 if letter == "SFA" else 4) * (4 // self.count)
        layout = Layout((lanes[0], (self.count, 4 // self.count)), (lanes[1], (rows, 0)))
        return Operand(letter, self.dtype, (rows, self.count), layout, 1, "b32", shared_by=shared)

    @property
    def selectors(self) -> tuple[Immediate, ...]:
        """Which bytes and which lanes of a quad hold the scales."""
        bytes_ = tuple(range(0, 4, self.count))
        return (
            Immediate("byte_id_a", bytes_, 0),
            Immediate("thread_id_a", (0, 1), 0),
            Immediate("byte_id_b", bytes_, 0),
            Immediate("thread_id_b", (0, 1, 2, 3), 0),
        )


@cache
def _contained(name: str, t: DType, rows: int, cols: int) -> Operand:
    """A or B: as `operand`, with the bits of e2m1 in the middle of their byte."""
    found = operand(name, t, rows, cols)
    if t is not e2m1:
        return found
    return Operand(name, t, found.shape, found.layout, found.registers, found.register, shift=2)


def of_kind(
    kind: str, types: tuple[DType, DType, DType], *, sparse: bool = False, scales: Scales | None = None
) -> MmaAtom:
    """The record of an mma.sync or mma.sp of ``kind`` (empty: none is named) with ``types`` (D and C, A, B)."""
    d, a, b = types
    k = (64 if a is PACKED else 32) * (2 if sparse else 1)
    suffix = "" if scales is None else f".block_scale.scale_vec::{scales.count}X"
    form = ".".join(filter(None, (f"m16n8k{k}.row.col", kind and f"kind::{kind}{suffix}")))
    form += "." + ".".join(t.ptx for t in (d, a, b, d))
    holes = "{d}, {a}, {b}, {c}" + ", {e}, {selector}" * sparse
    name = f"SM120{'_SPARSE' * sparse}_16x8x{k}_{letters((d, a, b, d))}_TN" + f"_{kind.upper()}" * bool(kind)
    if scales is not None:
        form += f".{scales.dtype.ptx}"
        holes += ", {sfa}, {{{byte_id_a}, {thread_id_a}}}, {sfb}, {{{byte_id_b}, {thread_id_b}}}"
        # A kind of one count and type of scales is known by its name.
        name += f"_{scales.count}X" * (kind == "mxf4nvf4") + f"_{scales.dtype.ptx.upper()}" * (scales.count == 4)
    return MmaAtom(
        name=name,
        kind="mma.scaled" if scales is not None else "mma.sp" if sparse else "mma.sync",
        threads=32,
        arch="sm_120a",
        ptx_version=(9, 1) if scales is not None and scales.count == 4 and scales.dtype is UE8M0 else (8, 7),
        section="PTX ISA, 9.7.14.6, mma.sp" if sparse else "PTX ISA, 9.7.14.5, mma with .kind",
        ptx=f"mma.{'sp::ordered_metadata.' * sparse}sync.aligned.{form} {holes};",
        immediates=(*((selector(a, k),) if sparse else ()), *(scales.selectors if scales is not None else ())),
        shape=(16, 8, k),
        d=accumulator("D", d, 16, 8),
        a=_contained("A", a, 16, k // 2 if sparse else k),
        b=_contained("B", b, 8, k),
        c=accumulator("C", d, 16, 8),
        e=metadata(a, 16, k) if sparse else None,
        sfa=scales.operand("SFA") if scales is not None else None,
        sfb=scales.operand("SFB") if scales is not None else None,
        # The compiler has instructions of sm_89 for two 8-bit floats.
        rank=-1 if scales is not None or (kind and {a, b} <= {e4m3, e5m2}) else 0,
    )


def without_kind(a: DType, b: DType) -> MmaAtom:
    """The sparse products of 8-bit floats into f16, which sm_120a has without a kind too."""
    return of_kind("", (f16, a, b), sparse=True)
