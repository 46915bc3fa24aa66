"""wgmma.mma_async of 8-bit floats, types mixed freely: K-major only."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.warpgroup import N_FLOAT, families, h100
from tilemma.dtypes import e4m3, e5m2, f16, f32

ATOMS = tuple(
    family
    for a, b in product((e4m3, e5m2), repeat=2)
    for acc in (f32, f16)
    for family in families((acc, a, b), N_FLOAT, h100(4096, 1979))
)
