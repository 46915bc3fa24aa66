from __future__ import annotations

import pytest
from pass_kernels import BLOCK, GROUP, WARPGROUP, Builder, Space, Tile, cdiv, dtypes, find
from test_meaning import keeps_meaning

from tilemma.ir.expr import Dim, const
from tilemma.ir.tile import Copy, SetElement
from tilemma.ir.types import THREAD
from tilemma.passes import FRONT_PASSES
from tilemma.passes.check_contracts import CopyExtents
from tilemma.passes.expand_copies import ExpandCopies
from tilemma.passes.unsupported import NotBuilt

SIZES = {"M": 40, "K": 24}
LEVELS = {"block": None, "group": (2, GROUP), "warpgroup": (1, WARPGROUP), "thread": (64, THREAD)}


def kernel(write, level="block"):
    """``write(b, x, y, i)`` inside a block and perhaps one more level."""
    b = Builder("k")
    x, y = (b.array_param(n, dtypes.f16, ["M", "K"]) for n in "xy")
    with b.parallel(["i"], [cdiv(Dim("M"), 8)], BLOCK) as (i,):
        if LEVELS[level] is None:
            write(b, x, y, i)
        else:
            with b.parallel(["p"], [LEVELS[level][0]], LEVELS[level][1]):
                write(b, x, y, i)
    return b.finish()


def padded(pad, rows, columns, value=None):
    def write(b, x, y, i):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [rows, columns]))
        b.copy(x.subspan([8, 8], [i, 0]), s, pad=pad, pad_value=value)
        b.copy(s, y.subspan([rows, columns], [i, 0]))

    return write


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("pad", "rows", "columns"),
    [
        (((0, 0, 0), (0, 0, 0)), 8, 8),
        (((0, 0, 0), (0, 1, 0)), 8, 9),
        (((1, 2, 0), (3, 0, 0)), 11, 11),
        (((0, 0, 1), (0, 0, 2)), 15, 22),
    ],
)
def test_padding(pad, rows, columns, level):
    source = kernel(padded(pad, rows, columns, const(2.5)), level)
    done = source
    for p in (*FRONT_PASSES, ExpandCopies()):
        done = p.run(done, [])
    assert all(c.pad == () for c in find(done, Copy))
    assert len(find(done, SetElement)) == (0 if pad == ((0, 0, 0), (0, 0, 0)) else 1)
    keeps_meaning(source, "sm_80", SIZES)


@pytest.mark.parametrize("level", LEVELS)
def test_transposing(level):
    def write(b, x, y, i):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [16, 8]))
        b.copy(x.subspan([8, 16], [i, 0]), s, transpose=(1, 0))
        b.copy(s, y.subspan([8, 16], [i, 0]), transpose=(1, 0))

    source = kernel(write, level)
    keeps_meaning(source, "sm_90a", SIZES)


def test_unit_dimensions_are_dropped_where_the_sides_differ_in_them():
    def write(b, x, y, i):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [8]))
        b.copy(x.subspan([1, 8], [i, 1]), s)
        b.copy(s, y.subspan([1, 8], [i, 0]))

    source = kernel(write)
    for c in find(ExpandCopies().run(source, []), Copy):
        assert len(c.src.axes) == len(c.dst.axes) == 1
    keeps_meaning(source, "sm_80", SIZES)


def test_extents_after_padding_and_transposing_are_checked():
    with pytest.raises(CopyExtents, match=r"\[8, 9\]"):
        for p in FRONT_PASSES:
            p.run(kernel(padded(((0, 0, 0), (0, 1, 0)), 8, 10)), [])

    def write(b, x, y, i):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [8, 16]))
        b.copy(x.subspan([8, 16], [i, 0]), s, transpose=(1, 0))

    with pytest.raises(CopyExtents, match=r"\[16, 8\]"):
        for p in FRONT_PASSES:
            p.run(kernel(write), [])


def test_padding_into_unknown_extents():
    def write(b, x, y, i):
        b.copy(x, y, pad=((0, 0, 0), (0, 1, 0)))

    with pytest.raises(NotBuilt):
        ExpandCopies().run(kernel(write), [])
