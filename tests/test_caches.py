"""Every part of a cache's key: changed alone, it gives another key (docs/architecture.md, *Caches*)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "ops"))
from products import problem

from tilemma import compiler, fingerprint, front_end_cache
from tilemma.bounded import Bounded
from tilemma.front_end_cache import File, TextSource
from tilemma.ops import launch_cache, plans
from tilemma.ops.plan import Hardware, Plan

# ---- the compiler's fingerprint --------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.py", "inner/b.py", "inner/table.json", "machine/c.py", "inner/__pycache__/d.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    return tmp_path


def rewritten(path: Path) -> None:
    """Other text of the same size, at the same time."""
    state = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("name", ["a.py", "inner/b.py", "inner/table.json"])
def test_content_counts_and_not_size_and_time(tree: Path, name: str) -> None:
    before = fingerprint.content_of(str(tree), ("machine",))
    rewritten(tree / name)
    assert fingerprint.content_of(str(tree), ("machine",)) != before


@pytest.mark.parametrize("change", [lambda t: (t / "a.py").rename(t / "e.py"), lambda t: (t / "a.py").unlink()])
def test_names_count(tree: Path, change: Callable[[Path], Any]) -> None:
    before = fingerprint.content_of(str(tree))
    change(tree)
    assert fingerprint.content_of(str(tree)) != before


def test_what_is_left_out_does_not_count(tree: Path) -> None:
    before = fingerprint.content_of(str(tree), ("machine",))
    for name in ("machine/c.py", "inner/__pycache__/d.py", "notes.txt"):
        rewritten(tree / name)
        os.utime(tree / name)
    assert fingerprint.content_of(str(tree), ("machine",)) == before


@pytest.fixture
def kept(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    """The content of ``tree`` through the cache on disk, and how many files were read for it; an hour later."""
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(fingerprint, "time", SimpleNamespace(time_ns=lambda: time.time_ns() + 3600 * 10**9))
    read: list[Any] = []
    content = fingerprint._content
    monkeypatch.setattr(fingerprint, "_content", lambda *folder: read.append(folder) or content(*folder))

    def ask() -> tuple[str, bool]:
        read.clear()
        return fingerprint.kept_content((str(tree), ("machine",))), bool(read)

    return ask


def test_unchanged_files_are_not_read_again(kept: Callable[[], Any]) -> None:
    first, read = kept()
    assert read and kept() == (first, False)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: rewritten(t / "inner/b.py"),
        lambda t: (t / "a.py").rename(t / "e.py"),
        lambda t: (t / "a.py").unlink(),
        lambda t: (t / "new.py").write_text(""),
        lambda t: replaced(t / "a.py"),
    ],
    ids=["content", "name", "removed", "added", "replaced"],
)
def test_what_is_kept_follows_content(tree: Path, kept: Callable[[], Any], change: Callable[[Path], Any]) -> None:
    first, _ = kept()
    change(tree)
    second, read = kept()
    assert read and second != first


def replaced(path: Path) -> None:
    """Another file of the same size and times of modification, renamed into place."""
    state = path.stat()
    other = path.with_name("other")
    other.write_text("x = 3\n")
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.rename(path)


def test_content_of_files_that_have_just_changed_is_not_kept(
    kept: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "time", time)
    assert kept()[1] and kept()[1]


@pytest.mark.parametrize("tenths, kept_now", [(0, False), (3, True)])
def test_times_of_whole_seconds_alone_are_not_relied_on(
    tenths: int, kept_now: bool, kept: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As images keep them: two files of one image each may have the same times, sizes and numbers."""
    stat, names = os.stat, ("st_size", "st_mtime_ns", "st_dev", "st_ino")

    def rounded(path: Any) -> Any:
        s = stat(path)
        whole = s.st_ctime_ns // 10**9 * 10**9 + tenths * 10**8
        return SimpleNamespace(st_ctime_ns=whole, **{n: getattr(s, n) for n in names})

    monkeypatch.setattr(
        fingerprint, "os", SimpleNamespace(**{n: getattr(os, n) for n in ("path", "scandir")}, stat=rounded)
    )
    assert kept()[1] and kept()[1] == (not kept_now)


