"""mma.sync m8n8k4 of f16, the form of Volta: four products of 8x8x4, one for each pair of quads of a warp.

PTX ISA, 9.7.14.5.1. Lanes 4q to 4q + 3 and 4q + 16 to 4q + 19 are quad pair q; each pair has operands and an
accumulator of its own. A record is a product of 16x16x4 by the whole warp: quad pair q computes the rows from
8 * (q % 2) and the columns from 8 * (q // 2), so that two pairs hold each element of A, and two each of B.

Each operand may lie along K or across it. From sm_80 on, ptxas emulates the instruction by
shuffles and multiply-adds of the CUDA cores (seen in SASS of ptxas 13.5): programs use these records by name only.
Those that add f16 to a product in f32 are here for pictures, proofs and readers of PTX: a program's sums have one
type.
"""

from __future__ import annotations

import itertools

from tensor_layouts import Layout

from tilemma.atoms.atom import MmaAtom, Operand
from tilemma.atoms.family import Family
from tilemma.atoms.warp import FROM_90, letters, register_of
from tilemma.dtypes import DType, f16, f32

_M, _N, _K = 16, 16, 4
# The bits of a lane: its place in the quad (4), the quad pair (2 along M, 2 along N), the upper half of the pair.
_LANES = (4, 2, 2, 2)


def _operand(name: str, along_k: bool) -> Operand:
    """A [16, 4] or B [16, 4]: a lane has 4 elements of one row along K, or of one column across it."""
    pair = (8, 0) if name == "A" else (0, 8)
    lane, value = (1, _M) if along_k else (_M, 1)
    layout = Layout((_LANES, 4), ((lane, *pair, 4), value))
    return Operand(name, f16, (_M, _K), layout, 2, register_of(f16), shared_by=2)


def _accumulator(name: str, t: DType) -> Operand:
    pair = (8, 8 * _M)
    if t is f16:
        layout = Layout((_LANES, 8), ((1, *pair, 4), _M))
    else:
        layout = Layout(((2, 2, 2, 2, 2), (2, 2, 2)), ((1, 2 * _M, *pair, 4), (_M, 2, 4 * _M)))
    return Operand(name, t, (_M, _N), layout, 8 * t.bits // 32, register_of(t, accumulator=True))


def _record(t: DType, c: DType, a_along_k: bool, b_along_k: bool) -> MmaAtom:
    # CuTe, as BLAS: A along K is T, across it N; B along K is N, across it T.
    majors = ("T" if a_along_k else "N") + ("N" if b_along_k else "T")
    order = f"{'row' if a_along_k else 'col'}.{'col' if b_along_k else 'row'}"
    return MmaAtom(
        name=f"SM70_8x8x4_{letters((t, f16, f16, c))}_{majors}",
        kind="mma.sync",
        threads=32,
        arch="sm_75",
        ptx_version=(6, 4),
        section="PTX ISA, 9.7.14.5.1, Matrix Fragments for mma.m8n8k4 with .f16 floating point type",
        ptx=f"mma.sync.aligned.m8n8k4.{order}.{t.ptx}.f16.f16.{c.ptx} {{d}}, {{a}}, {{b}}, {{c}};",
        shape=(_M, _N, _K),
        d=_accumulator("D", t),
        a=_operand("A", a_along_k),
        b=_operand("B", b_along_k),
        c=_accumulator("C", c),
        rank=-1,
        emulated=("sm_80", "sm_86", "sm_89", *FROM_90),
    )


def _family(t: DType) -> Family:
    # The one instruction whose C may be of another type than D: f16 under f32.
    addends = (f16, f32) if t is f32 else (f16,)
    majors = (True, False)

    def make() -> tuple[MmaAtom, ...]:
        return tuple(_record(t, *x) for x in itertools.product(addends, majors, majors))

    return Family(f16, f16, t, "registers", make, by_name=True)


ATOMS = tuple(map(_family, (f16, f32)))
