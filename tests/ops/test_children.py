"""Work of child processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from tilemma.ops import children, kept_children
from tilemma.ops.children import Children
from tilemma.ops.kept_children import KeptChildren

R = TypeVar("R")

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


def collected(children: Children[int, R], until: float) -> dict[int, R]:
    """The results until none is left or it is ``until``."""
    found: dict[int, R] = {}
    while children.waiting and time.perf_counter() < until:
        found |= dict(children.receive(until))
    return found


def test_children_share_the_items() -> None:
    def work(x: int) -> tuple[int, int]:
        time.sleep(0.02)
        return x * x, os.getpid()

    with closing(Children(work, 2, soon())) as children:
        for x in range(4):
            children.send(x)
        found = collected(children, soon())
        # They go on, with what comes later.
        for x in range(4, 8):
            children.send(x)
        found |= collected(children, soon())
    assert {x: square for x, (square, _) in found.items()} == {x: x * x for x in range(8)}
    assert len({pid for _, pid in found.values()}) == 2 and os.getpid() not in {pid for _, pid in found.values()}


def test_results_do_not_wait_for_children_that_leave(forked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """To end takes each of them some 10 ms: they are waited for together, at last."""
    ended: list[list[int]] = []
    end = children._end
    monkeypatch.setattr(children, "IDLE", 0.3)
    monkeypatch.setattr(children, "_end", lambda pids, seconds: (ended.append(list(pids)), end(pids, seconds)))
    with closing(Children(lambda x: x, 3, soon())) as found:
        found.send(1)
        assert collected(found, soon()) == {1: 1} and found.alive == 3
        time.sleep(0.6)
        for x in (2, 3, 4):
            found.send(x)
        assert not collected(found, soon()) and not found.alive and not ended
    assert sorted(ended[0]) == sorted(forked)
    check_ended(forked)


def test_the_first_child_begins_while_others_are_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fork, begun, seen = os.fork, tmp_path / "begun", list[bool]()

    def slow() -> int:
        until = time.perf_counter() + (5 if seen else 0)
        while not begun.exists() and time.perf_counter() < until:
            time.sleep(0.001)
        seen.append(begun.exists())
        return fork()

    monkeypatch.setattr(os, "fork", slow)
    with closing(Children(lambda _: begun.touch(), 2, soon(), [0])):
        assert seen == [False, True]


def test_a_child_that_fails_takes_only_its_item_along() -> None:
    def work(x: int) -> int:
        if x == 1:
            os._exit(1)
        time.sleep(0.05)
        return x

    with closing(Children(work, 2, soon())) as children:
        for x in range(4):
            children.send(x)
        assert sorted(collected(children, soon())) == [0, 2, 3] and children.alive


def test_nothing_is_expected_of_children_that_have_all_ended() -> None:
    with closing(Children(lambda _: os._exit(1), 2, soon())) as children:
        for x in range(300):
            children.send(x)
        assert not collected(children, soon()) and not children.alive and not children.waiting


def test_late_children_are_ended(forked: list[int]) -> None:
    begin = time.perf_counter()

    def work(x: int) -> int:
        time.sleep(0 if x == 0 else 60)
        return x

    with closing(Children(work, 3, soon(0.3))) as children:
        for x in range(3):
            children.send(x)
        assert list(collected(children, soon(0.3))) == [0] and time.perf_counter() - begin < 20
    check_ended(forked)


def test_items_that_would_be_late_are_not_started(forked: list[int]) -> None:
    def work(x: int) -> int:
        time.sleep(0.2)
        return x

    with closing(Children(work, 1, soon(0.3))) as children:
        for x in range(3):
            children.send(x)
        assert list(collected(children, soon())) == [0] and children.alive and not children.waiting
    check_ended(forked)


def squared(x: int) -> tuple[int, int]:
    return x * x, os.getpid()


def cubed(x: int) -> tuple[int, int]:
    return x**3, os.getpid()


def slowly_squared(x: int) -> tuple[int, int]:
    time.sleep(0.2)
    return squared(x)


def test_children_do_the_work_of_several_runs(forked: list[int]) -> None:
    """Late items and results of one run are no items and results of the next."""
    with closing(Children(slowly_squared, 2, soon(0.3), range(9))) as children:
        first = collected(children, soon())
        assert 1 <= len(first) < 9
        for x in range(9):
            children.send(x)
        for work, power in ((cubed, 3), (squared, 2)):
            children.begin(work, soon(), range(5))
            assert {x: y for x, (y, _) in collected(children, soon()).items()} == {x: x**power for x in range(5)}
        assert children.alive == 2 and len(forked) == 2
    check_ended(forked)


def pids(kept: KeptChildren[int, tuple[int, int]]) -> set[int]:
    """The children that compute a run."""
    children = kept.take(slowly_squared, 2, soon())
    for x in range(4):
        children.send(x)
    found = collected(children, soon())
    kept.keep(children)
    assert len(found) == 4
    return {pid for _, pid in found.values()}


def test_children_are_kept_for_the_next_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But not in other surroundings, not in other numbers, and not when one of them has ended."""
    kept = KeptChildren[int, tuple[int, int]]()
    first = pids(kept)
    assert pids(kept) == first
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    second = pids(kept)
    assert not second & first and pids(kept) == second
    os.kill(min(second), signal.SIGKILL)
    time.sleep(0.3)
    third = pids(kept)
    assert not third & second
    more = kept.take(squared, 3, soon(), [1])
    assert more.alive == 3
    kept.keep(more)
    kept.end()
    assert not more.alive


