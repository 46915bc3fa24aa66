"""Mutants of our own source: a drawn sample, each against the tests that cover its line.

    python bench/mutate_source.py --seed 1 --jobs 2 --json docs/proofs/source_mutation.json
    python bench/mutate_source.py --seed 1 --count 20 --only passes/simplify.py --quick
    python bench/mutate_source.py --collect --jobs 2       # which test runs which line: kept in build/

The operators are those of `dev/source_mutation/operators.py`.  The tests of a mutant run in one process until
one fails or the time of the mutant is over: the quick and near ones and the recorded programs come first, then
all others by what they cost for the lines that they run.  A mutant survives when none fails.  Forks of a process
that has imported the package come first.  A mutant of what runs at import meets its tests in a new process, in a
copy of the source; so does one that no fork killed, with the first of them only.  A test that fails without a
mutant kills none.  Coverage is collected again where a source or a test has changed, unless `--quick` asks for a
figure at once.  The mutants that `dev/source_mutation/equivalent.json` lists were read by a person and change
nothing that can be observed.  Exit status 1 when fewer than 90 % die.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dev.source_mutation.coverage import Coverage, Parts
from dev.source_mutation.operators import OPERATORS, Mutant
from dev.source_mutation.survey import Limits, Repository, Tried, all_mutants, chosen_tests, draw
from dev.source_mutation.warm import run_warm

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "dev" / "source_mutation" / "equivalent.json"
GOAL = 0.9
DEAD = ("killed", "timed out")


def test_files(only: str) -> list[str]:
    found = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("test_*.py"))
    return [f for f in found if "/gpu/" not in f and any(part in f for part in only.split(","))]


def diff(m: Mutant) -> list[str]:
    """The changed lines."""
    source = (ROOT / "src" / "tilemma" / m.file).read_text(encoding="utf-8")
    lines = difflib.unified_diff(source.splitlines(), m.applied(source).splitlines(), lineterm="", n=0)
    return [x for x in lines if not x.startswith(("---", "+++", "@@"))]


def folder_of(m: Mutant) -> str:
    """The first folder of the mutant's file, two of a target; a file beside the folders is its own."""
    first, *rest = m.file.split("/")
    return f"{first}/{rest[0]}" if first == "targets" and len(rest) > 1 else first


class Worker:
    """One process: its place is made once."""

    place: Repository | None = None

    @classmethod
    def attempt(cls, work: tuple[Mutant, list[tuple[str, float]], Limits]) -> Tried:
        """The tests of a mutant in a new process."""
        cls.place = cls.place or Repository(ROOT)
        return cls.place.attempt(*work)

    @classmethod
    def unsound(cls, _: int) -> set[str]:
        """The tests that failed without a mutant."""
        return cls.place.unsound if cls.place else set()

    @classmethod
    def close(cls, _: int) -> None:
        if cls.place is not None:
            cls.place.close()


class Choice:
    """What each process that chooses tests has from the one it is forked from."""

    coverage: Coverage
    limits: Limits

    @classmethod
    def of(cls, mutant: Mutant) -> tuple[Mutant, list[tuple[str, float]]]:
        return mutant, chosen_tests(cls.coverage, mutant, cls.limits)


def earlier(log: Path | None, drawn: list[Mutant]) -> list[Tried]:
    """What ``log`` says of the drawn mutants."""
    if log is None or not log.exists():
        return []
    told = [json.loads(x) for x in log.read_text(encoding="utf-8").splitlines()]
    wanted = set(drawn)
    return [t for x in told if (t := Tried(**(x | {"mutant": Mutant(**x["mutant"])}))).mutant in wanted]


def note(t: Tried, log: Path | None, reasons: dict[str, str]) -> None:
    """Write ``t`` to the log; print it if it survived."""
    if log:
        with log.open("a", encoding="utf-8") as f:
            f.write(json.dumps(dataclasses.asdict(t)) + "\n")
    if t.verdict not in DEAD:
        known = " (equivalent)" if t.mutant.key in reasons else ""
        print(f"{t.verdict}{known} {t.mutant.file}:{t.mutant.line} {t.mutant.operator}, {t.tests} tests")
        print("\n".join(f"    {x}" for x in diff(t.mutant)), flush=True)


