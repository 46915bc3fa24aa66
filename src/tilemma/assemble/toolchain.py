"""Finding NVIDIA's command-line tools: the pip wheels of this environment, CUDA_HOME, PATH.

Only installed tools are run.  `sys.path` is not searched: its first entry is the working folder in a REPL or
notebook, in which another user may have put a program.  A relative entry of PATH is ignored for the same
reason.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import re
import site
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from tilemma.forking import ForkSafeLock
from tilemma.records import record

from ..checked import checked, one_of
from ..errors import ToolError
from .cache import DiskCache
from .process import Output, Stopped, tail

Version = tuple[int, ...]

# The time limit of ``--version`` in seconds.
_VERSION_SECONDS = 30.0


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
    """One of NVIDIA's programs: where it is, its release such as (13, 5, 37), and why it was chosen."""

    path: str
    version: Version
    why: str = ""
    state: tuple[int, ...] = ()

    @property
    def release(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def digest(self) -> str:
        """The hash of the file, kept on disk as the release is; of a file that has changed or gone since, a number
        that never comes again."""
        with contextlib.suppress(OSError, ValueError), _hashing:  # a second thread waits for the first
            found = _digest(self.path, self.state)
            if _state(self.path) == self.state:
                return found
        return os.urandom(16).hex()

    def __str__(self) -> str:
        return f"{Path(self.path).stem} {self.release}: {self.path} ({self.why})"

    def to_json(self) -> dict[str, str]:
        return {"path": self.path, "release": self.release, "why": self.why}


_NAME = one_of("ptxas", "nvdisasm")


def _variable(name: str) -> str:
    return f"TILEMMA_{name.upper()}"


def site_folders() -> list[str]:
    """The folders that packages of this environment are installed in; that of tilemma itself is one.

    Absolute folders in PYTHONPATH, other than the working folder, count: the user has named them.
    """
    named = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    here = os.path.realpath(os.curdir)
    names = [n for n in named.split(os.pathsep) if os.path.isabs(n) and os.path.realpath(n) != here]
    names += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        names.append(site.getusersitepackages())
    own = str(Path(__file__).resolve().parents[2])
    return [n for n in dict.fromkeys([*names, own]) if os.path.isabs(n)]


_OWN = "from a wheel of this environment, which comes before CUDA_HOME and PATH"
_NEWEST = "the newest under CUDA_HOME, on PATH and in /usr/local/cuda"


def _folders() -> Iterator[tuple[str, str]]:
    """Every folder searched, with the reason for which a program there would be chosen."""
    for root in site_folders():
        with contextlib.suppress(OSError):
            # nvidia/cu13/bin (CUDA 13), nvidia/cuda_nvcc/bin (CUDA 12)
            for wheel in sorted(os.listdir(os.path.join(root, "nvidia"))):
                yield os.path.join(root, "nvidia", wheel, "bin"), _OWN
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield os.path.join(home, "bin"), _NEWEST
    yield from ((folder, _NEWEST) for folder in os.get_exec_path())
    yield "/usr/local/cuda/bin", _NEWEST


def candidates(name: str) -> dict[str, list[str]]:
    """Every program called ``name`` in the places searched, links resolved, each once, by why it would be chosen.

    The environment variable TILEMMA_<NAME> names the only candidate when it is set.
    """
    if override := os.environ.get(_variable(name)):
        return {f"named by {_variable(name)}": [override]}
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    program = f"{name}.exe" if os.name == "nt" else name
    for folder, why in _folders():
        path = os.path.join(folder, program)
        if not os.path.isabs(folder) or not os.path.isfile(path) or not os.access(path, os.X_OK):
            continue
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            found.setdefault(why, []).append(real)
    return found


def parse_version(text: str) -> Version | None:
    """The release in the output of ``--version``: `V13.5.37` gives (13, 5, 37)."""
    match = re.search(r"\bV(\d{1,6})\.(\d{1,6})\.(\d{1,6})", text)
    match = match or re.search(r"\brelease (\d{1,6})\.(\d{1,6})", text)
    return tuple(map(int, match.groups())) if match else None


def _decoded(data: bytes) -> Version:
    """The release of a tool as it is kept on disk."""
    version = tuple(json.loads(data))
    if not version or not all(type(n) is int for n in version):
        raise ValueError
    return version


def _state(path: str) -> tuple[int, ...]:
    """What changes with the file's content.  Raises OSError, ValueError."""
    s = os.stat(path)
    return s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_dev, s.st_ino


@functools.lru_cache(maxsize=16)
def _digest(path: str, state: tuple[int, ...]) -> str:
    cache, key = DiskCache("tools"), DiskCache.key("digest", path, state)
    if (known := cache.get(key)) is not None:
        return known.decode("ascii", "replace")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = hashlib.sha256(content).hexdigest()  # in one call, without the interpreter's lock
    cache.put(key, found.encode())
    return found


class _Question:
    """The release of the program at ``path``: kept on disk by path, size and times, or what it answers to
    ``--version``, in a process that runs until `answer` waits for it."""

    def __init__(self, path: str, variable: str) -> None:
        """Raises ToolDoesNotRun."""
        self.path, self._variable = path, variable
        self._output: Output | None = None
        self._failure: ToolDoesNotRun | None = None
        try:
            self.state = _state(path)
        except (OSError, ValueError) as error:
            raise self._fails(getattr(error, "strerror", None) or str(error)) from None
        self._cache, self._key = DiskCache("tools"), DiskCache.key("release", path, self.state)
        self.known = self._cache.read(self._key, _decoded)
        if self.known is not None:
            return
        if not os.path.isfile(path):
            raise self._fails("it is not a file")
        try:
            self._output = Output([path, "--version"], seconds=_VERSION_SECONDS)
        except (OSError, ValueError) as error:
            raise self._fails(str(error)) from None

    def answer(self) -> Version:
        """Raises ToolDoesNotRun."""
        if self.known is not None:
            return self.known
        if self._failure is None:
            try:
                self.known = self._answered()
            except ToolDoesNotRun as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure
        assert self.known is not None
        return self.known

    def _answered(self) -> Version:
        assert self._output is not None
        try:
            status, *both = self._output.result()
        except (OSError, ValueError, Stopped) as error:
            raise self._fails(str(error)) from None
        said = "".join(both)
        version = parse_version(said)
        if version is None:
            raise self._fails(f"status {status}, `{tail(said)}`")
        # Not at once: that would store what waits for a key, in front of the text that ptxas waits for.
        self._cache.put_later(lambda: self._key, json.dumps(version).encode())
        return version

    def end(self) -> None:
        if self._output is not None:
            self._output.end()

    def _fails(self, reason: str) -> ToolDoesNotRun:
        return ToolDoesNotRun(path=self.path, reason=reason, variable=self._variable)


_choosing, _hashing = ForkSafeLock(), ForkSafeLock()


_Found = tuple[tuple[str, tuple[str, ...]], ...]
_chosen: dict[tuple[str, _Found], Tool] = {}


class Search:
    """A search for the `ptxas` or `nvdisasm` to use; `ask` begins it while there is other work to do, and `end`
    ends what was begun."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: _Found = tuple((why, tuple(paths)) for why, paths in candidates(name).items())
        self._asked: dict[str, _Question | ToolDoesNotRun] = {}

    @property
    def likely(self) -> str | None:
        """The program that `tool` may name, as far as that is known without waiting."""
        known = _chosen.get((self.name, self._found))
        if known is not None:
            return known.path
        return self._found[0][1][0] if self._found else None

    def ask(self) -> None:
        """Begin to ask the programs of the first group."""
        if (self.name, self._found) not in _chosen and self._found:
            self._ask(self._found[0][1])

    def tool(self) -> Tool:
        """Raises NoPtxas, NoDisassembler or ToolDoesNotRun."""
        key = self.name, self._found
        with _choosing:  # a second thread waits for the answer to the first
            if key not in _chosen:
                _chosen[key] = self._choose()
            return _chosen[key]

    def end(self) -> None:
        for question in list(self._asked.values()):  # another thread may still ask
            if isinstance(question, _Question):
                question.end()

    def _ask(self, paths: tuple[str, ...]) -> None:
        for path in paths:
            if path not in self._asked:
                try:
                    self._asked[path] = _Question(path, _variable(self.name))
                except ToolDoesNotRun as error:
                    self._asked[path] = error

    def _choose(self) -> Tool:
        """The newest of the first group that has one which answers."""
        failures = []
        for why, paths in self._found:
            self._ask(paths)
            tools = []
            for question in (self._asked[path] for path in paths):
                try:
                    if isinstance(question, ToolDoesNotRun):
                        raise question
                    tools.append(Tool(question.path, question.answer(), why, question.state))
                except ToolDoesNotRun as error:
                    failures.append(error)
            if tools:
                return max(tools, key=lambda tool: tool.version)
        if failures:
            raise failures[0]
        missing = {"ptxas": NoPtxas, "nvdisasm": NoDisassembler}[self.name]
        raise missing(looked=f"in the packages of {sys.prefix}, CUDA_HOME, PATH and /usr/local/cuda")


@checked(name=_NAME)
def find_tool(name: str) -> Tool:
    """The `ptxas` or `nvdisasm` to use: that of this environment's wheels, else the newest that is found.

    TILEMMA_PTXAS and TILEMMA_NVDISASM override the search.  `Tool.why` says which of these it was.  Raises
    NoPtxas, NoDisassembler, or ToolDoesNotRun when one was found but none answers.
    """
    search = Search(name)
    try:
        return search.tool()
    finally:
        search.end()


@checked(name=_NAME)
def seek(name: str) -> None:
    """Begin to look for the tool, while there is other work to do: each one found is asked for its release once,
    which takes the start of a process, and hashed where results of it may be kept."""

    def look() -> None:
        with contextlib.suppress(ToolError, OSError, ValueError):
            tool = find_tool(name)
            if not DiskCache("cubin").is_empty():
                _ = tool.digest

    threading.Thread(target=look, daemon=True).start()
