"""Fits the weights of `ops/batch_timings.json` to stored sweeps of batches.

    python bench/sweep_ops.py --kinds batches --json sweep.json       # on a GPU, with several seeds
    python bench/fit_batch_timings.py sweep.json ...                  # anywhere

The logarithm of measured over predicted time is a Gaussian process over batches and plans, plus an error that
all timings of a batch have in common, plus one of each.  The process is a sum of likenesses to some of the timed
plans, drawn at random among those that were nearly the fastest.

What the file says of its plans counts as timings of them, less exact ones: the sweeps of before need not be
kept.  ``--anew`` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, batch_timings
from tilemma.ops.batch_model import like_timed, timed
from tilemma.ops.batch_timings import DEVIATION, REACH, Timed, factors
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware, estimate

# Plans that the file has, by kernel.
STORED = {"pipelined": 1400, "resident": 350}
# How much slower than the fastest a timed plan may be, and one that is stored.
SLOWEST, NEAR = 0.4, 0.12
# The standard deviation of what timings of a batch have in common, of each, and of what the file says; a number
# against rounding.
COMMON, NOISE, SAID, RIDGE = 0.05, 0.015, 0.06, 1e-4


class Row(NamedTuple):
    """A timing: the plan, the log of measured over predicted time, the loss to the fastest, and the standard
    deviation of the log; ``number`` is that of the batch."""

    kernel: str
    number: int
    plan: Timed
    log: float
    slower: float = 0.0
    noise: float = NOISE


def said() -> Iterator[Row]:
    """What the file says of its plans: as of one batch, because it says nothing of what single ones have in
    common."""
    content = json.loads(Path(batch_timings.__file__).with_suffix(".json").read_text())
    for kernel in STORED:
        plans = [Timed(*row[:-1]) for row in content[kernel]["plans"]]
        for plan, found in zip(plans, factors(kernel, plans), strict=True):
            yield Row(kernel, 0, plan, float(np.log(found)), noise=SAID)


def timings(files: Sequence[Path]) -> Iterator[Row]:
    """The timings of sweeps."""
    on, number = Hardware(), 0
    for file in files:
        for x in json.loads(file.read_text())["shapes"]:
            if x["kind"] != "batches":
                continue
            number += 1
            call, out = call_of(Shape("batches", x["m"], x["n"], x["k"], x["batch"]), imagined)
            problem = arguments.problem(call, out, made=True)
            fastest = min(row["us"] for row in x["plans"])
            for row in x["plans"]:
                plan = plan_of(row["plan"])
                p = transposed_product(problem) if plan.swap else problem
                if plan.kernel in STORED and like_timed(p, plan):
                    mine = timed(p, plan, on)
                    predicted = estimate(problem, plan, on).seconds * 1e6 / factors(plan.kernel, [mine])[0]
                    slower = row["us"] / fastest - 1
                    log = float(np.log(row["us"] / predicted))
                    yield Row(plan.kernel, number, mine, log, slower, NOISE * math.exp(2 * slower))


def likeness(a: Any, b: Any) -> Any:
    far = np.sqrt(3 * np.maximum(0, (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T))
    return DEVIATION**2 * (1 + far) * np.exp(-far)


def fitted(rows: Sequence[Row], most: int) -> dict[str, Any]:
    """The mean, and the stored plans with their weights."""
    places = np.array([row.plan.place for row in rows]) / REACH
    logs = np.array([row.log for row in rows])
    near = np.flatnonzero(np.array([row.slower for row in rows]) < NEAR)
    kept = np.random.default_rng(1).choice(near, min(most, len(near)), replace=False)
    mean = float(logs.mean())
    like, precision = likeness(places, places[kept]), np.array([row.noise for row in rows]) ** -2.0
    # Of each batch's timings what they have in common is taken away (Woodbury's formula).
    _, batch = np.unique([row.number for row in rows], return_inverse=True)
    weighed = like * precision[:, None]
    sums = np.zeros((batch.max() + 1, len(kept)))
    np.add.at(sums, batch, weighed)
    total = np.bincount(batch, precision * (logs - mean))
    share = 1 / (COMMON**-2 + np.bincount(batch, precision))
    left = like.T @ weighed - (sums * share[:, None]).T @ sums + likeness(places[kept], places[kept])
    right = weighed.T @ (logs - mean) - sums.T @ (share * total)
    weights = np.linalg.solve(left + RIDGE * np.eye(len(kept)), right)
    plans = [[*map(_plain, rows[i].plan), float(f"{w:.4g}")] for i, w in zip(kept, weights, strict=True)]
    return {"mean": round(mean, 4), "plans": plans}


def _plain(x: Any) -> Any:
    return int(x) if isinstance(x, bool) else x


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--anew", action="store_true", help="leave out what the file says of its plans")
    options = parser.parse_args()
    rows = [row for row in timings(options.sweeps) if row.slower < SLOWEST]
    rows += [] if options.anew else said()
    target = Path(batch_timings.__file__).with_suffix(".json")
    content = json.loads(target.read_text())
    for kernel, most in STORED.items():
        content[kernel] = fitted([row for row in rows if row.kernel == kernel], most)
    parts = [f" {json.dumps(name)}: {_text(x)}" for name, x in content.items()]
    target.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return 0


def _text(x: Any) -> str:
    if not isinstance(x, dict):
        return json.dumps(x)
    rows = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in x["plans"])
    return f'{{"mean": {x["mean"]}, "plans": [\n{rows}\n ]}}'


if __name__ == "__main__":
    raise SystemExit(main())
