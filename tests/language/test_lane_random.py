"""Random kernels over the lanes of warps: both languages, reference and machine give what NumPy gives."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

from dev.fuzz.lanes import THREADS, generate
from tilemma import croqtile
from tilemma.kernels import Kernel


@pytest.mark.parametrize("seed", range(12))
def test_random_exchanges(seed: int) -> None:
    program = generate(seed)
    name, text = f"<lanes {seed}>", program.python()
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec"), scope)
    x = np.random.default_rng(seed).integers(-40, 40, THREADS).astype(np.int32)
    want = program.expected(x)
    for kernel in (scope["lanes"], Kernel(croqtile.load(program.croqtile(), f"lanes{seed}.co").sources["lanes"])):
        for run in (kernel, kernel.on("machine", arch="sm_80")):
            y = np.zeros(THREADS, np.int32)
            run(x, y)
            np.testing.assert_array_equal(y, want, err_msg=text)
