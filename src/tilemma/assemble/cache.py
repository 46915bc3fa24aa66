"""A cache on disk that may be shared by processes, lost or damaged at any time without harm."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..checked import instance, optional
from .settings import number_setting

T = TypeVar("T")

_TEXT = instance("text", str)
_BYTES = instance("bytes", bytes)
_FOLDER = optional(instance("the path of a folder", Path))

_MAGIC = b"tilemma\x02"
_DIGEST = 32
# An entry's place below its kind: two digits of its key, then the others.
_PLACE, _ENTRY = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{62}")
# Names of files that are being written, and of the file whose modification time is the time of the last eviction.
_NEW = ".new-"
_SWEPT = ".swept"
# Bytes in all, and in one entry.  TILEMMA_CACHE_MB overrides the first.
LIMIT = 2 << 30
ENTRY_LIMIT = 512 << 20
# Seconds: a file still being written after this belongs to a process that was killed; eviction runs, and a
# hit renews an entry's age, at most once in this time.
STALE = 3600.0


class UnsafeCacheFolder(RuntimeWarning):
    """A cache folder is ignored, because another user could have written its content."""


def cache_folder() -> Path | None:
    """$TILEMMA_CACHE, else the platform's folder for caches; None (no cache) when TILEMMA_CACHE is empty."""
    chosen = os.environ.get("TILEMMA_CACHE")
    try:
        if chosen is not None:
            return Path(chosen).expanduser() if chosen.strip() else None
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            # A relative path is invalid there, as the XDG base directory specification has it.
            named = os.environ.get("XDG_CACHE_HOME", "")
            base = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        return None
    return base / "tilemma"


def size_limit() -> int:
    """The limit of all entries together in bytes: $TILEMMA_CACHE_MB, else 2 GiB."""
    chosen = number_setting("TILEMMA_CACHE_MB", "a whole number of MiB above 0", int)
    return LIMIT if chosen is None else chosen << 20


_warned: set[str] = set()


def is_private(folder: Path, *, link: bool = False) -> bool:
    """Whether ``folder`` is a directory of this user that no other user can write; ``link``: or a link to one.

    False for one that does not exist.  A folder that others can write is reported once, as a warning.
    """
    if not hasattr(os, "geteuid"):
        return folder.is_dir()
    try:
        state = os.stat(folder) if link else os.lstat(folder)
    except (OSError, ValueError):
        return False
    if not stat.S_ISDIR(state.st_mode):
        return False
    if state.st_uid == os.geteuid() and not state.st_mode & 0o022:
        return True
    if str(folder) not in _warned:
        _warned.add(str(folder))
        why = "others can write to it" if state.st_uid == os.geteuid() else "it belongs to another user"
        text = f"the cache folder {folder} is not used: {why}; make one with mode 0700 and set TILEMMA_CACHE to it"
        warnings.warn(text, UnsafeCacheFolder, stacklevel=2)
    return False


