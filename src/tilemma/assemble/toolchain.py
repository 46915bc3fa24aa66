"""Finding NVIDIA's command-line tools: the pip wheels of the running interpreter, CUDA_HOME, PATH."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tilemma.records import record

from ..errors import ToolError
from .cache import DiskCache

Version = tuple[int, ...]


class NoPtxas(ToolError):
    code = "no-ptxas"
    found = "the assembler ptxas was not found ({looked})"
    expected = "ptxas from the pip wheel nvidia-cuda-nvcc, under CUDA_HOME or on PATH"
    fix = (
        "pip install 'tilemma[dev]' (Linux), or install the CUDA toolkit and set CUDA_HOME, or set "
        "TILEMMA_PTXAS to the program; everything but cubins, SASS and running on a GPU works without it"
    )


class NoDisassembler(ToolError):
    code = "no-nvdisasm"
    found = "the disassembler nvdisasm was not found ({looked})"
    expected = "nvdisasm from the pip wheel nvidia-cuda-nvdisasm, under CUDA_HOME or on PATH"
    fix = "pip install 'tilemma[dev]' (Linux), or install the CUDA toolkit and set CUDA_HOME; only SASS needs it"


class ToolDoesNotRun(ToolError):
    code = "tool-does-not-run"
    found = "{path} does not run: {reason}"
    expected = "a program for this machine that answers --version"
    fix = "reinstall it, or set {variable} to another one"


@record
class Tool:
    """One of NVIDIA's programs: where it is and its release, for example (13, 5, 37)."""

    path: str
    version: Version

    @property
    def release(self) -> str:
        return ".".join(map(str, self.version))


def _variable(name: str) -> str:
    return f"TILEMMA_{name.upper()}"


def _wheel_folders() -> Iterator[Path]:
    """`bin` of every NVIDIA wheel: nvidia/cu13/bin (CUDA 13), nvidia/cuda_nvcc/bin (CUDA 12)."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(root).glob("*/bin"))


def _folders() -> Iterator[Path]:
    yield from _wheel_folders()
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            yield Path(root) / "bin"
    yield from (Path(p) for p in os.get_exec_path() if p)
    yield Path("/usr/local/cuda/bin")


def candidates(name: str) -> list[str]:
    """Every program called ``name`` in the places searched, links resolved, each once.

    The environment variable TILEMMA_<NAME> names the only candidate when it is set.
    """
    if override := os.environ.get(_variable(name)):
        return [override]
    found: dict[str, None] = {}
    for folder in _folders():
        if path := shutil.which(name, path=str(folder)):
            found[os.path.realpath(path)] = None
    return list(found)


def parse_version(text: str) -> Version | None:
    """The release in what ``--version`` prints: `V13.5.37` gives (13, 5, 37)."""
    match = re.search(r"\bV(\d+)\.(\d+)\.(\d+)", text) or re.search(r"\brelease (\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else None


def tool_version(path: str, variable: str) -> Version:
    """The release of the program at ``path``; remembered on disk by path, size and time of change.

    Raises ToolDoesNotRun.
    """
    try:
        state = os.stat(path)
    except OSError as error:
        raise ToolDoesNotRun(path=path, reason=error.strerror or str(error), variable=variable) from None
    cache = DiskCache("tools")
    key = cache.key(path, state.st_size, state.st_mtime_ns)
    if (stored := cache.get(key)) is not None:
        return tuple(json.loads(stored))
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolDoesNotRun(path=path, reason=str(error), variable=variable) from None
    version = parse_version(run.stdout + run.stderr)
    if version is None:
        reason = f"status {run.returncode}, `{(run.stdout + run.stderr).strip()[:200]}`"
        raise ToolDoesNotRun(path=path, reason=reason, variable=variable)
    cache.put(key, json.dumps(version).encode())
    return version


@functools.lru_cache(maxsize=16)
def _newest(name: str, paths: tuple[str, ...]) -> Tool:
    tools, failures = [], []
    for path in paths:
        try:
            tools.append(Tool(path, tool_version(path, _variable(name))))
        except ToolDoesNotRun as error:
            failures.append(error)
    if tools:
        # max keeps the first of equals: a wheel of this environment before one on PATH.
        return max(tools, key=lambda tool: tool.version)
    if failures:
        raise failures[0]
    missing = {"ptxas": NoPtxas, "nvdisasm": NoDisassembler}[name]
    raise missing(looked=f"in the packages of {sys.prefix}, CUDA_HOME, PATH and /usr/local/cuda")


def find_tool(name: str) -> Tool:
    """The newest `ptxas` or `nvdisasm` there is; TILEMMA_PTXAS and TILEMMA_NVDISASM override the search.

    Raises NoPtxas, NoDisassembler, or ToolDoesNotRun when one was found but none answers.
    """
    return _newest(name, tuple(candidates(name)))


def seek(name: str) -> None:
    """Begin to look for the tool, while there is other work to do: each one found is asked for its release once,
    which takes the start of a process."""

    def look() -> None:
        with contextlib.suppress(ToolError):
            find_tool(name)

    threading.Thread(target=look, daemon=True).start()
