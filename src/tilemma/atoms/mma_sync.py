"""mma.sync m16n8: one warp multiplies A[16, K] by B[8, K] transposed; both operands in registers, K-major.

PTX ISA, 9.7.14.5, "Matrix fragments for mma.m16n8k8 / m16n8k16": in registers of 32 bits, lane l holds row
l // 4 (and 8 below), and of each row the l % 4-th group of 32 bits.
"""

from __future__ import annotations

from tensor_layouts import Layout

from tilemma.atoms.atom import MmaAtom, Operand, Rate
from tilemma.dtypes import DType, bf16, f16, f32

_A100 = "NVIDIA A100 whitepaper: 312 TFLOP/s = 108 SMs x 1.41 GHz x 2 x 1024"
_GA10X = "NVIDIA GA102 whitepaper, RTX 3090: 71 (f32) and 142 (f16) TFLOP/s = 82 SMs x 1.695 GHz x 2 x 256 and 512"
_AD10X = "NVIDIA Ada whitepaper, RTX 4090: 165 (f32) and 330 (f16) TFLOP/s = 128 SMs x 2.52 GHz x 2 x 256 and 512"


def fragment(rows: int, cols: int, per_register: int) -> Layout:
    """The (thread, value) layout of a warp's fragment of ``rows`` x ``cols``, ``per_register`` elements packed.

    Values run along the row within a register, then to the row 8 below (where there is one), then to the
    next 16 bytes of the row.
    """
    lanes = ((4, 8), (per_register * rows, 1))
    values: tuple[list[int], list[int]] = ([per_register], [rows])
    if rows == 16:
        values[0].append(2)
        values[1].append(8)
    if cols > 4 * per_register:
        values[0].append(cols // (4 * per_register))
        values[1].append(4 * per_register * rows)
    shape = values[0][0] if len(values[0]) == 1 else tuple(values[0])
    stride = values[1][0] if len(values[1]) == 1 else tuple(values[1])
    return Layout((lanes[0], shape), (lanes[1], stride))


def _accumulator(name: str, t: DType) -> Operand:
    # Two neighbouring columns a lane whatever the type: an f32 pair takes two registers, an f16 pair one.
    return Operand(
        name, t, (16, 8), fragment(16, 8, 2), registers=4 * t.bits // 32, register="f32" if t is f32 else "b32"
    )


def _record(k: int, operand: DType, accumulator: DType) -> MmaAtom:
    letters = "".join(t.ptx.upper() for t in (accumulator, operand, operand, accumulator))
    types = ".".join(t.ptx for t in (accumulator, operand, operand, accumulator))
    pack = 32 // operand.bits
    wide = accumulator is f32
    return MmaAtom(
        name=f"SM80_16x8x{k}_{letters}_TN",
        kind="mma.sync",
        threads=32,
        # m16n8k8 on f16 alone runs on sm_75 already; the catalogue starts at sm_80.
        arch="sm_80",
        ptx_version=(7, 0),
        section=f"PTX ISA, 9.7.14.5.{7 if k == 8 else 8}, Matrix Fragments for mma.m16n8k{k}",
        ptx=f"mma.sync.aligned.m16n8k{k}.row.col.{types} {{d}}, {{a}}, {{b}}, {{c}};",
        shape=(16, 8, k),
        d=_accumulator("D", accumulator),
        a=Operand("A", operand, (16, k), fragment(16, k, pack), registers=k // 4, register="b32"),
        b=Operand("B", operand, (8, k), fragment(8, k, pack), registers=k // 8, register="b32"),
        c=_accumulator("C", accumulator),
        # The whitepapers' peaks are those of the widest instruction.
        rates=(
            Rate("sm_80", 1024, _A100),
            Rate("sm_86", 256 if wide else 512, _GA10X),
            Rate("sm_89", 256 if wide else 512, _AD10X),
        )
        if k == 16
        else (),
    )


ATOMS = tuple(_record(k, t, acc) for t, acc in ((f16, f16), (f16, f32), (bf16, f32)) for k in (8, 16))
