"""The cache folder: ownership, content of entries, size limits."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tilemma.assemble import DiskCache, cache
from tilemma.assemble.toolchain import Tool, _state
from tilemma.modules import load

KEY, OTHER = DiskCache.key("a"), DiskCache.key("b")


def entries(root: Path) -> list[Path]:
    return [p for p in root.glob("*/*/*") if p.is_file()]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_entries_are_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        DiskCache("x", tmp_path / "root").put(KEY, b"data")
    finally:
        os.umask(before)
    (entry,) = entries(tmp_path / "root")
    assert mode(entry) == 0o600
    assert [mode(p) for p in list(entry.parents)[:3]] == [0o700] * 3


@pytest.mark.parametrize("depth", range(3))
@pytest.mark.parametrize("bits", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_passed_over(tmp_path: Path, depth: int, bits: int) -> None:
    store = DiskCache("x", tmp_path / "root")
    store.put(KEY, b"data")
    (entry,) = entries(tmp_path / "root")
    list(entry.parents)[depth].chmod(bits)
    with pytest.warns(cache.UnsafeCacheFolder, match="others can write"):
        assert store.get(KEY) is None
    store.put(KEY, b"new")
    list(entry.parents)[depth].chmod(0o700)
    assert store.get(KEY) == b"data"


def test_a_folder_of_somebody_else_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskCache("x", tmp_path / "root")
    store.put(KEY, b"data")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(cache.UnsafeCacheFolder, match="another user"):
        assert store.get(KEY) is None
    store.put(OTHER, b"new")
    monkeypatch.undo()
    assert store.get(OTHER) is None and store.get(KEY) == b"data"


def test_an_entry_copied_over_another_is_noticed(tmp_path: Path) -> None:
    store, twin = DiskCache("x", tmp_path), DiskCache("y", tmp_path)
    for s in (store, twin):
        s.put(KEY, b"one")
        s.put(OTHER, b"two")
    paths = {s.path(k) for s in (store, twin) for k in (KEY, OTHER)}
    for source in paths:
        for target in paths - {source}:
            kept = target.read_bytes()
            target.write_bytes(source.read_bytes())
            found = {(s.kind, k): s.get(k) for s in (store, twin) for k in (KEY, OTHER)}
            assert sum(v is None for v in found.values()) == 1
            target.write_bytes(kept)
    store.path(KEY).write_bytes(store.path(OTHER).read_bytes())
    store.put(KEY, b"again")
    assert store.get(KEY) == b"again"


def test_any_damage_is_a_miss(tmp_path: Path) -> None:
    store = DiskCache("x", tmp_path)
    store.put(KEY, b"some content")
    path = store.path(KEY)
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert store.get(KEY) is None
        path.write_bytes(whole[:i])
        assert store.get(KEY) is None
    path.write_bytes(whole + b"\0")
    assert store.get(KEY) is None


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    store = DiskCache("x", tmp_path / "root")
    store.put(KEY, b"data")
    path = store.path(KEY)
    outside = tmp_path / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    assert store.get(KEY) is None
    path.unlink()
    os.mkfifo(path)
    assert store.get(KEY) is None
    path.unlink()
    path.mkdir()
    assert store.get(KEY) is None
    store.put(KEY, b"data")


def test_clearing_stays_inside(tmp_path: Path) -> None:
    valuable = tmp_path / "documents"
    valuable.mkdir()
    (valuable / "thesis").write_text("years")
    store = DiskCache("x", tmp_path / "root")
    store.put(KEY, b"data")
    (tmp_path / "root" / "x" / "zz").symlink_to(valuable)
    (tmp_path / "root" / "x" / KEY[:2] / "link").symlink_to(valuable / "thesis")
    store.clear()
    assert (valuable / "thesis").read_text() == "years" and store.get(KEY) is None
    (tmp_path / "root" / "linked").symlink_to(valuable.parent)
    DiskCache("linked", tmp_path / "root").clear()
    cache.evict(tmp_path / "root", 0)
    assert (valuable / "thesis").read_text() == "years"


def test_the_size_is_limited_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 100_000)
    store, twin = DiskCache("x", tmp_path), DiskCache("y", tmp_path)
    keys = [DiskCache.key(i) for i in range(60)]
    for i, key in enumerate(keys):
        (store, twin)[i % 2].put(key, bytes(5000))
        os.utime((store, twin)[i % 2].path(key), (i + 1e6, i + 1e6))
        assert sum(p.stat().st_size for p in entries(tmp_path)) <= 115_000
    kept = [(store, twin)[i % 2].get(k) is not None for i, k in enumerate(keys)]
    assert 10 < sum(kept) < 25 and kept == sorted(kept)


def test_a_hit_makes_an_entry_young_again(tmp_path: Path) -> None:
    store = DiskCache("x", tmp_path)
    store.put(KEY, bytes(1000))
    store.put(OTHER, bytes(1000))
    for key, age in ((KEY, 9e5), (OTHER, 8e5)):
        os.utime(store.path(key), (time.time() - age,) * 2)
    assert store.get(KEY) is not None
    cache.evict(tmp_path, 1500)
    assert store.get(KEY) is not None and store.get(OTHER) is None


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    store = DiskCache("x", tmp_path)
    store.put(KEY, b"data")
    old, new = (store.path(KEY).with_name(f".new-{name}") for name in ("old", "new"))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (time.time() - 1e5,) * 2)
    cache.evict(tmp_path, 1 << 30)
    assert not old.exists() and new.exists() and store.get(KEY) == b"data"


KERNEL = """__co__ void twice(global f32 [M, N] a) {
  parallel i by M : block, j by 32 : thread
    a.at(i, j) = a.at(i, j) * 2.0f;
}
"""
# Each has a right hash of content that no version of tilemma wrote.
WRONG = [b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe", b'{"kernels": 5, "notes": 5}', b'{"plan": {}, "order": 1}',
         b'{"ptx": 5, "launches": []}', b'{"version": [], "digest": 5}', b'"' + b"[" * 50_000]  # fmt: skip


@pytest.mark.parametrize("content", WRONG, ids=range(len(WRONG)))
def test_a_right_hash_around_wrong_content_is_a_miss(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "k.co").write_text(KERNEL)

    def use() -> None:
        kernel = load(tmp_path / "k.co").only()
        a = np.ones((2, 32), np.float32)
        kernel(a)
        assert (a == 2).all()
        ready = kernel.ready("sm_80", {"a": kernel.compile("sm_80").kernel.arrays[0].facts})
        assert ".target sm_80" in ready.ptx

    use()
    known = entries(tmp_path / "cache")
    assert {p.parent.parent.name for p in known} >= {"co", "signature", "ptx"}
    for path in known:
        kind, key = path.parent.parent.name, path.parent.name + path.name
        DiskCache(kind).put(key, content)
    use()


def test_wrong_content_of_tuned_plans_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path / "cache"))
    from tilemma.ops import plans

    for content in WRONG:
        DiskCache("plans").put(KEY, content)
        assert plans.load_winner(KEY) is None


def test_what_is_put_later_is_there_after_the_next_put(tmp_path: Path) -> None:
    first, second = DiskCache("first", tmp_path), DiskCache("second", tmp_path)
    assert first.is_empty() and second.is_empty()
    first.put_later(lambda: DiskCache.key("late"), b"late")
    first.put_later(lambda: DiskCache.key("later"), b"later")
    for _ in range(sys.getrecursionlimit()):
        first.put_later(lambda: DiskCache.key("often"), b"")
    assert first.is_empty()
    second.put(DiskCache.key("other"), b"other")
    assert not first.is_empty() and not second.is_empty()
    assert [first.get(DiskCache.key(name)) for name in ("late", "later")] == [b"late", b"later"]


def test_what_waits_is_stored_by_its_own_thread(tmp_path: Path) -> None:
    """Threads that end with the process would be cut off."""
    first, second = DiskCache("first", tmp_path), DiskCache("second", tmp_path)
    asked: list[int] = []

    def key() -> str:
        asked.append(threading.get_ident())
        return DiskCache.key("late")

    first.put_later(key, b"late")
    thread = threading.Thread(target=lambda: second.put(DiskCache.key("other"), b"other"))
    thread.start()
    thread.join()
    assert asked == [] and not second.is_empty()
    second.put(DiskCache.key("another"), b"another")
    assert asked == [threading.get_ident()] and not first.is_empty()


def test_a_key_that_cannot_be_computed_keeps_nothing(tmp_path: Path) -> None:
    def key() -> str:
        raise FileNotFoundError

    store = DiskCache("kind", tmp_path)
    store.put_later(key, b"content")
    store.put(DiskCache.key("other"), b"other")
    assert store.get(DiskCache.key("other")) == b"other"


def test_the_hash_of_a_tool_belongs_to_the_file_that_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "ptxas"
    path.write_bytes(b"one")
    tool = Tool(str(path), (13, 0, 0), "", _state(str(path)))
    assert tool.digest == tool.digest
    path.write_bytes(b"another")
    assert tool.digest != tool.digest  # a number that never comes again
    path.unlink()
    assert tool.digest != tool.digest
