"""Do two source trees run programs in the same way?  python bench/machine_digest.py --against SRC

Both trees run the programs of `machine_speed.py`, and mutants of them that a seed draws, each under a few seeds
and kinds of schedules.  Bytes of the results, hazards, notes, numbers of instructions and executed lines must be
equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine_speed import Input, inputs

ROOT = Path(__file__).resolve().parents[1]
SCHEDULES = ("late", "early", "starve", "random")


def drawn(jobs: list[Input], count: int, seed: int) -> list[Input]:
    """``jobs``, each followed by ``count`` of its mutants."""
    from dev.ptx_mutation.mutants import mutants

    found = []
    for job in jobs:
        found.append(job)
        every = mutants(job.ptx, job.launch, job.args)
        for m in random.Random(f"{seed}{job.title}").sample(every, min(count, len(every))):
            found.append(replace(job, title=f"{job.title}: {m}"[:100], ptx=m.ptx))
    return found


def digests(job: Input, runs: int) -> list[str]:
    """Of each run, the digest of all that it gives."""
    from tilemma.errors import TilemmaError
    from tilemma.machine.run import Job

    out = []
    for i in range(runs):
        args = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in job.args.items()}
        facts: dict[str, Any] = {}
        try:
            report = Job(job.ptx, job.launch, args).run(
                seed=i, schedule=SCHEDULES[i % 4], collect=True, strict=job.strict, max_steps=200_000
            )
            facts = {**report.to_json(), "lines": sorted(report.lines)}
        except TilemmaError as error:
            facts["error"] = str(error)
        text = json.dumps(facts, sort_keys=True, default=str).encode()
        arrays = b"".join(x.tobytes() for x in args.values() if isinstance(x, np.ndarray))
        codes = ",".join(sorted({h["code"] for h in facts.get("hazards", [])}))
        out.append(f"{hashlib.sha256(text).hexdigest()[:12]} {hashlib.sha256(arrays).hexdigest()[:12]} {codes}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="SRC", help="the `src` of another tree")
    parser.add_argument("--only", default="", help="programs whose title contains this")
    parser.add_argument("--mutants", type=int, default=3, help="mutants of each program")
    parser.add_argument("--runs", type=int, default=4, help="seeds of each program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        for job in pickle.loads(options.serve.read_bytes()):
            print(json.dumps(digests(Input(**job), options.runs)), flush=True)
        return 0
    jobs = drawn(inputs(options.only), options.mutants, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs"
        path.write_bytes(pickle.dumps([vars(x) for x in jobs]))
        servers = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", str(path), "--runs", str(options.runs)],
                env={**os.environ, "PYTHONPATH": str(src), "OPENBLAS_NUM_THREADS": "1"},
                stdout=subprocess.PIPE, text=True,
            )
            for src in (ROOT / "src", options.against)
        ]  # fmt: skip
        different = hazards = 0
        for job in jobs:
            ours, theirs = (json.loads(s.stdout.readline()) for s in servers if s.stdout is not None)
            hazards += sum(not line.endswith(" ") for line in ours)
            if ours != theirs:
                different += 1
                rows = (f"  {a}\n  {b}" for a, b in zip(ours, theirs, strict=True))
                print(job.title, *rows, sep="\n", flush=True)
        for server in servers:
            server.wait()
    print(f"{len(jobs)} programs, {options.runs} runs each ({hazards} with hazards): {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
