"""The machine code of every example: the expected instructions, no spills, no local memory."""

from __future__ import annotations

import pytest
from test_examples import MATMULS

from tilemma.assemble import NoDisassembler, NoPtxas, disassemble, find_tool, local_memory_accesses, sass_counts
from tilemma.compiler import Compiled

try:
    find_tool("ptxas"), find_tool("nvdisasm")
except (NoPtxas, NoDisassembler) as missing:
    pytest.skip(missing.message, allow_module_level=True)


def compiled(name: str, arch: str) -> Compiled:
    return MATMULS[name].compile(arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", [n for n in MATMULS if n.startswith("matmul_")])
def test_tensor_cores_without_spills(name: str, arch: str) -> None:
    unit = compiled(name, arch)
    cubin = unit.assembled()
    assert not cubin.problems
    sass = disassemble(cubin)
    assert local_memory_accesses(sass) == 0
    counts = sass_counts(sass)
    warpgroup = arch == "sm_90a" and "wgmma" in name
    assert counts.get("HGMMA" if warpgroup else "HMMA", 0) > 0
    assert counts.get("HMMA" if warpgroup else "HGMMA", 0) == 0
