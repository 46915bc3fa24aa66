"""Work of child processes."""

from __future__ import annotations

import os
import time

import pytest

from tilemma.ops.children import results_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The children that the test has started."""
    started: list[int] = []
    fork = os.fork

    def recorded() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", recorded)
    return started


def check_ended(children: list[int]) -> None:
    assert children
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def soon(seconds: float = 20.0) -> float:
    return time.perf_counter() + seconds


def test_children_share_the_items() -> None:
    def work(x: int) -> tuple[int, int]:
        time.sleep(0.02)
        return x * x, os.getpid()

    found = dict(results_of(work, range(8), 2, soon()))
    assert {x: square for x, (square, _) in found.items()} == {x: x * x for x in range(8)}
    assert len({pid for _, pid in found.values()}) == 2 and os.getpid() not in {pid for _, pid in found.values()}


def test_a_child_that_fails_takes_only_its_item_along() -> None:
    def work(x: int) -> int:
        if x == 1:
            os._exit(1)
        time.sleep(0.05)
        return x

    assert sorted(dict(results_of(work, range(4), 2, soon()))) == [0, 2, 3]


def test_late_children_are_ended(forked: list[int]) -> None:
    begin = time.perf_counter()

    def work(x: int) -> int:
        time.sleep(0 if x == 0 else 60)
        return x

    found = dict(results_of(work, range(3), 3, soon(0.3)))
    assert list(found) == [0] and time.perf_counter() - begin < 20
    check_ended(forked)


def test_an_abandoned_search_leaves_no_child(forked: list[int]) -> None:
    def work(x: int) -> int:
        time.sleep(0 if x == 0 else 60)
        return x

    results = results_of(work, range(3), 2, soon())
    assert next(results) == (0, 0)
    results.close()
    check_ended(forked)
