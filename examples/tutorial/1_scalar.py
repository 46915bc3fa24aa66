"""One thread for each element of the result, the twin of 1_scalar.co."""

import tilemma as tm
from tilemma import cdiv, foreach, full, parallel, var


@tm.kernel
def scalar(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f16", "M", "N"],
    *,
    TILE=16,
):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        for i, j in parallel(TILE, TILE, level="thread"):
            a, b = lhs.subspan(TILE, full).at(m, 0), rhs.subspan(TILE, full).at(n, 0)
            sum = var(0.0, "f32")
            for k in foreach(K):
                sum += a[i, k].astype("f32") * b[j, k].astype("f32")
            output.subspan(TILE, TILE).at(m, n)[i, j] = sum
