"""Fits the weights of `ops/few_rows_timings.json` to stored sweeps of few rows.

    python bench/sweep_ops.py --kinds "few rows" "medium rows" "e4m3 tensor few rows" --json sweep.json
    python bench/fit_few_rows.py sweep.json ...
    python bench/fit_few_rows.py sweep.json ... --judge
    python bench/fit_few_rows.py sweep.json ... --units

The first needs a GPU.  ``--units`` prints the units of `Timed.place` and the spread for which timings of some of
the shapes are the likeliest, to be written into the sources.  ``--judge`` stores nothing: it prints how much
slower than the fastest plan that was timed the choice is, over all shapes that have several: by the formula alone,
and with weights fitted to the other three quarters.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kriging import NEAR, Row, Spread, fitted, judge, likeliest, text
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, few_rows, few_rows_timings
from tilemma.ops.few_rows_timings import UNITS
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware

# The rates of the H200 that was timed, as `ops.plan.hardware` finds them.
TIMED = Hardware(memory=4.2125e12)
# Plans that the file has; how much slower than the fastest a timed plan may be; the spread of what timings say
# about the formula, by ``--units``; timings that this looks at.
STORED, SLOWEST, SPREAD, LOOKED_AT = 4000, 0.4, Spread(0.16, 0.02, 0.0136), 3000


def timings(files: Sequence[Path]) -> Iterator[Row]:
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
                    timed, _ = few_rows.timed(of, plan, TIMED)
                    predicted = float(np.log(timed.seconds))
                    yield Row(number, timed, predicted, float(np.log(p["us"] * 1e-6)) - predicted, slower)


def weights(found: Sequence[Row]) -> dict[str, Any]:
    return fitted(found, STORED, SPREAD)


def units(found: Sequence[Row]) -> None:
    """Print the likeliest units and spread, by the timings of shapes drawn at random."""
    numbers = np.unique([r.number for r in found])
    np.random.default_rng(5).shuffle(numbers)
    order = {number: place for place, number in enumerate(numbers)}
    some = sorted((r for r in found if r.slower < NEAR), key=lambda r: order[r.number])[:LOOKED_AT]
    factors, spread = likeliest(some, SPREAD)
    print([float(f"{x * unit:.3g}") for x, unit in zip(factors, UNITS, strict=True)])
    print(spread)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--units", action="store_true")
    options = parser.parse_args()
    found = list(timings(options.sweeps))
    if options.judge:
        judge(found, weights)
        return 0
    if options.units:
        units(found)
        return 0
    target = Path(few_rows_timings.__file__).with_suffix(".json")
    target.write_text(text({**json.loads(target.read_text()), "pipelined": weights(found)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
