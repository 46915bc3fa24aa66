"""How fast the PTX machine runs, with all checks: python bench/machine_speed.py [--profile] [--json FILE].

Twenty programs: six of our examples and fourteen kernels of tests/machine/corpus, which Triton and nvcc compiled.
``--against SRC`` runs each also with another source tree (the `src` of a worktree), the two in turn in processes
of their own, and prints how many times as fast this tree is: the least CPU time of ``--repeat`` runs of each, and
the geometric mean.  Several trees may be named; the first that runs a program is its baseline.

CPU seconds stand beside wall-clock ones: on a machine that does other work only they compare.  Two programs have a
wall-clock target: one CTA of a 128x128x64-tile warp-specialised Hopper GEMM over K = 512 within 5 s, and the first
example, one warp a tile, at 130x136x256 (81 CTAs) under 10 schedules within 60 s.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pickle
import pstats
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "machine" / "corpus"


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
EXAMPLES = [
    Job("Hopper GEMM, 128x128x64 tile, one CTA", "warp_specialized", "sm_90a", (128, 128, 512), TILE, 1, 5.0),
    Job("the same, persistent", "persistent", "sm_90a", (128, 128, 512), (*TILE, ("CLUSTER", 1), ("GRID", 1))),
    Job("one warp a tile, 81 CTAs, 10 schedules", "matmul_wmma", "sm_80", (130, 136, 256), (), 10, 60.0),
    Job("the same for sm_90a", "matmul_wmma", "sm_90a", (130, 136, 256), (), 10, 60.0),
    Job("double buffering, 128x256x64, mma.sync", "double_buffer", "sm_80", (128, 256, 256)),
    Job("2-CTA multicast, 128x256x64 tiles", "multicast", "sm_90a", (256, 256, 512), (("GRID", 1),)),
]
# Kernels of the corpus, each under the schedules that a check has by default.
KERNELS = [
    "triton_layer_norm-layer_norm", "triton_softmax_wide-softmax", "triton_sort-sort",
    "triton_last_block-last_block", "triton_attention_causal-attention", "triton_matmul_f16_sm90_3-matmul",
    "triton_matmul_tf32_sm80_3-matmul", "triton_matmul_nt_e4m3_sm90_1-matmul_nt", "triton_persistent-persistent",
    "triton_split_k-split_k", "basics-matmul_tiled", "basics-bitonic_sort", "sync-block_pipeline",
    "matrix-wmma_shared",
]  # fmt: skip
SCHEDULES = 20


@dataclass(frozen=True)
class Input:
    """What the machine is given: PTX, launch plan and arguments."""

    title: str
    ptx: str
    launch: Any
    args: dict[str, Any]
    schedules: int
    target: float | None = None
    strict: bool = False


@dataclass(frozen=True)
class Measured:
    title: str
    seconds: float
    cpu_seconds: float
    instructions: int
    verdict: str

    @property
    def rate(self) -> float:
        """Warp instructions a CPU second."""
        return self.instructions / self.cpu_seconds


def example(job: Job) -> Input:
    """Compile an example."""
    from tilemma import testing
    from tilemma.kernels import facts_of
    from tilemma.modules import load_python

    kernel = load_python(ROOT / "examples" / "py" / f"{job.example}.py").only()
    m, n, k = job.shape
    lhs, rhs = testing.random_array((m, k), "f16", 0), testing.random_array((n, k), "f16", 1)
    arrays: dict[str, Any] = {"lhs": lhs, "rhs": rhs, "output": np.full((m, n), np.nan, np.float16)}
    compiled = kernel.compile(job.arch, facts=facts_of(arrays), **dict(job.constants))
    (launch,) = compiled.launches
    # What plans of older trees do not have, and these programs do not need.
    newer = ("shared_names", "clustered", "joined")
    plan = {key: value for key, value in launch.to_json().items() if key not in newer}
    return Input(job.title, compiled.ptx, plan, arrays, job.schedules, job.target, True)


def corpus() -> list[Input]:
    """The kernels of the corpus."""
    sys.path.insert(0, str(CORPUS))
    from cuda_cases import CASES as CUDA
    from triton_cases import CASES as TRITON

    cases = {case.name: case for case in (*CUDA, *TRITON)}
    found = []
    for name in KERNELS:
        case = cases[name]
        launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
        ptx = (CORPUS / "ptx" / f"{case.file}.ptx").read_text(encoding="utf-8")
        found.append(Input(name, ptx, launch, case.build()[0], SCHEDULES))
    return found


def inputs(only: str) -> list[Input]:
    """The twenty programs, or those whose title contains ``only``."""
    return [x for x in (*map(example, EXAMPLES), *corpus()) if only in x.title]


def measure(job: Input, profile: cProfile.Profile | None = None) -> Measured:
    """Time of parsing, binding, decoding and running."""
    from tilemma import machine

    args = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in job.args.items()}
    wall, cpu = time.perf_counter(), time.process_time()
    if profile is not None:
        profile.enable()
    verdict = machine.check(job.ptx, job.launch, args, schedules=job.schedules, strict=job.strict)
    if profile is not None:
        profile.disable()
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    return Measured(job.title, seconds, cpu_seconds, verdict.instructions, str(verdict))


def serve(path: Path) -> None:
    """Measure the programs of a file whose numbers come on standard input, one answer a line.

    The compiled loops, which a cache folder keeps, are made before.
    """
    with suppress(ImportError):
        from tilemma.machine.native import library

        if library.enabled() and library.loaded() is None:
            library.compile_now()
    jobs = [Input(**x) for x in pickle.loads(path.read_bytes())]
    for line in sys.stdin:
        try:
            r = measure(jobs[int(line)])
            answer = {"seconds": r.cpu_seconds, "verdict": r.verdict}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


class Server:
    """A process that measures programs with the source tree ``src``."""

    def __init__(self, src: Path, jobs: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(src), "OPENBLAS_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(jobs)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, number: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(number, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(jobs: list[Input], trees: list[Path], repeat: int) -> list[dict[str, Any]]:
    """CPU seconds of each program with this tree and with the first of ``trees`` that runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs"
        path.write_bytes(pickle.dumps([vars(x) for x in jobs]))
        servers = [Server(src, path) for src in (ROOT / "src", *trees)]
        rows = []
        for number, job in enumerate(jobs):
            first = [s.ask(number) for s in servers]
            base = next((i for i, r in enumerate(first) if i and "error" not in r), 0)
            pairs = [(first[0], first[base])]
            pairs += [(servers[0].ask(number), servers[base].ask(number)) for _ in range(repeat - 1)]
            ours, theirs = (min(p[i]["seconds"] for p in pairs) for i in range(2))
            tree = "" if base == 0 else str(trees[base - 1])
            rows.append({"title": job.title, "seconds": ours, "base": theirs, "tree": tree})
            print(f"{job.title:42} {ours:8.3f} {theirs:8.3f} {theirs / ours:6.2f}  {tree}", flush=True)
        for server in servers:
            server.close()
    ratios = [r["base"] / r["seconds"] for r in rows if r["tree"]]
    print(f"{'geometric mean':60} {np.exp(np.mean(np.log(ratios))):6.2f}   least {min(ratios):.2f}")
    return rows


