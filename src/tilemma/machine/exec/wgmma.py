"""Instructions of wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

A wait by one warp waits for the commit group of its warpgroup: ``wgmma_operations``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tilemma.machine import catalogue as hz
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.exec import aligned
from tilemma.machine.exec.wgmma_operations import Form, Group, Issue, Operation, group_of
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
        if not w.wgmma_fenced or not w.touched.keys().isdisjoint(every):
            _missing_fence(w, ins, form, [r for r in registers if r in w.touched])
        w.fence_open = False
        scale = form.scales(w)
        if scale:
            for r in unsure():
                known = w.defined.get(r)
                if known is not ALL_LANES and (known is None or not known.all()):
                    report_undefined(w, ins, r, form.names[r], range(32))
        serial = group.issued[w.index]
        group.issued[w.index] = serial + 1
        issue = Issue(ins, serial, form)
        for r in form.a_ids:
            known_issue = w.in_flight.get(r)
            if known_issue is None or known_issue.reads_only(r):
                w.in_flight[r] = issue
        w.in_flight.update(dict.fromkeys(form.d_ids, issue))
        w.record.in_flight = 1
        operation = group.operations.get(serial)
        if operation is None:
            operation = group.operations[serial] = Operation(group, w, ins, form, serial)
        operation.join(f, ins)

    d.visible(run)


def _missing_fence(w: Warp, ins: Instruction, form: Form, touched: list[int]) -> None:
    if touched:
        last = w.touched[touched[0]]
        names = ", ".join(form.names[r] for r in touched[:4]) + (", ..." if len(touched) > 4 else "")
        how, other = f"touched at PTX line {last.line}", w.place(last)
    else:
        names, how, other = "all", "never ordered before", None
    # Copies between a fence and the first wgmma behind it.
    moved = w.fence_open and all(w.touched[r].parts[0] == "mov" for r in touched)
    kind = hz.MissingWgmmaFenceAfterMove if moved else hz.MissingWgmmaFence
    w.report(kind, ins, other=other, registers=names, touched=how)
    if moved:
        w.touched.clear()


@instruction("wgmma.fence")
def fence(d: Decoder) -> None:
    d.needs(90, feature="sm_90a")
    d.only("fence", "sync", "aligned")
    ins = d.ins

    def run(f: Frame, m: Any) -> None:
        aligned.whole_warp(f, ins, m)
        f.w.touched.clear()
        f.w.wgmma_fenced = f.w.fence_open = True

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
        group.committed[w.index] += 1
        number, end = group.committed[w.index], group.issued[w.index]
        if number not in group.ends:
            group.ends[number] = end
            events = w.cta.cluster.events
            for serial in range(group.ends.get(number - 1, 0), end):
                event = group.uncommitted.pop(serial, None)
                if event is not None:
                    events.complete(event, number)
        elif group.ends[number] != end:
            w.report(
                hz.WgmmaNotUniform,
                ins,
                what=f"warp {w.index} commits {end} operations, another warp {group.ends[number]}",
                fatal=True,
            )

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
        end = group.issued[w.index]
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
        number = group.committed[w.index] - keep
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
        if group.issued[w.index] <= end:
            w.in_flight.clear()
        for r in [r for r, issue in w.in_flight.items() if issue.serial < end]:
            del w.in_flight[r]
        w.record.in_flight = bool(w.in_flight)
        return None

    d.visible(run)
