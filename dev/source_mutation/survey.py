"""Mutants of a drawn sample, each against the tests of its line, in a copy of the repository."""

from __future__ import annotations

import ast
import compileall
import importlib
import io
import os
import py_compile
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from dev.source_mutation.collect import EVERY_MARK, PRELOADED
from dev.source_mutation.coverage import KEPT, Coverage, Place
from dev.source_mutation.operators import Mutant, mutants

COPIED = ("src", "tests", "dev", "bench", "docs", "examples")


@dataclass(frozen=True)
class Limits:
    """``tests``: seconds of tests for one mutant, as timed without it; ``rest``: of further ones for a mutant that
    survived these; ``factor``, ``more``: the time limit of each test.

    All are processor time.  A mutant that waits for ever ends after ``patience`` times the limit of all its tests
    on the clock.
    """

    tests: float = 30.0
    factor: float = 4.0
    more: float = 15.0
    patience: float = 10.0
    rest: float = 60.0

    def of(self, seconds: float) -> float:
        """The limit of a test that takes so many seconds without a mutant."""
        return self.factor * seconds + self.more

    def first(self, tests: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
        """Those that come before the further ones."""
        ends = accumulate(s for _, s in tests)
        return [t for t, end in zip(tests, ends, strict=True) if end <= self.tests][:KEPT]

    def on_the_clock(self, tests: Sequence[tuple[str, float]]) -> float:
        return self.patience * self.of(sum(s for _, s in tests))


class _Chosen:
    """A plugin of pytest: the tests of these names, or all of a file, in this order, each in its time.

    As arguments of pytest, names with `::` in their brackets would not be found.
    """

    def __init__(self, tests: Sequence[tuple[str, float]], limits: Limits) -> None:
        self.order = {name: n for n, (name, _) in enumerate(tests)}
        self.seconds, self.limits = dict(tests), limits

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        end_after(self.limits.of(self.seconds.get(item.nodeid, max(self.seconds.values()))))
        return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {x: self.order.get(x.nodeid, self.order.get(x.nodeid.partition("::")[0])) for x in items}
        items[:] = sorted((x for x in items if place[x] is not None), key=lambda x: place[x] or 0)


def end_after(seconds: float) -> None:
    """The signal SIGPROF ends this process after so many seconds of processor time from now."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


@dataclass(frozen=True)
class Tried:
    """``verdict``: killed, timed out, survived, uncovered or not run; ``by``: the test that failed."""

    mutant: Mutant
    verdict: str
    tests: int
    seconds: float
    by: str = ""


def all_mutants(root: Path, folder: str = "") -> list[Mutant]:
    """Of every file of the package, or of one folder, in the order of names."""
    package = root / "src" / "tilemma"
    files = sorted((package / folder).rglob("*.py"))
    return [m for p in files for m in mutants(package, p.relative_to(package).as_posix())]


def draw(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many mutants, each as likely as any other."""
    return random.Random(seed).sample(found, min(count, len(found)))


class Repository:
    """A copy of the repository that contains one mutant at a time."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mutants"))
        self.root = self.folder / "repository"
        self.root.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in COPIED:
            shutil.copytree(root / name, self.root / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"):
            shutil.copy(root / name, self.root / name)
        # Valid by the hash of the source: a file may change twice within the resolution of the clock.
        compileall.compile_dir(
            self.root / "src", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
        )
        for name in PRELOADED:
            importlib.import_module(name)
        self.log = self.folder / "log"
        self.sound: set[str] = set()
        self.unsound: set[str] = set()

    def attempt(self, mutant: Mutant, tests: Sequence[tuple[str, float]], limits: Limits) -> Tried:
        """Run the tests on the mutant until one fails that passes without the mutant."""
        if not tests:
            return Tried(mutant, "uncovered", 0, 0.0)
        path = self.root / "src" / "tilemma" / mutant.file
        sound = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(sound), encoding="utf-8")
        start = time.monotonic()
        try:
            verdict, by = self.run(tests, limits)
        finally:
            path.write_text(sound, encoding="utf-8")
        if test_of(by) and self.fails_without_mutant(test_of(by)):
            return self.attempt(mutant, [t for t in tests if not _is_of(t[0], self.unsound)], limits)
        return Tried(mutant, verdict, len(tests), round(time.monotonic() - start, 1), by)

    def fails_without_mutant(self, test: str) -> bool:
        """Whether ``test``, or the file of that name, fails on the source as it is: it would kill any mutant."""
        if test not in self.sound | self.unsound:
            passed = self.run([(test, 150.0)], Limits())[0] == "survived"
            (self.sound if passed else self.unsound).add(test)
        return test in self.unsound

    def run(self, tests: Sequence[tuple[str, float]], limits: Limits) -> tuple[str, str]:
        """The verdict of ``tests`` on the present source, and the first that failed."""
        self.log.write_text("")
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(self._in_child(tests, limits))
        deadline = time.monotonic() + limits.on_the_clock(tests)
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "timed out", ""
            time.sleep(0.02)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGKILL):
            return "timed out", ""
        failed = [
            x for x in self.log.read_text(errors="replace").splitlines() if x.startswith(("FAILED", "ERROR"))
        ]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (4, 5):
            # pytest's usage error, or no test: none of these names is there, which no mutant has done.
            return "not run", failed[0][:300] if failed else ""
        return ("survived", "") if status == 0 else ("killed", failed[0][:300] if failed else "")

    def _in_child(self, tests: Sequence[tuple[str, float]], limits: Limits) -> int:
        """The exit status of pytest, run in a process that has not imported the package."""
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        end_after(limits.of(sum(s for _, s in tests)))
        os.chdir(self.root)
        # A mutant must not read the cache entries of another one.
        home = tempfile.mkdtemp(dir=self.folder)
        os.environ |= {"HOME": home, "XDG_CACHE_HOME": home, "PYTHONPATH": str(self.root / "src")}
        for name in [n for n in sys.modules if n.partition(".")[0] in ("tilemma", "dev")]:
            del sys.modules[name]
        sys.path[:0] = [str(self.root / "src"), str(self.root)]
        text = io.StringIO()
        try:
            with redirect_stdout(text), redirect_stderr(text):
                files = dict.fromkeys(x.partition("::")[0] for x, _ in tests)
                options = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=no", *EVERY_MARK)
                code = int(pytest.main([*options, *files], plugins=[_Chosen(tests, limits)]))
        except BaseException as e:
            text.write(f"\nERROR {type(e).__name__}: {e}\n")
            code = 1
        self.log.write_text(text.getvalue())
        shutil.rmtree(home, ignore_errors=True)
        return min(code, 100)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def test_of(by: str) -> str:
    """The test of a line of pytest's summary; its file, where the file cannot be imported."""
    return by.partition(" ")[2].partition(" - ")[0] if by.startswith(("FAILED tests/", "ERROR tests/")) else ""


def _is_of(test: str, names: Collection[str]) -> bool:
    return test in names or test.partition("::")[0] in names


def chosen_tests(coverage: Coverage, mutant: Mutant, limits: Limits) -> list[tuple[str, float]]:
    """Tests that run the mutant's line; of a line that runs at import, those of the lines that use its names.

    Where no test runs any of these, the tests of the line next to it: a function may run at import alone.
    """
    near = _function_around(mutant.file, mutant.line)
    if near is not None:
        # A default of a parameter: the tests that run the function.
        places = [(mutant.file, max(mutant.line, near.start))]
    else:
        places = list(_uses(mutant.file, mutant.line))
    stem = Path(mutant.file).stem
    found = coverage.covering(places, limits.tests, near or range(0), limits.rest, stem)
    nearest = coverage.nearest(mutant.file, mutant.line)
    if found or nearest is None:
        return found
    return coverage.covering([(mutant.file, nearest)], limits.tests, more=limits.rest, stem=stem)


@cache
def _source(file: str) -> str:
    import tilemma

    return (Path(tilemma.__file__).resolve().parent / file).read_text(encoding="utf-8")


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(_source(file))


def _function_around(file: str, line: int) -> range | None:
    """The lines of the body of the innermost function around ``line``; they are below it for a default value."""
    found = None
    for n in ast.walk(_tree(file)):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.lineno <= line <= (n.end_lineno or 0):
            body = n.body[1:] if ast.get_docstring(n) and n.body[1:] else n.body
            if found is None or n.lineno > found[0]:
                found = n.lineno, range(body[0].lineno, (n.end_lineno or 0) + 1)
    return found[1] if found else None


def _uses(file: str, line: int) -> Iterator[Place]:
    """The lines that name the constant which the statement at ``line`` of a module or class assigns.

    Those of its file; of other files where its own has none.
    """
    names = {
        x.id
        for n in ast.walk(_tree(file))
        if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.lineno <= line <= (n.end_lineno or 0)
        for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
        for x in ast.walk(target)
        if isinstance(x, ast.Name)
    }
    if not names:
        return
    word = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")

    def found(other: str) -> list[Place]:
        texts = enumerate(_source(other).splitlines(), 1)
        return [
            (other, n) for n, text in texts if n != line and word.search(text) and not text.startswith("from ")
        ]

    own = [place for place in found(file) if _function_around(*place)]
    if own:
        yield from own
        return
    import tilemma

    package = Path(tilemma.__file__).resolve().parent
    for path in sorted(package.rglob("*.py")):
        yield from found(path.relative_to(package).as_posix())
