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


# Tests that take longer, in seconds of processor time, are not used; nor are more cases of one test function.
SLOW, CASES = 4.0, 6


T = TypeVar("T")


class Collector:
    """A plugin of pytest: the lines that each test runs, its fixtures included, and the seconds it takes."""

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.found: dict[str, Any] = {}
        self.not_passed: set[str] = set()

    @staticmethod
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
        items[:] = [item for cases in functions.values() for item in spread(cases, CASES)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.probes.take()
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SLOW)
        result = yield
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - start
        self.found[item.nodeid] = {"seconds": round(seconds, 3), "lines": self.probes.take()}
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Tests that fail or are skipped cover nothing."""
        report = yield
        if not report.passed:
            self.not_passed.add(item.nodeid)
        return report

    def passed(self) -> dict[str, Any]:
        return {n: x for n, x in self.found.items() if n not in self.not_passed}


def spread(found: Sequence[T], most: int) -> list[T]:
    """At most so many of ``found``, at equal distances."""
    return [found[n * len(found) // most] for n in range(most)] if len(found) > most else list(found)


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
    for module in pkgutil.walk_packages([str(package)], "tilemma."):
        # Some need a library that is not here.
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
    running: dict[int, tuple[str, Path]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def finish_one() -> None:
            child, _ = os.wait()
            file, out = running.pop(child)
            part = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
            save(file, part)
            print(f"{file}: {len(part)} tests, {sum(x['seconds'] for x in part.values()):.1f} s", flush=True)

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


def _run_file(file: str, out: Path, probes: Probes) -> int:
    collector = Collector(probes)
    signal.signal(signal.SIGPROF, lambda *_: pytest.skip("slow"))
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            pytest.main(["-q", "-p", "no:cacheprovider", file], plugins=[collector])
        out.write_text(json.dumps(collector.passed()), encoding="utf-8")
    except BaseException:
        return 1
    return 0
