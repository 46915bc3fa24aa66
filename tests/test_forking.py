"""A fork while other threads compile: the child compiles and runs."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma
from tilemma import compiler, forking
from tilemma.forking import ForkSafeLock, cached_property, collection_paused
from tilemma.kernels import Kernel
from tilemma.modules import load

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

TEXT = """__co__ void twice(global f32 [M, N] a) {
  parallel i by M : block, j by 32 : thread
    a.at(i, j) = a.at(i, j) * F;
}
"""


def in_child(work: Callable[[], None], seconds: float = 60) -> int:
    """The exit status of a child that does ``work``; it is killed when it takes too long."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.01)


def kernel(folder: Path, factor: int) -> Kernel:
    path = folder / f"k{factor}.co"
    path.write_text(TEXT)
    return load(path, {"F": f"{factor}.0f"}).only()


def test_a_fork_while_another_thread_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", "")
    shared, stop, failures = kernel(tmp_path, 2), threading.Event(), []

    def compile_all() -> None:
        n = 3
        while not stop.is_set():
            n += 1
            try:
                kernel(tmp_path, n).compile("sm_90a")
                shared.compile("sm_80", facts=None) if n % 2 else shared.build()
            except BaseException as error:
                failures.append(error)
                raise

    def use() -> None:
        a = np.ones((2, 32), np.float32)
        shared(a)
        assert (a == 2).all() and gc.isenabled()
        assert ".target sm_86" in shared.compile("sm_86").ptx

    thread = threading.Thread(target=compile_all)
    thread.start()
    try:
        for _ in range(8):
            assert in_child(use) == 0
            time.sleep(0.013)
    finally:
        stop.set()
        thread.join()
    assert not failures and gc.isenabled()


def held(enter: Callable[[], object]) -> tuple[threading.Thread, threading.Event]:
    """A thread that is inside of what ``enter`` gives, until the event is set."""
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with enter():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    return thread, leave


@pytest.mark.parametrize("noted", [True, False])
def test_a_lock_of_another_thread_is_free_in_the_child(noted: bool) -> None:
    """Not noted as its owner is a thread that got the lock while the one that forks had the interpreter's."""
    lock = ForkSafeLock()
    thread, leave = held(lambda: lock if noted else lock._lock)

    def use() -> None:
        for _ in range(2):
            with lock, lock:
                pass

    try:
        assert in_child(use, 20) == 0
    finally:
        leave.set()
        thread.join()
    with lock:
        pass


def test_a_lock_of_the_thread_that_forks_stays_held() -> None:
    lock = ForkSafeLock()
    with lock, lock:
        assert in_child(lambda: lock.__exit__() or lock.__exit__(), 20) == 0
    with lock:
        pass


def test_a_value_that_another_thread_computes_is_computed_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, other = (kernel(tmp_path, n).compile("sm_90a") for n in (2, 3))
    inside, leave, lower = threading.Event(), threading.Event(), compiler.lower

    def slow(*args: Any) -> Any:
        if threading.current_thread() is thread:
            inside.set()
            leave.wait()
        return lower(*args)

    def use() -> None:
        assert ".target sm_90a" in compiled.ptx and ".target sm_90a" in other.ptx

    monkeypatch.setattr(compiler, "lower", slow)
    thread = threading.Thread(target=lambda: compiled.ptx)
    thread.start()
    try:
        inside.wait()
        assert in_child(use, 20) == 0
        use()
    finally:
        leave.set()
        thread.join()


def test_no_cached_property_has_a_lock() -> None:
    """The lock of `functools.cached_property` is one for all instances, and cannot be renewed in a child."""
    locked = re.compile(r"@functools\.cached_property|^from functools import (\([^)]*|.*)\bcached_property", re.M)
    for path in Path(tilemma.__file__).parent.rglob("*.py"):
        assert not locked.search(path.read_text()), f"{path}: take it from tilemma.forking"


def test_threads_get_one_cached_value() -> None:
    both = threading.Barrier(2)

    class Slow:
        @cached_property
        def value(self) -> object:
            """Docstring."""
            both.wait(20)
            return object()

    x, found = Slow(), list[object]()
    threads = [threading.Thread(target=lambda: found.append(x.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [x.value, x.value] and Slow.value.__doc__ == "Docstring."


def test_garbage_is_collected_in_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "WAIT", 0.05)
    thread, leave = held(collection_paused)

    def use() -> None:
        assert gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled()

    try:
        assert not gc.isenabled()
        assert in_child(use, 20) == 0
    finally:
        leave.set()
        thread.join()
    assert gc.isenabled()


def test_no_thread_compiles_while_another_forks() -> None:
    """Threads that compile one kernel after the other leave no moment in which none of them does."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with collection_paused():
                time.sleep(0.005)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            forking._before()
            try:
                assert not forking._pauses.others()
                time.sleep(0.05)
                assert not forking._pauses.others()
            finally:
                forking._in_parent()
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)


def test_pauses_of_several_threads_end_with_the_last() -> None:
    first, leave_first = held(collection_paused)
    second, leave_second = held(collection_paused)
    leave_first.set()
    first.join()
    assert not gc.isenabled()
    leave_second.set()
    second.join()
    assert gc.isenabled()


def test_who_turned_collection_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


# A finder that meets the first lazy import of the package makes it last while the main thread forks.
FORK_IN_IMPORT = """
import os, signal, sys, threading, time
import tilemma as tm

importing = threading.Event()

class Slow:
    def find_spec(self, name, path, target=None):
        if name == "tilemma.modules" and not importing.is_set():
            importing.set()
            time.sleep(0.3)

sys.meta_path.insert(0, Slow())
threading.Thread(target=lambda: tm.load).start()
importing.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    tm.load
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_a_fork_while_another_thread_imports() -> None:
    assert subprocess.run([sys.executable, "-c", FORK_IN_IMPORT], timeout=60).returncode == 0


@pytest.mark.parametrize("on", [True, False])
def test_young_objects_are_visited_inside_a_pause_where_collection_is_on(on: bool) -> None:
    if not on:
        gc.disable()
    try:
        with collection_paused():
            made = [[i] for i in range(100)]
            forking.collect_young()
            young = {id(x) for x in gc.get_objects(generation=0)}
            assert (id(made[0]) in young) == (not on)
    finally:
        gc.enable()


def test_what_imported_modules_hold_is_old_at_once() -> None:
    """A collection of what the first kernel leaves does not visit them again."""
    code = (
        "import gc, numpy, tilemma; gc.disable(); gc.collect(); gc.enable(); tilemma.kernel; "
        "young = sum(len(gc.get_objects(generation=g)) for g in (0, 1)); "
        "assert young < len(gc.get_objects(generation=2)) // 20, young"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
