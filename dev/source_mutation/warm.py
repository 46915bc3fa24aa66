"""Mutants in forks of one process that has imported the package and collected the tests.

A mutant of a function's body is the new code of that function, so that nothing is imported again.  The result is a
hint, since results that were kept before the fork may hide a mutant: only a new process
(`dev/source_mutation/survey.py`) decides.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from dev.source_mutation.collect import EVERY_MARK, import_package
from dev.source_mutation.operators import Mutant
from dev.source_mutation.survey import Limits, Tried, end_after, test_of

Place = tuple[str, str, int]
Work = tuple[Mutant, Sequence[tuple[str, float]]]


@dataclass(frozen=True)
class Fork:
    """A child process, with one mutant and its tests; ``killed``: with no mutant, the test that killed it."""

    work: Work
    deadline: float
    out: Path
    start: float
    killed: Tried | None = None


class RunsAtImport(Exception):
    """The mutant changes what a module or the body of a class executes."""


def changed_functions(old: CodeType, new: CodeType) -> Iterator[CodeType]:
    """The code of each function that differs, with the functions inside it; two versions of one file."""
    if old.co_flags & inspect.CO_OPTIMIZED:
        if old != new:
            if old.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
                raise RunsAtImport
            yield from _within(new)
        return
    if old.co_code != new.co_code or old.co_names != new.co_names or len(old.co_consts) != len(new.co_consts):
        raise RunsAtImport
    for a, b in zip(old.co_consts, new.co_consts, strict=True):
        if isinstance(a, CodeType) and isinstance(b, CodeType):
            yield from changed_functions(a, b)
        elif type(a) is not type(b) or repr(a) != repr(b):
            raise RunsAtImport


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _within(x)


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


@dataclass
class Forks:
    """A plugin of pytest: after collecting, each mutant of ``work`` meets its tests in a fork of this process."""

    package: Path
    work: Sequence[Work]
    limits: Limits
    jobs: int
    note: Callable[[Tried], None]
    existing: set[str] = field(default_factory=set)
    sound: set[str] = field(default_factory=set)
    unsound: set[str] = field(default_factory=set)
    running: dict[int, Fork] = field(default_factory=dict)
    started: int = 0

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        self.existing |= self.items.keys()
        self.functions: dict[Place, list[FunctionType]] = {}
        # Objects that are frozen, by the tests' configuration, are not listed.
        gc.unfreeze()
        for f in gc.get_objects():
            if isinstance(f, FunctionType) and f.__code__.co_filename.startswith(str(self.package)):
                self.functions.setdefault(_place(f.__code__), []).append(f)
        gc.collect()
        gc.freeze()
        left = deque(self.work)
        with tempfile.TemporaryDirectory(prefix="warm") as folder:
            self.folder = Path(folder)
            while left or self.running:
                if left and len(self.running) < self.jobs:
                    self._start(left.popleft())
                else:
                    left.extend(self._finish_one())
        return True

    def _start(self, work: Work, killed: Tried | None = None) -> None:
        """Fork: the mutant of ``work`` with its tests, or the test that ``killed`` it without the mutant."""
        names = [test_of(killed.by)] if killed else [x for x, _ in work[1] if x not in self.unsound]
        items = [self.items[x] for x in names if x in self.items]
        start = time.monotonic()
        self.started += 1
        out = self.folder / str(self.started)
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(self._in_child(None if killed else work[0], items, dict(work[1]), out))
        self.running[child] = Fork(work, start + self.limits.on_the_clock(work[1]), out, start, killed)

    @staticmethod
    def _silence(out: Path) -> Path:
        """Discard what this process prints, and give it an empty home."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for n in (0, 1, 2):
            os.dup2(nothing, n)
        home = out.with_suffix(".home")
        home.mkdir()
        os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
        return home

    def _in_child(
        self, mutant: Mutant | None, items: Sequence[Any], seconds: Mapping[str, float], out: Path
    ) -> int:
        home = self._silence(out)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        verdict, by = "survived", ""
        try:
            if mutant:
                self._apply(mutant)
            for item, following in zip(items, (*items[1:], None), strict=True):
                _begun(out).write_text(item.nodeid, encoding="utf-8")
                # Files that cannot be imported have been counted already.
                failed = item.session.testsfailed
                end_after(self.limits.of(seconds.get(item.nodeid, self.limits.tests)))
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if item.session.testsfailed > failed:
                    verdict, by = "killed", f"FAILED {item.nodeid}"
                    break
        except (RunsAtImport, ValueError):
            verdict = "at import"
        except BaseException as e:
            verdict, by = "killed", f"ERROR {type(e).__name__}"
        out.write_text(json.dumps([verdict, by]), encoding="utf-8")
        shutil.rmtree(home, ignore_errors=True)
        return 0

    def _apply(self, mutant: Mutant) -> None:
        path = self.package / mutant.file
        source = path.read_text(encoding="utf-8")
        old, new = (compile(x, str(path), "exec", dont_inherit=True) for x in (source, mutant.applied(source)))
        found = [(f, code) for code in changed_functions(old, new) for f in self.functions.get(_place(code), [])]
        if not found:
            raise RunsAtImport
        for f, code in found:
            f.__code__ = code

    def _finish_one(self) -> list[Work]:
        """Wait for a fork; returns its work if that has to be done again, without a test that is unsound."""
        child, status = self._wait()
        fork = self.running.pop(child)
        if fork.out.exists():
            verdict, by = json.loads(fork.out.read_text())
        elif time.monotonic() > fork.deadline or (
            os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
        ):
            verdict, by = "timed out", ""
        else:
            # A test ended the process: with the mutant, or without it too.
            test = _begun(fork.out).read_text(encoding="utf-8") if _begun(fork.out).exists() else ""
            verdict, by = "killed", f"FAILED {test}"
        if fork.killed:
            test = test_of(fork.killed.by)
            (self.sound if verdict == "survived" else self.unsound).add(test)
            killed = fork.killed
        else:
            mutant, tests = fork.work
            killed = Tried(mutant, verdict, len(tests), round(time.monotonic() - fork.start, 1), by)
            test = test_of(by)
        if test in self.unsound:
            return [fork.work]
        if test and test not in self.sound:
            self._start(fork.work, killed)
        else:
            self.note(killed)
        return []

    def _wait(self) -> tuple[int, int]:
        """A child that ended, or was stopped after its time, with its status."""
        while True:
            for child, fork in self.running.items():
                done, status = os.waitpid(child, os.WNOHANG)
                if not done and time.monotonic() > fork.deadline:
                    os.killpg(child, signal.SIGKILL)
                    done, status = os.waitpid(child, 0)
                if done:
                    return child, status
            time.sleep(0.01)


def _begun(out: Path) -> Path:
    """The file with the name of the test that runs."""
    return out.with_suffix(".test")


def run_warm(
    root: Path, work: Sequence[Work], limits: Limits, jobs: int, note: Callable[[Tried], None]
) -> tuple[set[str], set[str]]:
    """``note`` receives each mutant as soon as it is known: killed, timed out, survived or "at import".

    Returns the tests that exist: those collected, of the files that have tests in ``work``; and those that fail
    without a mutant, which kill none.
    """
    import pytest

    import_package(root / "src" / "tilemma")
    files = sorted({name.partition("::")[0] for _, tests in work for name, _ in tests})
    os.chdir(root)
    plugin = Forks(root / "src" / "tilemma", work, limits, jobs, note)
    options = ("-q", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", *EVERY_MARK)
    pytest.main([*options, *files], plugins=[plugin])
    return plugin.existing, plugin.unsound
