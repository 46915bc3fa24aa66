"""A matrix times a vector: a warp multiplies a row, its lanes stride over the row; the twin of gemv.co."""

import tilemma as tm
from tilemma import cdiv, compose, foreach, if_, parallel, shared, var


@tm.kernel
def gemv(a: tm.Global["f16", "M", "K"], x: tm.Global["f16", "K"], y: tm.Global["f32", "M"], *, WARPS=8):
    M, K = a.shape
    for cta in parallel(cdiv(M, WARPS), level="block"):
        part = shared("f32", WARPS, 32)
        for w in parallel(WARPS, level="group"):
            row = compose(cta, w)
            for lane in parallel(32, level="thread"):
                sum = var(0.0, "f32")
                with if_(row < M):
                    for step in foreach(cdiv(K, 32), unroll=8):
                        k = compose(step, lane)
                        with if_(k < K):
                            sum += a[row, k].astype("f32") * x[k].astype("f32")
                part[w, lane] = sum
        for w in parallel(WARPS, level="group"):
            row = compose(cta, w)
            total = var(0.0, "f32")
            for i in foreach(32):
                total += part[w, i]
            with if_(row < M):
                y[row] = total
