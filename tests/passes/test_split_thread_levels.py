"""Numbers of threads, and which of them take a branch."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from tilemma import croqtile, testing
from tilemma.ir.expr import Const, Index, const, substitute, value_of
from tilemma.ir.tile import Parallel
from tilemma.ir.types import THREAD
from tilemma.kernels import Kernel
from tilemma.passes.split_thread_levels import _among, _numbered


def test_instances_are_numbered_row_by_row() -> None:
    """The indices of all numbers are all combinations, the last index fastest."""
    number = Index("number", const(48))
    for extents in ((1,), (8,), (2, 3), (3, 1), (1, 5), (1, 1, 2), (2, 3, 4)):
        indices = tuple(Index(f"i{n}", const(e)) for n, e in enumerate(extents))
        found = _numbered(Parallel(indices, (), THREAD), number)
        total = 1
        for e in extents:
            total *= e
        places = [
            tuple(value_of(substitute(found[i.name], {"number": Const(n)})) for i in indices) for n in range(total)
        ]
        assert places == list(product(*map(range, extents)))


def test_an_index_among_values() -> None:
    index = Index("w", const(5))
    for count in range(1, 6):
        for values in combinations(range(5), count):
            found = _among(index, list(values))
            held = [n for n in range(5) if value_of(substitute(found, {"w": Const(n)}))]
            assert held == list(values)


CAUSAL = """
__co__ void causal(global f16 [64, 16] a, global f16 [64, 16] b, global f32 [64, 64] c) {
  parallel block_ by 1 : block {
    shared f16 [64, 16] x, y;
    shared event full;
    parallel p by 2 : group-4, t by 128 : thread {
      inthreads.async (p == 0 && t == 0) {
        tma.copy.async<full> a => x;
        tma.copy.async<full> b => y;
        trigger full;
      }
      inthreads.async (p > 0) {
        wait full;
        m = mma.fill.f32 0.0f;
        mma.row.row m, x, y;
        apply {i, j} in m.span {
          if (j > i + p - 1) m.at(i, j) = -1.0f;
        }
        mma.store m, c;
      }
    }
  }
}
"""


def test_a_branch_in_element_work_belongs_to_the_group() -> None:
    """The lanes divide the elements among them: no level of threads comes into the body of an `apply`."""
    (source,) = croqtile.load(CAUSAL, "causal.co", {}).sources.values()
    kernel = Kernel(source)
    a, b = testing.random_array((64, 16), "f16", 1), testing.random_array((64, 16), "f16", 2)
    found = []
    for call in (kernel.on("cpu"), kernel.on("machine", arch="sm_90a")):
        c = np.zeros((64, 64), np.float32)
        call(a, b, c)
        found.append(c)
    inside = np.tri(64, dtype=bool)
    for c in found:
        np.testing.assert_array_equal(c[~inside], -1)
        np.testing.assert_allclose(c[inside], (a.astype(float) @ b.astype(float).T)[inside], atol=1e-3, rtol=1e-3)
