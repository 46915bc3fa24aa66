"""A machine that enters each warp's time, waits, multiplies and stores into the timeline of the run."""

from __future__ import annotations

from typing import Any

from tilemma.machine.scheduler import Machine
from tilemma.machine.state import Frame, Warp


class TracedMachine(Machine):
    """Times are numbers of warp instructions that the grid has executed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begun: dict[Warp, int] = {}
        # The start of each wait, and the mbarrier's address or the name of what is waited for.
        self.since: dict[Frame, tuple[int, int | str]] = {}
        # Of each warp, the work since its last wait: by kind its start, its end and the PTX line that began it.
        self.working: dict[Warp, dict[str, tuple[int, int, int]]] = {}

    def start(self, number: int, counts: list[int]) -> None:
        super().start(number, counts)
        for cta in self.clusters[self.started - 1].ctas:
            self.begun.update(dict.fromkeys(cta.warps, self.steps))

    def suspend(self, frame: Frame, why: Any, on: int | str = "") -> None:
        self.since[frame] = self.steps, on
        self._worked(frame.w)
        super().suspend(frame, why, on)

    def wake(self, frame: Frame) -> None:
        if frame in self.waiting:
            self._waited(frame)
        super().wake(frame)

    def warp_done(self, w: Warp) -> None:
        self._ended(w)
        super().warp_done(w)

    def run(self) -> None:
        """Run the grid; warps that have not ended, and their waits, go to the end of the timeline."""
        try:
            super().run()
        finally:
            for frame in sorted(self.waiting, key=lambda f: (f.w.cta.index, f.w.row, f.pc)):
                self._waited(frame)
            for w in list(self.begun):
                self._ended(w)

    def note_work(self, w: Warp, what: str, line: int) -> None:
        """Several multiplies, or stores, between two waits are one bar."""
        kinds = self.working.setdefault(w, {})
        start, _, first = kinds.get(what, (self.steps, self.steps, line))
        kinds[what] = start, self.steps, first

    def _worked(self, w: Warp) -> None:
        for what, (start, end, line) in self.working.pop(w, {}).items():
            self.note_time(what, w.cta.index, f"warp {w.index}", start, end, line)

    def _ended(self, w: Warp) -> None:
        self._worked(w)
        self.note_time("warp", w.cta.index, f"warp {w.index}", self.begun.pop(w), self.steps, 0)

    def _waited(self, frame: Frame) -> None:
        line = self.program.steps[min(frame.pc, len(self.program.steps) - 1)].instruction.line
        start, on = self.since[frame]
        name = self.names.event(on) if isinstance(on, int) else on
        w = frame.w
        self.note_time("wait", w.cta.index, f"warp {w.index}", start, self.steps, line, name)
