"""Stores with limits of rows and columns, at every position of an edge within the elements that one lane has."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import mma, parallel

EDGES = (0, 1, 2, 7, 8, 9, 11, 15, 16, 17)
LIMITS = [(rows, columns) for rows in EDGES for columns in EDGES if 9 in (rows, columns)]


@pytest.mark.parametrize("known", [True, False], ids=["constants", "elements"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("transp", [False, True])
def test_edges_of_stores(dtype: str, transp: bool, known: bool) -> None:
    """Limits that the compiler knows cut the same elements as those that are read from memory."""

    @tm.kernel
    def cut(x: tm.Global["f32", 16, 16], y: tm.Global["T", "M", 16], limits: tm.Global["s32", "N", 2], *, T="f32"):
        for p in parallel(1, level="block"):
            for w in parallel(1, level="group"):
                m = mma.frag("f32", 16, 16)
                mma.load(x, m)
                for k, (rows, columns) in enumerate(LIMITS):
                    part = y.subspan(16, 16).at(k, 0)
                    if known:
                        mma.store(m, part, rows=rows, columns=columns, transp=transp)
                    else:
                        mma.store(m, part, rows=limits[k, 0], columns=limits[k, 1], transp=transp)

    x = np.arange(256, dtype=np.float32).reshape(16, 16) - 77
    y = np.full((16 * len(LIMITS), 16), -1000, np.float32 if dtype == "f32" else np.float16)
    cut.on("machine")(x, y, np.array(LIMITS, np.int32), T=dtype)
    for got, (rows, columns) in zip(y.reshape(-1, 16, 16), LIMITS, strict=True):
        want = np.full((16, 16), -1000)
        want[:rows, :columns] = x[:rows, :columns]
        assert np.array_equal(got, want.T if transp else want), (rows, columns)


@pytest.mark.parametrize("limited", ["rows", "columns"])
@pytest.mark.parametrize("transp", [False, True])
def test_edges_of_stores_to_shared_memory(limited: str, transp: bool) -> None:
    @tm.kernel
    def cut(x: tm.Global["f32", 16, 16], y: tm.Global["f32", "M", 16]):
        for p in parallel(len(EDGES), level="block"):
            part, staged = y.subspan(16, 16).at(p, 0), tm.shared("f32", 16, 16)
            tm.dma.copy(part, staged)
            for w in parallel(1, level="group"):
                m = mma.frag("f32", 16, 16)
                mma.load(x, m)
                for k, limit in enumerate(EDGES):
                    with tm.if_(p == k):
                        mma.store(m, staged, transp=transp, **{limited: limit})
            tm.dma.copy(staged, part)

    x = np.arange(256, dtype=np.float32).reshape(16, 16) - 77
    y = np.full((16 * len(EDGES), 16), -1000, np.float32)
    assert cut.on("machine", strict=True)(x, y).ok
    for got, limit in zip(y.reshape(-1, 16, 16), EDGES, strict=True):
        place = np.s_[:limit] if limited == "rows" else np.s_[:, :limit]
        want = np.full((16, 16), -1000)
        want[place] = x[place]
        assert np.array_equal(got, want.T if transp else want), limit