def record(
    tried: list[Tried], reasons: dict[str, str], options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    """The survey as data: nothing in it depends on the machine but the times."""
    equivalent = [t for t in tried if t.verdict not in DEAD and t.mutant.key in reasons]
    survivors = [t for t in tried if t.verdict not in DEAD and t.mutant.key not in reasons]
    folders: dict[str, Counter[str]] = {}
    operators: dict[str, Counter[str]] = {}
    for t in tried:
        verdict = "equivalent" if t in equivalent else t.verdict
        folders.setdefault(folder_of(t.mutant), Counter())[verdict] += 1
        operators.setdefault(t.mutant.operator, Counter())[verdict] += 1
    judged = len(tried) - len(equivalent)
    return {
        "seed": options.seed,
        "drawn": len(tried),
        "of": options.population,
        "operators": OPERATORS,
        "died": sum(t.verdict in DEAD for t in tried),
        "share": round(sum(t.verdict in DEAD for t in tried) / max(1, judged), 3),
        "folders": {f: dict(sorted(c.items())) for f, c in sorted(folders.items())},
        "by operator": {o: dict(sorted(c.items())) for o, c in sorted(operators.items())},
        "survivors": [
            {"place": f"{t.mutant.file}:{t.mutant.line}", "operator": t.mutant.operator, "verdict": t.verdict,
             "tests": t.tests, "diff": diff(t.mutant), "key": t.mutant.key}
            for t in sorted(survivors, key=lambda t: (t.mutant.file, t.mutant.line))
        ],
        "equivalent": [
            {"place": f"{t.mutant.file}:{t.mutant.line}", "diff": diff(t.mutant), "why": reasons[t.mutant.key]}
            for t in equivalent
        ],
        "tests that fail without a mutant": options.unsound,
        "seconds": round(seconds),
        "jobs": options.jobs,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument(
        "--only", default="", help="mutants of files with one of these, separated by commas, in the path"
    )
    parser.add_argument(
        "--tests", default="", help="test files with one of these, separated by commas, in the path"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=Limits.tests, help="of tests for each mutant")
    parser.add_argument(
        "--rest", type=float, default=Limits.rest, help="seconds of further tests for each mutant that survives"
    )
    parser.add_argument("--coverage", type=Path, default=ROOT / "build" / "coverage")
    parser.add_argument("--collect", action="store_true", help="collect the coverage that is not known, and stop")
    parser.add_argument(
        "--log", type=Path, help="a file with what was tried: a run that was stopped goes on there"
    )
    parser.add_argument(
        "--quick", action="store_true", help="forks of one process only: figures for development, not a record"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start = time.monotonic()
    if not options.quick and not options.collect:
        # In an interpreter of its own, since it imports the package with probes.
        collect = (*sys.argv[:1], "--collect", "--tests", options.tests, "--coverage", str(options.coverage))
        subprocess.run([sys.executable, *collect, "--jobs", str(options.jobs)], check=True)
    parts, files, limits = (
        Parts(ROOT, options.coverage),
        test_files(options.tests),
        Limits(options.seconds, rest=options.rest),
    )
    if options.collect:
        parts.collect(files, options.jobs)
        print(f"coverage collected in {time.monotonic() - start:.0f} s", flush=True)
        return 0
    coverage = parts.merged(files)
    if not coverage.tests:
        print("no coverage: run with --collect", file=sys.stderr)
        return 2
    population = [m for m in all_mutants(ROOT) if any(part in m.file for part in options.only.split(","))]
    options.population = len(population)
    drawn = draw(population, options.count, options.seed)
    reasons = {e["mutant"]: e["why"] for e in json.loads(EQUIVALENT.read_text(encoding="utf-8"))}
    tried = earlier(options.log, drawn)
    done = {t.mutant for t in tried}
    Choice.coverage, Choice.limits = coverage, limits
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        work = pool.map(Choice.of, [m for m in drawn if m not in done], chunksize=1)

    def noted(t: Tried) -> None:
        tried.append(t)
        note(t, options.log, reasons)
        if len(tried) % 25 == 0:
            dead = sum(t.verdict in DEAD for t in tried)
            print(f"{len(tried)} of {len(drawn)}, {dead} dead, {time.monotonic() - start:.0f} s", flush=True)

    if options.quick:
        _, unsound = run_warm(ROOT, work, limits, options.jobs, noted)
        print(f"fail without a mutant: {', '.join(sorted(unsound)) or 'none'}")
        return 0
    left: dict[Mutant, str] = {}
    existing, unsound = run_warm(
        ROOT,
        work,
        limits,
        options.jobs,
        lambda t: noted(t) if t.verdict in DEAD else left.update({t.mutant: t.verdict}),
    )
    again = [
        (m, [t for t in (tests if left[m] == "at import" else limits.first(tests)) if t[0] in existing], limits)
        for m, tests in work
        if m in left
    ]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for t in pool.imap_unordered(Worker.attempt, again):
            noted(t)
        unsound = unsound.union(*pool.map(Worker.unsound, range(options.jobs), chunksize=1))
        pool.map(Worker.close, range(options.jobs), chunksize=1)
    options.unsound = sorted(unsound)
    found = record(tried, reasons, options, time.monotonic() - start)
    print(f"{found['died']} of {found['drawn']} died, {len(found['equivalent'])} equivalent: {found['share']:.1%}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(found["share"] < GOAL)


if __name__ == "__main__":
    sys.exit(main())
