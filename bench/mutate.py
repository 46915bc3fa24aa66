"""Mutants of the PTX of every example, and of products of every element type, on the PTX machine, under strict
schedules: each is convicted, or listed here.

    python bench/mutate.py --json docs/proofs/mutation.json     # everything; `make mutate`
    python bench/mutate.py --only event --processes 1 --sample 20

One synchronising instruction deleted or weakened at a time, each swizzle, phase, stride and count changed.  Small
tiles; sizes that run interior and edge tiles and use every slot of a ring more than once.  Exit status 1 when a
mutant survives that is not in EQUIVALENT, or is convicted of something else than one would expect.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from machine_cases import CASES, OPS, TYPES, Case, compiled

from dev.ptx_mutation.survey import Outcome, Trial

EVERY = (*CASES, *OPS, *TYPES)


@dataclass(frozen=True)
class Equivalent:
    """Mutants that are no bugs: patterns for the program (``example arch``) and the mutant's key, and why."""

    program: str
    key: str
    why: str


_LAST_RELEASE = (
    "releases the ring's last slots after the loop: this program's producer has nothing left to load and never "
    "waits for them; where it has (persistent), the same mutant is convicted"
)
EQUIVALENT = [
    Equivalent("event_pipeline sm_90a", "no mbarrier arrival 4", _LAST_RELEASE),
    Equivalent("warp_specialized sm_90a", "no mbarrier arrival 4", _LAST_RELEASE),
    Equivalent(
        "ops pipelined sm_90a",
        "no barrier 2",
        "keeps two turns' stores to the result apart: they write different tiles, which the passes cannot "
        "prove of a tile's number that is divided into its row and column",
    ),
]


def why_equivalent(program: str, key: str) -> str:
    for e in EQUIVALENT:
        if fnmatch.fnmatchcase(program, e.program) and fnmatch.fnmatchcase(key, e.key):
            return e.why
    return ""


@lru_cache(maxsize=4)
def trial(case: Case, arch: str, schedules: int) -> Trial:
    program = compiled(case, arch)
    return Trial(program.ptx, program.launch, program.arrays, schedules)


@dataclass(frozen=True)
class Task:
    case: Case
    arch: str
    number: int
    schedules: int

    @property
    def program(self) -> str:
        return f"{self.case.example} {self.arch}"


@dataclass(frozen=True)
class Tried:
    """One mutant's outcome, without its text."""

    program: str
    key: str
    what: str
    line: int
    codes: tuple[str, ...]
    refused: str
    reason: str
    unreached: bool
    as_expected: bool
    reports: tuple[str, ...]
    seconds: float

    @property
    def convicted(self) -> bool:
        return bool(self.codes or self.refused)

    @property
    def kind(self) -> str:
        return self.key.rsplit(" ", 1)[0]


def attempt(task: Task) -> Tried:
    start = time.process_time()
    this = trial(task.case, task.arch, task.schedules)
    mutant = this.mutants[task.number]
    outcome: Outcome = this.judge(mutant, why_equivalent(task.program, mutant.key))
    return Tried(
        task.program,
        mutant.key,
        mutant.what,
        mutant.line,
        outcome.codes,
        outcome.refused,
        outcome.reason,
        outcome.unreached,
        outcome.as_expected,
        mutant.reports,
        round(time.process_time() - start, 2),
    )


def tasks(cases: Iterable[Case], schedules: int, sample: int | None) -> list[Task]:
    """All mutants of all cases, or a fixed sample of each program's."""
    out = []
    for c in cases:
        for arch in c.distinct:
            numbers = list(range(len(trial(c, arch, schedules).mutants)))
            if sample is not None and sample < len(numbers):
                numbers = sorted(random.Random(0).sample(numbers, sample))
            out += [Task(c, arch, n, schedules) for n in numbers]
    return out


def problems(tried: Iterable[Tried]) -> list[str]:
    """What makes the survey fail: survivors, unreached mutants, unexpected hazards, wrong entries of the list."""
    out = []
    for t in tried:
        where = f"{t.program}: {t.key}, PTX line {t.line}, {t.what}"
        if t.reason and (t.convicted or t.unreached):
            out.append(f"listed as equivalent, but {', '.join(t.codes) or t.refused or 'unreached'}: {where}")
        elif t.unreached:
            out.append(f"unreached: {where}")
        elif not t.convicted and not t.reason:
            out.append(f"survives: {where}")
        elif t.convicted and not t.as_expected:
            out.append(f"unexpected {', '.join(t.codes) or t.refused}: {where}")
    return out


