"""The compiler's fingerprint: a hash of all inputs of code generation, for the keys of the caches on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from functools import cache
from importlib.util import find_spec

import ml_dtypes
import numpy as np

from tilemma.assemble import DiskCache

# Parts of the package that no compiled kernel depends on (tests/test_layers.py compares).
WITHOUT = ("machine", "tools", "ops", "runtime", "cli.py", "testing.py", "cute.py")
_SOURCES = (".py", ".lark", ".json")
_SECOND = 10**9
# Longer than the steps of any file system's clock, in nanoseconds.
_RECENT = 2 * _SECOND


@cache
def fingerprint() -> str:
    """The hash of every source file of the compiler and of the layout library, and of the other versions."""
    versions = (sys.implementation.name, platform.python_version(), np.__version__, ml_dtypes.__version__)
    content = kept_content((os.path.dirname(__file__), WITHOUT), (_folder("tensor_layouts"), ()))
    return hashlib.sha256(repr((versions, content)).encode()).hexdigest()


def kept_content(*folders: tuple[str, tuple[str, ...]]) -> str:
    """`content_of` each of ``folders``, from the cache on disk where no file has changed since.

    Size and time of modification do not identify a content: an image or an archive may set times, and a shared
    cache outlives both.  The system sets the time of the last change of state (POSIX, st_ctime) itself, to parts
    of a second.  File systems that take it from an image have whole seconds; no hash is kept of their files, nor
    of files that changed so recently that another change might have the same time.
    """
    now = time.time_ns()
    files = [sorted(_files(*folder)) for folder in folders]
    paths = [path for inside in files for path in inside]
    states = [os.stat(path) for path in paths]
    changed = [s.st_ctime_ns for s in states]
    cache = DiskCache("content")
    places = [(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_dev, s.st_ino) for s in states]
    key = cache.key(tuple(paths), tuple(places))
    is_exact = 0 not in [t % _SECOND for t in changed]
    if is_exact and (known := cache.read(key, bytes.decode)) is not None:
        return known
    found = repr([_content(folder, inside) for (folder, _), inside in zip(folders, files, strict=True)])
    if is_exact and max(changed) < now - _RECENT:
        cache.put(key, found.encode())
    return found


def content_of(folder: str, without: tuple[str, ...] = ()) -> str:
    """A hash of the names and contents of the sources below ``folder``, except the entries ``without``."""
    return _content(folder, sorted(_files(folder, without)))


def _content(folder: str, paths: list[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        digest.update(f"{path.removeprefix(folder)}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def _folder(package: str) -> str:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, package
    return str(next(iter(spec.submodule_search_locations)))


def _files(folder: str, without: tuple[str, ...]) -> list[str]:
    """The sources below ``folder``."""
    found, waiting = list[str](), [folder]
    while waiting:
        inside = waiting.pop()
        with os.scandir(inside) as entries:
            for entry in entries:
                if entry.name == "__pycache__" or (inside == folder and entry.name in without):
                    continue
                if entry.name.endswith(_SOURCES):
                    found.append(entry.path)
                elif entry.is_dir():
                    waiting.append(entry.path)
    return found
