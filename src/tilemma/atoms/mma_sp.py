"""mma.sp: one warp multiplies a sparse A[16, K], of which half is stored, by B[8, K] transposed.

Metadata in order (`::ordered_metadata`) is what the compiler uses; the older form without it (`_UNORDERED`) is
taken by name. PTX ISA, 9.7.14.6.
"""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.family import Family
from tilemma.atoms.metadata import metadata, selector
from tilemma.atoms.warp import FROM_90, FROM_100, NO_FP8, accumulator, letters, operand
from tilemma.dtypes import DType, bf16, e4m3, e5m2, f16, f32, s4, s8, s32, tf32, u4, u8


def _record(d: DType, a: DType, b: DType, k: int, saturates: bool, ordered: bool) -> MmaAtom:
    float8 = a.is_float and a.bits == 8
    arch = "sm_89" if float8 else "sm_80"
    types = ".".join(t.ptx for t in (d, a, b, d))
    form = f"m16n8k{k}.row.col{'.satfinite' if saturates else ''}.{types}"
    emulated = NO_FP8 if float8 else FROM_90 if a.bits == 4 else ()
    if not ordered and a in (f16, s8, u8):
        # Metadata without order: A and its metadata are sorted first.
        emulated = FROM_100
    suffix = ("_SATURATE" if saturates else "") + ("" if ordered else "_UNORDERED")
    sp = "sp::ordered_metadata" if ordered else "sp"
    return MmaAtom(
        name=f"{arch.upper().replace('_', '')}_SPARSE_16x8x{k}_{letters((d, a, b, d))}_TN{suffix}",
        kind="mma.sp",
        threads=32,
        arch=arch,
        ptx_version=(8, 5) if ordered else (8, 4) if float8 else (7, 1),
        section="PTX ISA, 9.7.14.6, mma.sp",
        ptx=f"mma.{sp}.sync.aligned.{form} {{d}}, {{a}}, {{b}}, {{c}}, {{e}}, {{selector}};",
        immediates=(selector(a, k),),
        shape=(16, 8, k),
        d=accumulator("D", d, 16, 8),
        a=operand("A", a, 16, k // 2),
        b=operand("B", b, 8, k),
        c=accumulator("C", d, 16, 8),
        e=metadata(a, 16, k),
        rank=-1 if saturates or not ordered else 0,
        emulated=emulated,
    )


def _family(d: DType, a: DType, b: DType) -> Family:
    def make() -> tuple[MmaAtom, ...]:
        widest = 512 // a.bits
        depths = (widest,) if a.is_float and a.bits == 8 else (widest // 2, widest)
        saturate = (False, True) if a.is_integer else (False,)
        return tuple(
            _record(d, a, b, k, saturates, ordered)
            for saturates, ordered, k in product(saturate, (True, False), depths)
        )

    return Family(a, b, d, "registers", make)


_FLOATS = ((f16, f16, f16), (f32, f16, f16), (f32, bf16, bf16), (f32, tf32, tf32))
_MIXED = ((f32, (e4m3, e5m2)), (s32, (s8, u8)), (s32, (s4, u4)))
ATOMS = (
    *(_family(*types) for types in _FLOATS),
    *(_family(d, a, b) for d, types in _MIXED for a, b in product(types, repeat=2)),
)
