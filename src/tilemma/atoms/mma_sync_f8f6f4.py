"""mma.sync of 8-, 6- and 4-bit floats in bytes (`.kind::f8f6f4`), types mixed freely, into f32 or f16: sm_120a."""

from __future__ import annotations

from functools import partial
from itertools import product

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.family import Family
from tilemma.atoms.kinds import CONTAINED, of_kind
from tilemma.dtypes import DType, f16, f32


def _of_kind(d: DType, a: DType, b: DType) -> tuple[MmaAtom, ...]:
    return (of_kind("f8f6f4", (d, a, b)),)


ATOMS = tuple(
    Family(a, b, d, "registers", partial(_of_kind, d, a, b))
    for d, a, b in product((f32, f16), CONTAINED, CONTAINED)
)
