"""The example that walks over an instruction's fragments."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "py" / "fragment_walk.py"


def test_it_prints_what_it_says() -> None:
    walk = runpy.run_path(str(EXAMPLE))["walk"]
    lines = walk("SM80_16x8x16_F32BF16BF16F32_TN")
    promised = [line.strip() for line in EXAMPLE.read_text().splitlines() if line.startswith("    thread ")]
    assert lines[: len(promised)] == promised
    assert lines[0].startswith("thread 0 : a: 0, 1, 128, 129, 8, 9, 136, 137")
    assert len(lines) == 32


def test_operands_in_shared_memory_are_left_out() -> None:
    walk = runpy.run_path(str(EXAMPLE))["walk"]
    assert walk("SM90_64x8x16_F32F16F16_SS")[127] == "thread 127 : d: 446, 447, 510, 511"
