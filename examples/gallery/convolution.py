"""A convolution as products of views, without a copy of the windows (im2col); the twin of convolution.co.

Stride 1, no padding. For each of the R x S taps a product of a row of pixels, seen through a view of x, by the
weights of that tap.
"""

import tilemma as tm
from tilemma import assert_, cdiv, compose, dma, foreach, mma, parallel, shared


@tm.kernel
def convolution(
    x: tm.Global["f16", "IMAGES", "HEIGHT", "WIDTH", "C"],
    w: tm.Global["f16", "F", "R", "S", "C"],
    output: tm.Global["f16", "IMAGES", "P", "Q", "F"],
    *,
    TILE_Q=128,
    TILE_F=128,
    TILE_C=64,
    WARP_Q=64,
):
    IMAGES, HEIGHT, WIDTH, C = x.shape
    F, R, S, _ = w.shape
    _, P, Q, _ = output.shape
    assert_(
        (P == HEIGHT - R + 1) & (Q == WIDTH - S + 1), "output has the extents of a convolution without padding"
    )
    for row, q, f in parallel(IMAGES * P, cdiv(Q, TILE_Q), cdiv(F, TILE_F), level="block"):
        x_s = shared("f16", TILE_Q, TILE_C)
        w_s = shared("f16", TILE_F, TILE_C)
        image, p = row // P, row % P
        mc = mma.fill(0.0, "f32")
        for r, s, c in foreach(R, S, cdiv(C, TILE_C)):
            pixels = x.view(1, 1, TILE_Q, TILE_C).from_(image, p + r, q * TILE_Q + s, c * TILE_C)
            dma.copy(pixels.sqz(), x_s)
            dma.copy(w.view(TILE_F, 1, 1, TILE_C).from_(f * TILE_F, r, s, c * TILE_C).sqz(), w_s)
            for wg in parallel(TILE_Q // WARP_Q, level="group-4"):
                mma.row.row(mc, x_s.subspan(WARP_Q, TILE_C).at(wg, 0), w_s)
        for wg in parallel(TILE_Q // WARP_Q, level="group-4"):
            mma.store(mc, output.subspan(1, 1, WARP_Q, TILE_F).at(image, p, compose(q, wg), f).sqz())
