"""The timeline of a run: what each warp, asynchronous operation and mbarrier did when.

Time is the number of warp instructions that the grid has executed.  A warp is a bar from its start to its exit,
with its waits on it; an asynchronous operation is a bar from its issue to its completion; the completion of an
mbarrier phase is a mark.  Names are those of the program where the launch plan has them (`SharedNames`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Cta = tuple[int, int, int]
# In text, above the bar of the warp.
_MARKS = {"phase": "|", "wait": ".", "mma": "M", "store": "S"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of an actor's time, in steps of the grid; ``line`` is the PTX line that began it, 0 for none.

    ``actor`` is unique within ``cta``.  ``about`` names what it works on or waits for: `lhs_s[1]`, `full[1]`.
    """

    actor: str
    what: str
    start: int
    end: int
    line: int
    cta: Cta = (0, 0, 0)
    about: str = ""

    @property
    def row(self) -> str:
        """The actor with its CTA."""
        return f"CTA {','.join(map(str, self.cta))} {self.actor}"

    def to_json(self) -> dict[str, Any]:
        return {
            "actor": self.actor, "what": self.what, "start": self.start, "end": self.end,
            "ptx_line": self.line, "cta": list(self.cta), "about": self.about,
        }  # fmt: skip


# The order of an actor's kind within a CTA.
_KINDS = ("warp", "wait", "mma", "store", "tma", "cp.async", "cp.async.arrive", "phase", "wgmma", "bulk-store")


def _order(actor: str, kinds: set[str]) -> tuple[Any, ...]:
    kind = min((_KINDS.index(k) if k in _KINDS else len(_KINDS) for k in kinds), default=0)
    # Numbers within a name as numbers: warp 10 after warp 9.
    return (kind, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", actor)])


@dataclass
class Timeline:
    """Bars in the order in which they ended."""

    bars: list[Bar] = field(default_factory=list)

    def add(self, bar: Bar) -> None:
        self.bars.append(bar)

    @property
    def ctas(self) -> list[Cta]:
        """The CTAs in the order of their first bars."""
        return list(dict.fromkeys(b.cta for b in sorted(self.bars, key=lambda b: b.start)))

    @property
    def actors(self) -> list[str]:
        """The rows: CTA by CTA its warps, copies, mbarriers, wgmma and stores."""
        found: list[str] = []
        for cta in sorted(self.ctas):
            found += [f"CTA {','.join(map(str, cta))} {a}" for a in self.of_cta(cta)]
        return found

    def of_cta(self, cta: Cta) -> dict[str, list[Bar]]:
        """The bars of each actor of a CTA, actors in order; a warp's own bar comes before those of its waits."""
        rows: dict[str, list[Bar]] = {}
        for b in self.bars:
            if b.cta == cta:
                rows.setdefault(b.actor, []).append(b)
        ordered = sorted(rows, key=lambda a: _order(a, {b.what for b in rows[a]}))
        return {a: sorted(rows[a], key=lambda b: (b.what != "warp", b.start)) for a in ordered}

    @property
    def length(self) -> int:
        return max((b.end for b in self.bars), default=0) + 1

    def text(self, width: int = 100, ctas: Iterable[Cta] | None = None) -> str:
        """One row for each actor (of ``ctas``, default: all): ``=`` a warp, or an operation in flight; ``.`` a
        wait; ``#`` several operations; ``|`` the completion of a phase."""
        chosen = sorted(self.ctas if ctas is None else ctas)
        rows = {bars[0].row: bars for cta in chosen for bars in self.of_cta(cta).values()}
        label = max((len(a) for a in rows), default=0)
        scale = width / self.length
        lines = [f"{'':<{label}}  0 .. {self.length - 1} warp instructions"]
        for actor, bars in rows.items():
            cells = [" "] * width
            for b in bars:
                first, last = int(b.start * scale), min(width - 1, int(b.end * scale))
                for i in range(first, last + 1):
                    cells[i] = _MARKS.get(b.what) or ("=" if cells[i] == " " else "#")
            lines.append(f"{actor:<{label}}  {''.join(cells).rstrip()}")
        return "\n".join(lines)

    def svg(self, width: int = 1200, ctas: Iterable[Cta] | None = None) -> str:
        """The same as a picture (`timeline_svg`)."""
        from tilemma.machine.timeline_svg import timeline_svg

        return timeline_svg(self, width, ctas)
