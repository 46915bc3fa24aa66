"""The kernels that time instructions, executed by the PTX machine: they run, free of hazards, and count clocks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import machine
from tilemma.atoms import catalogue
from tilemma.machine.parser import parse

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import proof_kernels as kernels
import time_atoms as timing


@pytest.mark.parametrize(
    "name",
    [
        "FMA_8x4x1_S32S32S32S32",
        "SM70_8x8x4_F32F16F16F16_TN",
        "SM80_8x8x4_F64F64F64F64_TN",
        "SM80_16x8x64_S32S4S4S32_TN",
        "SM80_SPARSE_16x8x32_F32F16F16F32_TN",
        "SM90_64x8x16_F32F16F16_SS",
        "SM90_64x8x256_S32U1U1_RS_TN",
        "SM90_SPARSE_64x8x64_F32E4M3E5M2_SS_TN",
        "SM75_U32x4_LDSM_N",
        "SM90_U16x4_STSM_T",
        "SM80_CP_ASYNC_CACHEGLOBAL_16B",
    ],
)
def test_the_kernels_run(name: str) -> None:
    atom = catalogue[name]
    ptx = kernels.module("sm_90a", timing.entries(atom).values())
    parameters = {e.name: [p.name for p in e.parameters] for e in parse(ptx, "timing").entries.values()}
    launched = []

    def run(module: str, entry: str, grid: int, threads: int, shared: int, arguments: Sequence[Any]) -> None:
        if not launched or launched[-1] != entry:
            values = [x if isinstance(x, np.ndarray) else 1 if x[0] == "u32" else x[1] for x in arguments]
            launch = {"entry": entry, "grid": (grid, 1, 1), "block": (threads, 1, 1), "shared": shared}
            report = machine.run(ptx, launch, dict(zip(parameters[entry], values, strict=True)), arch="sm_90a")
            assert not report.hazards, str(report.hazards[0])
            launched.append(entry)
        arguments[0][0] = 4 * timing.TURNS

    found = timing.measure(atom, run)
    assert launched == list(parameters)
    assert 0 < found["latency"] < 1 and found.get("rate", 1) > 0
