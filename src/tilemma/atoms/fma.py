"""Products on the CUDA cores: fma and mad, one multiply-add a lane, for types that no tensor core multiplies
exactly.

A warp computes an 8x4 tile of C, an element a lane. The lanes of a row share an element of A, those of a column
one of B.
"""

from __future__ import annotations

from tensor_layouts import Layout

from tilemma.atoms.atom import MmaAtom, Operand, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import letters, register_of
from tilemma.dtypes import DType, f32, f64, s32

_GUIDE = "CUDA C++ Programming Guide, throughput of native arithmetic instructions"
# Lane l computes row l // 4, column l % 4.
_TILE = Layout(((4, 8), 1), ((8, 1), 0))
_ROW, _COLUMN = Layout(((4, 8), 1), ((0, 1), 0)), Layout(((4, 8), 1), ((1, 0), 0))


def _operand(name: str, t: DType, shape: tuple[int, int], layout: Layout) -> Operand:
    return Operand(
        name, t, shape, layout, 1, register_of(t, accumulator=True), shared_by=32 // shape[0] // shape[1]
    )


def _record(t: DType, mnemonic: str, rates: dict[str, int], section: str) -> MmaAtom:
    return MmaAtom(
        name=f"FMA_8x4x1_{letters((t, t, t, t))}",
        kind="fma",
        threads=32,
        arch="sm_75",
        ptx_version=(6, 3),
        section=f"PTX ISA, {section}",
        ptx=f"{mnemonic} {{d}}, {{a}}, {{b}}, {{c}};",
        shape=(8, 4, 1),
        d=_operand("D", t, (8, 4), _TILE),
        a=_operand("A", t, (8, 1), _ROW),
        b=_operand("B", t, (4, 1), _COLUMN),
        c=_operand("C", t, (8, 4), _TILE),
        rates=tuple(Rate(arch, fma, _GUIDE) for arch, fma in rates.items()),
    )


def _family(t: DType, mnemonic: str, rates: dict[str, int], section: str) -> Family:
    return Family(t, t, t, "registers", lambda: (_record(t, mnemonic, rates, section),))


ATOMS = (
    _family(
        f32, "fma.rn.f32", {"sm_75": 64, "sm_80": 64, "sm_86": 128, "sm_89": 128, "sm_90": 128}, "9.7.3.6, fma"
    ),
    _family(f64, "fma.rn.f64", {"sm_75": 2, "sm_80": 32, "sm_86": 2, "sm_89": 2, "sm_90": 64}, "9.7.3.6, fma"),
    _family(s32, "mad.lo.s32", {"sm_75": 64, "sm_80": 64, "sm_86": 64, "sm_89": 64, "sm_90": 64}, "9.7.1.4, mad"),
)
