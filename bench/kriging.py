"""The weights that `ops/timings.py` reads: what timed plans say about a model, as a Gaussian process (kriging).

The logarithm of measured over predicted time is such a process over products and plans, plus an error that all
timings of a product have in common, plus one of each.  The process is a sum of likenesses to some of the timed
plans, drawn at random among those that were nearly the fastest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilemma.ops.timings import unlike

# How much slower than the fastest a plan that is stored may be.
NEAR = 0.3
# A number against rounding.
RIDGE = 1e-4
# Parts of the products that are judged by the weights of the others; a loss that is counted.
PARTS, LOSS = 4, 0.02


class Spread(NamedTuple):
    """Standard deviations: of the process, of what the timings of a product have in common, and of each of the
    fastest plans."""

    process: float
    common: float
    each: float


class Row(NamedTuple):
    """A timed plan of product ``number`` at `place`, the logarithms of its predicted time and of measured over
    predicted time, and its loss to the fastest plan of the product."""

    number: int
    plan: Any
    predicted: float
    log: float
    slower: float


def likeness(a: Any, b: Any, deviation: float) -> Any:
    """Of places: Matern's of 3/2."""
    far = distances(a, b)
    return deviation**2 * (1 + far) * np.exp(-far)


def distances(a: Any, b: Any) -> Any:
    return np.sqrt(3 * np.maximum(0, (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T))


def places(plans: Sequence[Any]) -> Any:
    return np.array([x.place for x in plans])


def fitted(rows: Sequence[Row], most: int, spread: Spread, doubt: float = 0.0) -> dict[str, Any]:
    """What a file of timings has: the places of up to ``most`` plans, in two decimals, with their weights, and by
    how many standard deviations of the process a plan counts as slower that is like none."""
    at, logs = places([r.plan for r in rows]), np.array([r.log for r in rows])
    slower = np.array([r.slower for r in rows])
    near = np.flatnonzero(slower < NEAR)
    kept = np.round(at[np.random.default_rng(1).choice(near, min(most, len(near)), replace=False)], 2)
    mean, precision = round(float(logs.mean()), 4), (spread.each * np.exp(2 * slower)) ** -2.0
    like = likeness(at, kept, spread.process)
    # Of each product's timings what they have in common is taken away (Woodbury's formula).
    _, product = np.unique([r.number for r in rows], return_inverse=True)
    weighed = like * precision[:, None]
    sums = np.zeros((product.max() + 1, len(kept)))
    np.add.at(sums, product, weighed)
    total = np.bincount(product, precision * (logs - mean))
    share = 1 / (spread.common**-2 + np.bincount(product, precision))
    left = like.T @ weighed - (sums * share[:, None]).T @ sums + likeness(kept, kept, spread.process)
    right = weighed.T @ (logs - mean) - sums.T @ (share * total)
    weights = np.linalg.solve(left + RIDGE * np.eye(len(kept)), right)
    plans = [[*map(_short, place), float(f"{w:.4g}")] for place, w in zip(kept, weights, strict=True)]
    numbers = {"mean": mean, "deviation": spread.process}
    return numbers | ({"doubt": doubt} if doubt else {}) | {"plans": plans}


def _short(x: float) -> float | int:
    x = round(float(x), 2)
    return int(x) if x == int(x) else x


def likeliest(rows: Sequence[Row], spread: Spread, steps: int = 40) -> tuple[list[float], Spread]:
    """By how much the units of places should be multiplied, and the spread, for which the timings are the
    likeliest: ``steps`` steps from those that are given, each by the signs of the derivatives (RPROP)."""
    at, logs = places([r.plan for r in rows]), np.array([r.log for r in rows])
    logs = logs - logs.mean()
    slower = np.exp(2 * np.array([r.slower for r in rows]))
    _, product = np.unique([r.number for r in rows], return_inverse=True)
    same = (product[:, None] == product).astype(float)
    found, change = np.log([1.0] * at.shape[1] + list(spread)), np.full(at.shape[1] + 3, 0.1)
    best, before = (np.inf, found), np.zeros_like(found)
    for _ in range(steps):
        process, common, each = np.exp(found[-3:])
        scaled, noise = at / np.exp(found[:-3]), (each * slower) ** 2
        far = distances(scaled, scaled)
        near = np.exp(-far)
        like = process**2 * (1 + far) * near
        inverse = np.linalg.inv(like + common**2 * same + np.diag(noise))
        solved = inverse @ logs
        value = 0.5 * logs @ solved - 0.5 * np.linalg.slogdet(inverse)[1]
        if value < best[0]:
            best = value, found.copy()
        outer = inverse - np.outer(solved, solved)
        pull = 3 * process**2 * outer * near
        by_units = (scaled**2 * pull.sum(1)[:, None]).sum(0) - (scaled * (pull @ scaled)).sum(0)
        by_spread = (outer * like).sum(), common**2 * (outer * same).sum(), np.diag(outer) @ noise
        slope = np.array([*by_units, *by_spread])
        turned = np.sign(slope * before)
        change = np.clip(change * np.where(turned > 0, 1.2, np.where(turned < 0, 0.5, 1.0)), 1e-3, 0.5)
        before = np.where(turned < 0, 0.0, slope)
        found = np.clip(found - change * np.sign(before), -5, 5)
    return [float(x) for x in np.exp(best[1][:-3])], Spread(*(float(x) for x in np.exp(best[1][-3:])))


def corrections(found: Sequence[Row], by: Mapping[str, Any]) -> Any:
    """What weights say of the logarithms of measured over predicted times."""
    plans, deviation = np.array(by["plans"]), by["deviation"]
    like = likeness(places([r.plan for r in found]), plans[:, :-1], deviation)
    return by["mean"] + like @ plans[:, -1] + by.get("doubt", 0.0) * deviation * unlike(like / deviation**2)


def judge(found: Sequence[Row], weights: Callable[[Sequence[Row]], Mapping[str, Any]]) -> None:
    """Print what the formula and the weights are worth for products that these have not seen."""
    every = {"formula": [(r, r.predicted) for r in found], "with weights": []}
    for part in range(PARTS):
        left = [r for r in found if r.number % PARTS == part]
        more = corrections(left, weights([r for r in found if r.number % PARTS != part]))
        every["with weights"] += [(r, r.predicted + x) for r, x in zip(left, more, strict=True)]
    for name, predictions in every.items():
        products: dict[int, list[tuple[float, float]]] = {}
        for r, log in predictions:
            products.setdefault(r.number, []).append((log, r.slower))
        lost = np.array([min(x)[1] for x in products.values() if len(x) > 1])
        above = np.sum(lost > LOSS)
        print(f"{name:12} {len(lost)} shapes: {lost.mean():.4f}, worst {lost.max():.3f}, {above} above {LOSS}")


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
