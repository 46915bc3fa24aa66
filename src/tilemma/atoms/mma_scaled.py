"""mma.sync and mma.sp with scales of blocks along K: mxf8f6f4, mxf4 and mxf4nvf4 of sm_120a, by name only."""

from __future__ import annotations

from itertools import product

from tilemma.atoms.family import Family
from tilemma.atoms.kinds import CONTAINED, PACKED, UE4M3, UE8M0, Scales, of_kind
from tilemma.dtypes import DType, f32

_KINDS = (
    *(("mxf8f6f4", a, b, Scales(1, UE8M0)) for a, b in product(CONTAINED, repeat=2)),
    ("mxf4", PACKED, PACKED, Scales(2, UE8M0)),
    ("mxf4nvf4", PACKED, PACKED, Scales(2, UE8M0)),
    *(("mxf4nvf4", PACKED, PACKED, Scales(4, t)) for t in (UE8M0, UE4M3)),
)


def _family(kind: str, a: DType, b: DType, scales: Scales, sparse: bool) -> Family:
    return Family(a, b, f32, "registers", lambda: (of_kind(kind, (f32, a, b), sparse=sparse, scales=scales),))


ATOMS = tuple(_family(*kind, sparse) for sparse in (False, True) for kind in _KINDS)
