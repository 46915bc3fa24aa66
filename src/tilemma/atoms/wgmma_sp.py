"""wgmma.mma_async.sp: a warpgroup multiplies a sparse A[64, K], of which half is stored, by B[N, K] transposed.

A[64, K/2] comes from shared memory or registers, the metadata from registers; B's rows are 64 bytes along K.  PTX
ISA, 9.7.15.6.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.family import Family
from tilemma.atoms.metadata import metadata, selector
from tilemma.atoms.warpgroup import N_FLOAT, N_INTEGER, SOURCES, Source, family, wgmma
from tilemma.dtypes import DType, bf16, e4m3, e5m2, f16, f32, s8, s32, tf32, u8


def _record(n: int, types: tuple[DType, DType, DType], a_from: Source, saturates: bool) -> MmaAtom:
    """The record of the dense form with twice its K, metadata and selector."""
    _, a, b = types
    dense = wgmma(n, types, a_from, saturates=saturates, rank=-1 if saturates else 0)
    half, k = dense.shape[2], 2 * dense.shape[2]
    pick = selector(a, k)
    return replace(
        dense,
        name=dense.name.replace(f"x{half}_", f"x{k}_").replace("SM90_", "SM90_SPARSE_"),
        kind="wgmma.sp",
        ptx_version=(8, 4) if a.is_integer and a is not b else (8, 2),
        section="PTX ISA, 9.7.15.6, wgmma.mma_async.sp",
        ptx=dense.ptx.replace("mma_async.", "mma_async.sp.", 1)
        .replace(f"k{half}.", f"k{k}.", 1)
        .replace("{b}, ", "{b}, {e}, {selector}, ", 1),
        immediates=(pick, *dense.immediates),
        shape=(64, n, k),
        b=replace(dense.b, shape=(n, k)),
        e=metadata(a, 64, k),
    )


def _families(d: DType, a: DType, b: DType) -> list[Family]:
    def make(a_from: Source) -> tuple[MmaAtom, ...]:
        widths, saturate = (N_INTEGER, (False, True)) if a.is_integer else (N_FLOAT, (False,))
        return tuple(_record(n, (d, a, b), a_from, saturates) for saturates in saturate for n in widths)

    return [family((d, a, b), a_from, make) for a_from in SOURCES]


_FLOATS = ((f16, f16, f16), (f32, f16, f16), (f32, bf16, bf16), (f32, tf32, tf32))
_MIXED = ((f16, (e4m3, e5m2)), (f32, (e4m3, e5m2)), (s32, (s8, u8)))
ATOMS = (
    *(x for types in _FLOATS for x in _families(*types)),
    *(x for d, types in _MIXED for a, b in product(types, repeat=2) for x in _families(d, a, b)),
)
