"""One thread for NumPy's products of tiles.

OpenBLAS divides even a 64 x 64 x 64 product among all cores and waits for them.  Where other processes use the
cores, the wait takes far longer than the product itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from tilemma.forking import ForkSafeLock

# Names of OpenBLAS's functions in NumPy's wheels, from new to old.
_FUNCTIONS = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")

_lock = ForkSafeLock()
_users = 0
_before = 0


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The functions that get and set the number of threads; None where NumPy has brought no OpenBLAS."""
    package = Path(np.__file__).parent
    for file in (*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")):
        try:
            library = ctypes.CDLL(str(file))
        except OSError:
            continue
        for name in _FUNCTIONS:
            if hasattr(library, name.format("set")) and hasattr(library, name.format("get")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Products inside run in the calling thread alone; the last user that ends restores the number of threads."""
    global _users, _before
    controls = _controls()
    if controls is None:
        yield
        return
    get, put = controls
    with _lock:
        _users += 1
        if _users == 1:
            _before = get()
            put(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                put(_before)
