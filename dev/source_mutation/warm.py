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
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from dev.source_mutation.collect import import_package
from dev.source_mutation.operators import Mutant
from dev.source_mutation.survey import Limits, Tried

Place = tuple[str, str, int]
Work = tuple[Mutant, Sequence[tuple[str, float]]]


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
    killers: set[str] = field(default_factory=set)
    unsound: list[str] = field(default_factory=list)
    running: dict[int, tuple[Mutant, int, float, float, Path]] = field(default_factory=dict)

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.existing |= items.keys()
        functions: dict[Place, list[FunctionType]] = {}
        for f in gc.get_objects():
            if isinstance(f, FunctionType) and f.__code__.co_filename.startswith(str(self.package)):
                functions.setdefault(_place(f.__code__), []).append(f)
        gc.collect()
        gc.freeze()
        folder = Path(tempfile.mkdtemp(prefix="warm"))
        for n, (mutant, tests) in enumerate(self.work):
            while len(self.running) >= self.jobs:
                self._finish_one()
            known = [items[name] for name, _ in tests if name in items]
            seconds = self.limits.factor * sum(s for _, s in tests) + self.limits.more
            out = folder / str(n)
            child = os.fork()
            if child == 0:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_CPU, (ceil(seconds), ceil(seconds) + 1))
                os._exit(self._in_child(session, mutant, known, functions, out))
            start = time.monotonic()
            self.running[child] = mutant, len(known), start, start + self.limits.patience * seconds, out
        while self.running:
            self._finish_one()
        self._run_without_mutant([items[name] for name in sorted(self.killers & items.keys())], folder)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _run_without_mutant(self, items: Sequence[Any], folder: Path) -> None:
        """Run the tests that killed: those that fail are ``unsound``."""
        found: dict[int, Path] = {}
        for n in range(self.jobs):
            out = folder / f"sound{n}"
            child = os.fork()
            if child == 0:
                self._silence(out)
                failed = []
                for item in items[n :: self.jobs]:
                    before = item.session.testsfailed
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                    if item.session.testsfailed > before:
                        failed.append(item.nodeid)
                out.write_text(json.dumps(failed), encoding="utf-8")
                os._exit(0)
            found[child] = out
        for child, out in found.items():
            os.waitpid(child, 0)
            self.unsound += (
                json.loads(out.read_text()) if out.exists() else ["a test without a mutant ended its process"]
            )

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
        self,
        session: Any,
        mutant: Mutant,
        items: Sequence[Any],
        functions: dict[Place, list[FunctionType]],
        out: Path,
    ) -> int:
        home = self._silence(out)
        verdict, by = "survived", ""
        # Files that cannot be imported have been counted already.
        failed = session.testsfailed
        try:
            self._apply(mutant, functions)
            for item, following in zip(items, (*items[1:], None), strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed > failed:
                    verdict, by = "killed", f"FAILED {item.nodeid}"
                    break
        except (RunsAtImport, ValueError):
            verdict = "at import"
        except BaseException as e:
            verdict, by = "killed", f"ERROR {type(e).__name__}"
        out.write_text(json.dumps([verdict, by]), encoding="utf-8")
        shutil.rmtree(home, ignore_errors=True)
        return 0

    def _apply(self, mutant: Mutant, functions: dict[Place, list[FunctionType]]) -> None:
        path = self.package / mutant.file
        source = path.read_text(encoding="utf-8")
        old, new = (compile(x, str(path), "exec", dont_inherit=True) for x in (source, mutant.applied(source)))
        found = [(f, code) for code in changed_functions(old, new) for f in functions.get(_place(code), [])]
        if not found:
            raise RunsAtImport
        for f, code in found:
            f.__code__ = code

    def _finish_one(self) -> None:
        while True:
            for child, (mutant, tests, start, deadline, out) in self.running.items():
                done, status = os.waitpid(child, os.WNOHANG)
                if not done and time.monotonic() > deadline:
                    os.killpg(child, signal.SIGKILL)
                    done, status = os.waitpid(child, 0)
                if done:
                    del self.running[child]
                    verdict, by = json.loads(out.read_text()) if out.exists() else ("timed out", "")
                    if not out.exists() and not os.WIFSIGNALED(status):
                        verdict = "killed"
                    self.killers.add(by.partition(" ")[2])
                    self.note(Tried(mutant, verdict, tests, round(time.monotonic() - start, 1), by))
                    return
            time.sleep(0.01)


def run_warm(
    root: Path, work: Sequence[Work], limits: Limits, jobs: int, note: Callable[[Tried], None]
) -> tuple[set[str], list[str]]:
    """``note`` receives each mutant as soon as it is known: killed, timed out, survived or "at import".

    Returns the tests that exist: those collected, of the files that have tests in ``work``; and those that killed
    a mutant and fail without one.
    """
    import pytest

    import_package(root / "src" / "tilemma")
    files = sorted({name.partition("::")[0] for _, tests in work for name, _ in tests})
    os.chdir(root)
    plugin = Forks(root / "src" / "tilemma", work, limits, jobs, note)
    pytest.main(["-q", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", *files], plugins=[plugin])
    return plugin.existing, plugin.unsound