def test_kept_children_end_after_a_while(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    monkeypatch.setattr(kept_children, "KEPT", 0.1)
    kept = KeptChildren[int, tuple[int, int]]()
    pids(kept)
    until = soon()
    while kept._idle is not None and time.perf_counter() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    check_ended(forked)


def test_a_fork_leaves_the_children_of_its_parent_alone() -> None:
    kept = KeptChildren[int, tuple[int, int]]()
    first = pids(kept)
    fork = os.fork()
    if fork == 0:
        with suppress(BaseException):
            kept.end()
        os._exit(0)
    os.waitpid(fork, 0)
    assert pids(kept) == first
    kept.end()


def test_a_child_that_is_interrupted_at_once_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program of its parent would run twice."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    parent = os.getpid()
    monkeypatch.setattr(children, "_serve", interrupted)
    try:
        with closing(Children(lambda x: x, 2, soon())) as started:
            for x in range(2):
                started.send(x)
            assert not collected(started, soon()) and not started.alive
    finally:
        if os.getpid() != parent:
            (tmp_path / "on").touch()
            os._exit(0)
    assert not (tmp_path / "on").exists()


def test_each_child_works_for_a_while(forked: list[int]) -> None:
    """The parent starts three, which start the others; a failure ends none of these."""

    def work(x: int) -> int:
        if x == 0:
            raise ValueError
        time.sleep(0.02)
        return os.getpid()

    with closing(Children(work, 7, soon())) as started:
        for x in range(60):
            started.send(x)
        found = collected(started, soon())
    assert len(forked) == 3 and len(found) == 59 and len(set(found.values())) >= 6
    check_ended(forked)


def test_children_that_may_start_no_others_work(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    parent, fork = os.getpid(), os.fork

    def only_here() -> int:
        if os.getpid() != parent:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", only_here)
    with closing(Children(lambda x: x, 7, soon())) as started:
        for x in range(20):
            started.send(x)
        assert sorted(collected(started, soon())) == list(range(20)) and started.alive
    check_ended(forked)


def test_late_children_of_children_are_ended(tmp_path: Path) -> None:
    def work(x: int) -> int:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)
        return x

    with closing(Children(work, 6, soon())) as started:
        for x in range(6):
            started.send(x)
        until = soon()
        while len(list(tmp_path.iterdir())) < 6 and time.perf_counter() < until:
            time.sleep(0.01)
    pids = [int(x.name) for x in tmp_path.iterdir()]
    assert len(pids) == 6 and not [x for x in pids if Path(f"/proc/{x}").exists()]


def test_signals_of_children_are_none_of_the_event_loop_of_their_parent() -> None:
    own, others = socket.socketpair()
    others.setblocking(False)
    before = signal.set_wakeup_fd(others.fileno())
    try:
        with closing(Children(squared, 2, soon())) as children:
            children.send(1)
            assert collected(children, soon())
        own.settimeout(0.2)
        with pytest.raises(TimeoutError):
            own.recv(1)
    finally:
        signal.set_wakeup_fd(before)
        own.close()
        others.close()
