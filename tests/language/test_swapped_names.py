"""A name for the tile of a copy follows when the copy's own name is swapped, on every target and in both languages."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree

CO = """
__co__ void f(global s32 [2, 4] x, global s32 [3, 4] o) {{ parallel b by 1 : block {{
  f = dma.copy{how} x.subspan(1, 4).at(0, 0) => shared;
  g = dma.copy{how} x.subspan(1, 4).at(1, 0) => shared;
  {wait}
  d = f.data;
  swap(f, g);
  dma.copy d => o.subspan(1, 4).at(0, 0);
  dma.copy f.data => o.subspan(1, 4).at(1, 0);
  parallel t by 4 : thread {{ o.at(2, t) = d.at(0, t) * 10 + g.data.at(0, t); }}
}} }}"""
PYTHON = """
@tm.kernel
def f(x: tm.Global["s32", 2, 4], o: tm.Global["s32", 3, 4]):
    for b in parallel(1, level="block"):
        f = dma.copy(x.subspan(1, 4).at(0, 0), to="shared"{how})
        g = dma.copy(x.subspan(1, 4).at(1, 0), to="shared"{how})
        {wait}
        d = f.data
        swap(f, g)
        dma.copy(d, o.subspan(1, 4).at(0, 0))
        dma.copy(f.data, o.subspan(1, 4).at(1, 0))
        for t in parallel(4, level="thread"):
            o[2, t] = d[0, t] * 10 + g.data[0, t]
"""


@pytest.mark.parametrize("asynchronous", (False, True))
def test_a_name_for_the_tile_follows(asynchronous: bool) -> None:
    co = CO.format(how=".async" if asynchronous else "", wait="wait f; wait g;" if asynchronous else "")
    python = PYTHON.format(
        how=", async_=True" if asynchronous else "", wait="wait(f, g)" if asynchronous else "pass"
    )
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    found = agree(co, python, {"x": x, "o": np.zeros((3, 4), np.int32)}, ("sm_80", "sm_90a"))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["o"], [x[1], x[1], x[1] * 10 + x[0]])
