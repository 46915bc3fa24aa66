"""Fits the constants of `ops/few_rounds.py` to stored sweeps of large products, and prints them.

    python bench/sweep_ops.py --kinds "few rounds" --json sweep.json        # on a GPU, with several seeds
    python bench/fit_few_rounds.py docs/performance/few_rounds.json         # anywhere

The logarithm of a plan's time is a mean of that of a single launch with a flushed L2 cache, where fewer plans are
faster than other libraries, and that of the steady state.  Only differences between the plans of a product matter
for the choice: an error that all of them have in common counts less.  The plans count the less the slower they are
than the fastest.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, few_rounds
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem

# The constants that are fitted; the others are what they are for other reasons.
FITTED = (
    "TENSOR", "SHARED_MEMORY", "PORT", "CACHE", "MEMORY", "SMOOTH", "SMOOTH_LOAD", "ODD", "SECTORS", "PAIR",
    "FOUR", "FOURS", "ZEROS", "LATENCY", "LATENCY_SHARED", "BUSY", "START", "CLUSTER", "HAND", "INSIDE", "TILE",
    "STORE", "DIVIDED_SECTORS",
)  # fmt: skip
# The share of the time with a flushed cache in the logarithm of a plan's time.
FLUSHED = 0.7
# How much slower than the fastest a plan is that counts 1 / e; how much the common error counts; the error from
# which on outliers count less; what a change of a constant by a factor of e costs.
NEAR, COMMON, OUTLIER, CHANGE = 0.12, 0.35, 0.03, 0.03
# Iterations, and the step of derivatives.
ITERATIONS, STEP = 12, 1e-3


class Timing(NamedTuple):
    """A plan for a product, transposed already if the plan says so, and its measured time in microseconds."""

    number: int
    problem: Problem
    plan: Plan
    us: float


def timings(files: Sequence[Path]) -> list[Timing]:
    """The timings of all products that the model is for."""
    found, number = [], 0
    for file in files:
        for x in json.loads(file.read_text())["shapes"]:
            call, out = call_of(Shape(x["kind"], x["m"], x["n"], x["k"]), imagined)
            problem = arguments.problem(call, out, made=True)
            if few_rounds.applies(problem):
                number += 1
                turned = transposed_product(problem)
                for row in x["plans"]:
                    plan, us = plan_of(row["plan"]), row["us"] ** FLUSHED * row["steady_us"] ** (1 - FLUSHED)
                    found.append(Timing(number - 1, turned if plan.swap else problem, plan, us))
    return found


def predicted(rows: Sequence[Timing], on: Hardware) -> Any:
    """The logarithms of the model's microseconds."""
    return np.log([few_rounds.seconds(x.problem, x.plan, on)[0] * 1e6 for x in rows])


class Fit:
    """The residuals of the model by its constants, which are e to the power of a vector times those of today."""

    def __init__(self, rows: Sequence[Timing]) -> None:
        self.rows, self.on = rows, Hardware()
        self.number = np.array([x.number for x in rows])
        self.measured = np.log([x.us for x in rows])
        fastest = np.full(self.number.max() + 1, np.inf)
        np.minimum.at(fastest, self.number, self.measured)
        self.weight = np.exp(-(self.measured - fastest[self.number]) / NEAR)
        self.total = np.bincount(self.number, self.weight)
        self.first = {name: getattr(few_rounds, name) for name in FITTED}

    def set(self, at: Any) -> None:
        for name, x in zip(FITTED, at, strict=True):
            setattr(few_rounds, name, self.first[name] * math.exp(x))

    def residuals(self, at: Any) -> Any:
        self.set(at)
        error = self.measured - predicted(self.rows, self.on)
        mean = np.bincount(self.number, self.weight * error) / self.total
        return np.concatenate([np.sqrt(self.weight) * (error - mean[self.number]), COMMON * mean, CHANGE * at])

    def run(self) -> Any:
        """Levenberg-Marquardt, outliers weighted anew in each iteration."""
        at, damping = np.zeros(len(FITTED)), 1e-2
        now = self.residuals(at)
        for _ in range(ITERATIONS):
            slopes = np.array([(self.residuals(at + d) - now) / STEP for d in STEP * np.eye(len(at))]).T
            trust = 1 / np.sqrt(1 + (now / OUTLIER) ** 2)
            square = slopes.T @ (slopes * trust[:, None])
            for _ in range(6):
                step = np.linalg.solve(square + damping * np.diag(square.diagonal()), -slopes.T @ (trust * now))
                later = self.residuals(at + step)
                if cost(later) < cost(now):
                    at, now, damping = at + step, later, damping / 3
                    break
                damping *= 4
        self.set(at)
        return at


def cost(residuals: Any) -> float:
    """Of large residuals the absolute value counts, of small ones the square."""
    return float((np.sqrt(1 + (residuals / OUTLIER) ** 2) - 1).sum())


def regret(fit: Fit) -> float:
    """How much longer the model's choices take than the fastest timed plans, on average."""
    model, lost = predicted(fit.rows, fit.on), []
    for number in range(fit.number.max() + 1):
        mine = np.flatnonzero(fit.number == number)
        lost.append(fit.measured[mine[np.argmin(model[mine])]] - fit.measured[mine].min())
    return float(np.mean(lost))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    fit = Fit(timings(parser.parse_args().sweeps))
    print(f"{len(fit.rows)} times of {len(fit.total)} products; regret {regret(fit):.4f}", flush=True)
    fit.run()
    for name in FITTED:
        print(f"{name} = {getattr(few_rounds, name):.3g}")
    print(f"regret {regret(fit):.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
