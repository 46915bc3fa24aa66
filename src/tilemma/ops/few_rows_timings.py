"""How much longer timed plans of few rows took than `few_rows` says, and what that says about other plans.

`few_rows_timings.json` has some of the timed plans, with the weights that `bench/fit_few_rows.py` gave them
(`timings`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tilemma.arithmetic.integers import cdiv
from tilemma.ops.timings import stored


class Timed(NamedTuple):
    """A product of ``rows`` rows and ``weights`` weights of ``k`` elements of ``size`` bytes, and the plan for it.

    Its tiles have ``held`` rows by ``wide`` weights, which ``groups`` warpgroups of ``tall`` rows multiply;
    ``high`` x ``across`` blocks are a cluster (`few_rows.FewRows`, `plan.Plan`).  ``tasks`` come in rounds of
    ``together``, on ``sms`` SMs.
    """

    rows: int
    weights: int
    k: int
    size: int
    held: int
    wide: int
    depth: int
    tall: int
    groups: int
    stages: int
    high: int
    across: int
    share: int
    swap: int
    store: str
    split: int
    loaded: int
    prompt: int
    streamed: int
    ordered: int
    tasks: int
    together: int

    @property
    def place(self) -> tuple[float, ...]:
        """Where the plan lies: what its time depends on, each in a unit by which it matters as much as others."""
        log, tiles, rounds = math.log, cdiv(self.rows, self.held), cdiv(self.tasks, self.together)
        shares = self.share and self.high * self.across > 1
        return (
            log(self.rows) / 0.8, log(self.weights) / 0.8, log(self.k), float(self.size),
            log(self.wide) / 0.4, log(self.held) / 0.4, float(tiles), self.held * tiles / self.rows / 0.3,
            log(self.high) / 0.7, log(self.across) / 0.7, float(shares), float(self.swap), self.ordered / 0.7,
            (self.store == "direct") / 0.7, log(self.stages) / 0.5, float(self.groups), log(self.tall) / 0.7,
            log(rounds) / 0.5, min(rounds * self.together / self.tasks - 1, 1) / 0.2 if rounds > 1 else 0.0,
            min(self.tasks, self.together) / 13, log(self.depth) / 0.7, log(self.split) / 0.4,
            float(self.prompt), float(self.streamed), float(self.loaded > 0),
        )  # fmt: skip


def _place(*fields: Any) -> tuple[float, ...]:
    return Timed(*fields).place


def factor(plan: Timed) -> float:
    """Measured over predicted time of ``plan``, as far as timings of plans like it say."""
    return stored("few_rows_timings.json", "pipelined", _place).factor(plan.place)
