"""The first example: the ownership map of the hardware, and one instruction executed, in both languages."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import numpy as np
import pytest

from tilemma.atoms import catalogue
from tilemma.modules import Module, load, load_python

ROOT = Path(__file__).parents[2] / "examples"
SOURCES = [ROOT / "co" / "hello_mma.co", ROOT / "py" / "hello_mma.py"]
ATOM = catalogue["SM80_16x8x16_F32F16F16F32_TN"]
TARGETS = ["cpu", "machine", pytest.param("cuda", marks=pytest.mark.gpu)]


def _module(path: Path) -> Module:
    return load(path) if path.suffix == ".co" else load_python(path)


def _skip_without_gpu(target: str) -> None:
    if target == "cuda":
        from tilemma.runtime import gpu_unavailable_reason

        if missing := gpu_unavailable_reason():
            pytest.skip(missing)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.suffix)
def test_the_stamped_map_is_the_record_s(path: Path, target: str) -> None:
    _skip_without_gpu(target)
    owner = np.full((16, 8), -1, np.int32)
    _module(path)["mma_ownership_map"].on(target)(owner)
    lanes = [[owners[0][0] for owners in row] for row in ATOM.c.owners()]
    assert owner.tolist() == lanes
    assert owner[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.suffix)
def test_one_instruction(path: Path, target: str) -> None:
    _skip_without_gpu(target)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (rows, 16)).astype(np.float16) for rows in (16, 8))
    c = np.zeros((16, 8), np.float32)
    _module(path)["micro_gemm"].on(target)(a, b, c)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_it_uses_the_instruction_it_is_named_after() -> None:
    for arch in ("sm_80", "sm_90a"):
        ptx = _module(SOURCES[0])["micro_gemm"].compile(arch=arch).ptx
        assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 1


def test_the_script_prints_both() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(SOURCES[1]), run_name="__main__")
    lines = out.getvalue().splitlines()
    assert "m=0    T00    T00    T01    T01    T02    T02    T03    T03" in lines
    assert lines.count(next(x for x in lines if "16.0" in x)) == 1 and sum("16.0   16.0" in x for x in lines) == 16
