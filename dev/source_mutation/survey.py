"""Mutants of a drawn sample, each against the tests of its line, in a copy of the repository."""

from __future__ import annotations

import compileall
import importlib
import io
import os
import py_compile
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from dev.source_mutation.collect import PRELOADED
from dev.source_mutation.coverage import Coverage
from dev.source_mutation.operators import Mutant, mutants
from dev.source_mutation.probes import FOLDERS

COPIED = ("src", "tests", "dev", "bench", "docs", "examples")


@dataclass(frozen=True)
class Limits:
    """``tests``: seconds of tests for one mutant, as timed without it; ``factor``, ``more``: the time limit.

    All are processor time.  A mutant that waits for ever ends after ``patience`` times the limit on the clock.
    """

    tests: float = 20.0
    factor: float = 4.0
    more: float = 15.0
    patience: float = 10.0


@dataclass(frozen=True)
class Tried:
    """``verdict``: killed, timed out, survived, uncovered or not run; ``by``: the test that failed."""

    mutant: Mutant
    verdict: str
    tests: int
    seconds: float
    by: str = ""


def all_mutants(root: Path, folders: Sequence[str] = FOLDERS) -> list[Mutant]:
    """Of every file of the folders, in the order of names."""
    package = root / "src" / "tilemma"
    files = [p for folder in folders for p in sorted((package / folder).rglob("*.py"))]
    return [m for p in files for m in mutants(package, p.relative_to(package).as_posix())]


def draw(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many mutants, each as likely as any other."""
    return random.Random(seed).sample(found, min(count, len(found)))


class Place:
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
            verdict, by = self.run([n for n, _ in tests], limits.factor * sum(s for _, s in tests) + limits.more,
                                   limits.patience)  # fmt: skip
        finally:
            path.write_text(sound, encoding="utf-8")
        if test_of(by) and self.fails_without_mutant(test_of(by)):
            return self.attempt(mutant, [t for t in tests if not _is_of(t[0], self.unsound)], limits)
        return Tried(mutant, verdict, len(tests), round(time.monotonic() - start, 1), by)

    def fails_without_mutant(self, test: str) -> bool:
        """Whether ``test``, or the file of that name, fails on the source as it is: it would kill any mutant."""
        if test not in self.sound | self.unsound:
            passed = self.run([test], 600, 10)[0] == "survived"
            (self.sound if passed else self.unsound).add(test)
        return test in self.unsound

    def run(self, tests: Sequence[str], seconds: float, patience: float) -> tuple[str, str]:
        """The verdict of ``tests`` on the present source, and the first that failed."""
        self.log.write_text("")
        child = os.fork()
        if child == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(seconds), ceil(seconds) + 1))
            os._exit(self._in_child(tests))
        deadline = time.monotonic() + patience * seconds
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "timed out", ""
            time.sleep(0.02)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return "timed out", ""
        failed = [
            x for x in self.log.read_text(errors="replace").splitlines() if x.startswith(("FAILED", "ERROR"))
        ]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 4:
            # pytest's usage error: a test of that name is not there, which no mutant has done.
            return "not run", failed[0][:300] if failed else ""
        return ("survived", "") if status == 0 else ("killed", failed[0][:300] if failed else "")

    def _in_child(self, tests: Sequence[str]) -> int:
        """The exit status of pytest, run in a process that has not imported the package."""
        import pytest

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
                code = int(pytest.main(["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=no", *tests]))
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
    return by.partition(" ")[2].partition(" - ")[0] if by.startswith(("FAILED ", "ERROR tests/")) else ""


def _is_of(test: str, names: Collection[str]) -> bool:
    return test in names or test.partition("::")[0] in names


def chosen_tests(coverage: Coverage, mutant: Mutant, limits: Limits) -> list[tuple[str, float]]:
    """Tests that run the mutant's line; of a line that runs at import, those that run its file."""
    found = coverage.covering(mutant.file, mutant.line, limits.tests)
    if found:
        return found
    lines = coverage.lines.get(mutant.file, {})
    if not lines:
        return []
    nearest = min(lines, key=lambda n: abs(int(n) - mutant.line))
    return coverage.covering(mutant.file, int(nearest), limits.tests) if _at_import(mutant) else []


def _at_import(mutant: Mutant) -> bool:
    """Whether the mutant's text is outside of functions."""
    import ast

    import tilemma

    source = (Path(tilemma.__file__).resolve().parent / mutant.file).read_text(encoding="utf-8")
    inside = (
        n
        for n in ast.walk(ast.parse(source))
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )
    return not any(
        n.body[0].lineno <= mutant.line <= (n.end_lineno or 0) for n in inside if isinstance(n.body, list)
    )
