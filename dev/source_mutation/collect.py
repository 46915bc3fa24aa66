"""Runs test files, each in a fork of one process that has imported the package with probes in its statements."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dev.source_mutation.probes import Probes

# What the tests import besides the package: loaded once.
PRELOADED = ("numpy", "ml_dtypes", "hypothesis", "pytest", "_pytest.assertion.rewrite", "tensor_layouts", "lark",
             "click.testing")  # fmt: skip


# Seconds of processor time: a test that takes longer is named and not used.  More cases of a function that has had
# so many of them and so much time are not run: they are supposed to run the lines of one that was run.
SLOW, CASES, FOR_CASES = 4.0, 4, 0.8
# These compare all that a program becomes with a file, and kill more for their time than their lines say.
# All their cases are run, also those of the nightly run.
RECORDED = ("tests/language/test_recorded.py", "tests/language/test_edited.py", "tests/language/test_refused.py",
            "tests/language/test_accepted.py", "tests/targets/ptx/passes/test_edited_blocks.py")  # fmt: skip
# What pytest selects by: no mark is left out.
EVERY_MARK = ("-m", "")

T = TypeVar("T")


class TooSlow(BaseException):
    """A test took more than `SLOW` seconds.  No test catches it, and pytest counts it as a failure."""


class Collector:
    """A plugin of pytest: the lines that each test runs, its fixtures included, and the seconds it takes."""

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.found: dict[str, Any] = {}
        self.ran: set[str] = set()
        self.not_passed: set[str] = set()
        self.slow: list[str] = []
        self.had: dict[str, list[float]] = {}
        self.left_out: list[str] = []

    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Of each function, cases that are far apart come first."""
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            functions.setdefault(_function(item), []).append(item)
        items[:] = [item for cases in functions.values() for item in spread_first(cases, CASES)]

    @pytest.hookimpl(tryfirst=True, specname="pytest_runtest_protocol")
    def leave_out(self, item: pytest.Item) -> bool | None:
        had = self.had.get(_function(item), [])
        if item.nodeid.startswith(RECORDED):
            return None
        if len(had) < CASES or sum(had) <= FOR_CASES:
            return None
        self.left_out.append(item.nodeid)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.probes.take()
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SLOW)
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - start
        self.found[item.nodeid] = {"seconds": round(seconds, 3), "lines": self.probes.take()}
        self.had.setdefault(_function(item), []).append(seconds)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Tests that fail, are skipped or take too long cover nothing."""
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(TooSlow):
            self.slow.append(item.nodeid)
        (self.ran if report.passed else self.not_passed).add(item.nodeid)
        return report

    def passed(self) -> dict[str, Any]:
        """The tests that passed; a case that was left out is ``like`` the longest of its function."""
        found = {n: self.found[n] for n in self.ran - self.not_passed}
        longest: dict[str, str] = {}
        for n in sorted(found, key=lambda n: float(found[n]["seconds"])):
            longest[n.partition("[")[0]] = n
        for n in self.left_out:
            case = longest.get(n.partition("[")[0])
            if case is not None:
                found[n] = {"seconds": found[case]["seconds"], "like": case}
        return found


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def spread_first(found: Sequence[T], count: int) -> list[T]:
    """All of ``found``; first so many of them at equal distances."""
    chosen = sorted({n * len(found) // count for n in range(count)}) if len(found) > count else range(len(found))
    return [found[n] for n in (*chosen, *(n for n in range(len(found)) if n not in chosen))]


def collect_files(
    root: Path, files: Iterable[str], jobs: int, save: Callable[[str, dict[str, Any]], None]
) -> None:
    """For each file, ``save`` receives: node id of each test that passed -> seconds of processor time, lines.

    The package must not have been imported by this process.
    """
    assert "tilemma" not in sys.modules
    package = root / "src" / "tilemma"
    probes = Probes(package)
    probes.install()
    for name in PRELOADED:
        importlib.import_module(name)
    import_package(package)
    running: dict[int, tuple[str, Path]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def finish_one() -> None:
            child, _ = os.wait()
            file, out = running.pop(child)
            part, slow = json.loads(out.read_text(encoding="utf-8")) if out.exists() else ({}, [])
            save(file, part)
            ran = [x["seconds"] for x in part.values() if "lines" in x]
            print(f"{file}: {len(ran)} of {len(part)} tests, {sum(ran):.1f} s", flush=True)
            for name in slow:
                print(f"    not used, more than {SLOW:g} s: {name}", flush=True)

        for n, file in enumerate(files):
            if len(running) == jobs:
                finish_one()
            out = Path(folder) / f"{n}.json"
            child = os.fork()
            if child == 0:
                os._exit(_run_file(file, out, probes))
            running[child] = file, out
        while running:
            finish_one()


def _stop_slow_test(*_: object) -> None:
    raise TooSlow


def import_package(package: Path) -> None:
    """Import each module but the one that runs the command."""
    for module in pkgutil.walk_packages([str(package)], f"{package.name}."):
        # Some need a library that is not here.
        with contextlib.suppress(ImportError):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


def _run_file(file: str, out: Path, probes: Probes) -> int:
    collector = Collector(probes)
    signal.signal(signal.SIGPROF, _stop_slow_test)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            marks = EVERY_MARK if file in RECORDED else ()
            pytest.main(["-q", "-p", "no:cacheprovider", *marks, file], plugins=[collector])
        out.write_text(json.dumps([collector.passed(), collector.slow]), encoding="utf-8")
    except BaseException:
        return 1
    return 0
