"""How much longer timed plans of few rounds took than `few_rounds` says, and what that says about other plans.

`few_rounds_timings.json` has some of the timed plans, with the weights that `bench/fit_few_rounds_timings.py` gave
them (`timings`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.timings import stored

# The units of `Timed.place`.
UNITS = (
    1.5, 1.5, 2.0, 3.0, 4.2, 1.5, 1.0, 1.5, 3.75, 12.0, 3.0, 3.0, 3.0, 3.0, 4.2, 3.0, 3.0, 4.2, 1.5, 3.75, 3.75,
    3.0,
)  # fmt: skip


class Timed(NamedTuple):
    """A product of ``m`` x ``n`` x ``k`` elements of 16 bits, the transposed one if the plan is for that, and the
    plan for it (`plan.Plan`).  ``together`` of its tasks run at a time."""

    m: int
    n: int
    k: int
    rows: int
    columns: int
    stages: int
    high: int
    wide: int
    share: int
    by_hand: int
    swap: int
    store: str
    split: int
    inside: int
    together: int

    @property
    def place(self) -> tuple[float, ...]:
        """Where the plan lies: what its time depends on, each in a unit by which it matters as much as others."""
        log, down, across = math.log, self.rows * self.high, self.columns * self.wide
        tasks = cdiv(self.m, down) * cdiv(self.n, across) * self.high * self.wide * self.split
        rounds, shares = cdiv(tasks, self.together), self.share and self.high * self.wide > 1
        zeros = 1.0 - self.inside
        found = (
            log(self.m), log(self.n), log(self.k), float(self.k % 64 > 0), float(self.k % 16 > 0), log(self.rows),
            log(self.columns), log(self.rows * self.columns), float(self.columns % 16 > 0), float(self.stages),
            log(self.high), log(self.wide), float(shares), float(self.swap), float(self.by_hand),
            float(self.split > 1), float(self.store == "direct"), float(rounds), tasks / self.together / rounds,
            zeros * (-self.m % down) / self.rows, zeros * (-self.n % across) / self.columns, float(self.inside),
        )  # fmt: skip
        return tuple(x / unit for x, unit in zip(found, UNITS, strict=True))


def factor(plan: Timed) -> float:
    """Measured over predicted time of ``plan``, as far as timings of plans like it say."""
    return stored("few_rounds_timings.json", "pipelined").factor(plan.place)
