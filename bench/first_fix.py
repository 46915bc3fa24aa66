"""Does the advice cure?  Bugs drawn from the corpus of other compilers' PTX by a seeded mutator.

    python bench/first_fix.py --json docs/proofs/first_fix.json
    python bench/first_fix.py --count 40 --only sync --verbose

Each bug is one synchronising instruction deleted or weakened, one parity flipped, one count, stride or swizzle
changed (dev/ptx_mutation).  The kinds of bugs are drawn with equal shares as long as there are any left.  A bug
that the machine convicts by default is cured if the advised program has no hazard and the corpus's results in 20
schedules.  The adviser does not know these results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "machine" / "corpus"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from cuda_cases import CASES as CUDA
from engine_cases import CASES as ENGINES
from feature_cases import CASES as FEATURES
from triton_model_cases import CASES as TRITON

from dev.ptx_mutation.mutants import Mutant, mutants
from tilemma import machine
from tilemma.errors import TilemmaError
from tilemma.machine.repairs import advise
from tilemma.machine.run import Job

ROOT = Path(__file__).resolve().parents[1]
PTX = ROOT / "tests" / "machine" / "corpus" / "ptx"
CASES = {c.name: c for c in [*CUDA, *FEATURES, *ENGINES, *TRITON]}
SCHEDULES = 20


@cache
def program(name: str) -> tuple[str, dict[str, Any], int, list[Mutant]]:
    """The text, the launch, the instructions of a run and the mutants that it reaches."""
    case = CASES[name]
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    args, _ = case.build()
    report = Job(ptx, launch, args).run(collect=True)
    return ptx, launch, report.instructions, [m for m in mutants(ptx, launch, args) if m.line in report.lines]


@dataclass(frozen=True)
class Tried:
    program: str
    bug: str
    line: int
    what: str
    # Codes of the hazards; none if the machine acquits.
    codes: tuple[str, ...] = ()
    advice: str = ""
    candidates: int = 0
    cured: bool = False
    seconds: float = 0.0


def attempt(task: tuple[str, str]) -> Tried:
    name, key = task
    start = time.process_time()
    _, launch, instructions, all_ = program(name)
    mutant = next(m for m in all_ if m.key == key)
    args, _ = CASES[name].build()
    before = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in args.items()}
    options: dict[str, Any] = {"schedules": SCHEDULES, "max_steps": 4 * instructions + 50_000}
    seen = Tried(name, key, mutant.line, mutant.what)
    try:
        verdict = machine.check(mutant.ptx, launch, args, **options)
    except TilemmaError:
        return seen
    if verdict.ok:
        return seen
    found = advise(mutant.ptx, launch, before, verdict)
    # Spinning for a lock may take long in some schedule.
    cured = found is not None and right(
        CASES[name], found.ptx, launch, {**options, "max_steps": 50 * instructions + 500_000}
    )
    return Tried(
        name, key, mutant.line, mutant.what, tuple(dict.fromkeys(h.code for h in verdict.hazards)),
        found.text if found else "", found.tried if found else 0, cured, round(time.process_time() - start, 2),
    )  # fmt: skip


def right(case: Any, ptx: str, launch: dict[str, Any], options: dict[str, Any]) -> bool:
    """No hazard, and the results of the corpus."""
    args, wanted = case.build()
    try:
        if not machine.check(ptx, launch, args, **options).ok:
            return False
    except TilemmaError:
        return False
    for name, want in wanted.items():
        array = getattr(args[name], "array", args[name])
        got = array.astype(np.float64)
        want = np.asarray(want).astype(np.float64).reshape(got.shape)
        exact = array.dtype.kind in "iu"
        scale = 0.0 if exact else case.tolerance * max(1e-30, np.abs(want[np.isfinite(want)]).max())
        if not np.allclose(got, want, rtol=0, atol=scale, equal_nan=True):
            return False
    return True


def drawn(only: str, count: int, seed: int, slowest: int) -> list[tuple[str, str]]:
    """``count`` bugs, the kinds with equal shares; of programs of at most ``slowest`` warp instructions."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for name in CASES:
        if only in name:
            _, _, instructions, found = program(name)
            for m in found if instructions <= slowest else ():
                kinds.setdefault(m.key.rsplit(" ", 1)[0], []).append((name, m.key))
    choose = random.Random(seed)
    for bugs in kinds.values():
        choose.shuffle(bugs)
    out: list[tuple[str, str]] = []
    while len(out) < count and any(kinds.values()):
        out += [bugs.pop() for bugs in kinds.values() if bugs]
    choose.shuffle(out := out[:count])
    return out


def summary(tried: list[Tried]) -> dict[str, Any]:
    convicted = [t for t in tried if t.codes]
    kinds: dict[str, Counter[str]] = {}
    for t in tried:
        outcome = "cured" if t.cured else "convicted, not cured" if t.codes else "acquitted"
        kinds.setdefault(t.bug.rsplit(" ", 1)[0], Counter())[outcome] += 1
    return {
        "bugs": len(tried),
        "convicted": len(convicted),
        "cured": sum(t.cured for t in tried),
        "share": round(sum(t.cured for t in tried) / max(1, len(convicted)), 3),
        "kinds": {k: dict(sorted(v.items())) for k, v in sorted(kinds.items())},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slowest", type=int, default=30_000, help="warp instructions of a program")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    todo = drawn(options.only, options.count, options.seed, options.slowest)
    tried = []
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for t in pool.imap(attempt, todo):
            tried.append(t)
            if options.verbose or (t.codes and not t.cured):
                outcome = "cured" if t.cured else "NOT CURED" if t.codes else "acquitted"
                bug = f"{t.program}: {t.bug}, line {t.line}: {t.what[:80]}: {', '.join(t.codes)}"
                print(f"{outcome}: {bug}: {t.advice} ({t.candidates} tried, {t.seconds} s)", flush=True)
            if time.monotonic() - start > 60 * options.minutes:
                pool.terminate()
                break
    out = summary(tried)
    print(json.dumps(out, indent=1))
    out["minutes"] = round((time.monotonic() - start) / 60, 1)
    if options.json:
        record = {**out, "seed": options.seed, "schedules": SCHEDULES, "tried": [asdict(t) for t in tried]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(out["share"] < 0.85)


if __name__ == "__main__":
    sys.exit(main())
