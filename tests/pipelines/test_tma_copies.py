"""Tiles of many types and shapes through shared memory by TMA and back: the data is unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from pipeline_runs import from_co

from tilemma import machine
from tilemma.compiler import compile_kernel
from tilemma.targets.cpu import execute


def through(text: str, shape: tuple[int, ...], dims: dict[str, int]) -> None:
    """Runs a kernel that copies `a` to `b`: on the CPU, before and after the passes, and on the machine."""
    kernel = from_co(text)
    compiled = compile_kernel(kernel, "sm_90a")
    dtype = kernel.arrays[0].buffer.dtype.numpy
    rng = np.random.default_rng(0)
    a = rng.integers(0, 100, shape).astype(dtype)
    for run in ("language", "decided", "machine"):
        arrays = {"a": a.copy(), "b": np.zeros(shape, dtype)}
        if run != "machine":
            execute(kernel if run == "language" else compiled.kernel, arrays, {}, dims=dims)
        else:
            (launch,) = compiled.launches
            report = machine.run(compiled.ptx, launch, arrays, seed=1, schedule="late", strict=True)
            assert report.ok and not report.letter
        assert np.array_equal(arrays["b"], a)
    assert "cp.async.bulk.tensor" in compiled.ptx


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "s8", "u16", "s32", "s64"])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_types_and_swizzles(dtype, swizzle):
    width = 128 * 8 // {"f16": 16, "bf16": 16, "u16": 16, "f32": 32, "s32": 32, "s8": 8}.get(dtype, 64)
    text = f"""
__co__ void k(global {dtype} [M, N] a, global {dtype} [M, N] b) {{
  parallel {{i, j}} by [cdiv(M, 24), cdiv(N, {width})] : block {{
    shared {dtype} [24, {width}] s;
    tma.copy.swiz<{swizzle}> a.subspan(24, {width}).at(i, j) => s;
    tma.copy s => b.subspan(24, {width}).at(i, j);
  }}
}}
"""
    unit = 16 * 8 // {"f16": 16, "bf16": 16, "u16": 16, "f32": 32, "s32": 32, "s8": 8}.get(dtype, 64)
    through(text, (53, width + 3 * unit), {"M": 53, "N": width + 3 * unit})


def test_one_dimension():
    text = """
__co__ void k(global f32 [N] a, global f32 [N] b) {
  parallel i by cdiv(N, 192) : block {
    shared f32 [192] s;
    tma.copy a.subspan(192).at(i) => s;
    tma.copy s => b.subspan(192).at(i);
  }
}
"""
    through(text, (500,), {"N": 500})


def test_four_dimensions_of_which_two_are_cut():
    text = """
__co__ void k(global f16 [B, M, H, N] a, global f16 [B, M, H, N] b) {
  parallel {p, h} by [B, H] : block {
    foreach i in cdiv(M, 16) {
      shared f16 [16, 64] s;
      tma.copy a.subspan(1, 16, 1, 64).at(p, i, h, 0) => s;
      tma.copy s => b.subspan(1, 16, 1, 64).at(p, i, h, 0);
    }
  }
}
"""
    through(text, (2, 40, 3, 64), {"B": 2, "M": 40, "H": 3, "N": 64})


def test_a_loop_reuses_the_buffer_behind_the_stores():
    text = """
__co__ void k(global f16 [M, N] a, global f16 [M, N] b) {
  parallel by 1 : block {
    shared f16 [16, 64] s[2];
    foreach i in cdiv(M, 16) {
      tma.copy a.subspan(16, 64).at(i, 0) => s[i % 2];
      tma.copy s[i % 2] => b.subspan(16, 64).at(i, 0);
    }
  }
}
"""
    through(text, (100, 64), {"M": 100, "N": 64})


def test_each_warpgroup_its_own_tile():
    text = """
__co__ void k(global f16 [M, N] a, global f16 [M, N] b) {
  parallel i by cdiv(M, 32) : block {
    shared f16 [32, 64] s;
    parallel p by 2 : group-4 {
      tma.copy a.subspan(16, 64).at(i * 2 + p, 0) => s.subspan(16, 64).at(p, 0);
      tma.copy s.subspan(16, 64).at(p, 0) => b.subspan(16, 64).at(i * 2 + p, 0);
    }
  }
}
"""
    through(text, (100, 64), {"M": 100, "N": 64})


def test_stores_with_a_future():
    """The passes turn the wait for a store into one for its group, which the reference knows too."""
    text = """
__co__ void k(global f16 [M, N] a, global f16 [M, N] b) {
  parallel by 1 : block {
    shared f16 [16, 64] s[2];
    foreach i in cdiv(M, 16) {
      tma.copy a.subspan(16, 64).at(i, 0) => s[i % 2];
      f = tma.copy.async s[i % 2] => b.subspan(16, 64).at(i, 0);
      wait f;
    }
  }
}
"""
    through(text, (100, 64), {"M": 100, "N": 64})
