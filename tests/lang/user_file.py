"""A file as a user writes it, for the type checkers: tests/lang/test_user_tools.py runs them on it."""

from typing import Any

import numpy as np

import tilemma as tm
from tilemma import (
    apply,
    cdiv,
    compose,
    dma,
    event,
    foreach,
    full,
    if_,
    mma,
    parallel,
    select,
    shared,
    trigger,
    var,
    wait,
)


def halved(x: Any) -> Any:
    return x * 0.5


@tm.kernel
def product(
    lhs: tm.Global[tm.Tile, "T", "M", "K"],
    rhs: tm.Global[tm.Tile, "T", "N", "K"],
    output: tm.Global[tm.Tile, "f32", "M", "N"],
    factor: tm.Float,
    rows: tm.Scalar[tm.Value, "u32"],
    positive: tm.Bool,
    *,
    T: str = "f16",
    TILE: int = 16,
) -> None:
    """``lhs @ rhs.T``, some rows scaled."""
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        lhs_s, rhs_s = shared(T, TILE, TILE), shared(T, TILE, TILE)
        ready = event(threads=32)
        for w in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            for k in foreach(cdiv(K, TILE)):
                dma.copy(lhs.subspan(TILE, TILE).at(m, k), lhs_s)
                dma.copy(rhs.subspan(TILE, TILE).at(n, k), rhs_s)
                mma.row.row(mc, mma.load(lhs_s), mma.load(rhs_s.chunkat(full, 0)))
            trigger(ready)
            wait(ready)
            for i, j in apply(mc):
                row = compose(m, i)
                with if_(row < rows):
                    mc[i, j] = select(positive, tm.math.max(mc[i, j], 0.0), mc[i, j]) * factor
            mma.store(mc, output.subspan(TILE, TILE).at(m, n))


@tm.kernel(pipeline=tm.Pipeline(stages=2))
def sums(x: tm.Global[tm.Tile, "f32", "M", 8], y: tm.Global[tm.Tile, "f32", "M"]) -> None:
    for i in parallel(x.shape[0], level="block"):
        total = var(0.0, "f32")
        for j in foreach(8):
            total += halved(x[i, j])
        y[i] = tm.Float(total) + 1.0


def main() -> None:
    a, c = np.ones((20, 40), np.float16), np.zeros((20, 20), np.float32)
    product(a, a, c, 2.0, 3, True)
    assert (c == np.where(np.arange(20) < 3, 80, 40)[:, None]).all()
    x, y = np.ones((5, 8), np.float32), np.zeros(5, np.float32)
    sums.on("machine", arch="sm_90a")(x, y)
    assert (y == 5).all()
    text: str = product.compile(arch="sm_90a").ptx
    assert text and product.name == "product"
