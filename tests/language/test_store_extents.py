"""Extents of what a register tile is stored to: those of the tile, or smaller ones that the call decides."""

from __future__ import annotations

import numpy as np
import pytest
from differential import croqtile_kernel, python_kernel

from tilemma.errors import TilemmaError

CO = """
__co__ void f(global f32 [16, 16] a, int n, int m, global f32 [M, N] c) {{
  parallel by 1 : block {{
    parallel by 1 : group {{
      t = mma.load a;
      {co}
    }}
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["f32", 16, 16], n: tm.Int, m: tm.Int, c: tm.Global["f32", "M", "N"]):
    for _ in parallel(1, level="block"):
        for _ in parallel(1, level="group"):
            t = mma.load(a)
            {python}
"""
VIEW = ("mma.store t, c.view(n, m).from(2, 1);", "mma.store(t, c.view(n, m).from_(2, 1))")
TURNED = ("mma.store.transp t, c.view(n, m).from(2, 1);", "mma.store(t, c.view(n, m).from_(2, 1), transp=True)")
WHOLE = ("mma.store t, c;", "mma.store(t, c)")
ROWS = ("mma.store t, c.view(10, m).from(2, 1);", "mma.store(t, c.view(10, m).from_(2, 1))")
BRANCH = (
    "if (n <= 16) { mma.store t, c.view(n, m).from(2, 1); }",
    "with if_(n <= 16):\n                mma.store(t, c.view(n, m).from_(2, 1))",
)
TARGETS = (("cpu", {}), ("machine", {"arch": "sm_80"}), ("machine", {"arch": "sm_90a"}))


def kernels(form: tuple[str, str]) -> list[object]:
    return [croqtile_kernel(CO.format(co=form[0])), python_kernel(PYTHON.format(python=form[1]))]


def given(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((16, 16)).astype(np.float32), rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("target", "options"), TARGETS)
@pytest.mark.parametrize("form", [VIEW, TURNED])
@pytest.mark.parametrize(("n", "m"), [(16, 16), (10, 16), (16, 3), (7, 5), (1, 1)])
def test_the_view_takes_its_part(form: tuple[str, str], n: int, m: int, target: str, options: dict) -> None:
    a, c = given((20, 20))
    wanted = c.copy()
    wanted[2 : 2 + n, 1 : 1 + m] = (a.T if form is TURNED else a)[:n, :m]
    for kernel in kernels(form):
        out = c.copy()
        kernel.on(target, **options)(a, n, m, out)
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(("target", "options"), TARGETS)
@pytest.mark.parametrize(
    ("form", "n", "m", "shape", "what"),
    [
        (VIEW, 10, 18, (20, 20), "m of `c` is at most 16"),
        (VIEW, 18, 16, (20, 20), "n of `c` is at most 16"),
        (TURNED, 16, 17, (20, 20), "m of `c` is at most 16"),
        (WHOLE, 0, 0, (16, 20), "N of `c` is at most 16"),
        (WHOLE, 0, 0, (17, 4), "M of `c` is at most 16"),
    ],
)
def test_a_larger_view_is_refused_at_the_call(
    form: tuple[str, str], n: int, m: int, shape: tuple[int, int], what: str, target: str, options: dict
) -> None:
    a, c = given(shape)
    for kernel in kernels(form):
        out = c.copy()
        with pytest.raises(TilemmaError, match=what):
            kernel.on(target, **options)(a, n, m, out)
        np.testing.assert_array_equal(out, c)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_constant_extent_is_the_tiles(arch: str) -> None:
    for kernel in kernels(ROWS):
        with pytest.raises(TilemmaError) as caught:
            kernel.compile(arch)
        assert caught.value.code == "accumulator-shape" and "[10, m] here and [16, 16]" in str(caught.value)


@pytest.mark.parametrize(("target", "options"), TARGETS)
def test_a_store_that_a_branch_leaves_out_needs_nothing(target: str, options: dict) -> None:
    a, c = given((20, 20))
    for kernel in kernels(BRANCH):
        out = c.copy()
        kernel.on(target, **options)(a, 18, 4, out)
        np.testing.assert_array_equal(out, c)
