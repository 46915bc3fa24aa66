"""The step of a loop behind ``::`` may begin with a name: `a::b` is no qualified name there."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel

TEXT = """
__co__ void f(global s32 [N] y, s32 g) {
  parallel b by 4 : block {
    parallel t by 1 : thread {
      four = 4;
      with n in N { foreach n(b::{step}) y.at(n) = y.at(n) + 1; }
    }
  }
}
"""


@pytest.mark.parametrize(
    "step, value", [("four", 4), ("__max(g, 4)", 5), ("four + 3", 7), ("cdiv(four * 5, four)", 5), ("#b", 4)]
)
def test_a_step_that_begins_with_a_name(step: str, value: int) -> None:
    kernel = Kernel(croqtile.load(TEXT.replace("{step}", step), "f.co").sources["f"])
    wanted = np.zeros(40, np.int32)
    for b in range(4):
        wanted[b::value] += 1
    for run in (kernel.on("cpu"), kernel.on("machine", arch="sm_80")):
        y = np.zeros_like(wanted)
        run(y, 5)
        assert (y == wanted).all(), step