def table(tried: list[Tried]) -> str:
    lines = [f"{'program':28} {'mutants':>7} {'convicted':>9} {'equivalent':>10} {'survive':>7} {'CPU s':>6}"]
    for program in [*dict.fromkeys(t.program for t in tried), "all"]:
        mine = [t for t in tried if program in (t.program, "all")]
        convicted, listed = sum(t.convicted for t in mine), sum(bool(t.reason) for t in mine)
        lines.append(
            f"{program:28} {len(mine):7} {convicted:9} {listed:10} {len(mine) - convicted - listed:7} "
            f"{sum(t.seconds for t in mine):6.0f}"
        )
    return "\n".join(lines)


def record(tried: list[Tried], seconds: float, processes: int) -> dict[str, Any]:
    """The survey as data, without times of single mutants."""
    used = {t.program.rsplit(" ", 1)[0] for t in tried}
    cases = [c for c in EVERY if c.example in used]
    same = {f"{c.example} {arch}": archs for c in cases for arch, archs in c.distinct.items()}
    programs = {}
    for program in dict.fromkeys(t.program for t in tried):
        mine = [t for t in tried if t.program == program]
        programs[program] = {
            "same_ptx": same.get(program, ()),
            "mutants": len(mine),
            "convicted": sum(t.convicted for t in mine),
            "equivalent": sum(bool(t.reason) for t in mine),
            "cpu_seconds": round(sum(t.seconds for t in mine)),
        }
    hazards: dict[str, Counter[str]] = {}
    for t in tried:
        hazards.setdefault(t.kind, Counter()).update(t.codes or (("refused",) if t.refused else ("equivalent",)))
    return {
        "mutants": len(tried),
        "convicted": sum(t.convicted for t in tried),
        "equivalent": sum(bool(t.reason) for t in tried),
        "seconds": round(seconds),
        "processes": processes,
        "cpu_seconds": round(sum(t.seconds for t in tried)),
        "programs": programs,
        "hazards_by_kind": {k: dict(sorted(v.items())) for k, v in sorted(hazards.items())},
        "reports": dict(sorted(Counter(r for t in tried if t.convicted for r in t.reports).items())),
        "equivalents": [
            {"program": t.program, "key": t.key, "what": t.what, "why": t.reason} for t in tried if t.reason
        ],
        "problems": problems(tried),
    }


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The record of both surveys, which have no program in common."""
    again = before["programs"].keys() & found["programs"].keys()
    if again:
        raise SystemExit(f"recorded already: {', '.join(sorted(again))}; survey everything again")
    whole = dict(before)
    for key in ("mutants", "convicted", "equivalent", "seconds", "cpu_seconds"):
        whole[key] = before[key] + found[key]
    whole["programs"] = before["programs"] | found["programs"]
    whole["reports"] = dict(sorted((Counter(before["reports"]) + Counter(found["reports"])).items()))
    kinds = dict.fromkeys([*before["hazards_by_kind"], *found["hazards_by_kind"]])
    whole["hazards_by_kind"] = {
        k: dict(
            sorted(sum((Counter(x["hazards_by_kind"].get(k, {})) for x in (before, found)), Counter()).items())
        )
        for k in kinds
    }
    for key in ("equivalents", "problems"):
        whole[key] = before[key] + found[key]
    return whole


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="examples whose name contains this")
    parser.add_argument("--sample", type=int, help="a fixed sample of so many mutants of each program")
    parser.add_argument("--schedules", type=int, default=12)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="add these programs to those recorded in --json")
    options = parser.parse_args()
    start = time.perf_counter()
    chosen = [c for c in EVERY if options.only in c.example]
    todo = tasks(chosen, options.schedules, options.sample)
    tried = []
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for t in pool.imap(attempt, todo):
            tried.append(t)
            for line in problems([t]):
                print(line, flush=True)
            if sys.stderr.isatty():
                print(f"\r{len(tried)}/{len(todo)}", end="", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    print(table(tried), f"\n{seconds:.0f} s with {options.processes} processes")
    if options.json:
        found = record(tried, seconds, options.processes)
        if options.add:
            found = added(json.loads(options.json.read_text()), found)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(problems(tried)))


if __name__ == "__main__":
    sys.exit(main())
