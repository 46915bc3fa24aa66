"""Loads of a main loop ahead of its multiplies, where copies go through registers.

cp.async moves four bytes at least: threads load smaller pieces into registers, and store these to shared
memory.  A loop that multiplies loads the pieces of the next iteration as soon as those of this one are stored, and
they arrive while it multiplies::

    for k:                     load of iteration 0
        load                   for k:
        store; barrier   =>        store; load of iteration k + 1, if there is one
        multiply                   barrier; multiply

Nothing in the loop writes global memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilemma.ir.lane import (
    AtomInstr,
    Comment,
    Coordinates,
    CopyInstr,
    Instr,
    LaneBody,
    LaneFor,
    LaneGuarded,
    LaneIf,
    LaneKernel,
    LaneOp,
    LaneOperand,
    Mem,
    Reg,
    Vec,
)
from tilemma.targets.ptx.lower.interleave_multiplies import is_pure, registers_read, registers_written

# Registers that loaded pieces and sums may have together: others spill.
MOST_REGISTERS = 128
_LOADS = ("ld.global.b", "ld.global.v2.b", "ld.global.v4.b")
# Instructions that neither access global memory nor wait for other threads' accesses of it.
_OTHERS = ("bar.", "barrier.", "st.shared", "ld.shared", "fence.proxy.async", "wgmma.", "cvta.")


def with_loads_ahead(kernel: LaneKernel) -> LaneKernel:
    """``kernel`` with the loads of its main loops an iteration ahead."""
    body = _body(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _body(body: LaneBody) -> LaneBody:
    out: list[LaneOp] = []
    for op in body:
        if isinstance(op, LaneIf):
            then, otherwise = _body(op.then), _body(op.otherwise)
            same = then is op.then and otherwise is op.otherwise
            out.append(op if same else replace(op, then=then, otherwise=otherwise))
        elif isinstance(op, LaneFor):
            inner = _body(op.body)
            out += _ahead(op) or [op if inner is op.body else replace(op, body=inner)]
        else:
            out.append(op)
    return body if len(out) == len(body) and all(x is y for x, y in zip(out, body, strict=True)) else tuple(out)


def _ahead(loop: LaneFor) -> list[LaneOp] | None:
    """The loop with its loads an iteration ahead, and what precedes it; None where it stays as it is."""
    body = loop.body
    loads = [i for i, op in enumerate(body) if _is_load(op)]
    sums = {r for op in body if isinstance(op, AtomInstr) for r in op.d}
    if not loads or not sums or not all(i in loads or _is_other(op) for i, op in enumerate(body)):
        return None
    others = {r for i, op in enumerate(body) if i not in loads for r in registers_read(op)}
    loaded = {r for i in loads for r in registers_written(body[i])} & others
    uses = [i for i, op in enumerate(body) if i not in loads and not loaded.isdisjoint(registers_read(op))]
    if not uses or len(loaded) + len(sums) > MOST_REGISTERS or loop.past:
        return None
    needed = _needed(loop, loads, loaded)
    if needed is None:
        return None
    ops = [body[i] for i in sorted({*needed, *loads})]
    own = {r for i in needed for r in registers_written(body[i])}

    def fetch(at: Reg) -> LaneBody:
        names = {r.name: replace(r, name=f"{r.name}_of_{at.name}") for r in own} | {loop.var.name: at}
        return tuple(_renamed(op, names) for op in ops)

    var = loop.var
    first, following = replace(var, name=f"{var.name}_first"), replace(var, name=f"{var.name}_next")
    start = Instr("mov.b32", (first,), (loop.start,), span=loop.span)
    some = Reg(f"{var.name}_some", "pred", var.uniform)
    more = Reg(f"{var.name}_more", "pred", var.uniform)
    before: list[LaneOp] = [start]
    if loop.entered:
        before += fetch(first)
    else:
        before.append(Instr("setp.lt.s32", (some,), (first, loop.stop), span=loop.span))
        before.append(LaneIf(some, fetch(first), uniform=some.uniform, span=loop.span))
    before.append(LaneGuarded(tuple(sorted(loaded, key=lambda r: r.name))))
    ahead = (
        Comment("the loads of the next iteration"),
        Instr("add.s32", (following,), (var, loop.step), span=loop.span),
        Instr("setp.lt.s32", (more,), (following, loop.stop), span=loop.span),
        LaneIf(more, fetch(following), uniform=more.uniform, span=loop.span),
    )
    last = max(uses)
    rest = [(i, op) for i, op in enumerate(body) if i not in loads]
    inner = [x for i, op in rest for x in ((op, *ahead) if i == last else (op,))]
    return [*before, replace(loop, body=tuple(inner))]


def _needed(loop: LaneFor, loads: list[int], loaded: set[Reg]) -> set[int] | None:
    """The arithmetic in the body of ``loop`` that its loads depend on; None if they depend on anything else."""
    body, found = loop.body, set[int]()
    writers: dict[str, list[int]] = {}
    for i, op in enumerate(body):
        for name in {r.name for r in registers_written(op)}:
            writers.setdefault(name, []).append(i)
    waiting = [(i, r) for i in loads for r in registers_read(body[i]) if r not in loaded]
    while waiting:
        reader, r = waiting.pop()
        places = writers.get(r.name, [])
        if r.name == loop.var.name or not places or (places == [reader] and reader in loads):
            continue
        place, *others = places
        if others or place >= reader or not is_pure(body[place]):
            return None
        if place not in found:
            found.add(place)
            waiting += [(place, x) for x in registers_read(body[place])]
    return found


def _is_load(op: LaneOp) -> bool:
    """Whether ``op`` is a load of global memory, or a branch around such loads."""
    if isinstance(op, LaneIf):
        inside = (*op.then, *op.otherwise)
        plain = all(_is_load(x) or is_pure(x) or isinstance(x, Comment) for x in inside)
        return plain and any(map(_is_load, inside))
    return isinstance(op, Instr) and op.mnemonic.startswith(_LOADS)


def _is_other(op: LaneOp) -> bool:
    if isinstance(op, Instr):
        return is_pure(op) or op.mnemonic.startswith(_OTHERS)
    return isinstance(op, (AtomInstr, Comment)) or (isinstance(op, CopyInstr) and op.source is None)


def _renamed(op: LaneOp, names: Mapping[str, Reg]) -> LaneOp:
    """``op`` with other registers."""

    def one(x: Reg) -> Reg:
        return names.get(x.name, x)

    def operand(x: LaneOperand) -> LaneOperand:
        if isinstance(x, Reg):
            return one(x)
        if isinstance(x, Mem) and isinstance(x.base, Reg):
            return Mem(one(x.base), x.offset)
        if isinstance(x, Vec):
            return Vec(tuple(one(r) if isinstance(r, Reg) else r for r in x.regs))
        assert not isinstance(x, Coordinates), x
        return x

    if isinstance(op, LaneIf):
        then, otherwise = (tuple(_renamed(x, names) for x in part) for part in (op.then, op.otherwise))
        return replace(op, cond=one(op.cond), then=then, otherwise=otherwise)
    if not isinstance(op, Instr):
        return op
    guard = None if op.guard is None else one(op.guard)
    dst = tuple(one(x) if isinstance(x, Reg) else x for x in op.dst)
    return replace(op, dst=dst, src=tuple(operand(x) for x in op.src), guard=guard)
