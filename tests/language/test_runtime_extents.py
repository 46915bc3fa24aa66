"""Buffers whose extents are dimensions of parameters or integer parameters: compiled for each of their values."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, dma, foreach, if_, local, machine, parallel, shared, var


@tm.kernel
def sums(x: tm.Global["f32", "M", "N"], y: tm.Global["f32", "M"]):
    M, N = x.shape
    for i in parallel(M, level="block"):
        s, t = shared("f32", N + 1), local("f32", N)
        for j in foreach(N):
            t[j] = x[i, j]
            s[j] = t[j]
        s[N] = 1.0
        total = var(0.0, "f32")
        for j in foreach(N + 1):
            total += s[j]
        y[i] = total


CO = """
__co__ auto k(f32 [M, N] x) {
  f32 [M] y;
  parallel i by M : block {
    shared f32 [N + 1] s;
    local f32 [N] t;
    foreach j in N { t.at(j) = x.at(i, j); s.at(j) = t.at(j); }
    s.at(N) = 1.0f;
    f32 total = 0.0f;
    foreach j in N + 1 total += s.at(j);
    y.at(i) = total;
  }
  return y;
}
__co__ void every(s32 [A, B, 3] x, s32 [A, B, 3] y) {
  parallel p by 1 : block, q by 32 : thread {
    tile = dma.copy x.subspan(A, B, 3) => shared;
    dma.copy tile => y;
  }
}
"""


@pytest.mark.parametrize("target", ["cpu", "machine"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 0), (0, 4)])
def test_sizes_come_from_the_arrays(tmp_path: Path, target: str, shape: tuple[int, int]) -> None:
    (tmp_path / "k.co").write_text(CO)
    module = tm.load(tmp_path / "k.co")
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    y = np.zeros(shape[0], np.float32)
    sums.on(target)(x, y)
    assert np.array_equal(y, x.sum(1) + 1)
    assert np.array_equal(module.k.on(target)(x), x.sum(1) + 1)
    cube = np.arange(np.prod(shape) * 3, dtype=np.int32).reshape(*shape, 3)
    same = np.zeros_like(cube)
    module.every.on(target)(cube, same)
    assert np.array_equal(same, cube)


def test_sizes_are_given_to_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "k.co").write_text(CO)
    for kernel in (sums, tm.load(tmp_path / "k.co").k):
        with pytest.raises(tm.CompileError, match="no `N` is given") as refused:
            kernel.compile("sm_80")
        assert refused.value.code == "sizes-wanted"
        small, large = (kernel.compile("sm_80", sizes={"N": n, "M": 7}).ptx for n in (4, 5000))
        assert small != large
        with pytest.raises(tm.LaunchError, match="a mapping from dimensions"):
            kernel.compile("sm_80", sizes={"N": 1.5})
        with pytest.raises(tm.CompileError, match="bytes"):
            kernel.compile("sm_80", sizes={"N": 100_000})
    assert tm.load(tmp_path / "k.co", defines={"N": 4}).k.compile("sm_80").ptx


@tm.kernel
def reversed_parts(x: tm.Global["s32", "M"], n: tm.Int, y: tm.Global["s32", "M"]):
    for b in parallel(cdiv(x.shape[0], n), level="block"):
        s = shared("s32", n)
        dma.copy(x.subspan(n).at(b), s)
        for i in foreach(n):
            with if_(b * n + i < x.shape[0]):
                y[b * n + i] = s[n - 1 - i]


REVERSED = """
__co__ void k(s32 [M] x, int n, s32 [M] y) {
  parallel b by cdiv(M, n) : block {
    shared s32 [n] s;
    dma.copy x.subspan(n).at(b) => s;
    foreach i in n
      if (b * n + i < M) y.at(b * n + i) = s.at(n - 1 - i);
  }
}
"""


@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_integer_parameters_are_extents(tmp_path: Path, target: str) -> None:
    (tmp_path / "k.co").write_text(REVERSED)
    x = np.arange(1, 21, dtype=np.int32)
    for kernel in (reversed_parts, tm.load(tmp_path / "k.co").k):
        for n in (4, 5):
            y = np.zeros_like(x)
            kernel.on(target)(x, n, y)
            assert np.array_equal(y, x.reshape(-1, n)[:, ::-1].reshape(-1))
        with pytest.raises(tm.LaunchError, match="at least 0"):
            kernel.on(target)(x, -1, y)


def test_code_for_one_value_of_a_parameter_is_launched_with_it() -> None:
    with pytest.raises(tm.CompileError, match="no `n` is given"):
        reversed_parts.compile("sm_80")
    compiled = reversed_parts.compile("sm_80", sizes={"n": 4})
    x = np.arange(8, dtype=np.int32)
    for n in (4, 5):
        values = {"x": x, "n": n, "y": np.zeros_like(x)}
        with nullcontext() if n == 4 else pytest.raises(tm.LaunchError, match="n is 4"):
            for launch in compiled.launches:
                machine.run(compiled.ptx, launch, values)


def test_other_values_are_no_extents() -> None:
    @tm.kernel
    def k(x: tm.Global["s32", "M"], n: tm.Float):
        for p in parallel(4, level="block"):
            s = shared("s32", p + 1)
            s[0] = x[0]

    with pytest.raises(tm.CompileError, match="not known when compiled"):
        k.compile("sm_80")
