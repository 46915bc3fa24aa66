"""Copies between a buffer and a view whose extents are known only when the kernel runs."""

from __future__ import annotations

from typing import Any

import edited
import numpy as np
import pytest

import tilemma as tm
from tilemma import dma, parallel, shared, wait


@tm.kernel
def stored(out: tm.Global["f32", "P", "Q"], n: tm.Int, m: tm.Int):
    for _ in parallel(1, level="block"):
        s = shared("f32", 8, 4, init=7.0)
        dma.copy(s, out.view(n, m).from_(1, 0))


@tm.kernel
def stored_later(out: tm.Global["f32", "P", "Q"], n: tm.Int, m: tm.Int):
    for _ in parallel(1, level="block"):
        s = shared("f32", 1, 8, 4, init=7.0)
        wait(dma.copy(s, out.view(n, m).from_(1, 0), async_=True))


@tm.kernel
def turned(out: tm.Global["f32", "P", "Q"], n: tm.Int, m: tm.Int):
    for _ in parallel(1, level="block"):
        s = shared("f32", 4, 8, init=7.0)
        dma.copy(s, out.view(n, m).from_(1, 0), transp=(1, 0))


@tm.kernel
def loaded(out: tm.Global["f32", "P", "Q"], n: tm.Int, m: tm.Int):
    for _ in parallel(1, level="block"):
        s = shared("f32", 8, 4, init=7.0)
        dma.copy(out.view(n, m).from_(3, 2), s)
        dma.copy(s, out.view(8, 4).from_(1, 0))


@pytest.mark.parametrize("extents", [(8, 4), (5, 3), (12, 6), (3, 6), (0, 4)], ids=str)
@pytest.mark.parametrize("kernel", [stored, stored_later, turned, loaded], ids=lambda k: k.name)
def test_the_tile_has_the_constant_extents(kernel: Any, extents: tuple[int, int]) -> None:
    n, m = extents
    given = np.arange(14 * 7, dtype=np.float32).reshape(14, 7)
    expected = given.copy()
    if kernel is loaded:
        tile = np.zeros((8, 4), np.float32)
        part = given[3 : 3 + n, 2 : 2 + m][:8, :4]
        tile[: part.shape[0], : part.shape[1]] = part
        expected[1:9, :4] = tile
    else:
        expected[1 : 1 + min(n, 8), : min(m, 4)] = 7
    for target in ("cpu", "machine"):
        out = given.copy()
        kernel.on(target)(out, n, m)
        np.testing.assert_array_equal(out, expected, err_msg=target)


PARTS = """
__co__ void k(global s32 [2, D] x, global s32 [2, 5] y) {
  parallel p by 1 : block { foreach j in 2 {
    dma.copy x.subspan(1, 5).at(0, j).span_as([5, 1]) => y.subspan(1, 5).at(j, 0).span_as([5, 1]);
  } }
}
"""


@pytest.mark.parametrize("columns", [8, 9, 10, 11])
def test_a_part_in_another_shape_ends_inside_its_row(columns: int) -> None:
    """One element beyond the row is one too many: it would be the first of the next row."""
    (kernel,) = edited.read("co", PARTS.replace("D", str(columns)))
    x = np.arange(2 * columns, dtype=np.int32).reshape(2, columns)
    for target in ("cpu", "machine"):
        y = np.zeros((2, 5), np.int32)
        if columns < 10:
            with pytest.raises(tm.TilemmaError, match=r"inside a dimension|`trap`"):
                kernel.on(target)(x, y)
        else:
            kernel.on(target)(x, y)
            assert np.array_equal(y.reshape(10), x[0, :10])
