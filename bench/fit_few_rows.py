"""Fits the weights of `ops/few_rows_timings.json` to stored sweeps of few rows.

    python bench/sweep_ops.py --kinds "few rows" "medium rows" "e4m3 tensor few rows" --json sweep.json
    python bench/fit_few_rows.py sweep.json ...
    python bench/fit_few_rows.py sweep.json ... --judge

The first needs a GPU.  ``--judge`` stores nothing: it prints how much slower than the fastest plan that was timed
the choice is, over all shapes: by the formula alone, and with weights fitted to the other three quarters.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kriging import Row, fitted, likeness, places, text
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, few_rows, few_rows_timings
from tilemma.ops.few_rows_timings import Timed
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware

# Plans that the file has; how much slower than the fastest a timed plan may be; the standard deviation of what
# timings say about the formula, and how far they reach in units of `Timed.place`.
STORED, SLOWEST, DEVIATION, REACH = 2500, 0.4, 0.05, 3.0
# Parts of the shapes that are judged by the weights of the others.
PARTS = 4


def timings(files: Sequence[Path]) -> Iterator[Row]:
    on = Hardware()
    for file in files:
        for x in json.loads(file.read_text())["shapes"]:
            s = Shape(x["kind"], x["m"], x["n"], x["k"], x.get("batch", 1))
            call, out = call_of(s, imagined)
            problem = arguments.problem(call, out, made=True)
            number, fastest = zlib.crc32(str(s).encode()), min(p["us"] for p in x["plans"])
            for p in x["plans"] if few_rows.applies(problem) else ():
                plan, slower = plan_of(p["plan"]), p["us"] / fastest - 1
                if plan.kernel == "pipelined" and not plan.pack and slower < SLOWEST:
                    of = transposed_product(problem) if plan.swap else problem
                    predicted = float(np.log(few_rows.modelled(of, plan, on)[0]))
                    log = float(np.log(p["us"] * 1e-6)) - predicted
                    yield Row(number, few_rows.timed(of, plan, on), predicted, log, slower)


def weights(found: Sequence[Row]) -> dict[str, Any]:
    return fitted(found, STORED, DEVIATION, REACH)


def corrections(found: Sequence[Row], by: dict[str, Any]) -> Any:
    """What weights say of the logarithms of measured over predicted times."""
    kept = places([Timed(*row[:-1]) for row in by["plans"]], REACH)
    like = likeness(places([r.plan for r in found], REACH), kept, DEVIATION)
    return by["mean"] + like @ np.array([row[-1] for row in by["plans"]])


def judge(found: Sequence[Row]) -> None:
    """Print what the formula and the weights are worth for shapes that these have not seen."""
    every = {"formula": [(r, r.predicted) for r in found], "with weights": []}
    for part in range(PARTS):
        left = [r for r in found if r.number % PARTS == part]
        by = weights([r for r in found if r.number % PARTS != part])
        more = corrections(left, by)
        every["with weights"] += [(r, r.predicted + x) for r, x in zip(left, more, strict=True)]
    for name, predictions in every.items():
        shapes: dict[int, list[tuple[float, float]]] = {}
        for r, log in predictions:
            shapes.setdefault(r.number, []).append((log, r.slower))
        lost = np.array([min(x)[1] for x in shapes.values()])
        above = np.sum(lost > 0.02)
        print(f"{name:12} {len(lost)} shapes: {lost.mean():.4f}, worst {lost.max():.3f}, {above} above 0.02")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    found = list(timings(options.sweeps))
    if options.judge:
        judge(found)
        return 0
    target = Path(few_rows_timings.__file__).with_suffix(".json")
    target.write_text(text({**json.loads(target.read_text()), "pipelined": weights(found)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
