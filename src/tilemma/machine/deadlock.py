"""Describes a deadlock: the wait-for graph of a run in which no warp and no agent can proceed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.catalogue import Deadlock, RegisterPool
from tilemma.machine.convergence import WARP
from tilemma.machine.hazards import HazardError, ranges
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
        waiting = ", ".join(f"{f.w.index} of CTA {f.w.cta.index}" for f, _ in members[:4])
        more = f" and {len(members) - 4} more" if len(members) > 4 else ""
        lines.append(f"warp {waiting}{more} at PTX line {line} waits for {why}")
    for f in frames:
        if "CTA's pool" in _why(f):
            what = f"warp {f.w.index} waits for {_why(f)}, and no warp can give any back"
            return RegisterPool.at(f.w.place(_at(machine, f)), notes=lines[:8], what=what)
    assert groups, "a deadlock without anybody waiting"
    first, ins = next(iter(groups.values()))[0]
    lines[1:1] = _of_own_warp(machine, first)
    summary, why = lines[0], _why(frames[0])
    arrival = "loop" not in _advice(why)
    advice = ("bring the missing arrival: " if arrival else "") + _advice(why)
    return Deadlock.at(first.w.place(ins), lanes=first.lanes, notes=lines[1:8], summary=summary, advice=advice)


def _of_own_warp(machine: Machine, f: Frame) -> list[str]:
    """The lanes that wait, where the sides of a branch meet, for those of ``f``, and what needs them together."""
    above, steps = f.parent, machine.program.steps
    if above is None or above.pc >= len(steps):
        return []
    there = np.setdiff1d(above.lanes[f.w.live[above.lanes]], f.lanes)
    whole = next((s.instruction for s in steps[above.pc :] if s.membership == WARP), None)
    if not len(there) or whole is None:
        return []
    met = steps[above.pc].instruction.line
    return [
        f"lanes {ranges(there)} of the same warp are at PTX line {met} and may wait there for these lanes: "
        f"`{whole.opcode}` of PTX line {whole.line} needs the whole warp. A lock that the lanes of a warp compete "
        "for is taken and released inside the loop"
    ]


# Visible instructions that change no data; a loop over tiles has barriers of all warps between its iterations.
_WITHOUT_EFFECT = {
    "ld", "ldu", "shfl", "vote", "match", "activemask", "redux", "elect", "fence", "membar", "nanosleep",
    "setmaxnreg", "mov", "prefetch", "griddepcontrol", "bar", "barrier",
}  # fmt: skip


def release_followers(machine: Machine, hazard: HazardError) -> bool:
    """Let warps go on that wait for a phase of an mbarrier which they have missed; False where there are none.

    A warp that lags by two phases waits for a parity that does not come again.  Such a warp may only follow: in
    TileLang's kernels, the warps of a producer beside the one that issues the copies.  On a GPU it would have
    had to stand still for two phases, and nothing depends on it: the deadlock is a note by default.  If the warp
    does anything that others can see after it was released, the deadlock is an error (``effect_of``).
    """
    released = False
    for f in [*machine.waiting, *machine.polling]:
        if f.awaited is None:
            continue
        barrier, parity = f.awaited
        meant = barrier.awaited(f.w, parity)
        others = any(seen >= meant for w, seen in barrier.seen.items() if w is not f.w)
        again = barrier.seen.get(f.w) == meant
        if barrier.phase & 1 != parity or meant >= barrier.phase or again or not others:
            continue
        barrier.forgive(f.w)
        machine.followers.setdefault(f.w, hazard)
        machine.wake(f)
        released = True
    if released:
        machine.letter.append(hazard)
        machine.polls = 0
    return released


def effect_of(machine: Machine, f: Frame, ins: Instruction) -> None:
    """A released warp executes an instruction: report its deadlock if others can see the effect."""
    waits = ins.parts[0] == "mbarrier" and ins.parts[1] in ("test_wait", "try_wait")
    if waits or ins.parts[0] in _WITHOUT_EFFECT:
        return
    hazard = machine.followers.pop(f.w)
    machine.letter.remove(hazard)
    machine.stop(hazard)


def _at(machine: Machine, f: Frame) -> Instruction:
    return machine.program.steps[min(f.pc, len(machine.program.steps) - 1)].instruction


def _why(f: Frame) -> str:
    blocked = f.blocked() if callable(f.blocked) else f.blocked
    return str(blocked) or "a condition that it polls"


def _advice(why: str) -> str:
    if "again and again" in why:
        return "check that the store or atomic operation that ends this loop is executed, and at this address"
    if "changes nothing" in why:
        return "check the condition that ends this loop"
    if "bytes" in why:
        return "check `expect_tx` against the bytes that the copies bring, and that every copy is issued"
    if "arrival" in why:
        return "check the count of `mbarrier.init`, the threads that arrive, and the parity that is waited for"
    if "parity" in why:
        return "check the phase bit: it must flip after each phase of the barrier"
    if "barrier" in why:
        return "check that all the warps counted reach the barrier, with the same number and count"
    return "check which thread should have signalled"
