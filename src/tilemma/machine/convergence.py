"""Lanes of a warp wait for one another before a `.sync` or `.aligned` instruction.

Lanes that are on other paths may still exit, or arrive at the same `.sync` instruction: those there wait for them
(PTX ISA, "vote.sync": until all non-exited threads of the member mask have executed it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.hazards import ranges
from tilemma.machine.state import ALL_LANES, LANES, Frame

if TYPE_CHECKING:
    from tilemma.machine.program import Step
    from tilemma.machine.scheduler import Machine

# The lanes that must be present: none, the whole warp, or else the row of a member mask.
NOBODY, WARP = -2, -1


def named_lanes(w: Any, membership: int, active: Any) -> Any:
    """The live lanes that must execute an instruction together with those in ``active``."""
    if membership == WARP:
        return w.live
    mask = int(np.bitwise_or.reduce(w.v[3][membership][active]))
    return (mask >> LANES & 1).astype(bool) & w.live


def must_wait(machine: Machine, f: Frame, step: Step, m: Any) -> bool:
    """Whether the lanes ``m`` of ``f`` wait before ``step`` for lanes that may still arrive, or exit.

    Frames of a warp that wait at one `.sync` instruction continue together once all are present.
    """
    w = f.w
    active = m if m is not None else ALL_LANES
    if f.met is not None:
        return False
    missing = named_lanes(w, step.membership, active) & ~active
    if 1 not in missing.tobytes():
        return False
    others = [g for g in w.gathered if g[1] is step]
    there = active.copy()
    for _, _, lanes in others:
        there |= lanes
    if step.membership != WARP and not (named_lanes(w, step.membership, active) & ~there).any():
        # This frame executes it for all; the others continue after it.
        f.met = there
        for g, _, _ in others:
            g.met = np.zeros(32, bool)
            machine.wake(g)
        w.gathered = [g for g in w.gathered if g[1] is not step]
        w.record.gathered = len(w.gathered)
        return False
    if not (missing & coming(machine, f)).any():
        return False
    w.gathered.append((f, step, active))
    w.record.gathered = len(w.gathered)
    machine.suspend(
        f, f"lanes {ranges(np.flatnonzero(missing))} of its warp at `{step.instruction.opcode}`", "its lanes"
    )
    return True


def coming(machine: Machine, f: Frame) -> Any:
    """The lanes of the warp that may still arrive: in frames that can run, or wait for something else."""
    w = f.w
    here = {id(g) for g, _, _ in w.gathered}
    lanes = np.zeros(32, bool)
    for g in (*machine.ready, *machine.polling, *machine.waiting):
        if g.w is w and g is not f and id(g) not in here:
            lanes[g.lanes] = True
    return lanes & w.live


def reconsider(machine: Machine, w: Any) -> None:
    """Lanes of ``w`` have exited or converged: the frames that waited for them are checked again."""
    gathered, w.gathered = w.gathered, []
    w.record.gathered = 0
    for f, _, _ in gathered:
        machine.wake(f)
