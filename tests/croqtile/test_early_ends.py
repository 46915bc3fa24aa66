"""`yield`: an instance leaves out the rest of its `parallel`."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.front_end_cache import File, TextSource
from tilemma.kernels import Kernel

TEXT = """
__co__ void f(global s32 [4, 64] y, int n) {
  parallel p by 4 : block {
    if (p >= n) yield;
    two = p + 2;
    if (p == 1) { y.at(p, 63) = 9; yield; } else y.at(p, 62) = 8;
    shared s32 [64] s;
    parallel t by 64 : thread {
      s.at(t) = t * two;
      if (t > 32) yield;
      y.at(p, t) = s.at(t);
    }
  }
}
"""


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_80"})])
def test_the_rest_is_left_out(target: str, options: dict[str, str]) -> None:
    kernel = Kernel(TextSource(File(TEXT, "f.co", {}), "f"))
    y, wanted = np.zeros((4, 64), np.int32), np.zeros((4, 64), np.int32)
    kernel.on(target, **options)(y, 3)
    for p in (0, 2):
        wanted[p, :33], wanted[p, 62] = np.arange(33) * (p + 2), 8
    wanted[1, 63] = 9
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    "statement", ["yield;", "foreach i in 4 { if (i == n) yield; }", "{ if (n) yield; } n2 = n;"]
)
def test_elsewhere_it_is_refused(statement: str) -> None:
    text = f"__co__ void f(global s32 [4] y, int n) {{ parallel p by 4 : block {{ {statement} y.at(p) = 1; }} }}"
    with pytest.raises(CompileError, match="`yield`"):
        croqtile.load(text, "f.co").sources["f"].build()
