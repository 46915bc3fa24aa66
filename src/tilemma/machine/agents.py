"""Agents: asynchronous operations, issued by a warp and completed by the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilemma.machine.state import Cta, Warp
from tilemma.machine.syntax import Instruction


class Agent:
    """One operation in flight.  ``complete`` performs it; subclasses need to define no other method."""

    kind = "agent"

    def __init__(self, warp: Warp, instruction: Instruction) -> None:
        self.warp, self.instruction = warp, instruction
        self.issued = 0
        # The packed event of its completion.
        self.event = 0
        # Some thread has waited for it, or learns of its completion by other means.
        self.waited = False

    @property
    def actor(self) -> str:
        """The name of its row in a timeline, within its CTA."""
        return self.kind

    @property
    def about(self) -> str:
        """The objects of the program that it works on, for a timeline."""
        return ""

    @property
    def entry(self) -> tuple[int, int, int]:
        """What the native library gets of it: its copy, warp and group, where it completes it."""
        return 0, 0, 0

    def before(self) -> Sequence[Agent]:
        """Agents that must complete before this one."""
        return ()

    def ctas(self) -> Sequence[Cta]:
        """CTAs whose shared memory or registers it uses."""
        return (self.warp.cta,)

    def complete(self) -> Any:
        """Perform the agent's operation."""
        raise NotImplementedError
