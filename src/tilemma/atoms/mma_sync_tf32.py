"""mma.sync m16n8 of tf32.  The instruction ignores the lower 13 bits of each 32-bit element (PTX ISA, 5.2.3)."""

from __future__ import annotations

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import dense
from tilemma.dtypes import f32, tf32

_RATES = (
    Rate("sm_80", 512, "NVIDIA A100 whitepaper: 156 TFLOP/s = 108 SMs x 1.41 GHz x 2 x 512"),
    Rate("sm_86", 128, "NVIDIA GA102 whitepaper, RTX 3090: 35.6 TFLOP/s = 82 SMs x 1.695 GHz x 2 x 128"),
    Rate("sm_89", 128, "NVIDIA Ada whitepaper, RTX 4090: 82.6 TFLOP/s = 128 SMs x 2.52 GHz x 2 x 128"),
)


def _make() -> tuple[MmaAtom, ...]:
    return tuple(
        dense((16, 8, k), (f32, tf32, tf32), arch="sm_80", version=(7, 0), rates=_RATES if k == 8 else ())
        for k in (4, 8)
    )


ATOMS = (Family(tf32, tf32, f32, "registers", _make),)
