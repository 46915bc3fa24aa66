from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tilemma.assemble import NoPtxas, find_tool
from tilemma.machine.native import library

T = TypeVar("T")


def compiled_library() -> Any:
    """The machine's loops in C; skips the test only where there is no compiler."""
    if library.loaded() is None:
        library.compile_now()
    if library.loaded() is None:
        assert library._compiler() is None, "the library does not compile"
        pytest.skip("no C compiler here")
    return library.loaded()


@pytest.fixture
def compiled() -> Any:
    return compiled_library()


def use_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's loops in C ("compiled"), or the code that runs where there is no compiler ("numpy").

    Each checks by itself: a check that one of them lacks is seen in that one only.
    """
    if name == "compiled":
        compiled_library()
        return
    state = library._state
    monkeypatch.setattr(state, "library", None)
    monkeypatch.setattr(state, "looked", True)
    monkeypatch.setattr(state, "tried", True)


@pytest.fixture(params=["compiled", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with both."""
    use_engine(request.param, monkeypatch)


@pytest.fixture
def with_either_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], T]], list[T]]:
    """What a function returns with one and with the other; once without a compiler."""

    def results(function: Callable[[], T]) -> list[T]:
        found = []
        for name in ("compiled", "numpy"):
            with monkeypatch.context() as patch, suppress(pytest.skip.Exception):
                use_engine(name, patch)
                found.append(function())
        return found * (2 // len(found))

    return results


@pytest.fixture(scope="session")
def assembles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], None]:
    """Fails where ptxas refuses the PTX; does nothing where there is no ptxas."""
    try:
        ptxas = find_tool("ptxas")
    except NoPtxas:
        return lambda ptx, arch: None
    folder = tmp_path_factory.mktemp("ptx")
    path = getattr(ptxas, "path", ptxas)

    def assemble(ptx: str, arch: str) -> None:
        file = Path(folder) / "x.ptx"
        file.write_text(ptx)
        done = subprocess.run(
            [str(path), f"-arch={arch}", "-o", "/dev/null", str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return assemble
