"""Which tests cover which line: collected once, kept in a file, asked for each mutant."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from dev.source_mutation.collect import RECORDED, collect_files

# Tests of the first round of a mutant, and at most so many of one function.
KEPT, OF_ONE_FUNCTION = 160, 60
# The cost of a test of `RECORDED` is divided by this, that of a test of the module by `OWN`.
FAVOUR, OWN = 20, 10
# Seconds that a test costs besides its own.
START = 0.03
# A line of the mutant's function counts as much as so many of other lines of its file.
NEAR = 8.0

Place = tuple[str, int]
Lines = np.ndarray[tuple[int], np.dtype[np.uint16]]


@dataclass(frozen=True)
class Coverage:
    """``tests``: node ids with seconds; ``ran``: file -> number of a test -> lines; ``total``: how many."""

    tests: list[tuple[str, float]]
    ran: dict[str, dict[int, Lines]]
    total: list[int]

    def covering(
        self, places: Sequence[Place], seconds: float, near: range = range(0), more: float = 0.0, stem: str = ""
    ) -> list[tuple[str, float]]:
        """Tests that run one of ``places``: as many as run in ``seconds``, then as many as run in ``more``.

        ``near``: the lines of the function; ``stem``: the name of its module.  The first ones come by turns from
        three orders: tests of files that are named after the module; those that run much of the file and little
        elsewhere, fast ones before slow ones; those that run lines which few before them do.  Then follow all
        others in the second of these orders.
        """
        files = {file for file, _ in places}
        found = {n for file, line in places for n in self._of_line(file).get(line, ())}
        ran = {
            n: np.concatenate([self.ran[f][n] for f in sorted(files & self.ran.keys()) if n in self.ran[f]])
            for n in found
        }
        own = {n for n in found if _is_of_module(self.tests[n][0], stem)}
        price = {n: self._cost(n) / (OWN if n in own else 1) for n in found}
        cost = {n: price[n] / (1 + len(lines)) ** 2 for n, lines in ran.items()}
        names = {n: self.tests[n][0].partition("[")[0] for n in found}
        others = _varied(names, cost, len(found))
        orders = (
            [n for n in others if n in own],
            _varied(names, cost, OF_ONE_FUNCTION),
            _spread(ran, price, near),
        )
        first = dict.fromkeys(n for together in zip_longest(*orders) for n in together if n is not None)
        chosen = self._within(first, seconds, KEPT)
        taken = set(chosen)
        return chosen + self._within([n for n in others if self.tests[n] not in taken], more, len(others))

    def _within(self, order: Iterable[int], seconds: float, count: int) -> list[tuple[str, float]]:
        """At most ``count`` tests that run in ``seconds`` together; one that is too long is left out."""
        chosen: dict[tuple[str, float], None] = {}
        for n in order:
            if self.tests[n][1] <= seconds and len(chosen) < count:
                chosen[self.tests[n]] = None
                seconds -= self.tests[n][1]
        return list(chosen)

    def nearest(self, file: str, line: int) -> int | None:
        """The line of ``file`` next to ``line`` that some test runs."""
        return min(self._of_line(file), key=lambda n: abs(n - line), default=None)

    def _cost(self, n: int) -> float:
        name, seconds = self.tests[n]
        return (START + seconds) * (50 + self.total[n]) / (FAVOUR if name.startswith(RECORDED) else 1)

    # The object lives as long as the process, so that the cache keeps nothing alive.
    @cache  # noqa: B019
    def _of_line(self, file: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for n, lines in self.ran.get(file, {}).items():
            for line in lines.tolist():
                found.setdefault(line, []).append(n)
        return found

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True)
class Parts:
    """The coverage of each test file, kept in ``folder`` with the hash of the tests and the sources that it ran.

    `collect` runs a test file again when it, a source that it ran or a module that tests share has changed.  Until
    then the lines move with the text of a source: a mutant of a new line meets the tests of the lines that were
    there before.
    """

    root: Path
    folder: Path

    def path(self, file: str) -> Path:
        return self.folder / (file.replace("/", "_") + ".json.gz")

    def save(self, file: str, tests: dict[str, Any]) -> None:
        package = self.root / "src" / "tilemma"
        sources = {f: digest(package / f) for f in sorted({f for x in tests.values() for f in x.get("lines", ())})}
        part = {"file": file, "test": self._test(file, digest), "tests": tests, "sources": sources}
        (self.folder / "sources").mkdir(parents=True, exist_ok=True)
        for f, known in sources.items():
            (self.folder / "sources" / known).write_bytes((package / f).read_bytes())
        with gzip.open(self.path(file), "wt", encoding="utf-8", compresslevel=3) as f:
            json.dump(part, f)

    def _part(self, file: str) -> dict[str, Any] | None:
        if not self.path(file).exists():
            return None
        with gzip.open(self.path(file), "rt", encoding="utf-8") as f:
            part: dict[str, Any] = json.load(f)
        return part

    def stale(self, files: Iterable[str]) -> list[str]:
        """Those of ``files`` that are not known, or that a change may have made run other lines."""
        digest_once = cache(digest)

        def is_current(file: str) -> bool:
            part = self._part(file)
            if part is None or self._test(file, digest_once) != part["test"]:
                return False
            paths = {self.root / "src" / "tilemma" / source: known for source, known in part["sources"].items()}
            return all(path.exists() and digest_once(path) == known for path, known in paths.items())

        return [file for file in files if not is_current(file)]

    def _test(self, file: str, digest_of: Callable[[Path], str]) -> str:
        """The hash of a test file with the modules that tests share."""
        shared = (p for p in sorted((self.root / "tests").rglob("*.py")) if not p.name.startswith("test_"))
        digests = " ".join(digest_of(p) for p in (*shared, self.root / file))
        return hashlib.sha256(digests.encode()).hexdigest()[:16]

    def load(self, file: str) -> dict[str, Any] | None:
        """The tests of ``file`` with their lines; None where they are not known.

        A case that was not run has the lines of a case that was: both have the same object.
        """
        part = self._part(file)
        if part is None:
            return None
        tests: dict[str, Any] = part["tests"]
        for source, known in part["sources"].items():
            path = self.root / "src" / "tilemma" / source
            if path.exists() and digest(path) != known:
                to = self._moved(known, digest(path), path)
                for told in tests.values():
                    if source in told.get("lines", ()):
                        told["lines"][source] = sorted({n for x in told["lines"][source] for n in to.get(x, ())})
        for told in tests.values():
            if "like" in told:
                told["lines"] = tests[told.pop("like")]["lines"]
        return tests

    # The object lives as long as the process, so that the cache keeps nothing alive.
    @cache  # noqa: B019
    def _moved(self, known: str, _: str, path: Path) -> dict[int, list[int]]:
        return moved_lines((self.folder / "sources" / known).read_text("utf-8"), path.read_text("utf-8"))

    def collect(self, files: Iterable[str], jobs: int) -> None:
        """Run the tests of those ``files`` that are `stale`."""
        collect_files(self.root, self.stale(files), jobs, self.save)

    def merged(self, files: Iterable[str]) -> Coverage:
        return ranked({n: x for file in files for n, x in _small(self.load(file) or {}).items()})


def _small(tests: dict[str, Any]) -> dict[str, Any]:
    """The same, with arrays for lists: all tests together have many lines."""
    made: dict[int, dict[str, Lines]] = {}

    def small(lines: dict[str, list[int]]) -> dict[str, Lines]:
        if id(lines) not in made:
            made[id(lines)] = {file: np.array(x, np.uint16) for file, x in lines.items()}
        return made[id(lines)]

    return {name: told | {"lines": small(told["lines"])} for name, told in tests.items()}


def moved_lines(before: str, after: str) -> dict[int, list[int]]:
    """Line of ``before`` -> lines of ``after``, from 1.  An inserted line stands for the line above it."""
    found: dict[int, list[int]] = {}
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for n in range(b - a):
                found.setdefault(a + n + 1, []).append(c + n + 1)
        else:
            for n in range(a, b) if a < b else [a - 1]:
                found.setdefault(n + 1, []).extend(range(c + 1, d + 1))
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def ranked(found: Mapping[str, Any]) -> Coverage:
    """``found``: node id of each test -> its seconds and lines."""
    names = sorted(found)
    ran: dict[str, dict[int, Lines]] = {}
    for number, name in enumerate(names):
        for file, lines in found[name]["lines"].items():
            ran.setdefault(file, {})[number] = np.asarray(lines, np.uint16)
    total = [sum(map(len, found[n]["lines"].values())) for n in names]
    return Coverage([(n, found[n]["seconds"]) for n in names], ran, total)


def _is_of_module(test: str, stem: str) -> bool:
    """Whether the file of ``test`` is named after the module ``stem``, as test_views.py and test_views_of_views.py
    are after views.py."""
    return bool(stem) and f"_{stem}_" in f"{Path(test.partition('::')[0]).stem}_"


def _varied(names: Mapping[int, str], cost: Mapping[int, float], of_one: int) -> list[int]:
    """The tests by ``cost``, at most ``of_one`` of a function: its cases resemble each other and come late."""
    counted: Counter[str] = Counter()
    order = {}
    for n in sorted(cost, key=lambda n: (cost[n], n)):
        counted[names[n]] += 1
        if counted[names[n]] <= of_one:
            order[n] = cost[n] * counted[names[n]]
    return sorted(order, key=order.__getitem__)


def _spread(ran: Mapping[int, Lines], cost: Mapping[int, float], near: range) -> list[int]:
    """Tests such that each runs lines that few before it ran, for little ``cost``; one of each set of lines."""
    cheapest: dict[bytes, int] = {}
    for n in sorted(ran, key=lambda n: (-cost[n], -n)):
        cheapest[ran[n].tobytes()] = n
    tests = sorted(cheapest.values())
    if not tests:
        return []
    lines = np.unique(np.concatenate([ran[n] for n in tests]))
    runs = np.stack([np.isin(lines, ran[n]) for n in tests]).astype(np.float64)
    price = np.sqrt([cost[n] for n in tests])
    value = np.where((lines >= near.start) & (lines < near.stop), NEAR, 1.0)
    times = np.zeros(len(lines))
    order = []
    for _ in range(min(KEPT, len(tests))):
        best = int(np.argmax(runs @ (value / (1 + times) ** 2) / price))
        order.append(tests[best])
        times += runs[best]
        price[best] = np.inf
    return order
