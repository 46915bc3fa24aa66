"""A pass keeps the meaning: the reference gives the same bits before and after each of them."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_kernels import listing1, listing2, listing3

from tilemma import dtypes
from tilemma.compiler import default_facts, with_facts
from tilemma.ir.parser import parse_kernel
from tilemma.ir.printer import print_kernel
from tilemma.ir.verifier import verify
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import PASSES

KERNELS = {
    "listing1": listing1(),
    "listing1-4-warps": listing1(tile=(32, 32, 32)),
    "listing2": listing2(),
    "listing3": listing3(),
    "listing3-bf16": listing3(dtypes.bf16),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_same_bits_after_every_pass(name: str, arch: str) -> None:
    kernel = with_facts(KERNELS[name], default_facts(KERNELS[name]))
    m, n, k = 130, 70, 150
    rng = np.random.default_rng(0)
    numpy = kernel.arrays[0].buffer.dtype.numpy
    a, b = rng.standard_normal((m, k)).astype(numpy), rng.standard_normal((n, k)).astype(numpy)

    def result() -> bytes:
        out = np.zeros((m, n), numpy)
        execute(kernel, {"lhs": a, "rhs": b, "output": out}, {}, dims={"M": m, "N": n, "K": k})
        return out.tobytes()

    before = result()
    for step in PASSES(arch):
        old, kernel = kernel, step.run(kernel, [])
        if kernel == old:
            continue
        verify(kernel)
        assert result() == before, type(step).__name__
        assert parse_kernel(print_kernel(kernel)) == kernel, type(step).__name__
