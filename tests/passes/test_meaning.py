"""Every pass keeps the meaning: the CPU reference gives the same bits before and after."""

from __future__ import annotations

import numpy as np
import pytest
from pass_kernels import Contract, dtypes, listing1, listing2, listing3, one_multiply

from tilemma.ir.tile import ArrayParameter
from tilemma.ir.types import Level
from tilemma.ir.verifier import verify
from tilemma.targets.cpu import execute
from tilemma.targets.ptx.passes import PASSES
from tilemma.targets.ptx.target import targets

SIZES = {"M": 70, "N": 130, "K": 200, "B": 1, "P": 128, "Q": 128, "R": 128}


def arrays_for(kernel, sizes, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for p in kernel.params:
        if isinstance(p, ArrayParameter):
            shape = [sizes[e.name] if hasattr(e, "name") else e.value for e in p.buffer.shape]
            found[p.buffer.name] = rng.integers(-4, 5, shape).astype(p.buffer.dtype.numpy)
    return found


def run(kernel, sizes):
    arrays = arrays_for(kernel, sizes)
    execute(kernel, arrays, {}, dims=sizes)
    return arrays


def keeps_meaning(kernel, arch, sizes):
    expected = run(kernel, sizes)
    for step in PASSES(arch):
        old, kernel = kernel, step.run(kernel, [])
        if kernel == old:
            continue
        verify(kernel)
        for name, array in run(kernel, sizes).items():
            assert np.array_equal(array, expected[name]), f"{type(step).__name__} changed `{name}`"


@pytest.mark.parametrize("arch", targets())
@pytest.mark.parametrize("make", [listing1, listing2, listing3])
def test_the_listings(make, arch):
    keeps_meaning(make(), arch, SIZES)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("level", [Level("group"), Level("group", 4), Level("group", 8)])
def test_contracts(contract, level, arch):
    a = (32, 128) if contract.a_transposed else (128, 32)
    b = (32, 96) if contract.b_transposed else (96, 32)
    keeps_meaning(one_multiply(contract, a=a, b=b, level=level), arch, SIZES)


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16])
def test_types(dtype):
    keeps_meaning(listing3(dtype=dtype, groups=1), "sm_90a", {**SIZES, "K": 40})
