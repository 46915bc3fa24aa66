"""Which tests cover which line: collected once, kept in a file, asked for each mutant."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dev.source_mutation.collect import collect_files

# Tests kept for a line, and at most so many of one function.
KEPT, OF_ONE_FUNCTION = 120, 60


@dataclass(frozen=True)
class Coverage:
    """``tests``: node ids with seconds; ``lines``: file -> line -> tests by number, the most useful first."""

    tests: list[tuple[str, float]]
    lines: dict[str, dict[str, list[int]]]

    def covering(self, file: str, line: int, seconds: float) -> list[tuple[str, float]]:
        """Tests of a line, as many as run in ``seconds``."""
        found, left = [], seconds
        for n in self.lines.get(file, {}).get(str(line), []):
            if self.tests[n][1] <= left:
                found.append(self.tests[n])
                left -= self.tests[n][1]
        return found


@dataclass(frozen=True)
class Parts:
    """The coverage of each test file, kept in ``folder`` with the hashes of the files that it depends on."""

    root: Path
    folder: Path

    def path(self, file: str) -> Path:
        return self.folder / (file.replace("/", "_") + ".json.gz")

    def save(self, file: str, tests: dict[str, Any]) -> None:
        package = self.root / "src" / "tilemma"
        sources = {f for x in tests.values() for f in x["lines"]}
        part = {"file": file, "test": digest(self.root / file), "tests": tests,
                "sources": {f: digest(package / f) for f in sorted(sources)}}  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(self.path(file), "wt", encoding="utf-8", compresslevel=3) as f:
            json.dump(part, f)

    def load(self, file: str) -> dict[str, Any] | None:
        """The tests of ``file`` with their lines; None where a file is not as it was when they were collected."""
        if not self.path(file).exists():
            return None
        with gzip.open(self.path(file), "rt", encoding="utf-8") as f:
            part = json.load(f)
        package = self.root / "src" / "tilemma"
        known = {self.root / file: part["test"], **{package / f: x for f, x in part["sources"].items()}}
        if any(not path.exists() or digest(path) != x for path, x in known.items()):
            return None
        tests: dict[str, Any] = part["tests"]
        return tests

    def collect(self, files: Iterable[str], jobs: int) -> None:
        """Run the tests of those ``files`` whose coverage is not known."""
        collect_files(self.root, [f for f in files if self.load(f) is None], jobs, self.save)

    def merged(self, files: Iterable[str]) -> Coverage:
        return ranked({n: x for file in files for n, x in (self.load(file) or {}).items()})


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def ranked(found: Mapping[str, Any]) -> Coverage:
    """The coverage with the tests of each line in the order in which a mutant meets them.

    Fast tests that run few lines come first: they are the most specific.  A tenth of a second counts as little as
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
            place[line] = _varied(tests, functions, cost)
    return Coverage([(n, found[n]["seconds"]) for n in names], lines)


def _varied(tests: list[int], functions: list[str], cost: list[float]) -> list[int]:
    """The first of ``tests``, of many functions: cases of one function tell much the same."""
    counted: Counter[str] = Counter()
    order = {}
    for n in tests:
        counted[functions[n]] += 1
        if counted[functions[n]] <= OF_ONE_FUNCTION:
            order[n] = cost[n] * counted[functions[n]]
    return sorted(order, key=order.__getitem__)[:KEPT]
