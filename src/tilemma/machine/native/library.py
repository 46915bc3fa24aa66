"""The machine's inner loops in C, compiled by the system's C compiler when they are worth it, and kept on disk.

They do what the NumPy code does, bit for bit and check by check, and hand over to it whatever is unusual.  Where
the system has no C compiler, that of the package ``ziglang`` (``pip install tilemma[fast]``) compiles them.
Without either, or with ``TILEMMA_NATIVE=0``, the NumPy code runs alone.  A library on disk is used at once;
compilation, which takes seconds, waits until the process has executed ``_WORTH`` warp instructions.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilemma.assemble.cache import DiskCache
from tilemma.assemble.toolchain import site_folders
from tilemma.machine.native.blocks import address_of

_SOURCES = (
    "lanes.c",
    "shadow.c",
    "clocks.c",
    "sums.c",
    "products.c",
    "copies.c",
    "steps.c",
    "warpgroups.c",
    "mbarriers.c",
    "wmma.c",
    "branches.c",
    "grid.c",
)
_HEADER = """#include <math.h>
#include <stdint.h>
#include <string.h>
/* Loops that vectors of the processor at hand make faster. */
#if defined(__x86_64__) && defined(__clang__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#elif defined(__x86_64__) && defined(__GNUC__)
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "avx2", "default"), optimize("O3")))
#else
#define WIDEST
#endif
"""
# No flag may change a result: no fused multiply-add where the program has none, integers that wrap.
_FLAGS = ("-O2", "-shared", "-fPIC", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-w")
# Clang as `ziglang` has it: for any processor, without its checks of undefined behaviour.
_ZIG_FLAGS = ("-mcpu=baseline", "-fno-sanitize=undefined", "-s")
_WORTH = 100_000
# Seconds that the compiler may take.
_LIMIT = 120


class NoCompiledLoops(RuntimeWarning):
    """The C compiler that was found did not compile the machine's loops; NumPy code runs in their place."""


class _State:
    """The library of this process: not looked for yet, absent, or loaded."""

    def __init__(self) -> None:
        self.looked = self.tried = False
        self.library: Any = None
        self.executed = 0


_state = _State()


def enabled() -> bool:
    """Whether compiled code may be used: on Linux, unless TILEMMA_NATIVE is 0."""
    return sys.platform == "linux" and os.environ.get("TILEMMA_NATIVE", "1") != "0"


def loaded() -> Any:
    """The library if there is one on disk or in the process, else None."""
    if not enabled():
        return None
    if not _state.looked:
        _state.looked = True
        data = DiskCache("native").get(_key())
        if data is not None:
            _load(data)
    return _state.library


def executed(instructions: int) -> None:
    """Count warp instructions that ran; compiles the library once there are enough."""
    _state.executed += instructions
    if _state.executed >= _WORTH and not _state.tried and enabled() and loaded() is None:
        compile_now()


