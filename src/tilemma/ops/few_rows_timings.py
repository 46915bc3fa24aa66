"""How much longer timed plans of few rows took than `few_rows` says, and what that says about other plans.

`few_rows_timings.json` has some of the timed plans, with the weights that `bench/fit_few_rows.py` gave them
(`timings`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.timings import stored

# Parts of the machine that work for less of the time than this do not matter, however much less.
IDLE = 0.05
# The units of `Timed.place`, by `bench/fit_few_rows.py --units`.
UNITS = (
    9.95, 5.53, 11.4, 3.2, 13.8, 5.84, 4.22, 5.83, 9.32, 21.8, 3.73, 4.1, 15.0, 97.6, 5.46,
    1.04, 1.51, 1.59, 4.1, 2.9, 2.23,
)  # fmt: skip
# Tensor cores work at the same rate in all plans.
LEFT_OUT = "tensor cores"


class Timed(NamedTuple):
    """A plan for a product of ``rows`` rows and ``weights`` weights.

    Its tiles have ``held`` rows by ``wide`` weights; ``high`` x ``across`` blocks are a cluster
    (`few_rows.FewRows`, `plan.Plan`).  ``working`` blocks work at a time.  It takes ``seconds`` by the formula,
    and each part of the machine but `LEFT_OUT` these ``parts`` of them (`few_rows.limits`).
    """

    rows: int
    weights: int
    held: int
    wide: int
    stages: int
    high: int
    across: int
    share: bool
    swap: bool
    store: str
    split: int
    loaded: int
    working: int
    seconds: float
    parts: tuple[float, ...]

    @property
    def place(self) -> tuple[float, ...]:
        """Where the plan lies: what its time depends on, each in a unit by which it matters as much as others."""
        log, tiles = math.log, cdiv(self.rows, self.held)
        found = (
            log(self.weights), log(self.wide), log(self.held), float(tiles), log(self.held * tiles / self.rows),
            log(self.high), log(self.across), float(self.share and self.high * self.across > 1), float(self.swap),
            float(self.store == "direct"), log(self.stages), log(self.split), float(self.loaded > 0),
            float(self.working), log(self.seconds), *(log(max(x, IDLE)) for x in self.parts),
        )  # fmt: skip
        return tuple(x / unit for x, unit in zip(found, UNITS, strict=True))


def factor(plan: Timed) -> float:
    """Measured over predicted time of ``plan``, as far as timings of plans like it say."""
    return stored("few_rows_timings.json", "pipelined").factor(plan.place)
