"""Counters of 64 bits take slots as those of 32 do."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile, machine
from tilemma.kernels import Kernel, facts_of

COUNT = """\
__co__ void count(global f16 [M, 64] a, global f16 [M, 64] b) {{
  parallel by 1 : block {{
    shared event full[2];
    shared f16 [8, 64] s[2];
    mutable {t} slot = 0;
    foreach k in cdiv(M, 8) {{
      tma.copy.async<full[slot]> a.subspan(8, 64).at(k, 0) => s[slot];
      trigger full[slot];
      wait full[slot];
      dma.copy s[slot] => b.subspan(8, 64).at(k, 0);
      slot = slot == 1 ? 0 : slot + 1;
    }}
  }}
}}
"""


@pytest.mark.parametrize("t", ["int", "u64", "s64"])
def test_slots_are_taken_by_counters_of_any_width(t: str) -> None:
    kernel = Kernel(croqtile.load(COUNT.format(t=t), "count.co").sources["count"])
    a = np.arange(40 * 64).reshape(40, 64).astype(np.float16)
    arrays = {"a": a, "b": np.zeros_like(a)}
    compiled = kernel.compile("sm_90a", facts=facts_of(arrays))
    machine.run(compiled.ptx, compiled.launches[0], arrays)
    assert np.array_equal(arrays["b"], a)
