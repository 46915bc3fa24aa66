"""ldmatrix and stmatrix: a warp loads or stores 8x8 matrices of 16-bit elements between registers and
shared memory.

Lane 8j + r gives the address of row r of matrix j, eight contiguous elements, on 16 bytes.  Lane l holds in
register j the elements 2 * (l % 4) and the next of row l // 4; with `.trans` of column l // 4.  PTX ISA,
9.7.14.5.15 and 9.7.14.5.16.
"""

from __future__ import annotations

from functools import cache

from tensor_layouts import Layout

from tilemma.atoms.atom import CopyAtom, CopyKind, Operand
from tilemma.dtypes import u16


@cache
def matrix_fragment(count: int, trans: bool) -> Operand:
    """``count`` 8x8 matrices, one below the other, in the registers of a warp."""
    rows = 8 * count
    strides = (2, rows) if trans else (2 * rows, 1)
    pair = 1 if trans else rows
    values = (2, (pair,)) if count == 1 else ((2, count), (pair, 8))
    layout = Layout(((4, 8), values[0]), (strides, values[1][0] if count == 1 else values[1]))
    return Operand("R", u16, (rows, 8), layout, registers=count, register="b32")


@cache
def _addressing(rows: int) -> Layout:
    return Layout(rows, 1)


def _record(kind: CopyKind, count: int, trans: bool) -> CopyAtom:
    load = kind == "ldmatrix"
    mnemonic = f"{kind}.sync.aligned.m8n8.x{count}{'.trans' if trans else ''}.shared.b16"
    # CuTe counts the values that a lane receives: 32-bit pairs in order, or 16-bit elements from two rows each.
    received = f"U16x{2 * count}" if trans else f"U32x{count}"
    return CopyAtom(
        name=f"{'SM75' if load else 'SM90'}_{received}_{'LDSM' if load else 'STSM'}_{'T' if trans else 'N'}",
        kind=kind,
        threads=32,
        arch="sm_75" if load else "sm_90",
        ptx_version=(6, 5) if load else (7, 8),
        section=f"PTX ISA, 9.7.14.5.{15 if load else 16}, {kind}",
        ptx=f"{mnemonic} {{registers}}, [{{address}}];" if load else f"{mnemonic} [{{address}}], {{registers}};",
        rows=8 * count,
        row_bytes=16,
        matrices=count,
        trans=trans,
        fragment=matrix_fragment(count, trans),
        addressing=_addressing(8 * count),
    )


_KINDS: tuple[CopyKind, ...] = ("ldmatrix", "stmatrix")
ATOMS = tuple(_record(kind, n, trans) for kind in _KINDS for trans in (False, True) for n in (1, 2, 4))
