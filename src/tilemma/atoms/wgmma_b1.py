"""wgmma.mma_async of single bits: the ones of ``a & b`` along K, which is their product; K-major only."""

from __future__ import annotations

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.warpgroup import N_INTEGER, SOURCES, Source, family, wgmma
from tilemma.dtypes import b1, s32

_TYPES = (s32, b1, b1)


def _make(a_from: Source) -> tuple[MmaAtom, ...]:
    return tuple(wgmma(n, _TYPES, a_from, operation=".and.popc") for n in N_INTEGER)


ATOMS = tuple(family(_TYPES, a_from, _make) for a_from in SOURCES)
