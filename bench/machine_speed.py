"""How fast the PTX machine runs, with all checks: python bench/machine_speed.py [--profile] [--json FILE].

Two targets (wall clock, 2 cores): one CTA of a 128x128x64-tile warp-specialised Hopper GEMM over K = 512 within
5 s, and the first example, one warp a tile, at 130x136x256 (81 CTAs) under 10 schedules within 60 s.  CPU seconds
stand beside wall-clock ones: on a machine that does other work only they compare.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilemma import machine, testing
from tilemma.kernels import facts_of, load_python

PYTHON = Path(__file__).resolve().parent.parent / "examples" / "py"


@dataclass(frozen=True)
class Job:
    """An example at one shape (M, N, K) under a number of schedules; ``target`` is wall-clock seconds."""

    title: str
    example: str
    arch: str
    shape: tuple[int, int, int]
    constants: tuple[tuple[str, int], ...] = ()
    schedules: int = 1
    target: float | None = None


TILE = (("TILE_N", 128),)
JOBS = [
    Job(
        "Hopper GEMM, 128x128x64 tile, one CTA, K=512", "warp_specialized", "sm_90a", (128, 128, 512), TILE, 1, 5.0
    ),
    Job(
        "the same, persistent",
        "persistent",
        "sm_90a",
        (128, 128, 512),
        (*TILE, ("CLUSTER", 1), ("GRID", 1)),
        1,
        5.0,
    ),
    Job("one warp a tile, 81 CTAs, 10 schedules", "matmul_wmma", "sm_80", (130, 136, 256), (), 10, 60.0),
    Job("the same for sm_90a", "matmul_wmma", "sm_90a", (130, 136, 256), (), 10, 60.0),
    Job("double buffering, 128x256x64 tile, mma.sync", "double_buffer", "sm_80", (128, 256, 256)),
    Job("2-CTA multicast, 128x256x64 tiles", "multicast", "sm_90a", (256, 256, 512), (("GRID", 1),)),
]


@dataclass(frozen=True)
class Measured:
    title: str
    seconds: float
    cpu_seconds: float
    instructions: int
    target: float | None
    verdict: str

    @property
    def rate(self) -> float:
        """Warp instructions a CPU second."""
        return self.instructions / self.cpu_seconds


def measure(job: Job, profile: cProfile.Profile | None) -> Measured:
    """Time of binding, decoding and running, PTX given."""
    kernel = load_python(PYTHON / f"{job.example}.py").only()
    m, n, k = job.shape
    lhs, rhs = testing.random_array((m, k), "f16", 0), testing.random_array((n, k), "f16", 1)
    arrays: dict[str, Any] = {"lhs": lhs, "rhs": rhs, "output": np.full((m, n), np.nan, np.float16)}
    compiled = kernel.compile(job.arch, facts=facts_of(arrays), **dict(job.constants))
    ptx, (launch,) = compiled.ptx, compiled.launches
    wall, cpu = time.perf_counter(), time.process_time()
    if profile is not None:
        profile.enable()
    verdict = machine.check(ptx, launch, arrays, schedules=job.schedules, strict=True)
    if profile is not None:
        profile.disable()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(job.title, seconds, cpu_seconds, verdict.instructions, job.target, str(verdict))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="functions that most time goes to (slows it down)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{'':46} {'s':>7} {'CPU s':>7} {'target':>7} {'warp instr.':>11} {'per CPU s':>10}")
    found = []
    for job in JOBS:
        profile = cProfile.Profile() if options.profile else None
        r = measure(job, profile)
        found.append(r)
        target = f"{r.target:.0f} s" if r.target else ""
        missed = "  MISSED" if r.target and r.seconds > r.target else ""
        wrong = "" if r.verdict.startswith("no hazard") else f"  {r.verdict}"
        print(
            f"{r.title:46} {r.seconds:7.2f} {r.cpu_seconds:7.2f} {target:>7} {r.instructions:11} {r.rate:10.0f}"
            f"{missed}{wrong}"
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)
    if options.json:
        facts = {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": sys.version.split()[0]}
        options.json.write_text(json.dumps({**facts, "results": [asdict(r) for r in found]}, indent=1) + "\n")
    return int(any(r.target is not None and r.seconds > r.target for r in found))


if __name__ == "__main__":
    sys.exit(main())
