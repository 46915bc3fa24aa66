"""An asynchronous copy that sibling instances issue together runs once, when all of them have come to it."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree

CO = """
__co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, 32), cdiv(N, 16)] : block {{
    shared f16 [32, 16] a_s; shared f16 [16, 16] b_s;
    parallel x by 2 : group {{
      mc = mma.fill.f32 0.0f;
      foreach t in [cdiv(K, 16)] {{
        f = dma.copy.async a.subspan(32, 16).at(i, t) => a_s;
        {0}
        dma.copy b.subspan(16, 16).at(j, t) => b_s;
        {1}
        mma.row.row mc, a_s.subspan(16, 16).at(x, 0), b_s;
      }}
      mma.store mc, c.subspan(16, 16).at(i * 2 + x, j);
    }}
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["f16", "M", "K"], b: tm.Global["f16", "N", "K"], c: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 32), cdiv(N, 16), level="block"):
        a_s, b_s = shared("f16", 32, 16), shared("f16", 16, 16)
        for x in parallel(2, level="group"):
            mc = mma.fill(0.0, "f32")
            for t in foreach(cdiv(K, 16)):
                f = dma.copy(a.subspan(32, 16).at(i, t), a_s, async_=True)
                {0}
                dma.copy(b.subspan(16, 16).at(j, t), b_s)
                {1}
                mma.row.row(mc, a_s.subspan(16, 16).at(x, 0), b_s)
            mma.store(mc, c.subspan(16, 16).at(i * 2 + x, j))
"""


@pytest.mark.parametrize("early", [False, True])
def test_a_copy_of_all_groups_overtakes_none_of_them(early: bool) -> None:
    """One group may multiply the tile of a step after the other has waited for that of the next."""
    co = CO.format(*(("wait f;", "") if early else ("", "wait f;")))
    python = PYTHON.format(*(("wait(f)", "pass") if early else ("pass", "wait(f)")))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (n, 40)).astype(np.float16) for n in (40, 20))
    found = agree(co, python, {"a": a, "b": b, "c": np.zeros((40, 20), np.float32)}, ("sm_80",))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], a.astype(np.float64) @ b.astype(np.float64).T)
