"""Instructions of wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

A wait by one warp waits for the commit group of its warpgroup: ``wgmma_operations``.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from tilemma.machine import catalogue as hz
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.exec.wgmma_operations import Form, Group, Issue, Operation, group_of
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.register_checks import report_undefined
from tilemma.machine.scheduler import AGAIN
from tilemma.machine.serialised import OPCODE
from tilemma.machine.state import ALL_LANES, Frame, Warp
from tilemma.machine.syntax import Instruction


@instruction("wgmma.mma_async")
def mma_async(d: Decoder) -> None:
    d.needs(90, feature="sm_90a")
    form = Form(d)
    ins = d.ins
    registers = [*form.d_ids, *form.a_ids]
    every = frozenset(registers)
    index, program = len(d.program.steps), d.program

    @cache
    def unsure() -> list[int]:
        """Registers of D that may be undefined here; known when the whole program has been decoded."""
        return list(program.steps[index].maybe_undefined & form.d_set)

    def run(f: Frame, m: Any) -> None:
        w = f.w
        aligned.whole_warp(f, ins, m)
        group = group_of(f, ins)
        if not w.record.fenced_once or not w.touched.keys().isdisjoint(every):
            _missing_fence(w, ins, form, [r for r in registers if r in w.touched])
        w.record.fence_open = 0
        scale, given = form.scales(w), form.descriptors(w)
        if scale and unsure():
            sure = True
            for r in unsure():
                known = w.defined.get(r)
                sure &= known is ALL_LANES
                if known is not ALL_LANES and (known is None or not known.all()):
                    report_undefined(w, ins, r, form.names[r], range(32))
            w.record.sure = index + 1 if sure else 0
        serial = group.issue(w)
        w.flights.append(Issue(ins, form, serial))
        w.record.in_flight = 1
        operation = group.operations.get(serial) or group.joined(serial)
        if operation is None:
            operation = group.operations[serial] = Operation(group, w, ins, form, serial, given, scale)
        operation.join(f, ins, given, scale)

    # The native library issues it for warps after and before which others do.
    scale_d = form.scale_d if not isinstance(form.scale_d, bool) else None
    row, negated = scale_d or (0, False)
    operands = block([
        form.a_descriptor, form.b_descriptor, -1 if scale_d else int(form.scale_d), row, int(negated), 0,
    ])  # fmt: skip
    d.plain = PlainAccess(
        "WGMMA_ISSUE", AccessBlock(*operands), agent=partial(Issue, ins, form), form=form, unsure=unsure
    )
    d.visible(run)


def _missing_fence(w: Warp, ins: Instruction, form: Form, touched: list[int]) -> None:
    if touched:
        last = w.touched[touched[0]]
        names = ", ".join(form.names[r] for r in touched[:4]) + (", ..." if len(touched) > 4 else "")
        how, other = f"touched at PTX line {last.line}", w.place(last)
    else:
        names, how, other = "all", "never ordered before", None
    # Copies between a fence and the first wgmma behind it.
    moved = w.record.fence_open and all(w.touched[r].parts[0] == "mov" for r in touched)
    kind = hz.MissingWgmmaFenceAfterMove if moved else hz.MissingWgmmaFence
    w.report(kind, ins, other=other, registers=names, touched=how)
    if moved:
        w.touched.clear()
        w.record.touched = 0


@instruction("wgmma.fence")
def fence(d: Decoder) -> None:
    d.needs(90, feature="sm_90a")
    d.only("fence", "sync", "aligned")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        f.w.touched.clear()
        record = f.w.record
        record.touched, record.fenced_once, record.fence_open = 0, 1, 1

    d.plain = PlainAccess("WGMMA_FENCE", AccessBlock(*block([])))
    d.visible(run)


@instruction("wgmma.commit_group")
def commit(d: Decoder) -> None:
    d.needs(90, feature="sm_90a")
    d.only("commit_group", "sync", "aligned")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        group = group_of(f, ins)
        w = f.w
        number, end = group.commit(w)
        if number not in group.ends:
            group.end(number, end)
            events = w.cta.cluster.events
            for serial in range(group.ends.get(number - 1, 0), end):
                event = group.uncommitted.pop(serial, None)
                if event is not None:
                    events.complete(event, number)
            group.tell()
        elif group.ends[number] != end:
            w.report(
                hz.WgmmaNotUniform,
                ins,
                what=f"warp {w.index} commits {end} operations, another warp {group.ends[number]}",
                fatal=True,
            )

    d.plain = PlainAccess("WGMMA_COMMIT", AccessBlock(*block([])))
    d.visible(run)


@instruction(OPCODE)
def serialise(d: Decoder) -> None:
    """A wait that ptxas adds: all operations that the warp has issued complete."""
    ins = d.ins

    def run(f: Frame, m: Any) -> Any:
        w = f.w
        if not w.in_flight:
            return None
        group = group_of(f, ins)
        end = group.issued(w)
        if group.started < end:
            return _suspended(f, group)
        issue = next(iter(w.in_flight.values()))
        w.report(hz.RegisterInFlightBeforeWait, ins, other=w.place(issue.instruction))
        for serial in [s for s in group.operations if s < end]:
            operation = group.operations.get(serial)
            if operation is not None:
                w.cta.machine.complete(operation)
        w.in_flight.clear()
        w.record.in_flight = 0
        return None

    d.visible(run)


def _suspended(f: Frame, group: Group) -> Any:
    group.waiters.append(f)
    what = f"the other warps of warpgroup {group.number} to issue the same wgmma"
    f.w.cta.machine.suspend(f, what, "its warpgroup")
    return AGAIN


@instruction("wgmma.wait_group")
def wait(d: Decoder) -> None:
    d.needs(90, feature="sm_90a")
    d.only("wait_group", "sync", "aligned")
    keep = d.immediate(d.operands[0])
    ins = d.ins

    def run(f: Frame, m: Any) -> Any:
        aligned.whole_warp(f, ins, m)
        group = group_of(f, ins)
        w = f.w
        machine = w.cta.machine
        number = group.committed(w) - keep
        if number <= 0:
            return None
        end = group.ends[number]
        if group.started < end:
            return _suspended(f, group)
        for serial in [s for s in group.operations if s < end]:
            operation = group.operations.get(serial)
            if operation is not None:
                operation.waited = True
                machine.complete(operation)
        clocks = w.cta.cluster.clocks
        clocks.learn(w.rows_of(m), group.column, number)
        clocks.learn(w.rows_of(m), group.column + 1 + w.index % 4, number)
        if group.issued(w) <= end:
            w.in_flight.clear()
        w.flights.append(end)
        w.record.in_flight = bool(w.in_flight)
        return None

    def suspended(f: Frame, _: int) -> None:
        """The native library has found that ``f`` waits."""
        _suspended(f, group_of(f, ins))

    d.plain = PlainAccess("WGMMA_AWAIT", AccessBlock(*block([])), keep=keep, agent=suspended)
    d.visible(run)
