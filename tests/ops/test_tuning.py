"""Which plans are compiled for a measurement."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tilemma.ops import plans
from tilemma.ops.plan import Plan


class Clock:
    """A clock that compilation advances."""

    def __init__(self) -> None:
        self.now, self.running = 0.0, 0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "count"), [(0.4, 3), (0.1, 14), (5.0, 1)])
def test_plans_that_would_be_late_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, seconds: float, count: int
) -> None:
    """The first always is; another one only if it will be ready in time, as long as the others took."""
    clock, lock = Clock(), threading.Lock()

    def launches(calls: Any) -> list[Any]:
        with lock:
            clock.running += 1
            clock.now += seconds
            clock.running -= 1
        return list(calls)

    monkeypatch.setattr(plans, "time", clock)
    monkeypatch.setattr(plans, "WAITING", 1)
    monkeypatch.setattr(plans, "COMPILING", 1.5)
    monkeypatch.setattr(plans, "_launches", launches)
    monkeypatch.setattr(plans, "_calls", lambda problem, plan: ([plan], {}))
    wanted = [Plan("tiles", (64, 64, 64), 1, raster=x) for x in range(20)]
    problem: Any = None
    found = [(plan, ready()) for plan, _, ready in plans._compiled(problem, wanted)]
    assert found == [(x, [x]) for x in wanted[:count]]
    assert clock.running == 0
