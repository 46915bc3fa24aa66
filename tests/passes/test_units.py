"""The threads that decide a condition together: those of one instance of the innermost index in it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.language.test_advice import co
from tilemma.ir.tile import If, Parallel
from tilemma.passes.scope import Dependence
from tilemma.passes.threads import Tree

THREADS = np.arange(64)
CONDITIONS = {
    "g == 0": THREADS // 32 * 32,
    "t < 3": THREADS,
    "g + t < 3": THREADS,
    "h.at(g) > 0": THREADS // 32 * 32,
    "old > 0": THREADS,
    "old + g > 0": THREADS,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_units(condition: str) -> None:
    kernel = co(
        f"""parallel p by 1 : block {{ parallel g by 2 : group {{ parallel t by 32 : thread {{
          int old = __atomic_add(h.at(0), 1);
          if ({condition}) {{ o.at(g, t) = 1; }} }} }} }}""",
        "global s32 [4] h, global s32 [2, 32] o",
    ).build()
    (block,) = kernel.body
    assert isinstance(block, Parallel)
    tree = Tree(block, Dependence(kernel.body))
    (branch,) = (n for n in tree.walk() if isinstance(n.op, If))
    units = tree.units(branch)
    # Which number names a unit does not matter.
    assert np.array_equal(units[:, None] == units, CONDITIONS[condition][:, None] == CONDITIONS[condition])
