"""Describes a deadlock: the wait-for graph of a run in which no warp and no agent can proceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilemma.machine.catalogue import Deadlock, RegisterPool
from tilemma.machine.hazards import HazardError
from tilemma.machine.state import Frame
from tilemma.machine.syntax import Instruction

if TYPE_CHECKING:
    from tilemma.machine.scheduler import Machine


def explain(machine: Machine) -> HazardError:
    """The deadlock of ``machine``: each waiting warp, the event that it waits for, and the possible signallers."""
    frames = sorted(
        [*machine.waiting, *machine.polling], key=lambda f: (f.w.cta.cluster.serial, f.w.cta.rank, f.w.index)
    )
    lines = []
    groups: dict[tuple[str, int], list[Any]] = {}
    for f in frames:
        ins = _at(machine, f)
        why = _why(f)
        groups.setdefault((why, ins.line), []).append((f, ins))
    for (why, line), members in groups.items():
        who = ", ".join(f"{f.w.index} of CTA {f.w.cta.index}" for f, _ in members[:4])
        more = f" and {len(members) - 4} more" if len(members) > 4 else ""
        lines.append(f"warp {who}{more} at PTX line {line} waits for {why}")
    for f in frames:
        if "CTA's pool" in _why(f):
            what = f"warp {f.w.index} waits for {_why(f)}, and nobody can give any back"
            return RegisterPool.at(f.w.place(_at(machine, f)), notes=lines[:8], what=what)
    assert groups, "a deadlock without anybody waiting"
    first, ins = next(iter(groups.values()))[0]
    summary = lines[0]
    advice = "bring the missing arrival: " + _advice(_why(frames[0]))
    return Deadlock.at(first.w.place(ins), lanes=first.lanes, notes=lines[1:8], summary=summary, advice=advice)


def _at(machine: Machine, f: Frame) -> Instruction:
    return machine.program.steps[min(f.pc, len(machine.program.steps) - 1)].instruction


def _why(f: Frame) -> str:
    blocked = f.blocked() if callable(f.blocked) else f.blocked
    return str(blocked) or "a condition that it polls"


def _advice(why: str) -> str:
    if "bytes" in why:
        return "check `expect_tx` against the bytes that the copies bring, and that every copy is issued"
    if "arrival" in why:
        return "check the count of `mbarrier.init`, who arrives, and the parity that is waited for"
    if "parity" in why:
        return "check the phase bit: it must flip each time the barrier has gone round"
    if "barrier" in why:
        return "check that all the warps counted reach the barrier, with the same number and count"
    return "check who should have signalled"
