"""mma.sync of s8 and u8, mixed as wanted, into s32; sums wrap, or saturate (`_SATURATE`)."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import Family, MmaAtom, Rate
from tilemma.atoms.meanings import saturating
from tilemma.atoms.warp import Shape, dense
from tilemma.dtypes import DType, s8, s32, u8

_RATES = (
    Rate("sm_80", 2048, "NVIDIA A100 whitepaper: 624 TOP/s = 108 SMs x 1.41 GHz x 2 x 2048"),
    Rate("sm_86", 1024, "NVIDIA GA102 whitepaper, RTX 3090: 284 TOP/s = 82 SMs x 1.695 GHz x 2 x 1024"),
    Rate("sm_89", 1024, "NVIDIA Ada whitepaper, RTX 4090: 660 TOP/s = 128 SMs x 2.52 GHz x 2 x 1024"),
)
_SHAPES: tuple[Shape, ...] = ((8, 8, 16), (16, 8, 16), (16, 8, 32))


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
                rates=_RATES if shape[2] == 32 else (),
                meaning=saturating if saturates else None,
            )
            for saturates in (False, True)
            for shape in _SHAPES
        )

    return Family(a, b, s32, "registers", make)


ATOMS = tuple(_family(a, b) for a, b in product((s8, u8), repeat=2))
