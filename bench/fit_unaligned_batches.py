"""Times batches of small products with unaligned rows, and fits the terms of `ops/unaligned_batches.py` to them.

    python bench/fit_unaligned_batches.py --seed 1 --count 100 --json FILE    # on a GPU: times plans
    python bench/fit_unaligned_batches.py --seed 5101 --fit docs/performance/unaligned_batches.json

With ``--fit`` it prints, of the products of ``--seed``, for each kind of plan the fitted terms and the standard
deviation of predicted over measured times, and how torch compares to copies, to the choice by terms that are
fitted to other products (four fifths at a time), to the choice by the terms of the module, and to the fastest.
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
from tilemma.ops.candidates import TILES, ranked
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate
from tilemma.ops.problem import Problem

KERNELS = (*TILES, *unaligned_batches.FURTHER)
# Parts of the products, each of which is judged by terms fitted to the others; the ratio that is too low.
PARTS, LOW = 5, 0.97


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


def problem_of(row: dict[str, Any]) -> Problem:
    call, out = call_of(Shape("batches", row["m"], row["n"], row["k"], row["batch"]), imagined)
    return arguments.problem(call, out, made=True)


def plans_of(row: dict[str, Any]) -> list[tuple[Plan, dict[str, Any]]]:
    """The plan with copies, and those without."""
    found = [(plan_of(x["plan"]), x) for x in row["plans"]]
    return sorted(found, key=lambda x: not x[0].pack)


def terms_of(row: dict[str, Any], plan: Plan) -> tuple[float, ...]:
    problem = problem_of(row)
    if plan.pack:
        return unaligned_batches.terms_of_copies(problem, _aligned(problem, plan))
    return unaligned_batches.terms_of_tiles(problem, plan.tile)


def fit(rows: list[dict[str, Any]]) -> None:
    """Print the terms of each kind of plan: copies, and the kernel for any strides by tile; and the ratios."""
    part = np.random.default_rng(0).integers(0, PARTS, len(rows))
    by_others, by_module, seen = [], [], []
    for tile, numbers in ((None, unaligned_batches.COPIES), *unaligned_batches.TILES.items()):
        measured = [
            next((p, x["us"]) for p, x in plans_of(row) if tile is None or (tile == p.tile and not p.pack))
            for row in rows
        ]
        a = np.array([terms_of(row, p) for row, (p, _) in zip(rows, measured, strict=True)])
        us, scale = np.array([x for _, x in measured]), np.maximum(a.max(0), 1e-30)
        shares, others = a / scale / us[:, None], np.zeros(len(rows))
        for x in range(PARTS):
            left = part != x
            others[~left] = (a / scale)[~left] @ least_squares(shares[left], np.ones(left.sum()))
        fitted = least_squares(shares, np.ones(len(rows))) / scale
        error = np.log(others / us).std()
        print(tile or "copies", "(" + ", ".join(f"{x:.3g}" for x in fitted) + ")", f"deviation {error:.3f}")
        by_others.append(others)
        by_module.append(a @ numbers)
        seen.append(us)
    times, torch = np.array(seen), np.array([row["torch_us"] for row in rows])
    every = np.arange(len(rows))
    report("copies", torch / times[0])
    report("choice by terms of other products", torch / times[np.argmin(by_others, 0), every])
    report("choice by the terms of the module", torch / times[np.argmin(by_module, 0), every])
    report("fastest", torch / times.min(0))


def report(name: str, ratios: Any) -> None:
    low = int((ratios < LOW).sum())
    print(f"torch over {name}: {geometric_mean(ratios):.3f}, least {ratios.min():.3f}, {low} of {len(ratios)} low")


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
        rows = [x for f in options.fit for x in json.loads(f.read_text())["shapes"]]
        fit([x for x in rows if x.get("seed", options.seed) == options.seed])
    else:
        timed(options.count, options.seed, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
