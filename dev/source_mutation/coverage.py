"""Which tests cover which line: collected once, kept in a file, asked for each mutant."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from dev.source_mutation.collect import collect_files

# Tests kept for a line, and at most so many of one function.
KEPT, OF_ONE_FUNCTION = 120, 60
# These compare all that a program becomes with a file: they kill more for their time than their lines say.
RECORDED, FAVOUR = ("tests/language/test_recorded.py", "tests/language/test_edited.py"), 20


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
        sources = {f: digest(package / f) for f in sorted({f for x in tests.values() for f in x["lines"]})}
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
        """The tests of ``file`` with their lines; None where they are not known."""
        part = self._part(file)
        if part is None:
            return None
        tests: dict[str, Any] = part["tests"]
        for source, known in part["sources"].items():
            path = self.root / "src" / "tilemma" / source
            if path.exists() and digest(path) != known:
                to = self._moved(known, digest(path), path)
                for told in tests.values():
                    if source in told["lines"]:
                        told["lines"][source] = sorted({n for x in told["lines"][source] for n in to.get(x, ())})
        return tests

    # The object lives as long as the process, so that the cache keeps nothing alive.
    @cache  # noqa: B019
    def _moved(self, known: str, _: str, path: Path) -> dict[int, list[int]]:
        return moved_lines((self.folder / "sources" / known).read_text("utf-8"), path.read_text("utf-8"))

    def collect(self, files: Iterable[str], jobs: int) -> None:
        """Run the tests of those ``files`` that are `stale`."""
        collect_files(self.root, self.stale(files), jobs, self.save)

    def merged(self, files: Iterable[str]) -> Coverage:
        return ranked({n: x for file in files for n, x in (self.load(file) or {}).items()})


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
    """The coverage with the tests of each line in the order in which a mutant meets them.

    Tests that run much of the line's file, and little elsewhere, come first, fast ones before slow ones.  A tenth
    of a second counts as little as none, since starting costs more.
    """
    names = sorted(found)
    cost = [
        max(0.1, found[n]["seconds"])
        * (50 + sum(map(len, found[n]["lines"].values())))
        / (FAVOUR if n.startswith(RECORDED) else 1)
        for n in names
    ]
    lines: dict[str, dict[int, list[int]]] = {}
    of_file: dict[str, dict[int, float]] = {}
    for number, name in enumerate(names):
        for file, ran in found[name]["lines"].items():
            of_file.setdefault(file, {})[number] = cost[number] / (1 + len(ran)) ** 2
            place = lines.setdefault(file, {})
            for line in ran:
                place.setdefault(line, []).append(number)
    functions = [n.partition("[")[0] for n in names]
    return Coverage(
        [(n, found[n]["seconds"]) for n in names],
        {
            file: {str(line): _varied(tests, functions, of_file[file]) for line, tests in place.items()}
            for file, place in lines.items()
        },
    )


def _varied(tests: list[int], functions: list[str], cost: Mapping[int, float]) -> list[int]:
    """The first of ``tests``, of many functions: cases of one function tell much the same."""
    counted: Counter[str] = Counter()
    order = {}
    for n in sorted(tests, key=cost.__getitem__):
        counted[functions[n]] += 1
        if counted[functions[n]] <= OF_ONE_FUNCTION:
            order[n] = cost[n] * counted[functions[n]]
    return sorted(order, key=order.__getitem__)[:KEPT]
