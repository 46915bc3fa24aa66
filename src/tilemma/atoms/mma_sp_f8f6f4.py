"""mma.sp of 8-, 6- and 4-bit floats in bytes (`.kind::f8f6f4`) into f32 or f16, and of two 8-bit floats into f16
without a kind: sm_120a."""

from __future__ import annotations

from functools import partial
from itertools import product

from tilemma.atoms.atom import MmaAtom
from tilemma.atoms.family import Family
from tilemma.atoms.kinds import CONTAINED, of_kind, without_kind
from tilemma.dtypes import DType, e4m3, e5m2, f16, f32


def _of_kind(d: DType, a: DType, b: DType) -> tuple[MmaAtom, ...]:
    return (of_kind("f8f6f4", (d, a, b), sparse=True),)


def _without_kind(a: DType, b: DType) -> tuple[MmaAtom, ...]:
    return (without_kind(a, b),)


ATOMS = (
    *(
        Family(a, b, d, "registers", partial(_of_kind, d, a, b))
        for d, a, b in product((f32, f16), CONTAINED, CONTAINED)
    ),
    *(Family(a, b, f16, "registers", partial(_without_kind, a, b)) for a, b in product((e4m3, e5m2), repeat=2)),
)
