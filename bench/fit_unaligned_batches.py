"""Times batches of small products with unaligned rows, and fits the terms of `ops/unaligned_batches.py` to them.

    python bench/fit_unaligned_batches.py --seed 1 --count 100 --json FILE    # on a GPU: times plans
    python bench/fit_unaligned_batches.py --seed 5301 5302 --fit docs/performance/unaligned_batches.json

With ``--fit`` it prints, of the products of ``--seed``, for each kind of plan the fitted terms and the standard
deviation of predicted over measured times, and how torch compares to copies, to the choice by terms that are
fitted to other products (four fifths at a time), to the choice by the terms of the module, and to the fastest.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import sweep_ops
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, unaligned_batches
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Estimate, Hardware, Plan, estimate, estimates
from tilemma.ops.problem import Problem
from tilemma.ops.unaligned_batches import Way, way_of

# Parts of the products, each of which is judged by terms fitted to the others; the ratio that is too low; how
# often plans are timed.
PARTS, LOW, ROUNDS = 5, 0.97, 5


# Of few products: extents of rows and columns, and of K, and products.
FEW, LONG, PRODUCTS = (24, 320), (200, 2000), (2, 150)


def few(count: int, seed: int) -> list[Shape]:
    """Batches of few tiles with a long K."""
    rng = random.Random(seed)
    limits = PRODUCTS, FEW, FEW, LONG
    drawn = ([round(math.exp(rng.uniform(math.log(a), math.log(b)))) for a, b in limits] for _ in range(count))
    return [Shape("batches", m // 8 * 8, n // 8 * 8, k // 8 * 8, b) for b, m, n, k in drawn]


def shapes(count: int, seed: int, of_few: bool = False) -> list[Shape]:
    """Batches of `sweep_ops.shapes` or `few` with other extents: K odd, or a multiple of 2 or 4 alone; some M and
    N odd."""
    rng, found = random.Random(seed), []
    for i, s in enumerate(few(count, seed) if of_few else sweep_ops.shapes(count, seed, ["batches"])):
        k = s.k + (1 - 2 * rng.randrange(2), 4, 2, 6)[i % 4]
        m, n = (s.m, s.n) if i % 3 else (s.m + 1, s.n + 3)
        found.append(Shape("batches", m, n, k, s.batch))
    return found


def choices(problem: Problem, on: Hardware, _most: int) -> list[Estimate]:
    """The best plan with copied operands, and the kernel for any strides in each way."""
    best = next(e for e in ranked(problem, on) if e.plan.pack)
    return [best, *estimates(problem, unaligned_batches.plans(problem), on)]


def timed(wanted: list[Shape], seed: int, seconds: float, file: Path) -> None:
    sweep_ops.choices = choices
    rows, begin = [], time.monotonic()
    with ProcessPoolExecutor(12) as pool:
        waiting = [pool.submit(sweep_ops.compiled, s, 0) for s in wanted]
        for s, w in zip(wanted, waiting, strict=True):
            print(*w.result(), sep="\n", end="")
            if seconds and time.monotonic() - begin > seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            rows.append({**sweep_ops.measure(s, 0, ROUNDS), "seed": seed})
            print(s, *(f"{rows[-1]['torch_us'] / p['us']:.3f}" for p in rows[-1]["plans"]), flush=True)
            file.write_text(json.dumps({"shapes": rows}))


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
    """Print the terms of copies, and of each way to read operands where they are, and the ratios."""
    kinds = (None, unaligned_batches.COPIES), *unaligned_batches.WAYS.items()
    by_others, by_module, times = (np.array(x) for x in zip(*(_fitted(rows, *x) for x in kinds), strict=True))
    torch, every = np.array([row["torch_us"] for row in rows]), np.arange(len(rows))
    report("copies", torch / times[0])
    report("choice by terms of other products", torch / times[np.argmin(by_others, 0), every])
    report("choice by the terms of the module", torch / times[np.argmin(by_module, 0), every])
    report("fastest", torch / times.min(0))


def _fitted(rows: list[dict[str, Any]], way: Way | None, numbers: tuple[float, ...]) -> tuple[Any, Any, Any]:
    """The times of a kind of plan by terms that are fitted to other products, by ``numbers``, and as measured;
    infinite for products without such a plan.  Prints the terms."""
    timed = [[(p, x["us"]) for p, x in plans_of(row) if _is_of(p, way)][:1] for row in rows]
    some = [i for i, x in enumerate(timed) if x]
    a = np.array([terms_of(rows[i], timed[i][0][0]) for i in some])
    us, scale = np.array([timed[i][0][1] for i in some]), np.maximum(a.max(0), 1e-30)
    part = np.random.default_rng(0).integers(0, PARTS, len(some))
    shares, others = a / scale / us[:, None], np.zeros(len(some))
    for x in range(PARTS):
        left = part != x
        others[~left] = (a / scale)[~left] @ least_squares(shares[left], np.ones(left.sum()))
    fitted = least_squares(shares, np.ones(len(some))) / scale
    text = ", ".join(f"{x:.3g}" for x in fitted)
    print(way or "copies", f"({text}) deviation {np.log(others / us).std():.3f}")
    found = np.full((3, len(rows)), np.inf)
    found[:, some] = others, a @ numbers, us
    return tuple(found)


def _is_of(plan: Plan, way: Way | None) -> bool:
    return bool(plan.pack) if way is None else plan.kernel == "ahead" and way_of(plan) == way


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
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one; several with --fit")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--few", action="store_true", help="time batches of few tiles with a long K")
    parser.add_argument("--seconds", type=float, default=0, help="start no shape after so many, if not 0")
    parser.add_argument("--json", type=Path, default=Path("unaligned_batches.json"))
    parser.add_argument("--fit", nargs="+", type=Path)
    options = parser.parse_args()
    if options.fit:
        rows = [x for f in options.fit for x in json.loads(f.read_text())["shapes"]]
        fit([x for x in rows if x["seed"] in options.seed])
    else:
        wanted = shapes(options.count, options.seed[0], options.few)
        timed(wanted, options.seed[0], options.seconds, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