def report(jobs: list[Input], profiling: bool) -> tuple[list[Measured], bool]:
    """Measure each program once; also whether one has missed its target."""
    print(f"{'':42} {'s':>7} {'CPU s':>7} {'target':>7} {'warp instr.':>11} {'per CPU s':>10}")
    found, failed = [], False
    for job in jobs:
        profile = cProfile.Profile() if profiling else None
        r = measure(job, profile)
        found.append(r)
        target = f"{job.target:.0f} s" if job.target else ""
        late = job.target is not None and r.seconds > job.target
        wrong = "" if r.verdict.startswith("no hazard") else f"  {r.verdict}"
        failed |= late or bool(wrong)
        print(
            f"{r.title:42} {r.seconds:7.2f} {r.cpu_seconds:7.2f} {target:>7} {r.instructions:11} {r.rate:10.0f}"
            f"{'  MISSED' if late else ''}{wrong}"
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)
    return found, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="functions that most time goes to (slows it down)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path, action="append", default=[], metavar="SRC")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--schedules", type=int, default=1000, help="at most so many schedules of each program")
    parser.add_argument("--only", default="", help="programs whose title contains this")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    jobs = [replace(x, schedules=min(x.schedules, options.schedules)) for x in inputs(options.only)]
    facts = {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": sys.version.split()[0]}
    failed = False
    for src in options.against:
        if not (src / "tilemma").is_dir():
            parser.error(f"--against {src}: no folder with the package tilemma")
    if options.against:
        results = compare(jobs, options.against, options.repeat)
    else:
        found, failed = report(jobs, options.profile)
        results = [{**asdict(r), "target": job.target} for r, job in zip(found, jobs, strict=True)]
    if options.json:
        options.json.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
