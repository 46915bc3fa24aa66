"""Rows rounded to 8 bits: each element to the nearest, with a scale that makes the largest the type's largest."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sampling import pairwise
from tilemma import testing
from tilemma.ops.rounding_kernels import LARGEST, LEAST, rounded_rows

STORED: dict[str, Any] = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "s8": np.int8}


def computed(x: Any, kind: str, target: str, **plan: int) -> tuple[Any, Any]:
    values, scales = np.zeros(x.shape, STORED[kind]), np.zeros(x.shape[0], np.float32)
    name = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}[x.dtype.name]
    options = {"arch": target} if target != "cpu" else {}
    on = rounded_rows.on("machine" if options else "cpu", **options)
    on(x, values, scales, T=name, TV=kind, LARGEST=LARGEST[kind], **plan)
    return values, scales


@pytest.mark.parametrize(
    "target, kind, dtype, rows, columns, warps",
    pairwise(("cpu", "sm_80", "sm_90a"), STORED, ("f16", "bf16", "f32"), (1, 3), (1, 31, 600, 1025), (1, 4)),
)
def test_elements_are_rounded_to_nearest(
    target: str, kind: str, dtype: str, rows: int, columns: int, warps: int
) -> None:
    x = testing.random_array((rows, columns), dtype, 7)
    values, scales = computed(x, kind, target, WARPS=warps)
    wide = np.asarray(x, np.float64)
    wanted = np.abs(wide).max(axis=1) / LARGEST[kind]
    assert np.allclose(scales, np.maximum(wanted, LEAST / LARGEST[kind]), rtol=1e-6, atol=0)
    exact = wide / scales[:, None].astype(np.float64)
    kept = values.astype(np.float64)
    # Half of the distance of neighbours: e4m3 has three bits after the first, and a smallest step of 2^-9.
    step = 1.0 if kind == "s8" else np.maximum(2.0 ** (np.floor(np.log2(np.abs(exact) + 1e-30)) - 3), 2.0**-9)
    assert (np.abs(kept - exact) <= (0.5 + 1e-5) * step).all()
    assert np.abs(kept).max() == LARGEST[kind]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("kind", STORED)
def test_rows_of_zeros_and_rows_that_are_not_finite(target: str, kind: str) -> None:
    x = np.ones((4, 300), np.float32)
    x[0], x[1, 299], x[2, 5] = 0, np.nan, -np.inf
    values, scales = computed(x, kind, target, WARPS=2)
    assert (values[0].astype(np.float32) == 0).all() and 0 < scales[0] < 1e-12
    assert np.isnan(scales[1:3]).all()
    assert (values[3].astype(np.float32) * scales[3] == 1).all()
