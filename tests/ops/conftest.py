from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilemma.assemble import find_tool
from tilemma.errors import ToolError

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def ptxas() -> None:
    try:
        find_tool("ptxas")
    except ToolError as e:
        pytest.skip(e.message)
