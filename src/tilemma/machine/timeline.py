"""The timeline of a run, as text and as SVG.

Time is the number of warp instructions that the grid has executed.  A warp is a bar from its start to its exit,
with its waits on it; an asynchronous operation is a bar from its issue to its completion; the completion of an
mbarrier phase is a mark.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

_COLOURS = {
    "tma": "#3b7dd8", "cp.async": "#5fa8d3", "wgmma": "#d1495b", "bulk-store": "#66a182", "phase": "#333333",
    "cp.async.arrive": "#8d96a3", "warp": "#c9d3c0", "wait": "#e9a03b",
}  # fmt: skip
# In text, above the bar of the warp.
_MARKS = {"phase": "|", "wait": "."}


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of an actor's time, in steps of the grid; ``line`` is the PTX line that began it, 0 for none."""

    actor: str
    what: str
    start: int
    end: int
    line: int


@dataclass
class Timeline:
    """Bars in the order in which they ended."""

    bars: list[Bar] = field(default_factory=list)

    def add(self, what: str, actor: str, start: int, end: int, line: int) -> None:
        self.bars.append(Bar(actor, what, start, end, line))

    @property
    def actors(self) -> list[str]:
        """The warps in order, then the other actors in the order of their first bars."""
        warps = {b.actor for b in self.bars if b.what == "warp"}
        others = dict.fromkeys(b.actor for b in sorted(self.bars, key=lambda b: b.start) if b.actor not in warps)
        return [*sorted(warps, key=lambda a: [int(n) for n in re.findall(r"\d+", a)]), *others]

    def of(self, actor: str) -> list[Bar]:
        """The bars of an actor, a warp's own before those of its waits."""
        return sorted((b for b in self.bars if b.actor == actor), key=lambda b: (b.what != "warp", b.start))

    @property
    def length(self) -> int:
        return max((b.end for b in self.bars), default=0) + 1

    def text(self, width: int = 100) -> str:
        """One row for each actor: ``=`` a warp, or an operation in flight; ``.`` a wait; ``#`` several operations;
        ``|`` the completion of a phase."""
        label = max((len(a) for a in self.actors), default=0)
        scale = width / self.length
        lines = [f"{'':<{label}}  0 .. {self.length - 1} warp instructions"]
        for actor in self.actors:
            cells = [" "] * width
            for b in self.of(actor):
                first, last = int(b.start * scale), min(width - 1, int(b.end * scale))
                for i in range(first, last + 1):
                    cells[i] = _MARKS.get(b.what) or ("=" if cells[i] == " " else "#")
            lines.append(f"{actor:<{label}}  {''.join(cells).rstrip()}")
        return "\n".join(lines)

    def svg(self, width: int = 1200, row: int = 22) -> str:
        """The same as a picture; the title of a bar names its operation, PTX line and time."""
        actors = self.actors
        left = 8 * max((len(a) for a in actors), default=0) + 16
        scale = (width - left - 10) / self.length
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{row * (len(actors) + 1) + 8}" '
            'font-family="monospace" font-size="12">',
            f'<text x="{left}" y="14">0 .. {self.length - 1} warp instructions</text>',
        ]
        for i, actor in enumerate(actors):
            top = row * (i + 1)
            parts.append(f'<text x="8" y="{top + 14}">{html.escape(actor)}</text>')
            for b in self.of(actor):
                x, length = left + b.start * scale, max(1.5, (b.end - b.start) * scale)
                colour = _COLOURS.get(b.what, "#999999")
                title = html.escape(f"{b.what}, PTX line {b.line}, {b.start} to {b.end}")
                parts.append(
                    f'<rect x="{x:.1f}" y="{top + 2}" width="{length:.1f}" height="{row - 6}" fill="{colour}" '
                    f'fill-opacity="0.55"><title>{title}</title></rect>'
                )
        return "\n".join([*parts, "</svg>"])
