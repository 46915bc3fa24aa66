"""The K slices of one multiply in every order: the first one starts the accumulators from zero."""

from __future__ import annotations

import pytest
from pipeline_runs import check, from_co

TEXT = """
__co__ void k(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel {m, n} by [cdiv(M, 64), cdiv(N, 64)] : block {
    shared f16 [64, 48] a;
    shared f16 [64, 48] b;
    parallel p by 1 : group-4 {
      mc = mma.fill.f32 0.0f;
      foreach k in cdiv(K, 48) {
        dma.copy lhs.subspan(64, 48).at(m, k) => a;
        dma.copy rhs.subspan(64, 48).at(n, k) => b;
        [[schedule(k_tiles(ORDER))]] mma.row.row mc, a, b;
      }
      mma.store mc, output.subspan(64, 64).at(m, n);
    }
  }
}
"""


@pytest.mark.parametrize("order", ["0, 1, 2", "1, 0, 2", "2, 1, 0", "1, 2, 0"])
def test_the_first_slice_starts_from_zero(order):
    """Twice: with one iteration, and with more."""
    for k in (48, 120):
        check(from_co(TEXT.replace("ORDER", order)), "sm_90a", (40, 24, k))
