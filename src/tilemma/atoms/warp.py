"""Builders of the records that one warp executes: lane layouts, names and PTX of mma.sync.

PTX ISA, 9.7.14.5, "Matrix fragments for mma.m16n8k...": in registers of 32 bits, lane l holds row l // 4 (and
8 below), and of each row the l % 4-th group of 32 bits; f64 has a register of 64 bits for each element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from tensor_layouts import Layout

from tilemma.atoms.atom import Meaning, MmaAtom, Operand, Rate
from tilemma.dtypes import DType

Shape = tuple[int, int, int]
Version = tuple[int, int]

# Targets for which ptxas makes several instructions of one (seen in SASS of ptxas 13.5).
FROM_100 = ("sm_100", "sm_103", "sm_120", "sm_120a")
FROM_90 = ("sm_90", "sm_90a", *FROM_100)
NO_FP8 = ("sm_90", "sm_90a", "sm_100", "sm_103")

# PTX ISA, 9.7.14.5: the subsection with the fragments of each shape; m16n8k16 has one for integers too.
_SECTIONS = {
    (8, 8, 4): 2, (8, 8, 16): 3, (8, 8, 32): 4, (8, 8, 128): 5, (16, 8, 4): 6, (16, 8, 8): 7, (16, 8, 16): 8,
    (16, 8, 32): 10, (16, 8, 64): 11, (16, 8, 128): 12, (16, 8, 256): 13,
}  # fmt: skip


@cache
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


def register_of(t: DType, accumulator: bool = False) -> str:
    """The register class of a fragment of ``t``."""
    return "f64" if t.bits == 64 else "f32" if accumulator and t.name == "f32" else "b32"


@cache
def operand(name: str, t: DType, rows: int, cols: int) -> Operand:
    """A or B of ``rows`` x ``cols``: K lies in registers."""
    register = register_of(t)
    registers = rows * cols * t.bits // 32 // max(32, t.bits)
    return Operand(name, t, (rows, cols), fragment(rows, cols, max(1, 32 // t.bits)), registers, register)


@cache
def accumulator(name: str, t: DType, rows: int, cols: int) -> Operand:
    """C or D: two neighbouring columns a lane whatever the type: an f32 pair takes two registers, an f16 pair
    one."""
    registers = rows * cols * t.bits // 32 // max(32, t.bits)
    return Operand(name, t, (rows, cols), fragment(rows, cols, 2), registers, register_of(t, accumulator=True))


def letters(types: Iterable[DType], bit: str = "U1") -> str:
    """Types as CuTe's names have them."""
    return "".join({"b1": bit}.get(t.ptx, t.ptx.upper()) for t in types)


def dense(
    shape: Shape,
    types: tuple[DType, DType, DType],
    *,
    arch: str,
    version: Version,
    saturates: bool = False,
    bitop: str = "",
    rank: int = 0,
    emulated: Sequence[str] = (),
    rates: tuple[Rate, ...] = (),
    meaning: Meaning | None = None,
) -> MmaAtom:
    """The record of a dense mma.sync of ``shape`` (M, N, K) with ``types`` (D and C, A, B)."""
    d, a, b = types
    m, n, k = shape
    section = 9 if shape == (16, 8, 16) and not a.is_float else _SECTIONS[shape]
    suffix = "_SATURATE" if saturates else f"_{bitop.upper()}POPC" if bitop else ""
    after = f".{bitop}.popc" if bitop else ""
    finite = ".satfinite" if saturates else ""
    form = f"m{m}n{n}k{k}.row.col{finite}.{d.ptx}.{a.ptx}.{b.ptx}.{d.ptx}{after}"
    return MmaAtom(
        name=f"{arch.upper().replace('_', '')}_{m}x{n}x{k}_{letters((d, a, b, d))}_TN{suffix}",
        kind="mma.sync",
        threads=32,
        arch=arch,
        ptx_version=version,
        section=f"PTX ISA, 9.7.14.5.{section}, Matrix Fragments for mma.m{m}n{n}k{k}",
        ptx=f"mma.sync.aligned.{form} {{d}}, {{a}}, {{b}}, {{c}};",
        shape=shape,
        d=accumulator("D", d, m, n),
        a=operand("A", a, m, k),
        b=operand("B", b, n, k),
        c=accumulator("C", d, m, n),
        emulated=tuple(emulated),
        rates=rates,
        rank=rank,
        meaning=meaning,
    )
