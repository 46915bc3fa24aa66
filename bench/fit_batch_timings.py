"""Fits the weights of `ops/batch_timings.json` to stored sweeps of batches.

    python bench/sweep_ops.py --kinds batches --json sweep.json                  # on a GPU, with several seeds
    python bench/fit_batch_timings.py docs/performance/batches.json
    python bench/fit_batch_timings.py docs/performance/batches.json --judge

``--judge`` stores nothing: it prints how much slower than the fastest plan that was timed the choice is, over all
batches that have several: by the formula alone, and with weights fitted to the other three quarters.

The units of `Timed.place` and the spread are not those for which the timings are the likeliest
(`kriging.likeliest`): with these the choice is slower by ``--judge``.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kriging import Row, Spread, fitted, judge, text
from sweep_ops import Shape, call_of, imagined, plan_of

from tilemma.ops import arguments, batch_model, batch_timings
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Hardware

# Plans that the file has; the spread of what timings say about the formula; the doubt about plans like none.
STORED, SPREAD, DOUBT = 4000, Spread(0.08, 0.05, 0.02), 1.5
# How much slower than the fastest a timed plan may be.
SLOWEST = 0.4


def timings(files: Sequence[Path]) -> Iterator[Row]:
    on = Hardware()
    for file in files:
        for x in json.loads(file.read_text())["shapes"]:
            s = Shape(x["kind"], x["m"], x["n"], x["k"], x["batch"])
            call, out = call_of(s, imagined)
            problem = arguments.problem(call, out, made=True)
            number, fastest = zlib.crc32(str(s).encode()), min(p["us"] for p in x["plans"])
            for p in x["plans"]:
                plan, slower = plan_of(p["plan"]), p["us"] / fastest - 1
                of = transposed_product(problem) if plan.swap else problem
                if batch_model.like_timed(of, plan) and slower < SLOWEST:
                    predicted = float(np.log(batch_model.seconds(of, plan, on)[0]))
                    log = float(np.log(p["us"] * 1e-6)) - predicted
                    yield Row(number, batch_model.timed(of, plan, on), predicted, log, slower)


def weights(found: Sequence[Row]) -> dict[str, Any]:
    return fitted(found, STORED, SPREAD, DOUBT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    found = list(timings(options.sweeps))
    if options.judge:
        judge(found, weights)
        return 0
    source = ", ".join(x.name for x in options.sweeps)
    target = Path(batch_timings.__file__).with_suffix(".json")
    target.write_text(text({"device": Hardware().name, "source": source, "batches": weights(found)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
