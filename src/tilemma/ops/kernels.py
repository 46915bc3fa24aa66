"""Kernels of `matmul` that take any strides: copies by the threads themselves, one tile of the result a block."""

from __future__ import annotations

from typing import Any

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, parallel, select, shared
from tilemma.ops.epilogue import Addends, finish


def raster(t: Any, tiles_m: Any, tiles_n: Any, rows: int, back: bool = False) -> tuple[Any, Any]:
    """(m, n) of the t-th tile: groups of ``rows`` tile rows, each walked column by column, so that blocks
    running at the same time share operands in the L2 cache.  With ``back`` every other group is walked from its
    last column, which the cache still has of the group before."""
    group = t // (rows * tiles_n)
    first = group * rows
    height = select(tiles_m - first < rows, tiles_m - first, rows)
    column = t % (rows * tiles_n) // height
    if back:
        column = select(group % 2 == 1, tiles_n - 1 - column, column)
    return first + t % (rows * tiles_n) % height, column


def multiply(lhs_major: str, rhs_major: str) -> Any:
    """`mma.<lhs>.<rhs>`: which axis of each operand's storage is contracted."""
    return getattr(getattr(mma, lhs_major), rhs_major)


@tm.kernel
def matmul_tiles(
    lhs: tm.Global["T", "LHS_BATCH", "LHS0", "LHS1"],
    rhs: tm.Global["T", "RHS_BATCH", "RHS0", "RHS1"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    T="f16",
    TC="f16",
    TB="f16",
    TO="f16",
    LHS_BATCH="B",
    RHS_BATCH="B",
    LHS0="M",
    LHS1="K",
    RHS0="N",
    RHS1="K",
    LHS="row",
    RHS="row",
    C0="M",
    C1="N",
    BIAS="N",
    WARP_M=64,
    TILE_N=128,
    TILE_K=64,
    GROUPS=2,
    RASTER=8,
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
):
    """out[b] = activation(alpha * lhs[b] x rhs[b] + beta * c[b] + bias); see `ops.matmul`."""
    M, N = out.shape[1], out.shape[2]
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    tiles_m, tiles_n = cdiv(M, TILE_M), cdiv(N, TILE_N)
    for block in parallel(out.shape[0] * tiles_m * tiles_n, level="block", overlap=True):
        batch = block // (tiles_m * tiles_n)
        left, right = (0 if b == 1 else batch for b in (LHS_BATCH, RHS_BATCH))
        m, n = raster(block % (tiles_m * tiles_n), tiles_m, tiles_n, RASTER)
        lhs_s = shared(T, TILE_M, TILE_K) if LHS == "row" else shared(T, TILE_K, TILE_M)
        rhs_s = shared(T, TILE_N, TILE_K) if RHS == "row" else shared(T, TILE_K, TILE_N)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            if LHS == "row":
                dma.copy(lhs.subspan(1, TILE_M, TILE_K).at(left, m, k).sqz(), lhs_s)
            else:
                dma.copy(lhs.subspan(1, TILE_K, TILE_M).at(left, k, m).sqz(), lhs_s)
            if RHS == "row":
                dma.copy(rhs.subspan(1, TILE_N, TILE_K).at(right, n, k).sqz(), rhs_s)
            else:
                dma.copy(rhs.subspan(1, TILE_K, TILE_N).at(right, k, n).sqz(), rhs_s)
            for p in parallel(GROUPS, level="group-4"):
                if LHS == "row":
                    ma = mma.load(lhs_s.subspan(WARP_M, TILE_K).at(p, 0))
                else:
                    ma = mma.load(lhs_s.subspan(TILE_K, WARP_M).at(0, p))
                multiply(LHS, RHS)(mc, ma, mma.load(rhs_s))
        for p in parallel(GROUPS, level="group-4"):
            finish(
                mc,
                batch,
                m * TILE_M + p * WARP_M,
                n * TILE_N,
                Addends(alpha, beta, out if ADDEND == "out" else c, bias),
                SCALE,
                ADDEND != "",
                ALONG,
                ACTIVATION,
            )
            mma.store(mc, out.subspan(1, WARP_M, TILE_N).at(batch, m * GROUPS + p, n).sqz())


@tm.kernel
def pack(src: tm.Global["T", "B", "R", "C"], dst: tm.Global["T", "B", "R", "W"], *, T="f16", THREADS=256, EACH=4):
    """dst[:, :, :C] = src, the rest of each row 0: the same elements in aligned rows."""
    B, R, C = src.shape
    for batch, row, chunk in parallel(B, R, cdiv(C, THREADS * EACH), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            columns = [chunk * (THREADS * EACH) + i * THREADS + lane for i in range(EACH)]
            # All are read before the first is written: reads wait for memory together.
            values = [tm.var(src[batch, row, x]) for x in columns]
            for column, value in zip(columns, values, strict=True):
                dst[batch, row, column] = value
