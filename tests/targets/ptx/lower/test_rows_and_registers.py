"""Generated code of conditions on rows, local buffers in registers, and operands that lie in different orders."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel

GATED = """__co__ void f(global f16 [64, 64] a, global f16 [64, 64] b, global f32 [N] gate,
                global f32 [64, 64] c) {
  parallel i by 1 : block {
    shared f16 [64, 64] a_s, b_s;
    dma.copy a => a_s; dma.copy b => b_s;
    parallel w by 4 : group {
      mc = mma.fill.f32 0.0;
      foreach s in 4 {
        ma = mma.load a_s.subspan(16, 16).at(w, s);
        mb = mma.load b_s.subspan(64, 16).at(0, s);
        mma.row.row mc, ma, mb;
      }
      apply {x, y} in mc.span { CONDITION }
      mma.store mc, c.subspan(16, 64).at(w, 0);
    }
  }
}
"""


def kernel(text: str) -> Kernel:
    return Kernel(croqtile.load(text, "f.co").sources["f"])


@pytest.mark.parametrize(
    ("condition", "loads"),
    [
        # A lane has two rows of 16 elements, in any atom of its warp.
        ("if (w * 16 + x < N) { mc.at(x, y) = mc.at(x, y) * gate.at(w * 16 + x); }", 2),
        # A condition on the column: a branch for each element.
        ("if (w * 16 + y < N) { mc.at(x, y) = mc.at(x, y) * gate.at(w * 16 + y); }", 32),
    ],
)
def test_a_condition_on_the_row_is_one_branch(condition: str, loads: int) -> None:
    made = kernel(GATED.replace("CONDITION", condition))
    assert len(re.findall(r"ld\.global\.b32 %element", made.compile("sm_80").ptx)) == loads
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    gate = rng.integers(-3, 4, 40).astype(np.float32)
    found, wanted = (np.zeros((64, 64), np.float32) for _ in range(2))
    assert made.on("machine", arch="sm_80", strict=True)(a, b, gate, found).ok
    made.on("cpu")(a, b, gate, wanted)
    np.testing.assert_array_equal(found, wanted)


LOCAL = """__co__ void f(global f32 [64] a, global s32 [1] at, global f32 [64] b) {
  parallel i by 1 : block
    parallel t by 16 : thread {
      local f32 [4] x;
      foreach k in 4 x.at(k) = a.at(t * 4 + k);
      foreach n in 3 : unroll(1) {
        foreach k in 4 x.at(k) = x.at(k) + x.at((k + 1) % 4);
      }
      foreach k in 4 b.at(t * 4 + k) = x.at(SUBSCRIPT);
    }
}
"""


@pytest.mark.parametrize(("subscript", "memory"), [("3 - k", False), ("(at.at(0) + k) % 4", True)])
def test_local_buffers_with_constant_subscripts_are_registers(subscript: str, memory: bool) -> None:
    made = kernel(LOCAL.replace("SUBSCRIPT", subscript))
    assert (".local" in made.compile("sm_80").ptx) == memory
    a, at = np.arange(64, dtype=np.float32), np.array([2], np.int32)
    found, wanted = (np.zeros(64, np.float32) for _ in range(2))
    assert made.on("machine", arch="sm_80", strict=True)(a, at, found).ok
    made.on("cpu")(a, at, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_an_element_that_may_be_read_first_stays_in_memory() -> None:
    """There the machine sees that it was never written."""
    text = LOCAL.replace("foreach k in 4 x.at(k) = a.at(t * 4 + k);", "if (at.at(0) == 0) x.at(0) = a.at(t);")
    assert ".local" in kernel(text.replace("SUBSCRIPT", "3 - k")).compile("sm_80").ptx


COLUMNS = """__co__ void f(global f32 [32, 32] a, global f32 [32, 64] b, global f32 [32, 64] c) {
  parallel i by 1 : block {
    shared f32 [32, 32] a_s; shared f32 [32, 64] b_s;
    dma.copy a => a_s; dma.copy b => b_s;
    parallel w by 1 : group-4 {
      mc = mma.fill.f32 0.0f;
      ma = mma.load a_s; mb = mma.load b_s;
      mma.row.col mc, ma, mb;
      mma.store mc, c;
    }
  }
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_operands_in_different_orders(arch: str) -> None:
    """A, with K contiguous, is loaded 16 bytes at a time from a swizzled tile; the rows of B are those of K."""
    made = kernel(COLUMNS)
    ptx = made.compile(arch).ptx
    assert "ld.shared.v4.b32" in ptx and "ld.shared.b32" in ptx
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (32, n)).astype(np.float32) for n in (32, 64))
    c = np.zeros((32, 64), np.float32)
    assert made.on("machine", arch=arch, strict=True)(a, b, c).ok
    np.testing.assert_array_equal(c, a @ b)


NESTED = """__co__ void f(global f32 [N, N] a, global f32 [N, 64] x, global f32 [N, 64] y) {
  parallel g by 1 : block {
    shared f32 [64, 64] a_s, b_s; shared f32 [64, 64] t_s; shared f32 [64, 64] y_s;
    foreach i in cdiv(N, 64) {
      parallel w by 1 : group-4 {
        mc = mma.fill.f32 0.0f;
        foreach j in i {
          dma.copy a.subspan(64, 64).at(i, j) => a_s;
          dma.copy x.subspan(64, 64).at(j, 0) => b_s;
          ma = mma.load a_s; mb = mma.load b_s;
          mma.row.col mc, ma, mb;
        }
        mma.store mc, y_s;
      }
      dma.copy x.subspan(64, 64).at(i, 0) => t_s;
      parallel t by 64 : thread
        foreach r in 64 y_s.at(r, t) = y_s.at(r, t) + t_s.at(r, t);
      dma.copy y_s => y.subspan(64, 64).at(i, 0);
    }
  }
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_stages_of_nested_loops_fit_together(arch: str) -> None:
    """The loop inside gets its stages first; that around it gets what is left, or one buffer."""
    compiled = kernel(NESTED).compile(arch)
    texts = [d.text for d in compiled.decisions if d.pass_name == "pipeline"]
    assert not any("not pipelined" in x for x in texts), texts
    assert any("the copies into `a_s`, `b_s` are issued" in x for x in texts)
