"""The weights that `ops/timings.py` reads: what timed plans say about a model, as a Gaussian process (kriging).

The logarithm of measured over predicted time is such a process over products and plans, plus an error that all
timings of a product have in common, plus one of each.  The process is a sum of likenesses to some of the timed
plans, drawn at random among those that were nearly the fastest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# How much slower than the fastest a plan that is stored may be.
NEAR = 0.12
# The standard deviation of what timings of a product have in common, and of each of the fastest; a number against
# rounding.
COMMON, NOISE, RIDGE = 0.05, 0.015, 1e-4


class Row(NamedTuple):
    """A timed plan of product ``number`` at `place`, the logarithms of its predicted time and of measured over
    predicted time, and its loss to the fastest plan of the product."""

    number: int
    plan: Any
    predicted: float
    log: float
    slower: float


def likeness(a: Any, b: Any, deviation: float) -> Any:
    """Of places in units of the reach: Matern's of 3/2."""
    far = np.sqrt(3 * np.maximum(0, (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T))
    return deviation**2 * (1 + far) * np.exp(-far)


def places(plans: Sequence[Any], reach: float) -> Any:
    return np.array([x.place for x in plans]) / reach


def fitted(rows: Sequence[Row], most: int, deviation: float, reach: float) -> dict[str, Any]:
    """What a file of timings has: up to ``most`` plans with their weights."""
    at, logs = places([r.plan for r in rows], reach), np.array([r.log for r in rows])
    slower = np.array([r.slower for r in rows])
    near = np.flatnonzero(slower < NEAR)
    kept = np.random.default_rng(1).choice(near, min(most, len(near)), replace=False)
    mean, precision = float(logs.mean()), (NOISE * np.exp(2 * slower)) ** -2.0
    like = likeness(at, at[kept], deviation)
    # Of each product's timings what they have in common is taken away (Woodbury's formula).
    _, product = np.unique([r.number for r in rows], return_inverse=True)
    weighed = like * precision[:, None]
    sums = np.zeros((product.max() + 1, len(kept)))
    np.add.at(sums, product, weighed)
    total = np.bincount(product, precision * (logs - mean))
    share = 1 / (COMMON**-2 + np.bincount(product, precision))
    left = like.T @ weighed - (sums * share[:, None]).T @ sums + likeness(at[kept], at[kept], deviation)
    right = weighed.T @ (logs - mean) - sums.T @ (share * total)
    weights = np.linalg.solve(left + RIDGE * np.eye(len(kept)), right)
    plans = [[*rows[i].plan, float(f"{w:.4g}")] for i, w in zip(kept, weights, strict=True)]
    return {"mean": round(mean, 4), "deviation": deviation, "reach": reach, "plans": plans}


def text(content: Mapping[str, Any]) -> str:
    """A file of timings, a plan a line."""
    parts = []
    for name, x in content.items():
        if isinstance(x, dict):
            numbers = "".join(f'"{key}": {value}, ' for key, value in x.items() if key != "plans")
            plans = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in x["plans"])
            parts.append(f' "{name}": {{{numbers}"plans": [\n{plans}\n ]}}')
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(x)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
