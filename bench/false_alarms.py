"""No false alarm: every example, architecture and number of stages, and products of every element type, on the PTX
machine, strict, 100 schedules each.

    python bench/false_alarms.py --json docs/proofs/false_alarms.json
    python bench/false_alarms.py --only ping --schedules 20

Small tiles; late, early and random completion, random and prioritised interleaving.  Two things are checked along
the way: the result has the bits of the CPU reference (sums are exact), and the `.co` twin's PTX is the same up to
source positions.  Exit status 1 when there is a hazard or a difference.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine_cases import CASES, EXAMPLES, TYPES, Case, compiled, on_the_cpu
from typed_kernels import croqtile_kernel

from tilemma import machine
from tilemma.kernels import facts_of
from tilemma.modules import load

STAGES = (2, 3, 4)
# Schedules that one task runs: the two extremes, and random ones.
CHUNK = 20


@dataclass(frozen=True)
class Task:
    case: Case
    arch: str
    seed: int
    schedules: int

    @property
    def program(self) -> str:
        stages = dict(self.case.constants).get("STAGES")
        return f"{self.case.example} {self.arch}" + (f" {stages} stages" if stages else "")


@dataclass(frozen=True)
class Ran:
    program: str
    schedules: int
    instructions: int
    hazards: tuple[str, ...]
    seconds: float


def variants() -> Iterator[Case]:
    """Each case with each number of stages, where its example has one."""
    for case in (*CASES, *TYPES):
        constants = dict(case.constants)
        if case.described is not None or "STAGES" not in case.kernel.source.constants:
            yield case
            continue
        for stages in STAGES:
            yield replace(case, constants=tuple({**constants, "STAGES": stages}.items()))


def attempt(task: Task) -> Ran:
    start = time.process_time()
    program = compiled(task.case, task.arch)
    verdict = machine.check(
        program.ptx, program.launch, program.arrays, schedules=task.schedules, seed=task.seed, strict=True
    )
    hazards = sorted({h.code for h in verdict.hazards})
    if program.arrays[task.case.output].tobytes() != np.ascontiguousarray(on_the_cpu(task.case)).tobytes():
        hazards.append("other bits than the CPU reference")
    return Ran(task.program, task.schedules, verdict.instructions, tuple(hazards), time.process_time() - start)


def twins_agree(case: Case) -> bool:
    """Whether the example in `.co` has the same PTX, apart from source positions and comments."""
    path = EXAMPLES / "co" / f"{case.example}.co"
    program = compiled(case, case.archs[-1])
    if case.described is not None:
        kernel = croqtile_kernel(case.described)
        facts = facts_of(case.described.arguments())
    elif path.exists():
        kernel, facts = load(path, dict(case.constants)).only(), facts_of(program.arrays)
    else:
        return True
    return _bare(kernel.compile(case.archs[-1], facts=facts).ptx) == _bare(program.ptx)


def _bare(ptx: str) -> list[str]:
    lines = (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines())
    return [line for line in lines if line and not line.startswith((".loc", ".file"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="examples whose name contains this")
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="add these programs to those recorded in --json")
    options = parser.parse_args()
    start = time.perf_counter()
    chosen = [c for c in variants() if options.only in c.example]
    unlike = [c.example for c in chosen if not twins_agree(c)]
    todo = [
        Task(c, arch, seed, min(CHUNK, options.schedules - seed))
        for c in chosen
        for arch in c.distinct
        for seed in range(0, options.schedules, CHUNK)
    ]
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        ran = pool.map(attempt, todo, chunksize=1)
    programs: dict[str, dict[str, Any]] = {}
    for r in ran:
        mine = programs.setdefault(
            r.program, {"schedules": 0, "instructions": 0, "hazards": [], "cpu_seconds": 0.0}
        )
        mine["schedules"] += r.schedules
        mine["instructions"] += r.instructions
        mine["hazards"] += [h for h in r.hazards if h not in mine["hazards"]]
        mine["cpu_seconds"] = round(mine["cpu_seconds"] + r.seconds, 1)
    for name, row in programs.items():
        found = ", ".join(row["hazards"]) or "ok"
        print(f"{name:36} {row['schedules']:4} schedules {row['instructions']:10} instructions  {found}")
    for name in unlike:
        print(f"{name}: the twins' PTX differs")
    seconds = round(time.perf_counter() - start)
    print(f"{sum(r.schedules for r in ran)} runs, {seconds} s with {options.processes} processes")
    wrong = bool(unlike) or any(row["hazards"] for row in programs.values())
    if options.json:
        record = {
            "ok": not wrong,
            "strict": True,
            "twins_differ": unlike,
            "seconds": seconds,
            "programs": programs,
        }
        if options.add:
            before = json.loads(options.json.read_text())
            record["ok"] = record["ok"] and before["ok"]
            record["twins_differ"] = [*before["twins_differ"], *unlike]
            record["seconds"] = before["seconds"] + seconds
            record["programs"] = before["programs"] | programs
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
