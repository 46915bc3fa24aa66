"""Vectors that an `apply` over rows and columns accumulates: Croqtile's form of the reductions of Python."""

from __future__ import annotations

import numpy as np
import pytest
from differential import croqtile_kernel

from tilemma import testing
from tilemma.errors import CompileError

TEXT = """
__co__ void f(global f16 [64, 32] a, global f16 [32, 32] b, global f32 [3, 64] o) {
  parallel p by 1 : block {
    s = dma.copy a => shared;
    t = dma.copy b => shared;
    shared f32 [64] u, v, w;
    parallel g by 1 : LEVEL {
      mc = mma.fill.f32 0.0f;
      ma = mma.load s;
      mb = mma.load t;
      mma.row.row mc, ma, mb;
      frag f32 [64] r{1.0f}, q{0.0f}, m{-inf};
      foreach k in 2 {
        apply {i, j} in mc.span
          r.at(i) = r.at(i) + mc.at(i, j);
        apply {i, j} in mc.span { q.at(i) += mc.at(i, j) * mc.at(i, j) * (j + k); }
      }
      all_reduce_sum(r);
      apply {x, y} in mc.span m.at(x) = __max(m.at(x), -mc.at(x, y));
      mma.store r, u;
      mma.store q, v;
      mma.store m, w;
    }
    parallel n by 64 : thread {
      o.at(0, n) = u.at(n);
      o.at(1, n) = v.at(n);
      o.at(2, n) = w.at(n);
    }
  }
}
"""


@pytest.mark.parametrize(
    ("level", "arch"), [("group-4", "cpu"), ("group", "sm_80"), ("group-4", "sm_80"), ("group-4", "sm_90a")]
)
def test_rows_are_accumulated(level: str, arch: str) -> None:
    kernel = croqtile_kernel(TEXT.replace("LEVEL", level))
    a = testing.random_array((64, 32), "f16", 1, "small_integers")
    b = testing.random_array((32, 32), "f16", 2, "small_integers")
    o = np.zeros((3, 64), np.float32)
    (kernel.on("cpu") if arch == "cpu" else kernel.on("machine", arch=arch))(a, b, o)
    c = a.astype(np.float64) @ b.T.astype(np.float64)
    squares = c * c * (2 * np.arange(32) + 1)
    np.testing.assert_array_equal(o, np.stack([1 + 2 * c.sum(1), squares.sum(1), -c.min(1)]))


@pytest.mark.parametrize(
    "statement",
    [
        "{ r.at(i) += mc.at(i, j); q.at(i) = 0.0f; }",
        "r.at(i) = r.at(i) * mc.at(i, j);",
        "r.at(i) = r.at(i) + r.at(i) * mc.at(i, j);",
        "r.at(j) = r.at(j) + mc.at(i, j);",
        "r.at(i) = mc.at(i, j);",
    ],
)
def test_other_statements_on_rows_are_refused(statement: str) -> None:
    first = "apply {i, j} in mc.span\n          r.at(i) = r.at(i) + mc.at(i, j);"
    text = TEXT.replace("LEVEL", "group-4")
    assert first in text
    with pytest.raises(CompileError):
        croqtile_kernel(text.replace(first, f"apply {{i, j}} in mc.span {statement}")).build()
