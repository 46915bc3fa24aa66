"""Two sets of registers for the metadata of sparse wgmma, so that one group stays in flight.

A multiply in flight still reads its metadata. An iteration that writes it again waits for the multiplies of the
iteration before. With two sets, used in turns, it waits for those of the iteration before that one, which
`DelayConsumerRelease` waits for anyway::

    for k:                               for k in steps of 2:
        load e                               load e;   multiply with e;  mma_wait 1   # k
        multiply with e          =>          load e.1; multiply with e.1; mma_wait 1  # k + 1
        mma_wait 1                       for k from the last one, if their number is odd:
                                             load e;   multiply with e;  mma_wait 1

Registers have names, not subscripts, which is why the loop is unrolled.

A left operand in registers keeps one set: on an H200 (ptxas 13.5.37) two sets gave wrong sums, other ones in each
run, for weights that are computed in registers, where one set gave the right ones. The PTX machine sees no hazard
in that PTX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilemma.dtypes import s32
from tilemma.ir import tile as t
from tilemma.ir.effects import Effect, element_reads, touched_as
from tilemma.ir.expr import (
    Expr,
    FragmentElement,
    add,
    binary,
    const,
    floordiv,
    maximum,
    mul,
    sub,
    value_of,
    with_operands,
)
from tilemma.ir.types import WARPGROUP
from tilemma.ir.walk import jumps, map_expressions, rewrite, substituted, walk, with_bodies, with_fields
from tilemma.passes.decision import Decision
from tilemma.passes.scope import span_threads
from tilemma.records import record
from tilemma.targets.ptx.passes.accesses import is_wgmma
from tilemma.targets.ptx.passes.double_buffer_fragments import registers_with_two_sets
from tilemma.targets.ptx.passes.names import Names
from tilemma.targets.ptx.target import MOST_REGISTERS, MOVER_REGISTERS, Target


@record(slots=False)
class AlternateOperandRegisters:
    """Unrolls loops that rewrite the metadata of a multiply in flight, where registers suffice."""

    arch: str

    def run(self, kernel: t.Kernel, log: list[Decision]) -> t.Kernel:
        if not any(is_wgmma(op) for op in walk(kernel.body)):
            return kernel
        return replace(kernel, body=_Loops(Target.of(self.arch), Names.of(kernel.body), log).body(kernel.body, ()))


@record(slots=False)
class _Loops:
    target: Target
    names: Names
    log: list[Decision]

    def body(self, body: t.Body, around: tuple[t.Op, ...]) -> t.Body:
        out: list[t.Op] = []
        for op in body:
            inner = with_bodies(op, lambda x, op=op: self.body(x, (*around, op)))  # type: ignore[misc]
            out += self.loop(inner, around) if isinstance(inner, t.For) else (inner,)
        return tuple(out)

    def loop(self, loop: t.For, around: tuple[t.Op, ...]) -> t.Body:
        """``loop``, unrolled by two where that keeps a group in flight."""
        operands = _operands(loop)
        if not operands:
            return (loop,)
        short = self.short_of_registers(operands, around)
        text = short or "two sets of registers, used in turns: one group of multiplies stays in flight"
        for d in operands:
            self.log.append(Decision("operand registers", d.name, text, {"sets": 1 if short else 2}, span=d.span))
        return (loop,) if short else _unrolled(loop, self.names)

    def short_of_registers(self, operands: Sequence[t.DeclareFragment], around: tuple[t.Op, ...]) -> str:
        block = next(
            op for op in around if isinstance(op, t.Parallel) and op.level is not None and op.level.depth == 1
        )
        declared = {op.name: op for op in walk(around[-1:]) if isinstance(op, t.DeclareFragment)}
        kept = {op.name: op for op in walk((block,)) if isinstance(op, t.DeclareFragment) and op.plan is not None}
        own = {n: d for n, d in kept.items() if d.plan is not None and d.plan.role == "C"} | declared
        needed = registers_with_two_sets(own.values(), operands)
        threads = max(span_threads(op) for op in walk((block,)) if isinstance(op, t.Parallel) and op is not block)
        have = min(self.target.registers_per_thread, self.target.registers_per_sm // threads)
        if any(isinstance(op, t.InThreads) and op.asynchronous for op in around) and threads > WARPGROUP.threads:
            left = self.target.registers_per_sm // WARPGROUP.threads - MOVER_REGISTERS
            have = min(MOST_REGISTERS, left // (threads // WARPGROUP.threads - 1))
        return f"a wait for each group: two sets take {needed} registers of {have}" if needed > have else ""


def _operands(loop: t.For) -> list[t.DeclareFragment]:
    """The metadata that an iteration of ``loop`` writes while multiplies of the one before may read it.

    None where another operation of the loop waits for all multiplies.
    """
    multiplies = [op for op in loop.body if isinstance(op, t.Mma) and is_wgmma(op)]
    waits = [op for op in walk(loop.body) if isinstance(op, t.MmaWait)]
    if not multiplies or not waits or any(w.pending != 1 for w in waits) or value_of(loop.step) != 1:
        return []
    if jumps(loop) or any(isinstance(op, (t.Declare, t.DeclareEvent, t.InThreads)) for op in walk(loop.body)):
        return []
    read = {m.meta.name for m in multiplies if isinstance(m.meta, t.FragmentRef)}
    sums = {m.acc.name for m in multiplies}
    if any(not isinstance(op, t.Mma) and _fragments(op) & sums for op in walk(loop.body)):
        return []
    held = [
        op
        for op in loop.body
        if isinstance(op, t.DeclareFragment) and op.plan is not None and op.plan.residence == "registers"
    ]
    left = {m.a.name for m in multiplies if isinstance(m.a, t.FragmentRef)}
    return [] if any(op.name in left for op in held) else [op for op in held if op.name in read]


def _fragments(op: t.Op) -> set[str]:
    touches = (*touched_as(op, Effect.READ), *touched_as(op, Effect.WRITE))
    used = {x.name for x in touches if isinstance(x, t.FragmentRef)}
    return used | {x.fragment for x in element_reads(op) if isinstance(x, FragmentElement)}


# ---- unrolling ---------------------------------------------------------------------------------------------


def _unrolled(loop: t.For, names: Names) -> t.Body:
    i = loop.index
    trips = maximum(sub(loop.stop, loop.start), const(0, s32))
    end = add(loop.start, mul(floordiv(trips, 2), 2))
    own = {op.name for op in walk(loop.body) if isinstance(op, t.DeclareFragment)}
    second = substituted(_renamed(loop.body, {n: f"{n}.second" for n in own}), {i.name: add(i, const(1))})
    second = tuple(names.renamed(op) for op in second)
    last = substituted(_renamed(loop.body, {n: f"{n}.last" for n in own}), {i.name: end})
    odd = t.If(binary("lt", end, loop.stop), last, span=loop.span)
    return (replace(loop, stop=end, step=const(2), body=(*loop.body, *second)), names.renamed(odd))


def _renamed(body: t.Body, names: dict[str, str]) -> t.Body:
    """``body`` with other registers: fragments by their new ``names``."""

    def renamed(e: Expr) -> Expr:
        e = with_operands(e, renamed)
        known = names.get(e.fragment) if isinstance(e, FragmentElement) else None
        return e if known is None else replace(e, fragment=known)  # type: ignore[call-arg]

    def changed(op: t.Op) -> t.Op:
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(op):
            value = getattr(op, f.name)
            if isinstance(value, t.FragmentRef) and value.name in names:
                changes[f.name] = replace(value, name=names[value.name])
        if isinstance(op, t.DeclareFragment):
            changes["name"] = names[op.name]
        return map_expressions(with_fields(op, changes), renamed)

    return rewrite(body, changed)
