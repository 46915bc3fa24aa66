"""A product of f16 activations with 4-bit weights, x @ w.T; the twin of w4a16.co.

A byte of `weights` holds two signed numbers, that of the even k in its lower half; `scales` has a factor for
each 128 numbers of a row of w. `mma.load` converts weights to f16 in registers, as operand A of the transposed
product. The product of each 128 numbers is summed apart, and this sum is scaled. A setting asks the compiler to
copy tiles ahead, which a tile of this size does not get by itself.
"""

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, mma, parallel, shared


@tm.kernel
def w4a16(
    x: tm.Global["f16", "M", "K"],
    weights: tm.Global["s4", "N", "K"],
    scales: tm.Global["f16", "GROUPS", "N"],
    y: tm.Global["f16", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    GROUP=128,
):
    (M, K), N, GROUPS = x.shape, weights.shape[0], scales.shape[0]
    tm.assert_(cdiv(K, GROUP) == GROUPS, "a scale for 128 of K")
    for n, m in parallel(cdiv(N, TILE_N), cdiv(M, TILE_M), level="block"):
        w_s = shared("s4", TILE_N, GROUP)
        x_s = shared("f16", TILE_M, GROUP)
        scale_s = shared("f16", 1, TILE_N)
        for _ in parallel(1, level="group-4"):
            mc = mma.frag("f32", TILE_N, TILE_M, init=0.0)
            scale = mma.frag("f16", TILE_N)
            for k in foreach(cdiv(K, GROUP), pipeline=tm.Pipeline(stages=6)):
                dma.copy(weights.subspan(TILE_N, GROUP).at(n, k), w_s)
                dma.copy(x.subspan(TILE_M, GROUP).at(m, k), x_s)
                dma.copy(scales.subspan(1, TILE_N).at(k, n), scale_s)
                part = mma.fill(0.0, "f32")
                mma.row.row(part, mma.load(w_s, dtype="f16"), x_s)
                mma.load(scale_s.sqz(), scale)
                for i, j in apply(mc):
                    mc[i, j] = tm.math.fma(part[i, j], scale[i].astype("f32"), mc[i, j])
            mma.store(mc, y.subspan(TILE_M, TILE_N).at(m, n), transp=True)
