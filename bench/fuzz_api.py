"""Random arguments for every public function, random command lines and PTX: successes and errors of the family
only.

    python bench/fuzz_api.py --count 50000 --json docs/proofs/api.json

Each batch runs in a separate process, so that a crash is counted and named.  Exit status 1 after a result that is
an error outside the family, an error that reports an internal failure, a timeout, or a crash.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pickle
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tilemma
from dev.fuzz import api

BATCH = 250
BAD = ("internal", "raw", "hang", "crash")


def batch(kind: str, seeds: range) -> list[api.Outcome]:
    """The outcomes of a batch, from a child process; those after a crash are left out."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as out, tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                warnings.simplefilter("ignore")
                source = api.KINDS[kind](Path(folder))
                for i in seeds:
                    case = source.case(random.Random(i))
                    pickle.dump(("begins", case.text), out)
                    out.flush()
                    pickle.dump(("ends", api.outcome(case)), out)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    found, text = [], ""
    with os.fdopen(reading, "rb") as said:
        while True:
            try:
                what, value = pickle.load(said)
            except EOFError:
                break
            if what == "ends":
                found.append(value)
            else:
                text = value
    _, status = os.waitpid(child, 0)
    if status:
        found.append(api.Outcome("crash", f"status {status}", text))
    return found


def fuzz(kind: str, seeds: range) -> tuple[dict[str, object], dict[str, api.Outcome]]:
    """Counts of what became of ``seeds``, and one example of each way of going wrong."""
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    failures: dict[str, api.Outcome] = {}
    start = time.perf_counter()
    for first in range(seeds.start, seeds.stop, BATCH):
        for outcome in batch(kind, range(first, min(first + BATCH, seeds.stop))):
            kinds[outcome.kind] += 1
            if outcome.kind == "refused":
                codes[outcome.detail] += 1
            if outcome.kind in BAD:
                lines = [x.strip() for x in outcome.detail.strip().splitlines() if "File" in x or "Error" in x]
                failures.setdefault(" | ".join(lines[-2:])[:300] or outcome.detail[:200], outcome)
    counts = {name: kinds[name] for name in ("success", "refused", *BAD)}
    seconds = round(time.perf_counter() - start)
    data = {"kind": kind, "first_seed": seeds.start, **counts, "error_codes": len(codes), "seconds": seconds}
    return data, failures


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=50_000, help="cases in all")
    arguments.add_argument("--seed", type=int, default=int(time.time()) // 86400 * 1_000_000)
    arguments.add_argument("--kind", choices=tuple(api.KINDS), action="append")
    arguments.add_argument("--json", type=Path, help="write the outcome here")
    options = arguments.parse_args()
    kinds = options.kind or list(api.KINDS)
    runs, broken = [], False
    for kind in kinds:
        share = api.SHARES[kind] / sum(api.SHARES[k] for k in kinds)
        data, failures = fuzz(kind, range(options.seed, options.seed + round(options.count * share)))
        for name, outcome in failures.items():
            print(f"== {outcome.kind}: {name}\n{outcome.text[:1500]}\n{outcome.detail[-2500:]}\n")
        print(json.dumps(data), flush=True)
        runs.append(data)
        broken |= bool(failures)
        if options.json:
            record = {"date": f"{datetime.date.today():%Y-%m-%d}", "tilemma": tilemma.__version__, "runs": runs}
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
