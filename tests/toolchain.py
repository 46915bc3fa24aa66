"""The assembler and the disassembler of tests that compare with them."""

from __future__ import annotations

import pytest

from tilemma.assemble import NoDisassembler, NoPtxas, find_tool


def tool(name: str) -> str:
    """The path of ``name``, "ptxas" or "nvdisasm"; without it the test is skipped, with the reason."""
    try:
        return str(find_tool(name).path)
    except (NoPtxas, NoDisassembler) as error:
        pytest.skip(str(error))
