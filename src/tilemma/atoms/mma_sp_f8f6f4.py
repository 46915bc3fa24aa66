"""mma.sp of 8-, 6- and 4-bit floats in bytes (`.kind::f8f6f4`) into f32 or f16, and of two 8-bit floats into f16
without a kind: sm_120a."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import Family
from tilemma.atoms.kinds import CONTAINED, of_kind, without_kind
from tilemma.dtypes import e4m3, e5m2, f16, f32

ATOMS = (
    *(
        Family(a, b, d, "registers", lambda d=d, a=a, b=b: (of_kind("f8f6f4", (d, a, b), sparse=True),))  # type: ignore[misc]
        for d, a, b in product((f32, f16), CONTAINED, CONTAINED)
    ),
    *(
        Family(a, b, f16, "registers", lambda a=a, b=b: (without_kind(a, b),))  # type: ignore[misc]
        for a, b in product((e4m3, e5m2), repeat=2)
    ),
)
