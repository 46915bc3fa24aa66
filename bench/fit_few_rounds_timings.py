"""Fits the weights of `ops/few_rounds_timings.json` to stored sweeps of products of few rounds.

    python bench/fit_few_rounds_timings.py docs/performance/few_rounds.json
    python bench/fit_few_rounds_timings.py docs/performance/few_rounds.json --judge

The formula that they correct is fitted before (`bench/fit_few_rounds.py`).  ``--judge`` stores nothing: it prints
how much slower than the fastest plan that was timed the choice is, over all products: by the formula alone, and
with weights fitted to the other three quarters.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_few_rounds import timings
from kriging import Row, Spread, fitted, judge, text

from tilemma.ops import few_rounds, few_rounds_timings
from tilemma.ops.candidates import RASTER
from tilemma.ops.plan import Hardware

# Plans that the file has; the spread of what timings say about the formula.
STORED, SPREAD = 3000, Spread(0.05, 0.05, 0.012)


def rows(files: Sequence[Path]) -> Iterator[Row]:
    # Of plans that differ in what the model does not tell apart one is a candidate.
    on, found = Hardware(), [x for x in timings(files) if x.plan.raster == RASTER and not x.plan.prompt]
    fastest: dict[int, float] = {}
    for x in found:
        fastest[x.number] = min(x.us, fastest.get(x.number, x.us))
    for x in found:
        m, n, k = x.problem.shape
        product = zlib.crc32(str((n, m, k) if x.plan.swap else (m, n, k)).encode())
        predicted = float(np.log(few_rounds.seconds(x.problem, x.plan, on)[0]))
        log, slower = float(np.log(x.us * 1e-6)) - predicted, x.us / fastest[x.number] - 1
        yield Row(product, few_rounds.timed(x.problem.shape, x.plan, on), predicted, log, slower)


def weights(found: Sequence[Row]) -> dict[str, Any]:
    return fitted(found, STORED, SPREAD)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    found = list(rows(options.sweeps))
    if options.judge:
        judge(found, weights)
        return 0
    source = ", ".join(x.name for x in options.sweeps)
    target = Path(few_rounds_timings.__file__).with_suffix(".json")
    target.write_text(text({"device": Hardware().name, "source": source, "pipelined": weights(found)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
