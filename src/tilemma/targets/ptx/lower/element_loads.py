"""Loading one element of a view into a register of its type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilemma.ir.lane import Imm, Reg
from tilemma.ir.types import Space, View
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.convert import register_type
from tilemma.targets.ptx.lower.linear import Linear
from tilemma.targets.ptx.lower.memory import Place, place

# Loaded values that the CSE table keeps for another use: more of them would need too many registers.
_CSE_LOADS = 4
_LOADS = {8: "b8", 16: "b16", 32: "b32", 64: "b64"}


def load_element(lo: Lowering, src: View, index: Sequence[Linear]) -> Reg:
    """One element in a register of its type; zero outside a parameter's bounds."""
    e = lo.e
    t = src.dtype
    spot = place(lo, src, index)
    spot = replace(spot, valid=e.both(spot.valid, lo.guard))
    if t.kind == "bool":
        raw = e.reg("flag", "s32", mutable=True)
        _guarded(lo, raw, "u8", spot)
        return e.pure("setp.ne.s32", "pred", raw, Imm(0), hint="flag")
    kind = register_type(t)
    known = lo.cse_loads if src.base.space is Space.GLOBAL else None
    place_read = (spot.address, spot.valid, t)
    if known is not None and place_read in known:
        return known[place_read]
    reg = e.reg("element", kind, mutable=spot.valid is not True)
    suffix = f"{'s' if t.kind == 'int' else 'u'}{t.bits}" if not t.is_float and t.bits < 32 else _LOADS[t.bits]
    _guarded(lo, reg, suffix, spot)
    if known is not None:
        if len(known) >= _CSE_LOADS:
            del known[next(iter(known))]
        known[place_read] = reg
    return reg


def _guarded(lo: Lowering, reg: Reg, suffix: str, spot: Place) -> None:
    e = lo.e
    if spot.valid is True:
        e.do(f"ld.{spot.space}.{suffix}", (reg,), (spot.address,))
        return
    zero: int | float = 0.0 if reg.type in ("f32", "f64") else 0
    e.do(f"mov.{_mov(reg)}", (reg,), (Imm(zero, reg.type),))
    if isinstance(spot.valid, Reg):
        e.do(f"ld.{spot.space}.{suffix}", (reg,), (spot.address,), guard=spot.valid)


def _mov(reg: Reg) -> str:
    return {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}.get(reg.type, reg.type)
