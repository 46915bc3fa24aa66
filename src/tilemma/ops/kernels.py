"""Kernels that take any strides: the threads copy, and each block computes one tile of the result."""

from __future__ import annotations

import math
from typing import Any

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, if_, mma, parallel, select, shared, var
from tilemma.ops.epilogue import Place, Scale, ending_of


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


def group_end(offsets: Any, e: Any, begin: Any, tokens: Any) -> Any:
    """Where group ``e`` ends, which begins at ``begin``: never before it, and never outside the array."""
    return tm.math.min(tm.math.max(offsets[e], begin), tokens)


def zero(dtype: str) -> Any:
    """Zero of an accumulator's type."""
    return 0 if dtype == "s32" else 0.0


def promoted(total: Any, part: Any, factors: list[Any]) -> Any:
    """``total`` plus the product of a step times its scales, in f32."""
    part = part.astype("f32")
    return tm.math.fma(part, math.prod(factors[1:], start=factors[0]), total) if factors else total + part


def product_of_tiles(
    lhs: tm.Global["TL", "LHS_BATCH", "LHS0", "LHS1"],
    rhs: tm.Global["TR", "RHS_BATCH", "RHS0", "RHS1"],
    scale_lhs: tm.Global["f32", "SL_BATCH", "SL0", "SL1"],
    scale_rhs: tm.Global["f32", "SR_BATCH", "SR0", "SR1"],
    offsets: tm.Global["s32", "OFFSETS"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Scalar["TS"],
    beta: tm.Scalar["TS"],
    *,
    TL="f16",
    TR="f16",
    TC="f16",
    TB="f16",
    TO="f16",
    ACC="f32",
    TS="f32",
    LHS_BATCH="B",
    RHS_BATCH="B",
    LHS0="M",
    LHS1="K",
    RHS0="N",
    RHS1="K",
    LHS="row",
    RHS="row",
    SL_BATCH=1,
    SL0=1,
    SL1=1,
    SR_BATCH=1,
    SR0=1,
    SR1=1,
    OFFSETS=1,
    C0="M",
    C1="N",
    BIAS_BATCH=1,
    BIAS="N",
    WARP_M=64,
    TILE_N=128,
    TILE_K=64,
    GROUPS=2,
    RASTER=8,
    SCALE_LHS="",
    SCALE_RHS="",
    PROMOTE=False,
    GROUPED="",
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
):
    """out[b] = activation(alpha * lhs[b] x rhs[b] + beta * c[b] + bias); see `ops.matmul`.

    SCALE_LHS, SCALE_RHS: the kinds of `epilogue.Scale`.  PROMOTE: each step of K is summed apart and added in f32.
    GROUPED: "rows" of lhs and the result, or "columns" (rows of rhs, columns of the result), are divided by
    ``offsets`` into groups, each with its matrix of the other operand.
    """
    M, N = out.shape[1], out.shape[2]
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    left, right = Scale(scale_lhs, SCALE_LHS, SL_BATCH != 1), Scale(scale_rhs, SCALE_RHS, SR_BATCH != 1)
    flags = SCALE, ADDEND, ALONG, ACTIVATION
    ending = ending_of((alpha, beta), (c, bias, out), flags, (left, right), BIAS_BATCH != 1)

    def tile(at: Place, lhs_row: Any, rhs_row: Any) -> None:
        left_batch, right_batch = (at.left if LHS_BATCH != 1 else 0), (at.right if RHS_BATCH != 1 else 0)
        lhs_s = shared(TL, TILE_M, TILE_K) if LHS == "row" else shared(TL, TILE_K, TILE_M)
        rhs_s = shared(TR, TILE_N, TILE_K) if RHS == "row" else shared(TR, TILE_K, TILE_N)
        if PROMOTE:
            mc = mma.frag("f32", WARP_M, TILE_N, init=0.0)
        else:
            mc = mma.fill(zero(ACC), ACC, fast=True)
        for k in foreach(cdiv(K, TILE_K)):
            if LHS == "row":
                dma.copy(lhs.view(1, TILE_M, TILE_K).from_(left_batch, lhs_row, k * TILE_K).sqz(), lhs_s)
            else:
                dma.copy(lhs.view(1, TILE_K, TILE_M).from_(left_batch, k * TILE_K, lhs_row).sqz(), lhs_s)
            if RHS == "row":
                dma.copy(rhs.view(1, TILE_N, TILE_K).from_(right_batch, rhs_row, k * TILE_K).sqz(), rhs_s)
            else:
                dma.copy(rhs.view(1, TILE_K, TILE_N).from_(right_batch, k * TILE_K, rhs_row).sqz(), rhs_s)
            for p in parallel(GROUPS, level="group-4"):
                if LHS == "row":
                    ma = mma.load(lhs_s.subspan(WARP_M, TILE_K).at(p, 0))
                else:
                    ma = mma.load(lhs_s.subspan(TILE_K, WARP_M).at(0, p))
                if PROMOTE:
                    part = mma.fill(zero(ACC), ACC, fast=True)
                    multiply(LHS, RHS)(part, ma, mma.load(rhs_s))
                    mine = at.down(p * WARP_M)
                    for i, j in apply(mc):
                        factors = [left.at(at.left, k, mine.row + i)] if left.stepwise else []
                        factors += [right.at(at.right, k, mine.column + j)] if right.stepwise else []
                        mc[i, j] = promoted(mc[i, j], part[i, j], factors)
                else:
                    multiply(LHS, RHS)(mc, ma, mma.load(rhs_s))
        for p in parallel(GROUPS, level="group-4"):
            mine = at.down(p * WARP_M)
            done = ending.finished(mc, mine)
            there = out.view(1, WARP_M, TILE_N).from_(at.batch, mine.row, mine.column).sqz()
            mma.store(done, there, rows=mine.rows, columns=mine.columns)

    if GROUPED == "":
        tiles_m, tiles_n = cdiv(M, TILE_M), cdiv(N, TILE_N)
        for block in parallel(out.shape[0] * tiles_m * tiles_n, level="block", overlap=True):
            b = block // (tiles_m * tiles_n)
            m, n = raster(block % (tiles_m * tiles_n), tiles_m, tiles_n, RASTER)
            tile(Place(b, b, b, b, m * TILE_M, n * TILE_N), m * TILE_M, n * TILE_N)
    else:
        down = GROUPED == "rows"
        tokens, each = (M, TILE_M) if down else (N, TILE_N)
        # Tiles of the axis that is not divided, and at most so many of the other: one more for each group.
        others, most = cdiv(N if down else M, TILE_N if down else TILE_M), tokens // each + offsets.shape[0]
        for block in parallel(most * others, level="block", overlap=True):
            wanted, other = block // others, block % others
            begin, end, group, first = var(0), var(0), var(0), var(0)
            found = var(0)
            for e in foreach(offsets.shape[0]):
                with if_(found == 0):
                    begin.set(end)
                    end.set(group_end(offsets, e, begin, tokens))
                    count = cdiv(end - begin, each)
                    with if_(wanted < first + count):
                        group.set(e)
                        found.set(1)
                    with tm.else_():
                        first.set(first + count)
            with if_(found == 1):
                start = var(begin + (wanted - first) * each)
                if down:
                    place = Place(0, 0, group, group, start, other * TILE_N, rows=end - start)
                    tile(place, start, other * TILE_N)
                else:
                    place = Place(0, group, 0, group, other * TILE_M, start, columns=end - start)
                    tile(place, other * TILE_M, start)


matmul_tiles = tm.kernel(pipeline=False)(product_of_tiles)
# The compiler copies tiles ahead.
matmul_ahead = tm.kernel(product_of_tiles)


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


@tm.kernel
def pack_transposed(
    src: tm.Global["T", "B", "C", "R"], dst: tm.Global["T", "B", "R", "W"], *, T="s8", TILE=64, THREADS=256
):
    """dst[:, :, :C] = src with its last two axes exchanged: the contracted axis becomes the contiguous one."""
    B, C, R = src.shape
    rounds = TILE * TILE // THREADS
    for batch, r, c in parallel(B, cdiv(R, TILE), cdiv(C, TILE), level="block", overlap=True):
        tile = shared(T, TILE, TILE)
        dma.copy(src.view(1, TILE, TILE).from_(batch, c * TILE, r * TILE).sqz(), tile)
        for lane in parallel(THREADS, level="thread"):
            column = lane % TILE
            for i in range(rounds):
                row = i * (THREADS // TILE) + lane // TILE
                dst[batch, r * TILE + row, c * TILE + column] = tile[column, row]
