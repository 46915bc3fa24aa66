"""Kernels that request a lower optimization level of ptxas than its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilemma.modules import load_python

EXAMPLES = Path(__file__).resolve().parents[4] / "examples" / "py"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("name", "constants", "level"),
    [
        ("multistage", {}, 2),
        ("multistage", {"TILE_M": 256, "TILE_N": 128}, 3),
        ("multistage", {"TILE_N": 128}, 3),
        ("multistage", {"TILE_K": 32}, 3),
        ("double_buffer", {}, 3),
        ("event_pipeline", {}, 3),
        ("matmul_wmma", {}, 3),
    ],
)
def test_long_turns_with_copies_of_several_of_them_are_in_order(
    name: str, constants: dict[str, int], level: int, arch: str
) -> None:
    compiled = load_python(EXAMPLES / f"{name}.py").only().compile(arch, **constants)
    assert [u.lane.optimization for u in compiled.lowered] == [level]
    assert compiled.ptx.startswith("// ptxas -O2\n") == (level == 2)
    explanation = compiled.explain()
    assert [x["optimization"] for x in explanation.launches] == [level]
    assert ("for ptxas -O2" in explanation.render()) == (level == 2)
