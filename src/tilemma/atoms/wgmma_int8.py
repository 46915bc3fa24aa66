"""wgmma.mma_async of s8 and u8, mixed freely: K-major only; sums wrap, or saturate (`_SATURATE`)."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.family import Family
from tilemma.atoms.meanings import saturating
from tilemma.atoms.warpgroup import N_INTEGER, SOURCES, Source, family, h100, wgmma
from tilemma.dtypes import DType, s8, s32, u8


def _families(a: DType, b: DType) -> list[Family]:
    def make(a_from: Source) -> tuple[MmaAtom, ...]:
        return tuple(
            wgmma(
                n,
                (s32, a, b),
                a_from,
                # PTX ISA notes: 8.4 mixes the two.
                version=(8, 0) if a is b else (8, 4),
                saturates=saturates,
                rates=h100(4096, 1979, "TOP/s"),
                rank=-1 if saturates else 0,
                meaning=saturating if saturates else None,
            )
            for saturates in (False, True)
            for n in N_INTEGER
        )

    return [family((s32, a, b), a_from, make) for a_from in SOURCES]


ATOMS = tuple(x for a, b in product((s8, u8), repeat=2) for x in _families(a, b))
