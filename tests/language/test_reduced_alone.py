"""A tile that is only loaded and reduced: no multiply and no `apply` decides its layout."""

from __future__ import annotations

import numpy as np
import pytest
from test_advice import co, py

PARAMETERS = (
    "global f32 [64, 24] x, global f32 [64] most, global f32 [64] total",
    'x: tm.Global["f32", 64, 24], most: tm.Global["f32", 64], total: tm.Global["f32", 64]',
)
BODIES = (
    """
    parallel p by 1 : block, g by 2 : group {
      frag f32[32, 24] t;
      frag f32[32] a {-inf}, b;
      mma.load x.chunkat(g, _), t;
      reduce_max(a, t, 1);
      reduce_sum(b, t, 1);
      apply {i} in a.span { most.at(g # i) = a.at(i); total.at(g # i) = b.at(i); }
    }
    """,
    """
for p in parallel(1, level='block'):
    for g in parallel(2, level='group'):
        t = mma.load(x.chunkat(g, full), mma.frag('f32', 32, 24, init=0.0))
        a, b = t.max(axis=1), t.sum(axis=1)
        for i in apply(a):
            most[g * 32 + i] = a[i]
            total[g * 32 + i] = b[i]
    """,
)


@pytest.mark.parametrize("language", [0, 1], ids=["co", "py"])
def test_it_has_a_layout(language: int) -> None:
    kernel = (co, py)[language](BODIES[language], PARAMETERS[language])
    x = np.random.default_rng(1).integers(-9, 9, (64, 24)).astype(np.float32)
    for target, options in (("cpu", {}), ("machine", {"arch": "sm_80"}), ("machine", {"arch": "sm_90a"})):
        most, total = np.zeros(64, np.float32), np.zeros(64, np.float32)
        kernel.on(target, **options)(x, most, total)
        assert (most == x.max(axis=1)).all() and (total == x.sum(axis=1)).all(), (target, options)
