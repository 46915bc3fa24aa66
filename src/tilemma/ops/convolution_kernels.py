"""The kernels of `conv2d`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, mma, parallel, shared
from tilemma.ops.epilogue import Place, epilogue_function


@dataclass(frozen=True, slots=True)
class _Addend:
    """An array [images, P, Q, O] read by the row of a tile and the channel."""

    array: Any
    image: Any
    row: Any
    column: Any
    height: int
    width: int

    def __getitem__(self, index: tuple[Any, Any, Any]) -> Any:
        _, i, channel = index
        image, inside = self.image + i // (self.height * self.width), i % (self.height * self.width)
        return self.array[image, self.row + inside // self.width, self.column + inside % self.width, channel]


@tm.kernel(pipeline=tm.Pipeline(producer=True))
def convolution_tiles(
    x: tm.Global["T", "IMAGES", "H", "W", "C"],
    w: tm.Global["T", "O", "R", "S", "C"],
    c: tm.Global["TC", "C_IMAGES", "C_P", "C_Q", "C_O"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "OUT", "P", "Q", "O"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    T="f16",
    TC="f16",
    TB="f16",
    TO="f16",
    C_IMAGES="IMAGES",
    C_P="P",
    C_Q="Q",
    C_O="O",
    OUT="IMAGES",
    BIAS_BATCH=1,
    BIAS="O",
    TILE_B=1,
    TILE_P=8,
    TILE_Q=16,
    TILE_O=128,
    TILE_C=64,
    GROUPS=2,
    SPLIT=1,
    STRIDE_H=1,
    STRIDE_W=1,
    PADDING_H=0,
    PADDING_W=0,
    DILATION_H=1,
    DILATION_W=1,
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
):
    """A block computes TILE_O channels of TILE_P x TILE_Q pixels of TILE_B images; each step multiplies TILE_C
    channels of one element of the filter.

    With SPLIT > 1, the images of ``out`` are those of each part of the steps, in whole tiles.
    """
    images, channels = x.shape[0], x.shape[3]
    outputs, R, S = w.shape[0], w.shape[1], w.shape[2]
    P, Q = out.shape[1], out.shape[2]
    ROWS = TILE_B * TILE_P * TILE_Q
    WARP_M = ROWS // GROUPS
    down, across, chunks = cdiv(P, TILE_P), cdiv(Q, TILE_Q), cdiv(channels, TILE_C)
    pixels, steps = cdiv(images, TILE_B) * down * across, R * S * chunks
    for m, o, part in parallel(pixels, cdiv(outputs, TILE_O), SPLIT, level="block", overlap=True):
        first, end = (0, steps) if SPLIT == 1 else [x * steps // SPLIT for x in (part, part + 1)]
        image, row, column = m // (down * across) * TILE_B, m // across % down * TILE_P, m % across * TILE_Q
        x_s, w_s = shared(T, TILE_B, TILE_P, TILE_Q, TILE_C), shared(T, TILE_O, TILE_C)
        taken = x_s.span_as(ROWS, TILE_C)
        mc = mma.fill(0.0, "f32")
        for k in foreach(steps, start=first, stop=end):
            r, s, channel = k // (S * chunks), k // chunks % S, k % chunks * TILE_C
            above = row * STRIDE_H + r * DILATION_H - PADDING_H
            left = column * STRIDE_W + s * DILATION_W - PADDING_W
            taps = x.view(TILE_B, TILE_P, TILE_Q, TILE_C, strides=(1, STRIDE_H, STRIDE_W, 1))
            dma.copy(taps.from_(image, above, left, channel), x_s)
            dma.copy(w.view(TILE_O, 1, 1, TILE_C).from_(o * TILE_O, r, s, channel).sqz(), w_s)
            for p in parallel(GROUPS, level="group-4"):
                mma.row.row(mc, mma.load(taken.subspan(WARP_M, TILE_C).at(p, 0)), mma.load(w_s))
        out_s = shared(TO, TILE_B, TILE_P, TILE_Q, TILE_O)
        flat = out_s.span_as(ROWS, TILE_O)
        for p in parallel(GROUPS, level="group-4"):
            array = _Addend(out if ADDEND == "out" else c, image, row, column, TILE_P, TILE_Q)
            end = epilogue_function((alpha, beta), (array, bias, array), (SCALE, ADDEND, ALONG, ACTIVATION))
            at = Place(0, 0, 0, 0, p * WARP_M, o * TILE_O)
            if not end.plain:
                for i, j in apply(mc):
                    mc[i, j] = end.of(mc[i, j], at, i, j)
            mma.store(mc, flat.subspan(WARP_M, TILE_O).at(p, 0))
        there = image if SPLIT == 1 else part * cdiv(images, TILE_B) * TILE_B + image
        dma.copy(out_s, out.view(TILE_B, TILE_P, TILE_Q, TILE_O).from_(there, row, column, o * TILE_O))


@tm.kernel
def padded_images(
    src: tm.Global["T", "IMAGES", "H", "W", "C"],
    dst: tm.Global["T", "IMAGES", "HIGH", "WIDE", "CHANNELS"],
    *,
    T="f16",
    CHANNELS=8,
    PADDING_H=0,
    PADDING_W=0,
    THREADS=128,
):
    """dst = src with zeros around each image, and for further channels."""
    images, high, wide, _ = dst.shape
    for image, row, chunk in parallel(images, high, cdiv(wide, THREADS), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            column = chunk * THREADS + lane
            pixel = tm.local(T, CHANNELS)
            with tm.if_(column < wide):
                there = src.view(1, 1, 1, CHANNELS).from_(image, row - PADDING_H, column - PADDING_W, 0)
                dma.copy(there.sqz(), pixel)
                dma.copy(pixel, dst.view(1, 1, 1, CHANNELS).from_(image, row, column, 0).sqz())


@tm.kernel
def joined_filters(
    src: tm.Global["T", "O", "R", "S", "C"],
    dst: tm.Global["T", "O", "R", 1, "WIDTH"],
    *,
    T="f16",
    CHANNELS=8,
    THREADS=128,
):
    """dst[o, r, 0, s * CHANNELS + c] = src[o, r, s, c], and zeros elsewhere."""
    outputs, R, S, C = src.shape
    width = dst.shape[3]
    for o, r, chunk in parallel(outputs, R, cdiv(width, THREADS), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            at = chunk * THREADS + lane
            s, c = at // CHANNELS, at % CHANNELS
            with tm.if_(at < width):
                dst[o, r, 0, at] = tm.select((s < S) & (c < C), src[o, r, s, c], 0.0)
