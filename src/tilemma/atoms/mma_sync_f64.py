"""mma.sync of f64: m8n8k4 from sm_80 on, m16n8 from sm_90 on; 64-bit registers hold an element each."""

from __future__ import annotations

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import FROM_100, dense
from tilemma.dtypes import f64

_A100 = Rate("sm_80", 64, "NVIDIA A100 whitepaper: 19.5 TFLOP/s = 108 SMs x 1.41 GHz x 2 x 64")
_H100 = Rate("sm_90", 128, "NVIDIA H100 whitepaper: 66.9 TFLOP/s = 132 SMs x 1.98 GHz x 2 x 128")


def _make() -> tuple[MmaAtom, ...]:
    types = (f64, f64, f64)
    small = dense((8, 8, 4), types, arch="sm_80", version=(7, 0), rates=(_A100,))
    return (
        small,
        *(
            dense(
                (16, 8, k),
                types,
                arch="sm_90",
                version=(7, 8),
                emulated=FROM_100,
                rates=(_H100,) if k == 16 else (),
            )
            for k in (4, 8, 16)
        ),
    )


ATOMS = (Family(f64, f64, f64, "registers", _make),)
