"""What the agents did when: for a person to look at."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Bar:
    """One stretch of an actor's time, in steps of the grid."""

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
