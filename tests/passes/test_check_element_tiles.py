"""Register tiles that no multiply uses: one verdict on every target, and advice that works."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from tests.language.test_advice import co, py
from tilemma.errors import CompileError
from tilemma.targets.ptx.target import targets

SHAPES = [(16, 8), (8, 8), (16, 16), (20, 8), (32, 8), (64, 8), (16, 20), (48, 24), (1, 1)]
LEVELS = ["group", "group-2", "group-3", "group-4"]


@pytest.mark.parametrize(("shape", "level"), list(product(SHAPES, LEVELS)))
def test_shapes(shape: tuple[int, int], level: str) -> None:
    """The CPU reference refuses what PTX targets refuse; the advised tile is accepted, in both languages."""
    rows, columns = shape
    python = f"""for b in parallel(1, level="block"):
    for g in parallel(1, level="{level}"):
        m = mma.frag("f32", {rows}, {columns}, init=1.0)
        mma.store(m, c.subspan({rows}, {columns}).at(0, 0))"""
    croqtile = f"""parallel b by 1 : block {{ parallel g by 1 : {level} {{
      frag f32[{rows}, {columns}] m {{1.0f}};
      mma.store m, c.subspan({rows}, {columns}).at(0, 0); }} }}"""
    params = "global f32 [256, 64] c", 'c: tm.Global["f32", 256, 64]'
    for make, text, names in ((co, croqtile, params[0]), (py, python, params[1])):
        verdicts, advised = set(), ""
        for arch in targets():
            try:
                make(text, names).compile(arch)
                verdicts.add("")
            except CompileError as e:
                verdicts.add(e.code)
                advised = e.remedy
        c = np.zeros((256, 64), np.float32)
        try:
            make(text, names).on("cpu")(c)
            verdicts.add("")
            assert c.sum() == rows * columns
        except CompileError as e:
            verdicts.add(e.code)
        assert len(verdicts) == 1, verdicts
        if verdicts == {"tile-without-layout"}:
            better = re.search(r"use a tile of (\d+)x(\d+)", advised)
            assert better is not None
            larger = text.replace(f"{rows}, {columns}", f"{better[1]}, {better[2]}")
            make(larger, names).compile("sm_80")


@pytest.mark.parametrize("level", LEVELS[:2])
@pytest.mark.parametrize("rows", [8, 16, 32, 40, 64])
def test_rows_of_a_reduced_tile(rows: int, level: str) -> None:
    """Each warp has whole rows of a tile that is reduced, and of a vector: 16 rows of each warp at least."""
    text = f"""parallel b by 1 : block {{ parallel g by 1 : {level} {{
      frag f32[{rows}, 16] m {{1.0f}}; frag f32[{rows}] v {{2.0f}};
      reduce_sum(v, m, 1);
      mma.store v, c.subspan({rows}).at(0); }} }}"""
    kernel = co(text, "global f32 [64] c")
    refused = set()
    for arch in targets():
        try:
            kernel.compile(arch)
            refused.add("")
        except CompileError as e:
            refused.add(e.code)
            better = re.search(r"use a (?:vector|tile) of (\d+)", e.remedy)
            assert better is not None and int(better[1]) % (16 * (2 if level == "group-2" else 1)) == 0
    warps = 2 if level == "group-2" else 1
    assert refused == ({""} if rows % (16 * warps) == 0 else {"tile-without-layout"})


@pytest.mark.parametrize("t", ["f32", "f16", "bf16", "s32", "f64", "s8", "u32", "s64"])
def test_types(t: str) -> None:
    text = f"""for b in parallel(1, level="block"):
    for g in parallel(1, level="group"):
        m = mma.frag("{t}", 16, 8, init=1)
        m += 1
        mma.store(m, c)"""
    verdicts = set()
    for run in ("cpu", *targets()):
        kernel = py(text, f'c: tm.Global["{t}", 16, 8]')
        try:
            if run == "cpu":
                from tilemma import dtypes

                kernel.on("cpu")(np.zeros((16, 8), dtypes.dtype(t).numpy))
            else:
                kernel.compile(run)
            verdicts.add("")
        except CompileError as e:
            verdicts.add(e.code)
    assert len(verdicts) == 1, verdicts
