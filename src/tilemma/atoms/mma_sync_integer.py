"""mma.sync of 8-bit and 4-bit integers, signs mixed freely, into s32; sums wrap, or saturate (`_SATURATE`).

From sm_90 on ptxas multiplies 4-bit integers as 8-bit integers.
"""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.meanings import saturating
from tilemma.atoms.warp import FROM_90, Shape, dense
from tilemma.dtypes import DType, s4, s8, s32, u4, u8

_RATES_8 = (
    Rate("sm_80", 2048, "NVIDIA A100 whitepaper: 624 TOP/s = 108 SMs x 1.41 GHz x 2 x 2048"),
    Rate("sm_86", 1024, "NVIDIA GA102 whitepaper, RTX 3090: 284 TOP/s = 82 SMs x 1.695 GHz x 2 x 1024"),
    Rate("sm_89", 1024, "NVIDIA Ada whitepaper, RTX 4090: 660 TOP/s = 128 SMs x 2.52 GHz x 2 x 1024"),
)
_RATES_4 = (
    Rate("sm_80", 4096, "NVIDIA A100 whitepaper: 1248 TOP/s = 108 SMs x 1.41 GHz x 2 x 4096"),
    Rate("sm_86", 2048, "NVIDIA GA102 whitepaper, RTX 3090: 568 TOP/s = 82 SMs x 1.695 GHz x 2 x 2048"),
    Rate("sm_89", 2048, "NVIDIA Ada whitepaper, RTX 4090: 1321 TOP/s = 128 SMs x 2.52 GHz x 2 x 2048"),
)


def _family(a: DType, b: DType) -> Family:
    step = 128 // a.bits
    shapes: tuple[Shape, ...] = ((8, 8, step), (16, 8, step), (16, 8, 2 * step))
    rates = _RATES_8 if a.bits == 8 else _RATES_4

    def make() -> tuple[MmaAtom, ...]:
        return tuple(
            dense(
                shape,
                (s32, a, b),
                arch="sm_75" if shape[0] == 8 else "sm_80",
                version=(6, 5) if shape[0] == 8 else (7, 0),
                saturates=saturates,
                rank=-1 if saturates else 0,
                emulated=FROM_90 if a.bits == 4 else (),
                rates=rates if shape is shapes[-1] else (),
                meaning=saturating if saturates else None,
            )
            for saturates in (False, True)
            for shape in shapes
        )

    return Family(a, b, s32, "registers", make)


ATOMS = tuple(_family(a, b) for types in ((s8, u8), (s4, u4)) for a, b in product(types, repeat=2))
