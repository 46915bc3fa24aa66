"""Random kernels in both languages: CPU reference, PTX machine or GPU, and NumPy, against each other.

    python bench/fuzz_kernels.py --count 20000 --seed 0 --jobs 16 --keep build/fuzz --json docs/proofs/fuzz.json
    python bench/fuzz_kernels.py --count 2000 --resume --json docs/proofs/fuzz.json    # further seeds
    python bench/fuzz_kernels.py --device --seconds 60 --jobs 14 --json docs/proofs/fuzz.json
    python bench/fuzz_kernels.py --family narrow --count 1000      # larger programs, with multiplies and pipelines
    python bench/fuzz_kernels.py --family products --count 5000    # products of every type and layout
    python bench/fuzz_kernels.py --family lanes --count 1000       # one lane's registers: fragments, shuffles

Each kernel runs for sm_80 and sm_90a.  A difference, a crash, or a refusal that the CPU reference and PTX do not
share is a failure; the first of each kind are made smaller and kept with their message.  Exit status 1 when there
is one.  It prints how many programs had which construct, and how many all targets refused with which error.
With `--json` the outcome is recorded every 500 programs; `--resume` starts behind the recorded seeds and adds to
their record, so that a large number can be collected in several runs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import linecache
import multiprocessing
import platform
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tilemma
from dev.fuzz.check import Failure
from dev.fuzz.families import FAMILIES
from tilemma.assemble import find_tool
from tilemma.errors import ToolError

# Seconds for one program, and failures of each kind that are made smaller.
PATIENCE, SHRUNK = 120, 2


@dataclass(frozen=True)
class Task:
    seed: int
    family: str
    device: bool
    # A report of a smaller program is wanted as well.
    smaller: bool = False


@dataclass(frozen=True)
class Result:
    task: Task
    features: frozenset[str]
    refused: str
    failure: Failure | None
    report: str = ""


class _TooLong(Exception):
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def _checked(p: Any, task: Task) -> tuple[Failure | None, str]:
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(PATIENCE)
    try:
        outcome = FAMILIES[task.family].examine(p, task.device)
        return outcome.failure, outcome.refused
    except _TooLong:
        return Failure(p.seed, "time", f"more than {PATIENCE} s", "too-long"), ""
    except Exception:
        return Failure(p.seed, "evaluation", traceback.format_exc(), "internal"), ""
    finally:
        signal.alarm(0)
        linecache.clearcache()


def run(task: Task) -> Result:
    """What became of the kernel of a seed.

    After a failure on a GPU its context may be lost: nothing is made smaller there.
    """
    family = FAMILIES[task.family]
    p = family.make(task.seed)
    failure, refused = _checked(p, task)
    report = ""
    if failure is not None:
        kind, small = failure.kind, p
        if task.smaller and not task.device:
            small = family.smaller(p, lambda q: (again := _checked(q, task)[0]) is not None and again.kind == kind)
        told = failure if small is p else _checked(small, task)[0]
        report = f"{told}\n\n{family.texts(small)}"
    return Result(task, frozenset(family.features(p)), refused, failure, report)


def until(seeds: range, options: argparse.Namespace, deadline: float | None) -> Iterator[Task]:
    for seed in seeds:
        if deadline is not None and time.monotonic() > deadline:
            return
        yield Task(seed, options.family, options.device)


def versions(device: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tilemma": tilemma.__version__, "python": platform.python_version(), "numpy": np.__version__
    }  # fmt: skip
    if device:
        from tilemma import runtime

        found["gpu"] = runtime.cuda_device(0).name
        try:
            found["ptxas"] = ".".join(map(str, find_tool("ptxas").version))
        except ToolError:
            found["ptxas"] = "the driver's"
    return found


def key(entry: dict[str, Any]) -> tuple[str, str]:
    """What tells the entries of the JSON file apart."""
    return entry["target"], entry.get("family", "narrow")


def recorded(path: Path) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    return known


def record(path: Path, entry: dict[str, Any]) -> None:
    """Put ``entry`` into the JSON file in the place of the last one on the same target."""
    runs = [*(r for r in recorded(path) if key(r) != key(entry)), entry]
    path.write_text(json.dumps({"runs": sorted(runs, key=key)}, indent=1) + "\n", encoding="utf-8")


def ranges(seeds: Iterable[int]) -> list[list[int]]:
    """[first, count] of each run of consecutive ``seeds``."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and sum(found[-1]) == seed:
            found[-1][1] += 1
        else:
            found.append([seed, 1])
    return found


def seeds_of(entry: dict[str, Any]) -> list[list[int]]:
    found: list[list[int]] = entry["seeds"] if "seeds" in entry else [[entry["first_seed"], entry["kernels"]]]
    return found


