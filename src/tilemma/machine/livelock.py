"""Finds out that a run will never end: warps poll values that no warp will change.

A `Watch` follows a run while no warp changes memory, a barrier or an asynchronous operation.  Until then the next
instructions of a warp depend on its own registers alone, so that a warp that is in a state in which it has been
before is in a loop.  Once that holds for each warp that can run, and nothing is in flight, no warp will ever do
anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilemma.machine.state import Frame, Warp
from tilemma.machine.syntax import Special

if TYPE_CHECKING:
    from tilemma.machine.program import Program, Step
    from tilemma.machine.scheduler import Machine

# Warp instructions before the first watch; each further one begins after twice as many.
FIRST = 10_000
# Warp instructions of a watch after which warps that are not known to be in a loop run first.
PATIENCE = 2000
# Those after which an asynchronous operation completes that the schedule has kept back.
LONG = 20_000
# Visible instructions of such a warp at a time.
_TURN = 64
# States of a warp that are kept; a loop is longer in few programs.
_MOST = 4096
# Visible instructions that change nothing that a warp can observe but registers and its own local memory.
_WITHOUT_EFFECT = {
    "ld", "ldu", "shfl", "vote", "match", "activemask", "redux", "elect", "fence", "membar", "nanosleep", "mov",
    "prefetch",
}  # fmt: skip
_CLOCKS = ("%clock", "%globaltimer", "%pm")


def can_watch(program: Program) -> bool:
    """Whether registers and memory alone decide what the program does: it reads no clock."""
    if program.timeless is None:
        program.timeless = not any(
            isinstance(x, Special) and x.name.startswith(_CLOCKS)
            for ins in program.entry.instructions
            for x in ins.operands
        )
    return program.timeless


class Watch:
    """The states of each frame since something has changed last; none, once something does."""

    def __init__(self, start: int) -> None:
        self.start = start
        # By warp and lanes: the frames of a divergent branch in a loop are new ones in each iteration.
        self.seen: dict[Any, set[int]] = {}
        self.looping: set[Any] = set()
        # The last instruction of each warp that has read memory.
        self.reads: dict[Warp, Step] = {}
        self.changed = False
        # Set by an atomic operation: whether memory is as before.
        self.unchanged = False

    def enter(self, f: Frame) -> None:
        """``f`` is about to run."""
        key = _key(f)
        states = self.seen.setdefault(key, set())
        state = _state(f)
        if state in states:
            self.looping.add(key)
        elif len(states) == _MOST:
            states.clear()
        states.add(state)

    def executed(self, f: Frame, step: Step) -> None:
        """``f`` has executed a visible instruction."""
        name, *rest = step.instruction.parts
        if name in ("atom", "red"):
            self.changed |= not self.unchanged
            self.unchanged = False
            self.reads[f.w] = step
        elif name in _WITHOUT_EFFECT or (name == "mbarrier" and rest[0] in ("test_wait", "try_wait")):
            if name in ("ld", "ldu"):
                self.reads[f.w] = step
        elif not (name == "st" and "local" in rest) and step.instruction.opcode != "bar.warp.sync":
            self.changed = True

    def stalled(self, machine: Machine) -> bool:
        """Whether nothing but asynchronous operations can change anything: each frame that can run is in a loop,
        or all have run for long."""
        long = machine.steps - self.start > LONG
        if long:
            # Frames that poll an mbarrier run again beside those that count their polls, and never repeat a state.
            machine.ready += machine.polling
            machine.polling, self.start = [], machine.steps
        able = (*machine.ready, *machine.timeouts)
        return bool(machine.pending) and (long or all(_key(f) in self.looping for f in able))

    def endless(self, machine: Machine) -> bool:
        """Whether each frame that can run is in a loop, and nothing else can happen."""
        if machine.pending or not all(_key(f) in self.looping for f in (*machine.ready, *machine.timeouts)):
            return False
        if all(_key(f) in self.looping for f in machine.polling):
            return True
        # Frames that poll an mbarrier run only where no other can.
        machine.ready += machine.polling
        machine.polling = []
        return False

    def hurry(self, machine: Machine) -> bool:
        """Run a warp that is not known to be in a loop: the schedule may favour others for very long."""
        if machine.steps - self.start > PATIENCE:
            for f in machine.ready:
                if _key(f) not in self.looping:
                    machine.ready.remove(f)
                    machine.execute(f, _TURN)
                    return True
        return False

    def describe(self, machine: Machine) -> None:
        """Say of each frame in a loop what it waits for, as of one that polls."""
        for f in machine.ready:
            step = self.reads.get(f.w)
            f.blocked = "the end of a loop that changes nothing"
            if step is not None:
                f.blocked = f"a value that `{step.instruction.opcode}` reads again and again"
                f.pc = step.index
        machine.polling += machine.ready
        machine.ready = []


def _key(f: Frame) -> Any:
    return f.w, None if f.m is None else f.m.tobytes()


def _state(f: Frame) -> int:
    w = f.w
    parts: list[Any] = [f.pc, len(w.gathered)]
    above: Frame | None = f
    while above is not None:
        parts += (above.rpc, above.children)
        above = above.parent
    parts += (np.ascontiguousarray(file[w.index][:, f.lanes]).tobytes() for file in w.cta.registers.values())
    if w.local is not None:
        parts.append(w.local.tobytes())
    return hash(tuple(parts))
