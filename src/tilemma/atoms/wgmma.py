"""wgmma.mma_async m64nNk16: a warpgroup multiplies A[64, 16] by B[N, 16] transposed, asynchronously.

B comes from shared memory through a matrix descriptor, A from there (SS) or from registers (RS); the
accumulator is in registers and is updated in place.  PTX ISA, 9.7.15.5.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from tensor_layouts import Layout

from tilemma.atoms.atom import Family, Immediate, MmaAtom, Operand, Rate
from tilemma.dtypes import DType, bf16, f16, f32
from tilemma.layouts import Major

N_FLOAT = tuple(range(8, 257, 8))
_H100 = "NVIDIA H100 whitepaper: 989 TFLOP/s = 132 SMs x 1.83 GHz x 2 x 2048"
_BOTH: tuple[Major, ...] = ("K", "MN")

# Written 1, the accumulator is read; written 0, D = A x B whatever the registers held.
_SCALE_D = Immediate("scale_d", (0, 1), 1, predicate=True)
_SIGNS = (Immediate("scale_a", (-1, 1), 1), Immediate("scale_b", (-1, 1), 1))
_TRANS_A = Immediate("trans_a", (0, 1), 0)
_TRANS_B = Immediate("trans_b", (0, 1), 0)


@cache
def accumulator_layout(n: int) -> Layout:
    """Warp w holds rows 16w to 16w + 15; within them, every 16x8 block is an m16n8 accumulator."""
    return Layout(((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512)))


@cache
def register_a_layout(k: int, per_register: int) -> Layout:
    """Warp w holds rows 16w to 16w + 15 of A as an mma.sync m16 fragment."""
    return Layout(((4, 8, 4), (per_register, 2, 2)), ((64 * per_register, 1, 16), (64, 8, 64 * 4 * per_register)))


@cache
def _accumulator(name: str, t: DType, n: int) -> Operand:
    return Operand(
        name,
        t,
        (64, n),
        accumulator_layout(n),
        registers=n // 2 * t.bits // 32,
        register="f32" if t is f32 else "b32",
    )


def _record(n: int, operand: DType, accumulator: DType, a_from: str) -> MmaAtom:
    k = 256 // operand.bits
    letters = "".join(t.ptx.upper() for t in (accumulator, operand, operand))
    types = ".".join(t.ptx for t in (accumulator, operand, operand))
    if a_from == "S":
        a = Operand("A", operand, (64, k), None, registers=1, register="b64", majors=_BOTH)
        immediates: tuple[Immediate, ...] = (_SCALE_D, *_SIGNS, _TRANS_A, _TRANS_B)
    else:
        a = Operand("A", operand, (64, k), register_a_layout(k, 32 // operand.bits), registers=4, register="b32")
        immediates = (_SCALE_D, *_SIGNS, _TRANS_B)
    holes = ", ".join("{" + i.name + "}" for i in immediates)
    return MmaAtom(
        name=f"SM90_64x{n}x{k}_{letters}_{a_from}S",
        kind="wgmma",
        threads=128,
        arch="sm_90a",
        ptx_version=(8, 0),
        section="PTX ISA, 9.7.15.5.2, wgmma.mma_async",
        ptx=f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {{d}}, {{a}}, {{b}}, {holes};",
        immediates=immediates,
        shape=(64, n, k),
        d=_accumulator("D", accumulator, n),
        a=a,
        b=Operand("B", operand, (n, k), None, registers=1, register="b64", majors=_BOTH),
        c=_accumulator("C", accumulator, n),
        asynchronous=True,
        in_place=True,
        # Measured: reached from N = 64 up with A in shared memory, from N = 32 up with A in registers.
        rates=(Rate("sm_90a", 2048, _H100),),
    )


def _family(operand: DType, accumulator: DType, a_from: Literal["registers", "shared"]) -> Family:
    letter = {"registers": "R", "shared": "S"}[a_from]
    return Family(
        operand,
        operand,
        accumulator,
        a_from,
        lambda: tuple(_record(n, operand, accumulator, letter) for n in N_FLOAT),
    )


_SOURCES: tuple[Literal["shared", "registers"], ...] = ("shared", "registers")
ATOMS = tuple(_family(t, acc, a_from) for t, acc in ((f16, f16), (f16, f32), (bf16, f32)) for a_from in _SOURCES)
