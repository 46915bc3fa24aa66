"""mma.sync of s4 and u4, mixed as wanted, into s32.  From sm_90 on ptxas multiplies them as 8-bit integers."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import Family, MmaAtom, Rate
from tilemma.atoms.meanings import saturating
from tilemma.atoms.warp import FROM_90, Shape, dense
from tilemma.dtypes import DType, s4, s32, u4

_RATES = (
    Rate("sm_80", 4096, "NVIDIA A100 whitepaper: 1248 TOP/s = 108 SMs x 1.41 GHz x 2 x 4096"),
    Rate("sm_86", 2048, "NVIDIA GA102 whitepaper, RTX 3090: 568 TOP/s = 82 SMs x 1.695 GHz x 2 x 2048"),
    Rate("sm_89", 2048, "NVIDIA Ada whitepaper, RTX 4090: 1321 TOP/s = 128 SMs x 2.52 GHz x 2 x 2048"),
)
_SHAPES: tuple[Shape, ...] = ((8, 8, 32), (16, 8, 32), (16, 8, 64))


def _family(a: DType, b: DType) -> Family:
    def make() -> tuple[MmaAtom, ...]:
        return tuple(
            dense(
                shape,
                (s32, a, b),
                arch="sm_75" if shape[0] == 8 else "sm_80",
                version=(6, 5) if shape[0] == 8 else (7, 0),
                saturates=saturates,
                rank=-1 if saturates else 0,
                emulated=FROM_90,
                rates=_RATES if shape[2] == 64 else (),
                meaning=saturating if saturates else None,
            )
            for saturates in (False, True)
            for shape in _SHAPES
        )

    return Family(a, b, s32, "registers", make)


ATOMS = tuple(_family(a, b) for a, b in product((s4, u4), repeat=2))
