"""mma.sync of single bits into s32: the number of ones of ``a & b`` along K, or of ``a ^ b`` (`_XORPOPC`).

The first is the product of matrices of 0 and 1, which `mma` means.  The second counts differences; a program asks
for it by name.  From sm_90 on ptxas makes two of the first and a call of it, from
sm_100 on products of bytes of either.
"""

from __future__ import annotations

from tilemma.atoms.atom import MmaAtom, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.meanings import differences
from tilemma.atoms.warp import FROM_90, FROM_100, Shape, dense
from tilemma.dtypes import b1, s32

_A100 = Rate("sm_80", 16384, "NVIDIA A100 whitepaper: 4992 TOP/s = 108 SMs x 1.41 GHz x 2 x 16384")


def _record(shape: Shape, bitop: str) -> MmaAtom:
    old = shape[0] == 8 and bitop == "xor"
    return dense(
        shape,
        (s32, b1, b1),
        arch="sm_75" if old else "sm_80",
        version=(7, 1) if bitop == "and" else (7, 0),
        bitop=bitop,
        rank=-1 if bitop == "xor" else 0,
        emulated=FROM_90 if bitop == "xor" else FROM_100,
        rates=(_A100,) if shape[2] == 256 else (),
        meaning=differences if bitop == "xor" else None,
    )


def _make() -> tuple[MmaAtom, ...]:
    shapes = ((8, 8, 128), (16, 8, 128), (16, 8, 256))
    return tuple(_record(shape, bitop) for bitop in ("and", "xor") for shape in shapes)


ATOMS = (Family(b1, b1, s32, "registers", _make),)
