"""Results that leave shared memory by TMA in whole rows, and in lines of another shape (`span_as`)."""

from __future__ import annotations

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, mma, parallel, shared, testing, tma
from tilemma.targets.ptx.tensor_copies import TmaRefused


@tm.kernel
def stored_rows(
    a: tm.Global["f16", "M", 64], b: tm.Global["f16", "N", 64], c: tm.Global["f16", "M", "COLUMNS"], *, WIDTH=72
):
    for m in parallel(cdiv(a.shape[0], 64), level="block"):
        a_s, b_s, c_s = shared("f16", 64, 64), shared("f16", WIDTH, 64), shared("f16", 64, WIDTH)
        tma.copy(a.subspan(64, 64).at(m, 0), a_s)
        tma.copy(b.subspan(WIDTH, 64).at(0, 0), b_s)
        for p in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a_s), mma.load(b_s))
            mma.store(mc, c_s)
        tma.copy(c_s, c.subspan(64, WIDTH).at(m, 0))


@pytest.mark.parametrize(("width", "boxes"), [(72, 1), (80, 5), (96, 3), (248, 1)])
def test_rows_of_an_odd_number_of_16_bytes_leave_in_one_box(width: int, boxes: int) -> None:
    """Eight of them start in different banks: they need no swizzle."""
    ptx = stored_rows.compile(arch="sm_90a", WIDTH=width).ptx
    assert sum("bulk.tensor" in x and "global.shared" in x for x in ptx.splitlines()) == boxes
    assert "stmatrix" in ptx
    a, b = testing.random_array((72, 64), "f16", 0), testing.random_array((width, 64), "f16", 1)
    c = np.full((72, width), np.nan, np.float16)
    stored_rows.on("machine", arch="sm_90a")(a, b, c, WIDTH=width)
    bound = testing.error_bound(a, b.T, out="f16")
    assert testing.share_of_bound(c, testing.reference("mk,kn->mn", a, b.T), bound) <= 1


@tm.kernel
def read_in_lines(a: tm.Global["f16", 64, 64], lines: tm.Global["f16", 32, 128]):
    for _ in parallel(1, level="block"):
        a_s = shared("f16", 64, 64)
        tma.copy(a, a_s)
        for p in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            mma.row.row(mc, mma.load(a_s), mma.load(a_s))
        tma.copy(a_s.span_as(32, 128), lines)


def test_a_swizzled_buffer_leaves_in_its_own_rows() -> None:
    """`span_as` reads elements one after another: those of a buffer that wgmma reads do not lie so."""
    with pytest.raises(TmaRefused, match="rows that are not consecutive"):
        read_in_lines.compile(arch="sm_90a")