class DiskCache:
    """Bytes by key, in files of their own below ``folder``/``kind``.

    A file carries its kind, its key and the hash of all it holds: one that was cut off, overwritten, copied from
    elsewhere or written by another format reads as absent and is replaced by the next `put`.  `put` is atomic (a
    new file is renamed into place), so readers in other processes see the old content or the new.  A folder that
    cannot be written is no error, nor is one that others can write (see `is_private`): nothing is kept then.

    All kinds together take at most `size_limit` bytes: the entries that were not used for longest are evicted.
    """

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        _TEXT.check("DiskCache", "kind", kind)
        _FOLDER.check("DiskCache", "folder", folder)
        self.kind = kind
        self.root = folder if folder is not None else cache_folder()
        self.folder = self.root / kind if self.root is not None else None

    @staticmethod
    def key(*parts: object) -> str:
        """A key from ``parts`` in order: str, bytes, numbers and tuples of them, distinguished by type."""
        digest = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
            digest.update(f"{type(part).__name__}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    def path(self, key: str) -> Path | None:
        """The file of ``key``; None where there is no cache."""
        _TEXT.check("DiskCache", "key", key)
        return self.folder / key[:2] / key[2:] if self.folder is not None else None

    def _head(self, key: str, content: bytes) -> bytes:
        name = f"{self.kind}/{key}".encode()
        named = _MAGIC + len(name).to_bytes(2, "little") + name
        return named + hashlib.sha256(named + content).digest()

    def _usable(self, path: Path) -> bool:
        assert self.root is not None and self.folder is not None
        return is_private(self.root, link=True) and is_private(self.folder) and is_private(path.parent)

    def is_empty(self) -> bool:
        """Whether nothing of this kind is kept."""
        return self.folder is None or next(_folders(self.folder), None) is None

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, or None."""
        path = self.path(key)
        if path is None:
            return None
        data = _read(path) if self._usable(path) else None
        if data is None:
            return None
        at = len(_MAGIC) + 2 + int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + 2], "little") + _DIGEST
        content = data[at:]
        return content if data[:at] == self._head(key, content) else None

    def read(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """``decode`` of the bytes stored under ``key``; None if there are none, or if ``decode`` refuses them
        (another version wrote them)."""
        found = self.get(key)
        if found is None:
            return None
        try:
            return decode(found)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
            return None

    def put(self, key: str, content: bytes) -> None:
        """Store ``content`` under ``key``, replacing an earlier entry."""
        _BYTES.check("DiskCache", "content", content)
        own = threading.get_ident()
        _put_waiting([x for x in _waiting if x[0] == own])
        self._put(key, content)

    def _put(self, key: str, content: bytes) -> None:
        path = self.path(key)
        if path is None or len(content) > ENTRY_LIMIT:
            return
        with contextlib.suppress(OSError, ValueError):
            assert self.root is not None and self.folder is not None
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.folder, path.parent):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
            if not self._usable(path):
                return
            _write(path, self._head(key, content) + content)
            _evict_when_due(self.root, len(content))

    def put_later(self, key: Callable[[], str], content: bytes) -> None:
        """`put` with the next `put` of this thread, or at the end of the process: for a key that takes long to
        compute."""
        _waiting.append((threading.get_ident(), self, key, content))

    def clear(self) -> int:
        """Remove every entry of this kind (links are removed, their targets stay); how many there were."""
        removed = 0
        if self.folder is not None and self.root is not None and is_private(self.folder):
            for entry in _files(self.folder):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
                    removed += 1
        return removed


# Of threads: one that ends with the process may be cut off while it stores what another one has given.
_waiting: list[tuple[int, DiskCache, Callable[[], str], bytes]] = []


def _put_waiting(given: Iterable[tuple[int, DiskCache, Callable[[], str], bytes]]) -> None:
    for x in given:
        try:
            _waiting.remove(x)
        except ValueError:  # stored by another call
            continue
        _, store, key, content = x
        with contextlib.suppress(OSError):  # the key is that of files, which may be gone
            store._put(key(), content)


# What `DiskCache.put_later` was given.
atexit.register(lambda: _put_waiting(list(_waiting)))


if hasattr(os, "register_at_fork"):
    # The parent stores it.
    os.register_at_fork(after_in_child=_waiting.clear)


def _read(path: Path) -> bytes | None:
    """The content of a regular file that is no link and not too large; None otherwise."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > ENTRY_LIMIT + (1 << 16):
                return None
            data = file.read()
    except (OSError, ValueError):
        return None
    if time.time() - state.st_mtime > STALE:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)
    return data


def _write(path: Path, data: bytes) -> None:
    """Write a new file of mode 0600 beside ``path``, and rename it into place."""
    temporary = path.with_name(_NEW + os.urandom(8).hex())
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _folders(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        yield from (e for e in entries if e.is_dir(follow_symlinks=False))


def _files(kind: Path | str) -> Iterator[os.DirEntry[str]]:
    """All entries and unfinished entries of one kind (and links in their place, which are not followed).

    A file of another name was not made here: TILEMMA_CACHE may name a folder that has other content.
    """
    for folder in _folders(kind):
        if _PLACE.fullmatch(folder.name):
            with contextlib.suppress(OSError), os.scandir(folder.path) as entries:
                ours = (e for e in entries if e.name.startswith(_NEW) or _ENTRY.fullmatch(e.name))
                yield from (e for e in ours if not e.is_dir(follow_symlinks=False))


@dataclass(frozen=True)
class Usage:
    """The entries of one kind, their bytes in all, and when the one not used for longest was last used (seconds
    since the epoch, up to an hour early)."""

    kind: str
    entries: int
    size: int
    oldest: float


def usage(root: Path) -> list[Usage]:
    """The kinds below ``root`` that have entries, by name."""
    found = []
    for kind in sorted(_folders(root), key=lambda e: e.name):
        states = []
        for entry in _files(kind.path):
            with contextlib.suppress(OSError):
                states.append(entry.stat(follow_symlinks=False))
        if states:
            size, oldest = sum(s.st_size for s in states), min(s.st_mtime for s in states)
            found.append(Usage(kind.name, len(states), size, oldest))
    return found


# Bytes that this process has written since it last evicted, for each root.
_written: dict[Path, int] = {}


def _evict_when_due(root: Path, size: int) -> None:
    """`evict` if this process has written much, or the last eviction is long ago."""
    limit = size_limit()
    _written[root] = _written.get(root, 0) + size
    if _written[root] <= limit // 16:
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(root / _SWEPT).st_mtime < STALE:
                return
    _written[root] = 0
    evict(root, limit)
    with contextlib.suppress(OSError):
        os.close(os.open(root / _SWEPT, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))
        os.utime(root / _SWEPT, follow_symlinks=False)


def evict(root: Path, limit: int) -> None:
    """Remove leftovers of killed writers below ``root``, then the entries not used for longest beyond ``limit``
    bytes.  It removes a tenth more than needed, so that the next eviction is not due at once."""
    found: list[tuple[float, int, str]] = []
    now = time.time()
    for kind in _folders(root):
        for entry in _files(kind.path):
            with contextlib.suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                if entry.name.startswith(_NEW):
                    if now - state.st_mtime > STALE:
                        os.unlink(entry.path)
                else:
                    found.append((state.st_mtime, state.st_size, entry.path))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in sorted(found):
        if total <= limit - limit // 10:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
