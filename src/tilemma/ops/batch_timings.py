"""How much longer timed plans of batches took than `batch_model` says, and what that says about other plans.

`batch_timings.json` has some of the timed plans, with the weights that `bench/fit_batch_timings.py` gave them
(`timings`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.requests import LINE, SECTOR
from tilemma.ops.timings import stored

# Elements along K that an instruction multiplies, and rows of a warpgroup.
DEPTH, ATOM = 16, 64
# Blocks that are left out of the last of several rounds count up to this share.
UNEVEN = 0.6
# The units of `Timed.place`.
UNITS = (
    6.0, 4.0, 4.0, 3.2, 2.0, 2.0, 2.8, 2.8, 4.0, 6.0, 4.0, 4.0, 2.8, 2.8, 1.0, 1.0, 1.2, 1.0, 4.8, 4.0, 4.0,
    2.0, 2.0, 2.8, 2.8, 2.8, 4.0, 0.25, 1.0, 4.0, 3.0,
)  # fmt: skip


class Timed(NamedTuple):
    """``batch`` products of ``m`` x ``n`` x ``k``, of elements of 16 bits, and the plan for them (`plan.Plan`)."""

    batch: int
    m: int
    n: int
    k: int
    rows: int
    columns: int
    depth: int
    groups: int
    stages: int
    high: int
    wide: int
    share: int
    swap: int
    store: str
    slots: int
    grid: int
    beside: int
    queue: int
    kept: int

    @property
    def place(self) -> tuple[float, ...]:
        """Where the plan lies: what its time depends on, each in a unit by which it matters as much as others."""
        m, n = (self.n, self.m) if self.swap else (self.m, self.n)
        down, across = cdiv(m, self.rows), cdiv(n, self.columns)
        if self.slots:
            each = self.batch * across
            tasks = each * down
            rounds = each // self.grid * down + cdiv(each % self.grid * down, self.grid)
            unit = DEPTH
        else:
            tasks = self.batch * cdiv(m, self.rows * self.high) * cdiv(n, self.columns * self.wide)
            rounds, unit = cdiv(tasks, self.grid), self.depth
        uneven = rounds * self.grid / tasks - 1
        log, size, queue = math.log, 2, float(self.queue)
        found = (
            log(self.batch), log(m), log(n), log(self.k), log(self.rows), log(self.columns), log(self.high),
            log(self.wide), float(self.share), float(self.swap), float(self.store == "rows"),
            float(self.store == "direct"), log(self.stages), log(self.groups), m / (down * self.rows),
            n / (across * self.columns), self.k / (cdiv(self.k, unit) * unit),
            min(uneven, UNEVEN) if rounds > 1 else 0.0, log(rounds), log(math.gcd(self.k * size, LINE)),
            log(math.gcd(self.n * size, LINE)), log(self.slots + 1), log(self.beside),
            float(self.rows < ATOM * self.groups), log(self.depth), queue, float(self.kept),
            float(self.slots > 0), float(self.k * size % SECTOR > 0), queue * log(rounds),
            queue * log(tasks / self.batch),
        )  # fmt: skip
        return tuple(x / unit for x, unit in zip(found, UNITS, strict=True))


def factors(plans: Sequence[Timed]) -> list[float]:
    """Measured over predicted time of each of ``plans``, as far as timings of plans like it say."""
    return stored("batch_timings.json", "batches").factors([x.place for x in plans])
