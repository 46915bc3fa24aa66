"""Searches the places of loads and copies between the multiplies of main loops on mma.sync: `Paces` of
`targets/ptx/lower/interleave_multiplies.py`.

    python bench/fit_paces.py bench/plain_warps.co examples/co/multistage.co --seconds 300
    python bench/fit_paces.py examples/co/double_buffer.co --seconds 300

Paces are drawn at random, then changed in one or two fields from the best ones so far.  A candidate's score is the
mean of the ratios, flushed and steady, to the same kernel in the order of ptxas -O3, of f16 4096^3; of several
kernels the least.  The best ones are then timed with both types on more shapes.  On an H200 most candidates reach
0.93 to 0.98: print all before one is stored.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gemm import TYPES, parse_shape
from timing import flushed, steady

import tilemma as tm
from tilemma.targets.ptx.lower import interleave_multiplies as order
from tilemma.targets.ptx.lower.interleave_multiplies import Paces

CHOICES: dict[str, Sequence[Any]] = {
    "start": (0.0, 1.0, 2.0, 4.0, 6.0, 8.0),
    "loads": [(x, y) for x in (1.0, 1.5, 2.0, 2.5, 3.0, 3.5) for y in (x, 1.0, 2.0, 4.0)],
    "copies": (0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
    "barrier": (0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20),
    "last_start": (0.0, 4.0, 8.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0),
    "last_loads": [(x, y) for x in (0.5, 0.75, 1.0, 1.25, 1.5, 2.0) for y in (x, 1.0, 1.5, 2.0)],
}
SHAPES = ("4096", "8192", "4096x4096x14336")
STEP = order.STEP
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def tensors(shape: str, dtype: str) -> Tensors:
    m, n, k = parse_shape(shape)
    a, b = (torch.randn(rows, k, device="cuda").to(TYPES[dtype]) for rows in (m, n))
    return a, b, torch.empty(m, n, device="cuda", dtype=TYPES[dtype])


def prepared(path: Path, dtype: str, paces: Paces | None, given: Tensors) -> Callable[[], Any]:
    """A launch of the kernel with ``paces``; without them, in the order of ptxas -O3."""
    order.STEP = STEP if paces is not None else sys.maxsize
    if paces is not None:
        order.BEFORE = order.BEHIND = paces
    kernel = tm.loads(re.sub(r"\bf16\b", dtype, path.read_text()), name=str(path)).only()
    (launch,) = kernel.on("cuda", arch="sm_80").prepare(*given)
    return launch


def ratios(
    path: Path, dtype: str, given: Tensors, candidates: Sequence[Paces], rounds: int
) -> list[tuple[float, float]]:
    """Flushed and steady, of each candidate to -O3; (0, 0) where the result differs."""
    runs = [prepared(path, dtype, paces, given) for paces in (None, *candidates)]
    results = []
    for run in runs:
        run()
        results.append(given[2].clone())
    single = flushed(runs, rounds)
    series = [[steady(run, 0.05, single[0])[0] for run in runs] for _ in range(4)]
    lasting = [statistics.median(x) for x in zip(*series, strict=True)]
    return [
        (single[0] / single[i], lasting[0] / lasting[i]) if torch.equal(results[i], results[0]) else (0.0, 0.0)
        for i in range(1, len(runs))
    ]


def drawn(turns: random.Random, best: Sequence[Paces]) -> Paces:
    """Random paces, or one of the ``best`` with one or two fields of random ones."""
    chosen = {name: turns.choice(values) for name, values in CHOICES.items()}
    if not best or turns.random() < 0.2:
        return Paces(**chosen)
    fields = turns.sample(sorted(chosen), turns.choice((1, 1, 2)))
    return replace(turns.choice(best), **{name: chosen[name] for name in fields})


def search(kernels: Sequence[Path], seconds: float, seed: int) -> list[tuple[float, Paces]]:
    """Candidates with their scores, the best first."""
    turns, given = random.Random(seed), tensors(SHAPES[0], "f16")
    found: dict[Paces, float] = {}
    waiting = [order.BEFORE, order.BEHIND]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        best = sorted(found, key=lambda p: -found[p])[:10]
        while len(waiting) < 12:
            paces = drawn(turns, best)
            if paces not in found and paces not in waiting:
                waiting.append(paces)
        each = [ratios(path, "f16", given, waiting, 15) for path in kernels]
        for i, paces in enumerate(waiting):
            found[paces] = min(statistics.mean(x[i]) for x in each)
        waiting = []
        print(f"{len(found)} candidates, best {max(found.values()):.4f}", flush=True)
    return sorted(((score, paces) for paces, score in found.items()), key=lambda x: -x[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0, help="of the search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--best", type=int, default=8, help="candidates that are timed on all shapes and types")
    options = parser.parse_args()
    os.environ["TILEMMA_CACHE"] = ""  # its keys do not know of paces
    chosen = search(options.kernels, options.seconds, options.seed)[: options.best]
    for score, paces in chosen:
        print(f"{score:.4f} {paces}")
    for dtype in TYPES:
        for shape in SHAPES:
            for path in options.kernels:
                found = ratios(path, dtype, tensors(shape, dtype), [p for _, p in chosen], 31)
                print(path.stem, dtype, shape, " ".join(f"{f:.4f}/{s:.4f}" for f, s in found), flush=True)


if __name__ == "__main__":
    main()
