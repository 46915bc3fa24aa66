"""How much longer timed plans took than a model says, and what that says about other plans.

The logarithm of measured over predicted time is taken as a Gaussian process over products and plans (kriging).  A
file has some of the timed plans, each with a weight: the mean of the process at another plan is the sum of their
weights, each times the likeness of the two.  The weights are those for which the mean is the likeliest given all
timings, where those of one product may have an error in common (`bench/kriging.py`).

Plans that were timed are few of those that there are, and the least of many predictions is often too low.  A file
may ask for doubt: plans count as slower, the less they are like the timed one that they are most like.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

# Plans whose factors are found at a time: arrays that a processor keeps.
PART = 16


@dataclass(frozen=True, slots=True)
class Timings:
    """The mean of all, the standard deviation of the process, and by how many of it a plan counts as slower that
    is like none; and the places of some plans, three times their squares, and their weights."""

    mean: float
    deviation: float
    doubt: float
    places: Any
    squares: Any
    weights: Any

    def factor(self, place: tuple[float, ...]) -> float:
        """Measured over predicted time of the plan at ``place``, as far as timings of plans like it say."""
        return self.factors([place])[0]

    def factors(self, places: Sequence[tuple[float, ...]]) -> list[float]:
        """`factor` of several plans together, which takes less than one after another."""
        at = np.array(places, np.float32)
        return [x for i in range(0, len(at), PART) for x in self._factors(at[i : i + PART])]

    def _factors(self, at: Any) -> list[float]:
        # The squares of the distances, three times.
        far = (-6 * at) @ self.places.T
        far += self.squares
        far += 3 * (at**2).sum(1)[:, None]
        np.sqrt(np.maximum(far, 0, out=far), out=far)
        like = np.exp(-far)
        far += 1
        like *= far
        found = self.mean + self.deviation**2 * (like @ self.weights)
        if self.doubt:
            found += self.doubt * self.deviation * unlike(like)
        # A sum's last bits depend on where its arrays lie, and plans of equal time are chosen by their order.
        return [round(math.exp(x), 4) for x in found]


def unlike(like: Any) -> Any:
    """The standard deviation, over that of the process, of a plan of which the most like timed one is known
    exactly; from the likenesses to the timed ones in the last axis."""
    return np.sqrt(np.maximum(1 - like.max(-1) ** 2, 0))


@cache
def stored(file: str, name: str) -> Timings:
    """The timings ``name`` in a ``file`` of this folder, whose rows are a place and a weight."""
    content = json.loads((Path(__file__).parent / file).read_text())[name]
    rows = np.array(content["plans"])
    places = rows[:, :-1].astype(np.float32)
    mean, deviation, doubt = content["mean"], content["deviation"], content.get("doubt", 0.0)
    return Timings(mean, deviation, doubt, places, 3 * (places**2).sum(1), rows[:, -1].copy())
