"""How much longer timed plans of batches took than `batch_model` says, and what that says about other plans.

The logarithm of measured over predicted time is taken as a Gaussian process over batches and plans (kriging).
`batch_timings.json` has some of the timed plans, each with a weight: the mean of the process at another plan is
the sum of their weights, each times the likeness of the two.  The weights are those for which the mean is the
likeliest given all timings, where those of one batch may have an error in common.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.requests import LINE

# The standard deviation of the process, and how far it reaches in units of `Timed.place`.
DEVIATION, REACH = 0.08, 4.0
# Plans whose factors are computed at a time.
PART = 64
# Elements along K that an instruction multiplies.
DEPTH = 16


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
            whole, tasks = each // self.grid * down, each % self.grid * down
            rounds, unit = whole + cdiv(tasks, self.grid), DEPTH
            uneven = rounds * self.grid / (each * down) - 1
        else:
            tasks = self.batch * cdiv(m, self.rows * self.high) * cdiv(n, self.columns * self.wide)
            rounds, unit = cdiv(tasks, self.grid), self.depth
            uneven = rounds * self.grid / tasks - 1
        log, size = math.log, 2
        return (
            log(self.batch) / 1.5, log(m), log(n), log(self.k) / 0.8,
            log(self.rows) / 0.5, log(self.columns) / 0.5, log(self.high) / 0.7, log(self.wide) / 0.7,
            self.share, self.swap / 1.5, self.store == "rows", self.store == "direct",
            log(self.stages) / 0.7, log(self.groups) / 0.7,
            m / (down * self.rows) / 0.25, n / (across * self.columns) / 0.25,
            self.k / (cdiv(self.k, unit) * unit) / 0.3,
            min(uneven, 0.6) / 0.25 if rounds > 1 else 0.0, log(rounds) / 1.2,
            log(math.gcd(self.k * size, LINE)), log(math.gcd(self.n * size, LINE)),
            log(self.slots + 1) / 0.5, log(self.beside) / 0.5, (self.rows < 64 * self.groups) / 0.7,
            log(self.depth) / 0.7, self.queue / 0.7, self.kept,
        )  # fmt: skip


@cache
def _timings(kernel: str) -> tuple[float, Any, Any, Any]:
    """The mean of all, and the places of the plans of ``kernel``, their squares and their weights."""
    content = json.loads((Path(__file__).parent / "batch_timings.json").read_text())[kernel]
    places = np.array([Timed(*row[:-1]).place for row in content["plans"]], np.float32) / REACH
    return content["mean"], places, (places**2).sum(1), np.array([row[-1] for row in content["plans"]], np.float32)


def factors(kernel: str, plans: Sequence[Timed]) -> Any:
    """Measured over predicted time of each of ``plans``, as far as timings of plans like it say."""
    mean, places, squares, weights = _timings(kernel)
    wanted = np.array([x.place for x in plans], np.float32) / REACH
    # Of arrays that processors keep, in place: fresh ones took twice the time.
    return np.concatenate(
        [_factors(wanted[i : i + PART], places, squares, weights, mean) for i in range(0, len(wanted), PART)]
    )


def _factors(wanted: Any, places: Any, squares: Any, weights: Any, mean: float) -> Any:
    far = wanted @ places.T
    far *= -2
    far += squares
    far += (wanted**2).sum(1)[:, None]
    np.maximum(far, 0, out=far)
    far *= 3
    np.sqrt(far, out=far)
    like = np.exp(-far)
    far += 1
    like *= far
    return np.exp(mean + DEVIATION**2 * (like @ weights).astype(float))
