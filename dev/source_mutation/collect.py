"""A plugin of pytest: which lines of the package each test runs, and how long it takes.

``python -m pytest -p dev.source_mutation.collect`` writes them to the file that COVERAGE_OUT names.  Python
3.12 and later tell each line once for a test, at almost no cost (`sys.monitoring`); before, a trace function does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import tilemma

PACKAGE = str(Path(tilemma.__file__).resolve().parent) + os.sep
# Calls of one function in one test after which the trace function no longer looks.
ENOUGH = 100
FOLDERS = ("arithmetic", "ir", "passes", "lang", "croqtile", "targets/cpu", "targets/ptx", "runtime")


class Lines:
    """Lines seen since the last `take`, as (file, line)."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.files: dict[str, str | None] = {}

    def name(self, code: CodeType) -> str | None:
        """The file within the package, None for those that are not looked at."""
        path = code.co_filename
        if path not in self.files:
            inside = path.removeprefix(PACKAGE).replace(os.sep, "/") if path.startswith(PACKAGE) else ""
            self.files[path] = inside if inside.startswith(tuple(f"{f}/" for f in FOLDERS)) else None
        return self.files[path]

    def take(self) -> set[tuple[str, int]]:
        found, self.seen = self.seen, set()
        return found


class Monitored(Lines):
    def start(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self.api = monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, "source_mutation")
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, self.line)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)

    def line(self, code: CodeType, number: int) -> Any:
        name = self.name(code)
        if name is not None:
            self.seen.add((name, number))
        return self.api.DISABLE

    def take(self) -> set[tuple[str, int]]:
        self.api.restart_events()
        return super().take()


class Traced(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[CodeType, int] = {}

    def start(self) -> None:
        sys.settrace(self.call)
        threading.settrace(self.call)

    def call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        name = self.name(code)
        if name is None:
            return None
        count = self.calls[code] = self.calls.get(code, 0) + 1
        if count > ENOUGH:
            return None
        add = self.seen.add
        add((name, frame.f_lineno))

        def line(inner: FrameType, event: str, arg: Any) -> Any:
            add((name, inner.f_lineno))
            return line

        return line

    def take(self) -> set[tuple[str, int]]:
        self.calls.clear()
        sys.settrace(self.call)
        return super().take()


LINES: Lines = Monitored() if hasattr(sys, "monitoring") else Traced()
FOUND: dict[str, Any] = {}


def pytest_sessionstart(session: pytest.Session) -> None:
    LINES.start()  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fixtures count: a module's first test has what they run, and so has each test of its own."""
    LINES.take()
    start = time.perf_counter()
    result = yield
    seconds = time.perf_counter() - start
    lines: dict[str, list[int]] = {}
    for name, number in LINES.take():
        lines.setdefault(name, []).append(number)
    FOUND[item.nodeid] = {"seconds": round(seconds, 3), "lines": {n: sorted(x) for n, x in lines.items()}}
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Tests that fail or are skipped cover nothing."""
    report = yield
    if not report.passed:
        FOUND.setdefault("not passed", []).append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    sys.settrace(None)
    failed = set(FOUND.pop("not passed", []))
    kept = {n: x for n, x in FOUND.items() if n not in failed}
    Path(os.environ["COVERAGE_OUT"]).write_text(json.dumps(kept), encoding="utf-8")
