"""mma.sync of 8-, 6- and 4-bit floats in bytes (`.kind::f8f6f4`), types mixed freely, into f32 or f16: sm_120a."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.atom import Family
from tilemma.atoms.kinds import CONTAINED, of_kind
from tilemma.dtypes import f16, f32

ATOMS = tuple(
    Family(a, b, d, "registers", lambda d=d, a=a, b=b: (of_kind("f8f6f4", (d, a, b)),))  # type: ignore[misc]
    for d, a, b in product((f32, f16), CONTAINED, CONTAINED)
)
