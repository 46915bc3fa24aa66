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
    out: tm.Global["TO", "OUT0", "OUT1", "OUT2", "O"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    C_IMAGES="IMAGES", C_P="P", C_Q="Q", C_O="O", OUT0="IMAGES", OUT1="P", OUT2="Q", BIAS_BATCH=1,
    BIAS="O",
    # The window.
    STRIDE_H=1, STRIDE_W=1, PADDING_H=0, PADDING_W=0, DILATION_H=1, DILATION_W=1,
    # The plan.
    TILE_B=1, TILE_P=8, TILE_Q=16, TILE_O=128, TILE_C=64, GROUPS=2, SPLIT=1,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """A block computes TILE_O channels of TILE_P x TILE_Q pixels of TILE_B images; each step multiplies TILE_C
    channels of one element of the filter.

    With SPLIT > 1, ``out`` has the sums of each part of the steps, [SPLIT, tiles, pixels of a tile, O].
    """
    images, channels = x.shape[0], x.shape[3]
    outputs, R, S = w.shape[0], w.shape[1], w.shape[2]
    P, Q = out.shape[1], out.shape[2]
    if SPLIT > 1:
        P = (x.shape[1] + 2 * PADDING_H - DILATION_H * (R - 1) - 1) // STRIDE_H + 1
        Q = (x.shape[2] + 2 * PADDING_W - DILATION_W * (S - 1) - 1) // STRIDE_W + 1
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
        if SPLIT > 1:
            for p in parallel(GROUPS, level="group-4"):
                mma.store(mc, out.view(1, 1, WARP_M, TILE_O).from_(part, m, p * WARP_M, o * TILE_O).sqz())
        else:
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
            dma.copy(out_s, out.view(TILE_B, TILE_P, TILE_Q, TILE_O).from_(image, row, column, o * TILE_O))


@tm.kernel
def add_tiles(
    partial: tm.Global["f32", "PARTS", "TILES", "PIXELS", "O"],
    c: tm.Global["TC", "C_IMAGES", "C_P", "C_Q", "C_O"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "IMAGES", "P", "Q", "O"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    C_IMAGES="IMAGES", C_P="P", C_Q="Q", C_O="O", BIAS_BATCH=1, BIAS="O",
    # The plan.
    TILE_B=1, TILE_P=8, TILE_Q=16, SPLIT=2, THREADS=128, EACH=4,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """The result of parts of the steps: their sums, in order, and the epilogue."""
    images, P, Q, outputs = out.shape
    down, across = cdiv(P, TILE_P), cdiv(Q, TILE_Q)
    for pixel, chunk in parallel(images * P * Q, cdiv(outputs, THREADS * EACH), level="block", overlap=True):
        image, row, column = pixel // (P * Q), pixel // Q % P, pixel % Q
        tile = (image // TILE_B * down + row // TILE_P) * across + column // TILE_Q
        place = (image % TILE_B * TILE_P + row % TILE_P) * TILE_Q + column % TILE_Q
        array = _Addend(out if ADDEND == "out" else c, image, row, column, 1, 1)
        end = epilogue_function((alpha, beta), (array, bias, array), (SCALE, ADDEND, ALONG, ACTIVATION))
        for lane in parallel(THREADS, level="thread"):
            channels = [chunk * (THREADS * EACH) + i * THREADS + lane for i in range(EACH)]
            # All are read before the first is written: reads wait for memory together.
            totals = [
                tm.var(
                    sum((partial[part, tile, place, x] for part in range(1, SPLIT)), partial[0, tile, place, x])
                )
                for x in channels
            ]
            for x, total in zip(channels, totals, strict=True):
                with tm.if_(x < outputs):
                    value = total if end.plain else end.of(total, Place(0, 0, 0, 0, 0, x), 0, 0)
                    out[image, row, column, x] = value


@tm.kernel
def padded_images(
    src: tm.Global["T", "IMAGES", "H", "W", "C"],
    dst: tm.Global["T", "IMAGES", "HIGH", "WIDE", "PITCH"],
    *,
    T="f16",
    CHANNELS=8,
    FOLD=1,
    PITCH=8,
    PADDING_H=0,
    PADDING_W=0,
    THREADS=128,
    EACH=4,
):
    """dst[.., y, x, f * CHANNELS + c] is pixel (y * FOLD + f, x), channel c, of src with zeros around each image
    and for further channels."""
    images, high, wide, _ = dst.shape
    for image, chunk in parallel(images, cdiv(high * wide, THREADS * EACH), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            places = [tm.var(chunk * (THREADS * EACH) + i * THREADS + lane) for i in range(EACH)]
            # All are read before the first is written: reads wait for memory together.
            pixels = [
                [
                    tm.var(src[image, at // wide * FOLD + f - PADDING_H, at % wide - PADDING_W, c])
                    for f in range(FOLD)
                    for c in range(CHANNELS)
                ]
                for at in places
            ]
            for at, values in zip(places, pixels, strict=True):
                pixel = tm.local(T, PITCH)
                for c, value in enumerate(values):
                    pixel[c] = value
                with tm.if_(at < high * wide):
                    dma.copy(pixel, dst.view(1, 1, 1, PITCH).from_(image, at // wide, at % wide, 0).sqz())


@tm.kernel
def joined_filters(
    src: tm.Global["T", "O", "R", "S", "C"],
    dst: tm.Global["T", "O", "ROWS", 1, "WIDTH"],
    *,
    T="f16",
    CHANNELS=8,
    FOLD=1,
    THREADS=128,
):
    """dst[o, y, 0, (s * FOLD + f) * CHANNELS + c] = src[o, y * FOLD + f, s, c], and zeros elsewhere."""
    outputs, R, S, C = src.shape
    width = dst.shape[3]
    for o, y, chunk in parallel(outputs, dst.shape[1], cdiv(width, THREADS), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            at = chunk * THREADS + lane
            s, r, c = at // (FOLD * CHANNELS), y * FOLD + at // CHANNELS % FOLD, at % CHANNELS
            with tm.if_(at < width):
                dst[o, y, 0, at] = tm.select((r < R) & (s < S) & (c < C), src[o, r, s, c], 0.0)
