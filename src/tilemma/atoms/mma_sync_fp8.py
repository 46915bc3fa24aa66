"""mma.sync of 8-bit floats, types mixed freely, into f32 or f16.  On sm_90 and sm_100 ptxas converts the operands
to f16 and multiplies those."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import NO_FP8, dense
from tilemma.dtypes import DType, e4m3, e5m2, f16, f32

_AD10X = "NVIDIA Ada whitepaper, RTX 4090: 330 (f32) and 660 (f16) TFLOP/s = 128 SMs x 2.52 GHz x 2 x 512 and 1024"


def _family(a: DType, b: DType, acc: DType) -> Family:
    def make() -> tuple[MmaAtom, ...]:
        rate = Rate("sm_89", 512 if acc is f32 else 1024, _AD10X)
        return tuple(
            dense(
                (16, 8, k),
                (acc, a, b),
                arch="sm_89",
                version=(8, 4) if (k, acc) == (32, f32) else (8, 7),
                emulated=NO_FP8,
                rates=(rate,) if k == 32 else (),
            )
            for k in (16, 32)
        )

    return Family(a, b, acc, "registers", make)


ATOMS = tuple(_family(a, b, acc) for a, b in product((e4m3, e5m2), repeat=2) for acc in (f32, f16))
