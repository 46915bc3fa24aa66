"""Builders of the records of wgmma.mma_async: a warpgroup multiplies A[64, K] by B[N, K] transposed,
asynchronously.

B comes from shared memory through a matrix descriptor, A from there (SS) or from registers (RS); the
accumulator is in registers and is updated in place.  K is 32 bytes.  PTX ISA, 9.7.15.5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Literal

from tensor_layouts import Layout

from tilemma.atoms.atom import Immediate, Meaning, MmaAtom, Operand, Rate
from tilemma.atoms.family import Family
from tilemma.atoms.warp import Version, letters
from tilemma.dtypes import DType
from tilemma.layouts import Major

Source = Literal["registers", "shared"]
SOURCES: tuple[Source, ...] = ("shared", "registers")

# PTX ISA, 9.7.15.2.  The text leaves out 240 and 256 for integers; ptxas and CUTLASS have them.
N_FLOAT = tuple(range(8, 257, 8))
N_INTEGER = (8, 16, 24, *range(32, 257, 16))

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
def register_a_layout(per_register: int) -> Layout:
    """Warp w holds rows 16w to 16w + 15 of A as an mma.sync m16 fragment of four registers."""
    values = ((per_register, 2, 2), (64, 8, 64 * 4 * per_register))
    return Layout(((4, 8, 4), values[0]), ((64 * per_register, 1, 16), values[1]))


@cache
def _accumulator(name: str, t: DType, n: int) -> Operand:
    register = "f32" if t.name == "f32" else "b32"
    return Operand(name, t, (64, n), accumulator_layout(n), n // 2 * t.bits // 32, register)


def majors_of(t: DType) -> tuple[Major, ...]:
    """The majornesses that a descriptor may have for ``t``: only 16-bit elements are transposed."""
    return ("K", "MN") if t.bits == 16 else ("K",)


def immediates_of(t: DType, a_from: Source) -> tuple[Immediate, ...]:
    """The immediates of the instruction: signs for floats, majornesses for 16-bit floats."""
    signs = _SIGNS if t.is_float else ()
    trans = () if t.bits != 16 else (_TRANS_B,) if a_from == "registers" else (_TRANS_A, _TRANS_B)
    return (_SCALE_D, *signs, *trans)


def wgmma(
    n: int,
    types: tuple[DType, DType, DType],
    a_from: Source,
    *,
    version: Version = (8, 0),
    saturates: bool = False,
    operation: str = "",
    rates: tuple[Rate, ...] = (),
    rank: int = 0,
    meaning: Meaning | None = None,
) -> MmaAtom:
    """The record of m64n``n`` with ``types`` (D, A, B)."""
    d, a, b = types
    k = 256 // a.bits
    if a_from == "shared":
        left = Operand("A", a, (64, k), None, registers=1, register="b64", majors=majors_of(a))
    else:
        left = Operand("A", a, (64, k), register_a_layout(32 // a.bits), registers=4, register="b32")
    immediates = immediates_of(a, a_from)
    holes = ", ".join("{" + i.name + "}" for i in immediates)
    # CuTe states the majorness only of operands that have a choice.
    suffix = ("" if a.bits == 16 else "_TN") + ("_SATURATE" if saturates else "")
    form = f"m64n{n}k{k}.{d.ptx}.{a.ptx}.{b.ptx}{'.satfinite' if saturates else ''}{operation}"
    return MmaAtom(
        name=f"SM90_64x{n}x{k}_{letters((d, a, b))}_{'S' if a_from == 'shared' else 'R'}S{suffix}",
        kind="wgmma",
        threads=128,
        arch="sm_90a",
        ptx_version=version,
        section="PTX ISA, 9.7.15.5.2, wgmma.mma_async",
        ptx=f"wgmma.mma_async.sync.aligned.{form} {{d}}, {{a}}, {{b}}, {holes};",
        immediates=immediates,
        shape=(64, n, k),
        d=_accumulator("D", d, n),
        a=left,
        b=Operand("B", b, (n, k), None, registers=1, register="b64", majors=majors_of(b)),
        c=_accumulator("C", d, n),
        asynchronous=True,
        in_place=True,
        # Measured for f16: reached from N = 64 up with A in shared memory, from N = 32 up with A in registers.
        rates=rates,
        rank=rank,
        meaning=meaning,
    )


def h100(fma: int, flops: int, unit: str = "TFLOP/s") -> tuple[Rate, ...]:
    """The peak of the whitepaper as multiply-adds per SM and clock."""
    source = f"NVIDIA H100 whitepaper: {flops} {unit} = 132 SMs x 1.83 GHz x 2 x {fma}"
    return (Rate("sm_90a", fma, source),)


def families(types: tuple[DType, DType, DType], widths: tuple[int, ...], rates: tuple[Rate, ...]) -> list[Family]:
    """SS and RS of ``types`` (D, A, B), each width a family of its own: few are ever asked for."""
    d, a, b = types

    def make(n: int, a_from: Source) -> tuple[MmaAtom, ...]:
        return (wgmma(n, types, a_from, rates=rates),)

    return [Family(a, b, d, a_from, partial(make, n, a_from), n) for a_from in SOURCES for n in widths]


def family(
    types: tuple[DType, DType, DType], a_from: Source, make: Callable[[Source], tuple[MmaAtom, ...]]
) -> Family:
    """The records that ``make`` gives for ``a_from``, made together."""
    d, a, b = types
    return Family(a, b, d, a_from, lambda: make(a_from))
