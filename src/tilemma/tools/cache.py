"""`tilemma cache`: what the cache on disk holds, and clearing it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilemma.assemble.cache import DiskCache, Usage, cache_folder, is_private, size_limit, usage
from tilemma.errors import ToolError, nearest

# What each kind of entry saves.
KINDS = {
    "co": "kernels of .co files, found",
    "content": "hashes of installed packages",
    "cubin": "machine code",
    "native": "inner loops of the PTX machine, compiled",
    "outputs": "files that `-o` may replace",
    "plans": "winners of tilemma.ops",
    "ptx": "compiled kernels",
    "signature": "signatures of kernels in .co files",
    "tools": "versions of ptxas and nvdisasm",
    "tuned": "winners of tune and autotune",
}


class NoSuchCacheKind(ToolError):
    code = "no-such-cache-kind"
    found = "the cache has no kind `{kind}`"
    expected = "one of {kinds}"
    fix = "{fix_text}"


@dataclass(frozen=True)
class CacheReport:
    """The cache's folder (None: there is none) and limit in bytes; ``usable``: it is private, or not made yet.
    ``removed``: how many entries of each kind were removed; None without --clear."""

    folder: Path | None
    limit: int
    usable: bool
    kinds: tuple[Usage, ...]
    removed: dict[str, int] | None

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": None if self.folder is None else str(self.folder),
            "limit": self.limit,
            "usable": self.usable,
            "kinds": [{**asdict(u), "content": KINDS.get(u.kind)} for u in self.kinds],
            "removed": self.removed,
        }

    def render(self) -> str:
        if self.folder is None:
            return "no cache: TILEMMA_CACHE is empty, or the user has no home"
        lines = [f"{self.folder}" + ("" if self.usable else "   (not used: it is no folder of this user alone)")]
        if self.removed is not None:
            lines.append(f"  removed {_entries(sum(self.removed.values()))}")
        for u in self.kinds:
            days = max(0.0, time.time() - u.oldest) / 86400
            what = f"{KINDS.get(u.kind, ''):44} oldest {days:.0f} days"
            lines.append(f"  {u.kind:10} {_entries(u.entries):>15} {_bytes(u.size):>10}   {what}")
        total = sum(u.size for u in self.kinds)
        lines.append(
            f"  {_bytes(total)} of at most {_bytes(self.limit)}; the entries not used for longest go first"
        )
        if self.removed is None and self.kinds:
            lines.append("  `tilemma cache --clear` removes them, `--kind ptx` those of a kind")
        return "\n".join(lines)


def report(*, clear: bool = False, kinds: Iterable[str] = ()) -> CacheReport:
    """The entries of ``kinds`` (none named: of all); ``clear``: remove them first.

    Entries are removed only from folders that no other user can write.  Raises NoSuchCacheKind.
    """
    chosen = set(kinds)
    for kind in sorted(chosen - set(KINDS)):
        near = nearest(kind, list(KINDS))
        text = f"did you mean `{near}`?" if near else "name one of these"
        raise NoSuchCacheKind(kind=kind, kinds=", ".join(KINDS), fix_text=text)
    root = cache_folder()
    if root is None:
        return CacheReport(None, size_limit(), False, (), {} if clear else None)
    usable = not root.exists() or is_private(root, link=True)
    removed = None
    if clear:
        removed = {k: DiskCache(k, root).clear() for k in sorted(chosen or KINDS)} if usable else {}
    found = tuple(u for u in usage(root) if u.kind in (chosen or KINDS))
    return CacheReport(root, size_limit(), usable, found, removed)


def _entries(count: int) -> str:
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
