from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma.assemble import find_tool
from tilemma.errors import ToolError
from tilemma.ops import mixed, workspace

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def ptxas() -> None:
    try:
        find_tool("ptxas")
    except ToolError as e:
        pytest.skip(e.message)


@pytest.fixture(autouse=True)
def zero_between_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels leave their counters as they found them: the next call does not set them."""
    counters: list[np.ndarray[Any, Any]] = []
    rooms = workspace.rooms

    def recorded(*args: Any) -> dict[str, Any]:
        found = rooms(*args)
        counters.extend(x for n, x in found.items() if n == workspace.COUNTERS and isinstance(x, np.ndarray))
        return found

    for module in (workspace, mixed):
        monkeypatch.setattr(module, "rooms", recorded)
    yield
    assert not any(x.any() for x in counters)
