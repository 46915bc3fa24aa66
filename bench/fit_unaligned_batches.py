"""Times batches of small products with unaligned rows, and fits the terms of `ops/unaligned_batches.py` to them.

    python bench/fit_unaligned_batches.py --seed 1 --count 100 --json FILE   # on a GPU: times plans
    python bench/fit_unaligned_batches.py --fit FILE ..                      # prints the numbers and their errors

The choice is one of copied operands.  ``--fit`` divides the products into five parts, and prints for each kind of
plan the standard deviation of predicted over measured times, the terms fitted to the other four parts, and how
torch compares to the choice by them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import sweep_ops
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, unaligned_batches
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate
from tilemma.ops.problem import Problem

KERNELS = tuple((tile, 2 if tile[0] == 128 else 1) for tile in unaligned_batches.TILES)
PARTS = 5


def shapes(count: int, seed: int) -> list[Shape]:
    """Batches of `sweep_ops.shapes` with other extents: K odd, or a multiple of 2 or 4 alone; some M and N odd."""
    rng, found = random.Random(seed), []
    for i, s in enumerate(sweep_ops.shapes(count, seed, ["batches"])):
        k = s.k + (1 - 2 * rng.randrange(2), 4, 2, 6)[i % 4]
        m, n = (s.m, s.n) if i % 3 else (s.m + 1, s.n + 3)
        found.append(Shape("batches", m, n, k, s.batch))
    return found


def choices(problem: Problem, on: Hardware, _most: int) -> list[Estimate]:
    """The best plan with copied operands, and the kernel for any strides with each tile."""
    best = next(e for e in ranked(problem, on) if e.plan.pack)
    return [best, *(estimate(problem, Plan("tiles", tile, groups), on) for tile, groups in KERNELS)]


def timed(count: int, seed: int, file: Path) -> None:
    sweep_ops.choices = choices
    wanted, rows = shapes(count, seed), []
    with ProcessPoolExecutor(12) as pool:
        waiting = [pool.submit(sweep_ops.compiled, s, 9) for s in wanted]
        for s, w in zip(wanted, waiting, strict=True):
            print(*w.result(), sep="\n", end="")
            rows.append(sweep_ops.measure(s, 9, 7))
            print(s, *(f"{rows[-1]['torch_us'] / p['us']:.3f}" for p in rows[-1]["plans"]), flush=True)
            file.write_text(json.dumps({"seed": seed, "shapes": rows}))


def least_squares(a: Any, b: Any) -> Any:
    """The x >= 0 for which ``a @ x`` is nearest to ``b``, one coordinate after the other."""
    gram, right, x = a.T @ a, a.T @ b, np.zeros(a.shape[1])
    for _ in range(20_000):
        for j in range(len(x)):
            x[j] = max(0.0, x[j] + (right[j] - gram[j] @ x) / gram[j, j])
    return x


def kind(p: dict[str, Any]) -> Any:
    return "copies" if p["plan"]["pack"] else tuple(p["plan"]["tile"])


def fit(files: list[Path]) -> None:
    rows = [x for f in files for x in json.loads(f.read_text())["shapes"]]
    part = np.random.default_rng(0).integers(0, PARTS, len(rows))
    seen, predicted = {}, {}
    for name in ("copies", *unaligned_batches.TILES):
        terms, us = [], []
        for row in rows:
            call, out = call_of(Shape("batches", row["m"], row["n"], row["k"], row["batch"]), imagined)
            problem = arguments.problem(call, out, made=True)
            (p,) = (x for x in row["plans"] if kind(x) == name and x["plan"]["kernel"] != "ahead")
            # What the model of aligned operands says, without this correction.
            seconds = _aligned(problem, plan_of(p["plan"])) if name == "copies" else 0.0
            terms.append(
                unaligned_batches.terms_of_copies(problem, seconds)
                if name == "copies"
                else unaligned_batches.terms_of_tiles(problem, name)
            )
            us.append(p["us"])
        a, seen[name] = np.array(terms), np.array(us)
        scale = a.max(0)
        shares = a / scale / seen[name][:, None]
        predicted[name] = np.zeros(len(rows))
        for i in range(PARTS):
            others = part != i
            x = least_squares(shares[others], np.ones(others.sum()))
            predicted[name][~others] = (a / scale)[~others] @ x
        error = np.log(predicted[name] / seen[name]).std()
        numbers = least_squares(shares, np.ones(len(rows))) / scale
        print(name, "(" + ", ".join(f"{x:.3g}" for x in numbers) + ")", f"deviation {error:.3f}")
    best = np.array([predicted[n] for n in predicted]).argmin(0)
    chosen = np.array([seen[n] for n in predicted])[best, np.arange(len(rows))]
    ratios = np.array([x["torch_us"] for x in rows]) / chosen
    print(f"{len(rows)}: torch over the choice {geometric_mean(ratios):.3f}, least {ratios.min():.3f}")


def _aligned(problem: Problem, plan: Plan) -> float:
    """Seconds of ``plan`` by the model of aligned operands with its copies."""
    seconds, first = estimate(problem, plan, Hardware()).seconds * 1e6, unaligned_batches.COPIES
    if not unaligned_batches.applies(problem):
        return seconds * 1e-6
    terms = unaligned_batches.terms_of_copies(problem, 0.0)
    return float((seconds - sum(a * b for a, b in zip(first, terms, strict=True))) / first[1]) * 1e-6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--json", type=Path, default=Path("unaligned_batches.json"))
    parser.add_argument("--fit", nargs="+", type=Path)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit)
    else:
        timed(options.count, options.seed, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
