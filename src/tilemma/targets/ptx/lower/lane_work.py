"""Lowering of warp-wide operations on the registers of single lanes: `mma` of fragments, `shfl`, `vote`."""

from __future__ import annotations

from tilemma.atoms import MmaAtom, Operand, catalogue
from tilemma.ir import tile
from tilemma.ir.expr import const
from tilemma.ir.lane import AtomInstr, Imm, Mem, Reg, Vec
from tilemma.ir.types import View
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import register, register_type
from tilemma.targets.ptx.lower.expressions import linear, predicate, scalar
from tilemma.targets.ptx.lower.fragments import pack, placed, unpack
from tilemma.targets.ptx.lower.memory import place


@lowers(tile.LaneMma)
def lower_lane_mma(lo: Lowering, op: tile.LaneMma) -> None:
    """Every access is of one element at a constant address: then ptxas keeps the values in registers."""
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom)
    e = lo.e
    a, b, c = (_loaded(lo, view, atom.operands[x]) for x, view in (("A", op.a), ("B", op.b), ("C", op.c)))
    d = c if atom.in_place else e.regs("d", atom.d.register, atom.d.registers, mutable=True)
    meta: tuple[Reg, ...] = ()
    if op.e is not None:
        meta = (e.reg("metadata", "b32", mutable=True),)
        e.do("ld.local.b32", meta, (_element(lo, op.e, 0),))
    scales = [view for view in (op.sfa, op.sfb) if view is not None]
    words = e.regs("scales", "b32", len(scales), mutable=True)
    for word, view in zip(words, scales, strict=True):
        e.do("ld.local.b32", (word,), (_element(lo, view, 0),))
    e.add(AtomInstr(atom.name, d, a, b, c, e=meta, scales=words, span=e.span))
    for r, reg in enumerate(d):
        for v, value in enumerate(_separate(lo, reg, atom.d)):
            bits = atom.d.dtype.bits
            e.do(f"st.local.b{bits}", (), (_element(lo, op.d, r * atom.d.pack + v), value))


def _loaded(lo: Lowering, view: View, operand: Operand) -> tuple[Reg, ...]:
    """The lane's values in registers of the instruction, the first in the lowest bits; packed ones by bytes."""
    e, found = lo.e, []
    dtype, count = view.dtype, operand.pack // operand.dtype.per_byte
    kind = operand.register if count == 1 else "b16" if dtype.bits == 16 else "s32"
    load = f"ld.local.u{dtype.bits}" if dtype.bits == 8 else f"ld.local.b{dtype.bits}"
    for r in range(operand.registers):
        parts = e.regs("held", kind, count, mutable=True)
        for v, part in enumerate(parts):
            e.do(load, (part,), (_element(lo, view, r * count + v),))
        whole = parts[0] if count == 1 else pack(lo, list(parts), dtype)
        found.append(placed(lo, whole, operand))
    return tuple(found)


def _separate(lo: Lowering, reg: Reg, operand: Operand) -> list[Reg]:
    return [reg] if operand.pack == 1 else unpack(lo, reg, operand.dtype)


def _element(lo: Lowering, view: View, value: int) -> Mem:
    return place(lo, view.element((const(value),)), ()).address


# The greatest source lane, or for `up` the least (PTX ISA, shfl.sync: the clamp).
_MODES = {"shfl_xor": ("bfly", 31), "shfl_up": ("up", 0), "shfl_down": ("down", 31), "shfl_idx": ("idx", 31)}


@lowers(tile.Exchange)
def lower_exchange(lo: Lowering, op: tile.Exchange) -> None:
    e = lo.e
    target = lo.variables[op.result.name]
    if op.name == "ballot":
        holds = predicate(lo, op.value)
        if isinstance(holds, bool):
            holds = e.pure("setp.ne.s32", "pred", Imm(int(holds)), Imm(0), hint="holds")
        votes = e.reg("votes", "b32", mutable=True)
        e.do("vote.sync.ballot.b32", (votes,), (holds, Imm(-1, "b32")))
        assign(lo, target, votes)
        return
    assert op.lane is not None
    mode, clamp = _MODES[op.name]
    lane = e.value(linear(lo, op.lane))
    value = register(e, scalar(lo, op.value), op.value.type)
    words = _as_words(lo, value)
    for word in words:
        e.do(f"shfl.sync.{mode}.b32", (word,), (word, lane, Imm(clamp), Imm(-1, "b32")))
    assign(lo, target, _from_words(lo, words, register_type(op.value.type)))


def _as_words(lo: Lowering, value: Reg) -> tuple[Reg, ...]:
    """``value`` in registers of 32 bits, which `shfl` moves."""
    e = lo.e
    words = e.regs("word", "b32", 2 if value.type in ("f64", "s64", "u64", "b64") else 1, mutable=True)
    if value.type == "pred":
        e.do("selp.b32", words, (Imm(1), Imm(0), value))
    elif value.type == "b16":
        e.do("mov.b32", words, (Vec((value, value)),))
    else:
        e.do(f"mov.b{32 * len(words)}", (Vec(words),) if len(words) == 2 else words, (value,))
    return words


def _from_words(lo: Lowering, words: tuple[Reg, ...], kind: str) -> Reg:
    e = lo.e
    made = e.reg("other", kind, mutable=True)
    if kind == "pred":
        e.do("setp.ne.s32", (made,), (words[0], Imm(0)))
    elif kind == "b16":
        upper = e.reg("upper", "b16", mutable=True)
        e.do("mov.b32", (Vec((made, upper)),), words)
    else:
        e.do(f"mov.b{32 * len(words)}", (made,), (Vec(words),) if len(words) == 2 else words)
    return made