@pytest.mark.parametrize("tenths, kept_now", [(15, False), (25, True)])
def test_content_is_kept_two_seconds_after_a_change(
    tenths: int, kept_now: bool, tree: Path, kept: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems count time in steps of up to two seconds."""
    last = max(os.stat(p).st_ctime_ns for p in tree.rglob("*") if p.is_file())
    monkeypatch.setattr(fingerprint, "time", SimpleNamespace(time_ns=lambda: last + tenths * 10**8))
    assert kept()[1] and kept()[1] == (not kept_now)


@pytest.mark.parametrize("module", [np, ml_dtypes])
def test_versions_count(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.fingerprint.__wrapped__()
    monkeypatch.setattr(module, "__version__", "0.0")
    assert fingerprint.fingerprint.__wrapped__() != before


def test_the_layout_library_counts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_folder", lambda package: str(tree))
    before = fingerprint.fingerprint.__wrapped__()
    rewritten(tree / "a.py")
    assert fingerprint.fingerprint.__wrapped__() != before


# ---- kernels ---------------------------------------------------------------------------------------------

TEXT = "__co__ void f(global f32 [N] x) { parallel i by N : block x.at(i) = FACTOR; }"


def co_key(text: str = TEXT, file: str = "f.co", factor: Any = 2, given: Any = None) -> str:
    return TextSource(File(text, file, {"FACTOR": factor}), "f").identity(given or {})


def test_keys_of_text() -> None:
    keys = [
        co_key(),
        co_key(TEXT + " "),
        co_key(file="g.co"),
        co_key(factor=3),
        co_key(factor=2.0),
        co_key(factor=True),
        co_key(given={"FACTOR": 2}),
        co_key(given={"FACTOR": 3}),
    ]
    assert len(set(keys)) == len(keys)
    assert co_key() == co_key()


@pytest.mark.parametrize("module", [compiler, front_end_cache])
def test_keys_on_disk_have_the_fingerprint(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> str:
        file = File(TEXT, "f.co", {"FACTOR": 2})
        return file.identity if module is front_end_cache else compiler.identity(TextSource(file, "f").build())

    before = keys()
    assert keys() == before
    monkeypatch.setattr(module, "fingerprint", lambda: "another compiler")
    assert keys() != before


# ---- measured plans --------------------------------------------------------------------------------------


def test_keys_of_measured_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    p, on = problem(512, 512, 512), Hardware()
    keys = [
        plans.kind(p, on),
        plans.kind(problem(512, 512, 1024), on),
        plans.kind(p, replace(on, name="another")),
        plans.kind(p, replace(on, clock=on.clock * 2)),
        plans.kind(p, replace(on, shared=on.shared // 2)),
        *(
            plans.kind(replace(p, **{n: getattr(p, n)._replace(library="other")}), on)
            for n in ("lhs", "rhs", "out")
        ),
        plans.kind(replace(p, lhs=p.lhs._replace(pointer=p.lhs.pointer + 2)), on),
        plans.kind(replace(p, alpha=2.0, epilogue=replace(p.epilogue, scaled=True)), on),
    ]
    monkeypatch.setattr(plans, "fingerprint", lambda: "another compiler")
    keys.append(plans.kind(p, on))
    monkeypatch.setattr(plans, "own_sources", lambda: ("another model",))
    keys.append(plans.kind(p, on))
    assert len(set(keys)) == len(keys)


# ---- bounds ----------------------------------------------------------------------------------------------


def test_the_oldest_is_forgotten() -> None:
    kept: Bounded[int, int] = Bounded(3)
    for i in range(10):
        kept[i] = i
        kept[i] = i + 1
    assert list(kept.items()) == [(7, 8), (8, 9), (9, 10)]


def test_launches_of_ops_are_bounded() -> None:
    template = launch_cache.LaunchTemplate((), (), lambda: 0)
    calls = launch_cache.WarmCalls()
    for i in range(3000):
        one = (i * 256, (i, 4), (4, 1), "f16", 0)
        calls.put(((one, one, 0, 0, one, 0, 0, 0), ()), template)
    assert len(calls._recipes) <= launch_cache.KINDS and len(calls._entries) <= launch_cache.CAPACITY
    entry = launch_cache.Entry(template, {})
    for i in range(100):
        entry.kept[i,] = ()
    assert len(entry.kept) <= launch_cache.PLACES


def test_a_plan_found_again_is_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    plan = Plan("tiles", (64, 64, 64), 1)
    plans.store_winner("0" * 64, plan)
    assert plans.load_winner("0" * 64) == plan and plans.load_winner("1" * 64) is None
