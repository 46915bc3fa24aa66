"""Lowering of `print` (vprintf by one lane of the instance) and `assert` (a message and a trap)."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.ir import tile
from tilemma.ir.expr import Expr
from tilemma.ir.lane import Imm, LanePrint, Reg, Special
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.convert import convert, register
from tilemma.targets.ptx.lower.expressions import predicate, scalar


@lowers(tile.Print)
def lower_print(lo: Lowering, op: tile.Print) -> None:
    """Integers as decimals, floats as C's ``%g`` with enough digits for f32, bool as 0 or 1."""
    e = lo.e
    text, args = "", []
    for part in op.parts:
        if isinstance(part, str):
            text += part.replace("%", "%%")
            continue
        conversion, value = _argument(lo, part)
        text += conversion
        args.append(value)
    if op.newline:
        text += "\n"
    first = lo.elected(lo.instance)
    if isinstance(first, Reg):
        with e.branch(first):
            e.add(LanePrint(text, tuple(args)))
    elif first:
        e.add(LanePrint(text, tuple(args)))


def _argument(lo: Lowering, x: Expr) -> tuple[str, Reg]:
    e, t = lo.e, x.type
    if t.is_float:
        return "%.9g", register(e, convert(e, scalar(lo, x), t, dtypes.f64, lo.arch), dtypes.f64)
    if t.kind == "bool":
        return "%d", register(e, convert(e, scalar(lo, x), t, dtypes.s32, lo.arch), dtypes.s32)
    value = register(e, scalar(lo, x), t)
    if t.bits == 64:
        return ("%llu" if t.kind == "uint" else "%lld"), value
    return ("%u" if t.kind == "uint" else "%d"), value


@lowers(tile.Assert)
def lower_assert(lo: Lowering, op: tile.Assert) -> None:
    """If the condition fails: print the message with its source position once for each warp in which it fails,
    then execute a trap, which ends the launch."""
    e = lo.e
    holds = predicate(lo, op.cond)
    if holds is True:
        return
    where = f"{op.span}: " if op.span is not None else ""
    message = f"{where}assertion failed: {op.message}\n".replace("%", "%%")
    if holds is False:
        holds = e.pure("setp.ne.s32", "pred", Imm(0), Imm(0), hint="holds", uniform=True)
    with e.branch(holds, negate=True):
        failing = e.reg("failing", "b32")
        e.do("activemask.b32", (failing,))
        below = e.pure("and.b32", "b32", failing, e.pure("mov.u32", "b32", Special("%lanemask_lt")))
        with e.branch(e.pure("setp.eq.s32", "pred", below, Imm(0, "b32"), hint="first")):
            e.add(LanePrint(message))
        # The lanes that do not print must not end the launch before the one that does.
        e.do("bar.warp.sync", (), (failing,))
        e.do("trap")
