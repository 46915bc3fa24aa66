"""The tutorial's listings on the reference: every shape, every type, in time."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from cpu_kernels import listing1, listing2, listing3

from tests.effort import calls
from tilemma import dtypes
from tilemma.ir.tile import Kernel
from tilemma.targets.cpu import execute

RAGGED = [(1, 1, 1), (16, 16, 16), (127, 129, 65), (64, 64, 128), (200, 70, 300), (3, 5, 0), (0, 4, 8)]
KERNELS = {
    "listing1": listing1(),
    "listing1-4-warps": listing1(tile=(32, 32, 32)),
    "listing2": listing2(),
    "listing3": listing3(),
    "listing3-bf16": listing3(dtypes.bf16),
    "listing3-f32-out": listing3(out=dtypes.f32),
    "listing3-fp8": listing3(dtypes.e4m3, dtypes.f16),
}


def poisoned(shape: tuple[int, int], dtype: dtypes.DType, margin: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A NaN-surrounded array and the view inside of it."""
    outer = np.full(tuple(n + 2 * margin for n in shape), np.nan, dtype.numpy)
    return outer, outer[margin : margin + shape[0], margin : margin + shape[1]]


def operands(kernel: Kernel, shape: tuple[int, int, int]):
    m, n, k = shape
    rng = np.random.default_rng(sum(shape))
    found, outers = {}, {}
    for p, extents in zip(kernel.arrays, ((m, k), (n, k), (m, n)), strict=True):
        outers[p.buffer.name], inner = poisoned(extents, p.buffer.dtype)
        if p.buffer.name != "output":
            inner[...] = rng.standard_normal(extents).astype(p.buffer.dtype.numpy)
        found[p.buffer.name] = inner
    return found, outers


@pytest.mark.parametrize("shape", RAGGED, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_listing_within_bound(name: str, shape: tuple[int, int, int]) -> None:
    kernel = KERNELS[name]
    arrays, outers = operands(kernel, shape)
    before = {n: a.copy() for n, a in arrays.items()}
    execute(kernel, arrays, {}, dims=dict(zip("MNK", shape, strict=True)))
    a, b = (arrays[n].astype(np.float64) for n in ("lhs", "rhs"))
    exact, scale = a @ b.T, np.abs(a) @ np.abs(b).T
    out = kernel.arrays[2].buffer.dtype
    rounds_to_f16 = name in ("listing2", "listing1", "listing1-4-warps")
    per_step = 2.0**-11 * (shape[2] / 16 + 2) if rounds_to_f16 else 2.0**-24 * (shape[2] + 2)
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}[out.name]
    bound = per_step * scale + unit * np.abs(exact) * 1.01 + 1e-7
    assert np.all(np.abs(arrays["output"].astype(np.float64) - exact) <= bound)
    for n in ("lhs", "rhs"):
        assert arrays[n].tobytes() == before[n].tobytes()
    for n, outer in outers.items():
        rim = outer.astype(np.float32)
        rim[3 : 3 + arrays[n].shape[0], 3 : 3 + arrays[n].shape[1]] = np.nan
        assert np.isnan(rim).all(), f"wrote outside {n}"


def test_listing3_works_on_whole_tiles() -> None:
    """Some calls for each step of a tile, far fewer than there are products."""
    arrays, _ = operands(KERNELS["listing3"], (512, 512, 512))
    run = partial(execute, KERNELS["listing3"], arrays, {}, dims={"M": 512, "N": 512, "K": 512})
    assert calls(run, 512**3 // 100) > 0
