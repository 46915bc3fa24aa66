"""A cache on disk that may be shared by processes, lost or damaged at any time without harm."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path

_MAGIC = b"tilemma\x01"
_DIGEST = 32


def cache_folder() -> Path | None:
    """$TILEMMA_CACHE, else the platform's folder for caches; None (no cache) when TILEMMA_CACHE is empty."""
    chosen = os.environ.get("TILEMMA_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser() if chosen.strip() else None
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return base / "tilemma"


class DiskCache:
    """Bytes by key, in files of their own below ``folder``/``kind``.

    A file carries the hash of its content: one that was cut off, overwritten or written by another format
    reads as absent and is replaced by the next `put`.  `put` is atomic (a new file is renamed into place),
    so readers in other processes see the old content or the new.  A folder that cannot be written is no
    error: nothing is kept then.
    """

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        root = folder if folder is not None else cache_folder()
        self.folder = root / kind if root is not None else None

    @staticmethod
    def key(*parts: object) -> str:
        """A key from ``parts`` in order: str, bytes, numbers and tuples of them, told apart by type."""
        digest = hashlib.sha256()
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(f"{type(part).__name__}:{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    def path(self, key: str) -> Path | None:
        return self.folder / key[:2] / key[2:] if self.folder is not None else None

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, or None."""
        path = self.path(key)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST
        content = data[head:]
        sound = data[: len(_MAGIC)] == _MAGIC and data[len(_MAGIC) : head] == hashlib.sha256(content).digest()
        return content if sound else None

    def put(self, key: str, content: bytes) -> None:
        """Store ``content`` under ``key``, replacing what was there."""
        path = self.path(key)
        if path is None:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(content).digest() + content)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def clear(self) -> None:
        """Remove everything of this kind."""
        if self.folder is None:
            return
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(OSError):
                path.unlink()
