"""How much longer timed plans took than a model says, and what that says about other plans.

The logarithm of measured over predicted time is taken as a Gaussian process over products and plans (kriging).  A
file has some of the timed plans, each with a weight: the mean of the process at another plan is the sum of their
weights, each times the likeness of the two.  The weights are those for which the mean is the likeliest given all
timings, where those of one product may have an error in common (`bench/kriging.py`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Timings:
    """The mean of all, the standard deviation of the process; and the places of some plans, three times their
    squares, and their weights."""

    mean: float
    deviation: float
    places: Any
    squares: Any
    weights: Any

    def factor(self, place: tuple[float, ...]) -> float:
        """Measured over predicted time of the plan at ``place``, as far as timings of plans like it say."""
        at = np.array(place, np.float32)
        # The square of the distance, three times.
        far = self.places @ (-6 * at)
        far += self.squares
        far += 3 * (at @ at)
        np.sqrt(np.maximum(far, 0, out=far), out=far)
        found = math.exp(self.mean + self.deviation**2 * float(self.weights @ ((1 + far) * np.exp(-far))))
        # A sum's last bits depend on where its arrays lie, and plans of equal time are chosen by their order.
        return round(found, 4)


@cache
def stored(file: str, name: str) -> Timings:
    """The timings ``name`` in a ``file`` of this folder, whose rows are a place and a weight."""
    content = json.loads((Path(__file__).parent / file).read_text())[name]
    rows = np.array(content["plans"])
    places = rows[:, :-1].astype(np.float32)
    return Timings(content["mean"], content["deviation"], places, 3 * (places**2).sum(1), rows[:, -1].copy())
