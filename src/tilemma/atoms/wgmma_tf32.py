"""wgmma.mma_async of tf32: K-major only."""

from __future__ import annotations

from tilemma.atoms.warpgroup import N_FLOAT, families, h100
from tilemma.dtypes import f32, tf32

ATOMS = tuple(families((f32, tf32, tf32), N_FLOAT, h100(1024, 495)))