def compile_now() -> None:
    """Compile the library, keep it on disk and load it.  Without a compiler nothing changes; of one that fails, a
    warning says why."""
    _state.tried = True
    compiler = _compiler()
    if compiler is None:
        return
    try:
        data = _compiled(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        _warn(compiler, error)
        return
    DiskCache("native").put(_key(), data)
    if not _load(data):
        _warn(compiler, OSError("the library cannot be loaded"))


def _warn(compiler: list[str], error: Exception) -> None:
    why = str(error)
    if isinstance(error, subprocess.TimeoutExpired):
        why = f"it took more than {_LIMIT} s"
    elif isinstance(error, subprocess.CalledProcessError):
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        first = next((line for line in lines if "error" in line), "".join(lines[-1:]))
        why = f"exit status {error.returncode}: {first[:200]}"
    warnings.warn(
        f"{' '.join(compiler[:2])} did not compile the loops of the PTX machine ({why}); NumPy code runs in their "
        "place, several times slower. CC names another compiler; TILEMMA_NATIVE=0 uses none.",
        NoCompiledLoops,
        stacklevel=3,
    )


def _compiled(compiler: list[str]) -> bytes:
    """The library as ``compiler`` makes it; raises what says that it does not."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "native.c", Path(folder) / "native.so"
        source.write_text(_text(), encoding="utf-8")
        command = [*compiler, *_FLAGS, "-o", str(target), str(source), "-lm"]
        caches = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
        subprocess.run(command, capture_output=True, timeout=_LIMIT, check=True, env={**os.environ, **caches})
        return target.read_bytes()


def _compiler() -> list[str] | None:
    """The command of ``CC``, or cc, in the absolute folders of PATH: nothing in the working folder is run; else of
    the package ``ziglang``."""
    name = os.environ.get("CC", "cc")
    if not os.path.dirname(name) or os.path.isabs(name):
        folders = [f for f in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(f)]
        found = shutil.which(name, path=os.pathsep.join(folders))
        if found is not None:
            return [found]
    if "CC" in os.environ:
        return None
    zigs = (os.path.join(folder, "ziglang", "zig") for folder in site_folders())
    return next(([zig, "cc", *_ZIG_FLAGS] for zig in zigs if os.access(zig, os.X_OK)), None)


def lanes() -> Any:
    """`run_lanes` of ``lanes.c``; None without a library."""
    library = loaded()
    return None if library is None else library.run_lanes


def _load(data: bytes) -> bool:
    """Load the library; whether that is possible."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "native.so"
        path.write_bytes(data)
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            return False
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    library.run_lanes.argtypes = (pointer, pointer, integer, ctypes.c_char_p)
    library.run_lanes.restype = integer
    number, mask = ctypes.c_int64, ctypes.c_char_p
    library.shared_load.argtypes = library.shared_store.argtypes = (pointer, pointer, number, number, mask)
    library.global_load.argtypes = library.global_store.argtypes = (pointer, pointer, number, mask, number)
    library.run_grid.argtypes, library.run_grid.restype = (pointer,), number
    library.shared_load.restype = library.shared_store.restype = number
    library.global_load.restype = library.global_store.restype = number
    library.copy_issue.argtypes = (pointer, pointer, pointer, *(number,) * 3, mask, pointer, pointer)
    library.matrix_load.argtypes = (pointer, pointer, number, number, mask, pointer, pointer)
    library.copy_issue.restype = library.matrix_load.restype = number
    library.shared_gather.argtypes = (pointer, pointer, *(number,) * 4, pointer)
    library.global_scatter.argtypes = (pointer, pointer, *(number,) * 3, pointer)
    library.shared_gather.restype = library.global_scatter.restype = number
    library.event_numbers.argtypes = (pointer, pointer, number, number, pointer, number)
    library.event_numbers.restype = number
    library.atomic_store.argtypes = (pointer, pointer, number, number, pointer, number, number, pointer)
    library.atomic_store.restype = None
    library.copy_complete.argtypes, library.copy_complete.restype = (pointer, pointer), None
    library.origins_loaded.argtypes, library.origins_loaded.restype = (pointer, pointer, number, number), None
    library.origins_stored.argtypes = (pointer, pointer, pointer, number, number)
    library.origins_stored.restype = None
    library.sum_products.argtypes = (*(pointer,) * 7, ctypes.c_double)
    library.sum_products.restype = None
    table = (pointer, number, number, pointer, number, number, pointer)
    for function in (library.clocks_most, library.clocks_learn, library.clocks_join):
        function.argtypes, function.restype = table, None
    library.clocks_tick.argtypes, library.clocks_tick.restype = (pointer, number, number, number), None
    from tilemma.machine.native import products

    products.declare(library)
    _state.library = library
    return True


def _text() -> str:
    from tilemma.machine.native.encode import OPERATIONS

    here = Path(__file__).parent
    names = ", ".join(f"OP_{name}" for name in OPERATIONS)
    return "\n".join(
        [_HEADER, f"enum {{ {names} }};", *((here / x).read_text(encoding="utf-8") for x in _SOURCES)]
    )


def _key() -> str:
    return DiskCache.key(_text(), _FLAGS, sys.platform, os.uname().machine)


@cache
def _offsets(steps: tuple[int, ...], warps: int) -> Any:
    """Of each warp the bytes before its part of each file; none of the last file."""
    return np.arange(warps, dtype=np.uint64)[:, None] * np.array([*steps, 0], np.uint64)


def register_table(files: list[Any], warps: int) -> tuple[list[int], Any]:
    """The address of each warp's row in a table of pointers to ``files``, and the table.

    Files are [warps, ...], except the last one, which all warps share.
    """
    table = _offsets(tuple(file.strides[0] for file in files[:-1]), warps) + np.array(
        [*map(address_of, files)], np.uint64
    )
    start, step = address_of(table), table.strides[0]
    return [start + step * i for i in range(warps)], table
