"""A product of f16 activations with 4-bit weights, x @ w.T; the twin of w4a16.co.

A byte of `weights` holds two signed numbers, that of the even k in its lower half; `scales` has a factor for
each 128 numbers of a row of w. The kernel unpacks the weights to registers as operand A, and stores the
transpose. A setting asks the compiler to copy tiles ahead, which a tile of this size does not get by itself.
"""

import tilemma as tm
from tilemma import apply, cdiv, compose, dma, foreach, mma, parallel, shared


@tm.kernel
def w4a16(
    x: tm.Global["f16", "M", "K"],
    weights: tm.Global["u8", "N", "K2"],
    scales: tm.Global["f16", "GROUPS", "N"],
    y: tm.Global["f16", "M", "N"],
    *,
    TILE_M=64,
    TILE_N=64,
    TILE_K=128,
    WARP_N=64,
):
    (M, K), (N, K2), (GROUPS, _) = x.shape, weights.shape, scales.shape
    tm.assert_((cdiv(K, 2) == K2) & (cdiv(K, 128) == GROUPS), "two weights a byte, a scale for 128 of K")
    for n, m in parallel(cdiv(N, TILE_N), cdiv(M, TILE_M), level="block"):
        w_s = shared("u8", TILE_N, TILE_K // 2)
        x_s = shared("f16", TILE_M, TILE_K)
        for wg in parallel(TILE_N // WARP_N, level="group-4"):
            mc = mma.fill(0.0, "f32")
            w = mma.frag("f16", WARP_N, TILE_K)
            scale = mma.frag("f32", WARP_N)
            for k in foreach(cdiv(K, TILE_K), pipeline=tm.Pipeline(stages=4)):
                dma.copy(weights.subspan(TILE_N, TILE_K // 2).at(n, k), w_s)
                dma.copy(x.subspan(TILE_M, TILE_K).at(m, k), x_s)
                mma.load(scales.subspan(1, WARP_N).at(k // (128 // TILE_K), compose(n, wg)).sqz(), scale)
                for i, j in apply(w):
                    nibble = w_s[wg * WARP_N + i, j // 2].astype("s32") >> (j % 2 * 4) & 15
                    w[i, j] = (((nibble ^ 8) - 8).astype("f32") * scale[i]).astype("f16")
                mma.row.row(mc, w, x_s)
            mma.store(mc, y.subspan(TILE_M, WARP_N).at(m, compose(n, wg)), transp=True)
