from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tilemma.assemble import NoPtxas, find_tool


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
