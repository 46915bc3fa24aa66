"""A convolution as products of views (im2col without a copy), the twin of examples/co/convolution.co."""

import tilemma as tm
from tilemma import assert_, cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def convolution(
    x: tm.Global["f16", "IMAGES", "HEIGHT", "WIDTH", "C"],
    w: tm.Global["f16", "F", "R", "S", "C"],
    output: tm.Global["f16", "IMAGES", "P", "Q", "F"],
    *,
    TILE_Q=64,
    TILE_F=32,
    TILE_C=32,
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
        image = row // P
        p = row % P
        for wg in parallel(1, level="group-4"):
            mc = mma.fill(0.0, "f32")
            for r in foreach(R):
                for s in foreach(S):
                    for c in foreach(cdiv(C, TILE_C)):
                        taps = x.view(1, 1, TILE_Q, TILE_C).from_(image, p + r, q * TILE_Q + s, c * TILE_C)
                        dma.copy(taps.sqz(), x_s)
                        dma.copy(w.view(TILE_F, 1, 1, TILE_C).from_(f * TILE_F, r, s, c * TILE_C).sqz(), w_s)
                        mma.row.row(mc, x_s, w_s)
            mma.store(mc, output.subspan(1, 1, TILE_Q, TILE_F).at(image, p, q, f).sqz())
