"""Copies that transpose and pad, in both directions and over the edges of tensors: the machine against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from construct import ARCHS, random, unwritten

import tilemma as tm
from tilemma import cdiv, dma, parallel, shared, tma
from tilemma.kernels import Kernel
from tilemma.targets.ptx.tensor_copies import TmaRefused

SIZES = [(32, 16), (19, 5), (1, 9)]
TARGETS = ["cpu", *ARCHS]


def on(kernel: Kernel, target: str):
    return kernel if target == "cpu" else kernel.on("machine", arch=target, strict=True)


@tm.kernel
def turned_in(a: tm.Global["T", "M", "N"], out: tm.Global["T", "N", "M"], *, T="f16"):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 16), cdiv(N, 8), level="block"):
        s = shared(T, 8, 16)
        for _ in parallel(2, level="group"):
            dma.copy(a.subspan(16, 8).at(i, j), s, transp=(1, 0))
            dma.copy(s, out.subspan(8, 16).at(j, i))


@tm.kernel
def turned_out(a: tm.Global["T", "M", "N"], out: tm.Global["T", "N", "M"], *, T="f16"):
    M, N = a.shape
    for i, j in parallel(cdiv(M, 16), cdiv(N, 8), level="block"):
        s = shared(T, 16, 8)
        for _ in parallel(1, level="group-4"):
            dma.copy(a.subspan(16, 8).at(i, j), s)
            dma.copy(s, out.subspan(8, 16).at(j, i), transp=(1, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f16", "f32", "s8"])
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("kernel", [turned_in, turned_out], ids=["in", "out"])
def test_transposing(kernel: Kernel, shape: tuple[int, int], dtype: str, target: str) -> None:
    a = random(dtype, *shape)
    out = unwritten(dtype, *shape[::-1])
    on(kernel, target)(a, out, T=dtype)
    np.testing.assert_array_equal(out, a.T)


# (low, high, inner) for rows and columns of a tile of 4 x 8.
PADS = [((1, 2, 1), (0, 0, 0)), ((0, 0, 0), (3, 1, 2)), ((2, 0, 2), (1, 1, 1))]


@tm.kernel
def padded_in(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", "P", "Q"], *, PAD=PADS[0], H=1, W=1):
    for i, j in parallel(cdiv(a.shape[0], 4), cdiv(a.shape[1], 8), level="block"):
        s = shared("f32", H, W)
        dma.copy(a.subspan(4, 8).at(i, j), s, pad=PAD, pad_value=7.0)
        dma.copy(s, out.subspan(H, W).at(i, j))


@tm.kernel
def padded_out(a: tm.Global["f32", "M", "N"], out: tm.Global["f32", "P", "Q"], *, PAD=PADS[0], H=1, W=1):
    for i, j in parallel(cdiv(a.shape[0], 4), cdiv(a.shape[1], 8), level="block"):
        s = shared("f32", 4, 8)
        dma.copy(a.subspan(4, 8).at(i, j), s)
        dma.copy(s, out.subspan(H, W).at(i, j), pad=PAD, pad_value=7.0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("kernel", [padded_in, padded_out], ids=["in", "out"])
def test_padding(kernel: Kernel, pad, cut: int, target: str) -> None:
    """What lies outside ``a`` is zero, what lies outside ``out`` (smaller by ``cut``) is dropped."""
    a = random("f32", 7, 11)
    tile = [4 + 3 * inner + low + high if d == 0 else 8 + 7 * inner + low + high
            for d, (low, high, inner) in enumerate(pad)]  # fmt: skip
    whole = np.pad(a, ((0, 1), (0, 5)))
    want = np.full((2 * tile[0], 2 * tile[1]), 7.0, np.float32)
    for r, c in np.ndindex(8, 16):
        (i, y), (j, x) = divmod(r, 4), divmod(c, 8)
        row, column = (p * (inner + 1) + low for p, (low, _, inner) in zip((y, x), pad, strict=True))
        want[i * tile[0] + row, j * tile[1] + column] = whole[r, c]
    want = want[: want.shape[0] - cut, : want.shape[1] - cut]
    out = unwritten("f32", *want.shape)
    on(kernel, target)(a, out, PAD=pad, H=tile[0], W=tile[1])
    np.testing.assert_array_equal(out, want)


@tm.kernel
def by_tensor_map(x: tm.Global["f16", 64, 64], out: tm.Global["f16", 64, 64], *, ORDER=(0, 1), STORE=False):
    for _ in parallel(1, level="block"):
        s = shared("f16", 64, 64)
        if STORE:
            dma.copy(x, s)
            tma.copy(s, out, transp=ORDER)
        else:
            tma.copy(x, s, transp=ORDER)
            dma.copy(s, out)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("stored", ["C", "F"])
def test_a_tensor_map_keeps_the_order_of_axes_or_is_refused(order, stored, store) -> None:
    """A square tile has equal extents in any order: only the strides show that the copy transposes."""
    x = np.asarray(random("f16", 64, 64), order="C" if store else stored)
    out = np.zeros((64, 64), np.float16, order=stored if store else "C")
    by_tma = (order == (0, 1)) == (stored == "C")
    machine = by_tensor_map.on("machine", arch="sm_90a", strict=True)
    if by_tma:
        machine(x, out, ORDER=order, STORE=store)
        np.testing.assert_array_equal(out, x.transpose(order))
    else:
        with pytest.raises(TmaRefused, match="contiguous dimension"):
            machine(x, out, ORDER=order, STORE=store)
