"""Copies under `inthreads` with a condition that is one for the whole block: all of its threads execute them."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import croqtile
from tilemma.kernels import Kernel

COPY = "dma.copy b.subspan(16, 64).at(0, 0) => s;"
SHOW = "parallel w by 4 : group { c.at(0, w) = s.at(w, 1); }"
# The statements of a block, and whether they depend on more than the condition `n > 2`.
BODIES = [
    f"inthreads (n > 2) {{ {COPY} }} {SHOW}",
    f"inthreads (n > 2) {{ {COPY} {SHOW} }}",
    f"inthreads.async (n > 2) {{ {COPY} {SHOW} }}",
    f"inthreads (n > 2) {{ {COPY.replace('dma.copy', 'f = dma.copy.async')} wait f; }} {SHOW}",
    f"parallel w by 4 : group {{ inthreads (n > 2) {{ {COPY} }} c.at(0, w) = s.at(w, 1); }}",
    f"parallel w by 4 : group {{ inthreads (w < n) {{ {COPY} }} c.at(0, w) = s.at(w, 1); }}",
    f"inthreads (b.at(0, 1) > n - 9.0f) {{ {COPY} }} {SHOW}",
]


@pytest.mark.parametrize("body", BODIES)
def test_the_block_copies(body: str) -> None:
    text = (
        "__co__ void k(global f32 [64, 64] b, global f32 [64, 64] c, int n) { parallel p by 1 : block { "
        f"shared f32 [16, 64] s {{7.0f}}; {body} }} }}"
    )
    kernel = Kernel(croqtile.load(text, "condition.co").sources["k"])
    b = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for n in (0, 3, 20):
        found = []
        for target, options in (("cpu", {}), ("machine", {"arch": "sm_80"}), ("machine", {"arch": "sm_90a"})):
            c = np.zeros_like(b)
            kernel.on(target, **options)(b, c, n)
            found.append(c[0, :4])
        admitted = {0: "w < n" not in body and "n - 9" in body, 3: True, 20: "n - 9" not in body}[n]
        shown = b[:4, 1] if admitted else np.full(4, 0.0 if f"{COPY} {SHOW}" in body else 7.0)
        for x in found:
            np.testing.assert_array_equal(x, shown)
