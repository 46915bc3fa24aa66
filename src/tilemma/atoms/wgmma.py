"""wgmma.mma_async of f16 and bf16, the only types that descriptors read in either majorness."""

from __future__ import annotations

from tilemma.atoms.warpgroup import N_FLOAT, families, h100
from tilemma.dtypes import bf16, f16, f32

ATOMS = tuple(
    family
    for t, acc in ((f16, f16), (f16, f32), (bf16, f32))
    for family in families((acc, t, t), N_FLOAT, h100(2048, 989))
)
