"""Our layouts evaluated, divided and composed by pycute, where CUTLASS's package (nvidia-cutlass) is installed."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma.atoms import catalogue
from tilemma.cute import TiledMMA, thread_value
from tilemma.layouts import SWIZZLES, canonical_atom, offsets, tile_to_shape
from tilemma.layouts.algebra import split

pycute = pytest.importorskip("pycute", reason="pycute is not installed")
if not hasattr(pycute, "zipped_divide"):
    pytest.skip("another package is called pycute", allow_module_level=True)


def _theirs(layout: object) -> object:
    return pycute.Layout(layout.shape, layout.stride)


@pytest.mark.parametrize("name", [n for n in catalogue if not n.startswith("SM90_64x") or "x24x" in n])
def test_thread_value_layouts(name: str) -> None:
    atom = catalogue[name]
    for operand in atom.operands.values() if hasattr(atom, "operands") else [atom.fragment]:
        if operand is not None and operand.in_registers:
            theirs = _theirs(operand.layout)
            for lane in range(0, operand.threads, 5):
                for value in range(operand.values):
                    row, col = operand.coordinates(lane, value)
                    assert theirs(lane, value) == row + operand.shape[0] * col


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("major", ["K", "MN"])
def test_swizzled_tiles(major: str, swizzle: int) -> None:
    tile = tile_to_shape(canonical_atom(16, major, swizzle), (128, 64))
    found, affine = split(tile)
    layout = _theirs(affine)
    swizzled = pycute.Swizzle(found.bits, found.base, found.shift) if found else (lambda x: x)
    mine = offsets(tile)
    for row in range(0, 128, 3):
        for col in range(64):
            assert mine[row, col] == swizzled(layout(row, col))


def test_partitions() -> None:
    """CuTe's own definition of a partition, spelled out in pycute."""
    mma = TiledMMA(catalogue["SM90_64x64x16_F16F16F16_SS"])
    tensor = pycute.Layout((128, 128), (1, 512))
    divided = pycute.zipped_divide(tensor, (64, 64))
    layout = thread_value(mma.atom, mma.atom.c)
    values = pycute.composition(divided[0], _theirs(layout))
    for thread in (0, 5, 127):
        from tensor_layouts import Layout

        part = mma.thr_slice(thread).partition_C(Layout((128, 128), (1, 512)))
        for value in range(32):
            for rest in range(4):
                index = (value, rest % 2, rest // 2)
                assert part(index) == values(thread, value) + divided[1](rest)


def test_coalescing() -> None:
    for shape, order in (((128, 64, 3), None), ((128, 256, 2), (1, 0, 2))):
        _, affine = split(tile_to_shape(canonical_atom(16, "MN", 128), shape, order))
        again = pycute.coalesce(_theirs(affine), (None,) * 3)
        assert np.prod(pycute.flatten(again.shape)) == np.prod(shape)
        assert (again.shape, again.stride) == (affine.shape, affine.stride)
