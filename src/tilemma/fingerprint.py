"""The compiler's fingerprint: a hash of all that decides what it generates, for the keys of the caches on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from functools import cache
from importlib.util import find_spec

import ml_dtypes
import numpy as np

# Parts of the package that no compiled kernel depends on (tests/test_layers.py compares).
WITHOUT = ("machine", "tools", "ops", "runtime", "cli.py", "testing.py", "cute.py")
_SOURCES = (".py", ".lark", ".json")


@cache
def fingerprint() -> str:
    """The hash of every source file of the compiler and of the layout library, and of the other versions.

    Size and time of a file do not identify its content: an image or an archive may set times, and a shared cache
    outlives both.
    """
    versions = (sys.implementation.name, platform.python_version(), np.__version__, ml_dtypes.__version__)
    own = content_of(os.path.dirname(__file__), WITHOUT)
    return hashlib.sha256(repr((versions, own, content_of(_folder("tensor_layouts")))).encode()).hexdigest()


def content_of(folder: str, without: tuple[str, ...] = ()) -> str:
    """A hash of the names and contents of the sources below ``folder``, except the entries ``without``."""
    digest = hashlib.sha256()
    for path in sorted(_files(folder, without)):
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
