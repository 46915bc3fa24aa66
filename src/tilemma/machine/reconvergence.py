"""Divergent control flow: a frame for each side of a branch, and the frame's end at its reconvergence point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilemma.machine import convergence
from tilemma.machine.program import Step
from tilemma.machine.state import ALL_LANES, Frame

if TYPE_CHECKING:
    from tilemma.machine.scheduler import Machine


def held_for_long(machine: Machine) -> bool:
    """Whether some lanes have waited for others of their warp since the last call; keeps those that wait now."""
    before, machine.waited = machine.waited, waiting_for_own(machine)
    machine.held = {key: f for key, f in before.items() if machine.waited.get(key) is f}
    return bool(machine.held)


def waiting_for_own(machine: Machine) -> dict[int, Frame]:
    """By identity, the frames of which some lanes are where a branch's sides meet and wait there for the others,
    though no instruction behind needs the whole warp."""
    coming: dict[int, tuple[Frame, Any]] = {}
    for f in (*machine.ready, *machine.polling, *machine.waiting, *machine.parked):
        mine = ALL_LANES if f.m is None else f.m
        above = f.parent
        while above is not None:
            known = coming.get(id(above))
            coming[id(above)] = above, mine if known is None else known[1] | mine
            above = above.parent
    found = {}
    for key, (f, lanes) in coming.items():
        mine = ALL_LANES if f.m is None else f.m
        if f.pc not in machine.program.together and (mine & f.w.live & ~lanes).any():
            found[key] = f
    return found


def diverge(machine: Machine, f: Frame, step: Step, taken: Any) -> bool:
    """Split ``f`` at a branch whose lanes disagree; True when ``f`` itself continues."""
    meet = machine.program.reconverge[step.index]
    # The predicate's register may change before the sides meet.
    taken = taken.copy()
    rest = ~taken if f.m is None else f.m & ~taken
    sides = [(step.target, taken), (step.index + 1, rest)]
    going = [(pc, m) for pc, m in sides if pc != meet or meet < 0]
    if meet == f.rpc or meet < 0:
        # The parent already waits at the reconvergence point: lanes that are there just leave this frame.
        (pc, m), *others = going
        f.pc = pc
        f.set_mask(m)
        for other_pc, other_m in others:
            if f.parent is not None:
                f.parent.children += 1
            machine.ready.append(Frame(f.w, other_pc, other_m, f.rpc, f.parent))
        return True
    f.share().pc = meet
    if not going:
        return True
    f.children = len(going)
    for pc, m in going:
        machine.ready.append(Frame(f.w, pc, m, meet, f))
    return False


def join(machine: Machine, f: Frame) -> None:
    """``f`` is at its reconvergence point, or all its lanes have left."""
    if f.w.gathered:
        convergence.reconsider(machine, f.w)
    parent = f.parent
    if parent is None:
        if 1 not in f.w.live.tobytes() and not f.w.done:
            machine.warp_done(f.w)
        return
    parent.children -= 1
    if parent.children == 0:
        live = f.w.live if parent.m is None else parent.m & f.w.live
        lanes = live.tobytes().count(1)
        if not lanes:
            join(machine, parent)
            return
        parent.set_mask(None if lanes == 32 else live)
        machine.ready.append(parent)


def leave(machine: Machine, f: Frame, m: Any) -> bool:
    """The lanes ``m`` (None: all of the frame) exit; True when the frame has none left."""
    w = f.w
    mine = ALL_LANES if f.m is None else f.m
    gone = mine if m is None else m
    w.live &= ~gone
    left = mine & ~gone
    if w.gathered:
        convergence.reconsider(machine, w)
    if 1 in left.tobytes():
        f.set_mask(left)
        return False
    join(machine, f)
    return True