def added(before: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` with the numbers of ``before``, whose seeds are others."""
    both = [*seeds_of(before), *entry["seeds"]]
    seeds = {seed for first, count in both for seed in range(first, first + count)}
    assert len(seeds) == sum(count for _, count in both), "the seeds overlap"
    sums = {
        name: dict(sorted((Counter(before.get(name, {})) + Counter(entry[name])).items()))
        for name in ("refused_by_all", "programs_with")
    }
    return {
        **entry,
        **sums,
        "seeds": ranges(seeds),
        "kernels": before["kernels"] + entry["kernels"],
        "failures": sorted({*before["failures"], *entry["failures"]}),
        "seconds": before["seconds"] + entry["seconds"],
    }


def target_of(options: argparse.Namespace) -> str:
    return "GPU" if options.device else "CPU reference and PTX machine"


class Survey:
    """What was found so far."""

    def __init__(self, keep: Path) -> None:
        self.keep = keep
        self.start = time.monotonic()
        self.failed: list[Result] = []
        self.kinds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.features: Counter[str] = Counter()
        self.seeds: list[int] = []

    @property
    def done(self) -> int:
        return len(self.seeds)

    def add(self, r: Result) -> None:
        self.seeds.append(r.task.seed)
        self.features.update(r.features)
        if r.refused:
            self.refused[r.refused] += 1
        if r.failure is not None:
            self.failed.append(r)
            self.kinds[r.failure.kind] += 1
            self.write(r)
            if self.kinds[r.failure.kind] <= SHRUNK:
                print(f"{str(r.failure)[:600]}\n", flush=True)

    def write(self, r: Result) -> None:
        self.keep.mkdir(parents=True, exist_ok=True)
        (self.keep / f"{r.task.family}{r.task.seed}.txt").write_text(r.report, encoding="utf-8")

    def to_shrink(self) -> list[Task]:
        """The first failures of each kind."""
        counted: Counter[str] = Counter()
        chosen = []
        for r in self.failed:
            assert r.failure is not None
            counted[r.failure.kind] += 1
            if counted[r.failure.kind] <= SHRUNK:
                chosen.append(Task(r.task.seed, r.task.family, r.task.device, True))
        return chosen

    def entry(self, options: argparse.Namespace) -> dict[str, Any]:
        """The outcome for the JSON file."""
        return {
            "target": target_of(options),
            "family": options.family,
            "date": f"{datetime.date.today():%Y-%m-%d}",
            "seeds": ranges(self.seeds),
            "kernels": self.done,
            "archs": list(FAMILIES[options.family].archs),
            "failures": sorted(r.task.seed for r in self.failed),
            "refused_by_all": dict(sorted(self.refused.items())),
            "programs_with": dict(sorted(self.features.items())),
            "seconds": round(time.monotonic() - self.start),
            "jobs": options.jobs,
            **versions(options.device),
        }

    def progress(self) -> str:
        rate = self.done / (time.monotonic() - self.start)
        refused = self.refused.total()
        return f"{self.done} kernels, {rate:.1f} a second, {len(self.failed)} failures, {refused} refused by all"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=1000)
    arguments.add_argument(
        "--seed", type=int, default=int(time.time()) // 86400 * 1_000_000, help="the first seed"
    )
    arguments.add_argument("--family", choices=sorted(FAMILIES), default="wide")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where failures are written")
    arguments.add_argument("--device", action="store_true", help="run on this machine's GPU")
    arguments.add_argument("--seconds", type=float, help="start no kernel after so many")
    arguments.add_argument("--no-shrink", action="store_true", help="keep failures as they are")
    arguments.add_argument("--json", type=Path, help="record the outcome here")
    arguments.add_argument(
        "--resume", action="store_true", help="start behind the seeds recorded in --json, and add to their record"
    )
    options = arguments.parse_args()
    before = None
    if options.resume:
        if options.json is None:
            arguments.error("--resume needs --json")
        wanted = target_of(options), options.family
        before = next((r for r in recorded(options.json) if key(r) == wanted), None)
        if before is not None:
            options.seed = max(first + count for first, count in seeds_of(before))
    survey = Survey(options.keep)

    def keep() -> None:
        if options.json and survey.seeds:
            entry = survey.entry(options)
            record(options.json, entry if before is None else added(before, entry))

    deadline = None if options.seconds is None else survey.start + options.seconds
    seeds = range(options.seed, options.seed + options.count)
    # Fresh processes now and then: a kernel that ruins a GPU's context ruins few others.
    with multiprocessing.get_context("spawn" if options.device else None).Pool(
        options.jobs, maxtasksperchild=25
    ) as pool:
        for n, found in enumerate(pool.imap_unordered(run, until(seeds, options, deadline), chunksize=8), 1):
            survey.add(found)
            if n % 500 == 0:
                print(survey.progress(), flush=True)
                keep()
            # The pool takes tasks ahead of time: those that it has taken do not run to their end.
            if deadline is not None and time.monotonic() > deadline:
                break
    if not options.no_shrink and not options.device:
        with multiprocessing.get_context().Pool(options.jobs, maxtasksperchild=25) as pool:
            for found in pool.imap_unordered(run, survey.to_shrink()):
                survey.write(found)
    print(f"{survey.progress()}, from seed {options.seed}")
    for title, counts in (("programs with", survey.features), ("refused by all", survey.refused)):
        print(f"{title}: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    for kind, n in survey.kinds.most_common():
        examples = [r.task.seed for r in survey.failed if r.failure is not None and r.failure.kind == kind]
        print(f"{n:5} {kind}: {examples[:5]}")
    keep()
    return 1 if survey.failed else 0


if __name__ == "__main__":
    sys.exit(main())
