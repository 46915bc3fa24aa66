"""Which tests cover which line: collected once, kept in a file, asked for each mutant."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# Tests kept for a line, and at most so many of one function.
KEPT, OF_ONE_FUNCTION = 80, 8


@dataclass(frozen=True)
class Coverage:
    """``tests``: node ids with seconds; ``lines``: file -> line -> tests by number, the most useful first.

    ``sources``: a hash of each file as it was: of one that has changed since, the lines are not known.
    """

    tests: list[tuple[str, float]]
    lines: dict[str, dict[str, list[int]]]
    sources: dict[str, str] = field(default_factory=dict)

    def stale(self, package: Path) -> list[str]:
        """Files that changed since the coverage was collected."""
        return [
            f for f, known in self.sources.items() if not (package / f).exists() or known != digest(package / f)
        ]

    def covering(self, file: str, line: int, seconds: float) -> list[tuple[str, float]]:
        """Tests of a line, as many as run in ``seconds``."""
        found, left = [], seconds
        for n in self.lines.get(file, {}).get(str(line), []):
            if self.tests[n][1] <= left:
                found.append(self.tests[n])
                left -= self.tests[n][1]
        return found

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as f:
            json.dump({"tests": self.tests, "lines": self.lines, "sources": self.sources}, f)

    @staticmethod
    def load(path: Path) -> Coverage:
        with gzip.open(path, "rt", encoding="utf-8") as f:
            data = json.load(f)
        return Coverage([(n, s) for n, s in data["tests"]], data["lines"], data["sources"])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def collect(root: Path, files: Iterable[str], jobs: int, slow: float) -> Coverage:
    """Run the tests of ``files``, one process each; those above ``slow`` seconds are not used."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for part in pool.map(lambda f: _one(root, f, Path(folder)), files):
            found |= {n: x for n, x in part.items() if x["seconds"] <= slow}
    coverage = ranked(found)
    package = root / "src" / "tilemma"
    return replace(coverage, sources={f: digest(package / f) for f in sorted(coverage.lines)})


def _one(root: Path, file: str, folder: Path) -> dict[str, Any]:
    out = folder / (file.replace("/", "_") + ".json")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "dev.source_mutation.collect",
        "-p",
        "no:cacheprovider",
        file,
    ]
    run = subprocess.run(
        command, cwd=root, env={**os.environ, "COVERAGE_OUT": str(out)}, capture_output=True, text=True
    )
    last = run.stdout.strip().splitlines()[-1:] or [run.stderr[-200:]]
    print(f"{file}: {last[0]}", flush=True)
    return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def ranked(found: Mapping[str, Any]) -> Coverage:
    """The coverage with the tests of each line in the order in which a mutant meets them.

    Quick tests that run few lines come first: what they check is near.  A tenth of a second counts as little as
    none, since starting costs more.
    """
    names = sorted(found)
    cost = [max(0.1, found[n]["seconds"]) * (50 + sum(map(len, found[n]["lines"].values()))) for n in names]
    lines: dict[str, dict[str, list[int]]] = {}
    for number in sorted(range(len(names)), key=cost.__getitem__):
        for file, numbers in found[names[number]]["lines"].items():
            place = lines.setdefault(file, {})
            for line in numbers:
                place.setdefault(str(line), []).append(number)
    functions = [n.partition("[")[0] for n in names]
    for place in lines.values():
        for line, tests in place.items():
            place[line] = _varied(tests, functions)
    return Coverage([(n, found[n]["seconds"]) for n in names], lines)


def _varied(tests: list[int], functions: list[str]) -> list[int]:
    """The first of ``tests``, of many functions: cases of one function tell much the same."""
    counted: Counter[str] = Counter()
    first, later = [], []
    for n in tests:
        counted[functions[n]] += 1
        if counted[functions[n]] <= 2:
            first.append(n)
        elif counted[functions[n]] <= OF_ONE_FUNCTION:
            later.append(n)
    return [*first, *later][:KEPT]
