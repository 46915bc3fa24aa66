"""PTX of other compilers: no hazard by default, and the right results."""

from __future__ import annotations

import os
from pathlib import Path

import cuda_cases
import engine_cases
import feature_cases
import library_cases
import numpy as np
import pytest
from cuda_cases import Case
from tilelang_cases import CASES as TILELANG
from triton_model_cases import CASES as TRITON

from tilemma import machine

PTX = Path(__file__).with_name("ptx")
CUDA = [*cuda_cases.CASES, *library_cases.CASES, *feature_cases.CASES, *engine_cases.CASES]
CASES = [*CUDA, *TRITON, *TILELANG]
# A fixed tenth of each compiler's kernels; the others are run by night.
CHOSEN = {c.name for cases in (CUDA, TRITON, TILELANG) for c in cases[::10]}
# By night TILEMMA_CORPUS_SCHEDULES=20 runs all schedules of all kernels.
SCHEDULES = int(os.environ.get("TILEMMA_CORPUS_SCHEDULES", "2"))


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=() if c.name in CHOSEN else pytest.mark.slow) for c in CASES],
)
def test_no_alarm_and_the_right_result(case: Case) -> None:
    ptx = (PTX / f"{case.file}.ptx").read_text(encoding="utf-8")
    args, wanted = case.build()
    launch = {"entry": case.entry, "grid": case.grid, "block": case.block, **case.launch}
    verdict = machine.check(ptx, launch, args, schedules=SCHEDULES)
    assert verdict.ok, verdict.render()
    for name, want in wanted.items():
        array = getattr(args[name], "array", args[name])
        got = array.astype(np.float64) if array.dtype.kind not in "iu" else array
        if got.dtype.kind in "iu":
            assert (got == np.asarray(want).reshape(got.shape)).all(), name
        else:
            want = np.asarray(want).astype(np.float64)
            scale = max(1e-30, np.abs(want[np.isfinite(want)]).max())
            assert np.allclose(got, want.reshape(got.shape), rtol=0, atol=case.tolerance * scale), name


def test_every_kernel_of_the_corpus_is_run() -> None:
    from tilemma.machine.parser import parse

    run = {(c.file, c.entry) for c in CASES}
    for path in sorted(PTX.glob("*.ptx")):
        for entry in parse(path.read_text(encoding="utf-8"), path.name).entries:
            assert (path.stem, entry) in run, (path.stem, entry)
