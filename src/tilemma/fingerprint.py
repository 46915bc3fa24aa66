"""What the compiler is, for the keys of what it made."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import ml_dtypes
import numpy as np

# Parts of the package that no compiled kernel depends on (tests/test_layers.py compares).
WITHOUT = ("machine", "tools", "ops", "runtime", "cli.py", "testing.py", "cute.py")
_SOURCES = (".py", ".lark", ".json")


@cache
def fingerprint() -> str:
    """Every file of the compiler and of the layout library by its content, and the versions of the others.

    Size and time of a file say too little: an image or an archive may set times, and a shared cache outlives both.
    """
    versions = (sys.implementation.name, platform.python_version(), np.__version__, ml_dtypes.__version__)
    own = content_of(os.path.dirname(__file__), WITHOUT)
    return hashlib.sha256(repr((versions, own, content_of(_folder("tensor_layouts")))).encode()).hexdigest()


def content_of(folder: str, without: tuple[str, ...] = ()) -> str:
    """The sources below ``folder``, but for the entries ``without``, by their names and contents."""
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


def _files(folder: str, without: tuple[str, ...]) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in without or entry.name == "__pycache__":
                continue
            if entry.name.endswith(_SOURCES):
                yield entry.path
            elif entry.is_dir():
                yield from _files(entry.path, ())
