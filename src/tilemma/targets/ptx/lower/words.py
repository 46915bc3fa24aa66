"""Conversion and packing of a fragment's values into the registers of a vector store."""

from __future__ import annotations

from tilemma.dtypes import DType
from tilemma.ir.lane import Reg
from tilemma.targets.ptx.lower.context import Lowering, RegisterTile
from tilemma.targets.ptx.lower.convert import convert, pack_pair, register
from tilemma.targets.ptx.lower.fragments import pack, unpack


def words_of(
    lo: Lowering, found: RegisterTile, atom: tuple[int, int], values: range, want: DType
) -> list[Reg] | None:
    """The values of a run, converted and packed into registers of 32 (or 64) bits in memory order; None if they do
    not fill whole registers."""
    regs, have = found.regs[atom], found.plan.dtype
    bits = want.bits * len(values)
    if have == want:
        per = max(1, 32 // have.bits)
        if values.start % per == 0 and len(values) % per == 0:
            return [regs[v // per] for v in range(values.start, values.stop, per)]
    if bits % 32:
        return None
    scalars = [scalar_of(lo, found, atom, v) for v in values]
    if want.bits >= 32:
        return [register(lo.e, convert(lo.e, s, have, want, lo.arch), want) for s in scalars]
    out: list[Reg] = []
    per = 32 // want.bits
    for i in range(0, len(scalars), per):
        group = scalars[i : i + per]
        packed = pack_pair(lo.e, group[0], group[1], have, want, lo.arch) if per == 2 else None
        if packed is None:
            single = [register(lo.e, convert(lo.e, s, have, want, lo.arch), want) for s in group]
            packed = pack(lo, single, want)
        out.append(packed)
    return out


def scalar_of(lo: Lowering, found: RegisterTile, atom: tuple[int, int], value: int) -> Reg:
    dtype = found.plan.dtype
    per = max(1, 32 // dtype.bits)
    return unpack(lo, found.regs[atom][value // per], dtype)[value % per]
