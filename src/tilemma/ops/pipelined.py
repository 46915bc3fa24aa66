"""The fast kernel of `matmul` for sm_90a: blocks that stay, a producer warpgroup, a ring filled by TMA."""

from __future__ import annotations

from typing import Any

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, var, wait
from tilemma.ops.epilogue import Addends, combine, finish
from tilemma.ops.kernels import multiply, raster


def work(t: Any, tiles_m: Any, tiles_n: Any, rows: int, split: int, steps: Any) -> tuple[Any, ...]:
    """(batch, part, m, n, first step, end) of task ``t``: the parts of K innermost, the batches outermost."""
    part, tile = (t % split, t // split) if split > 1 else (0, t)
    batch = tile // (tiles_m * tiles_n)
    m, n = raster(tile % (tiles_m * tiles_n), tiles_m, tiles_n, rows)
    if split == 1:
        return batch, part, m, n, 0, steps
    return batch, part, m, n, part * steps // split, (part + 1) * steps // split


@tm.kernel
def matmul_pipelined(
    lhs: tm.Global["T", "LHS_BATCH", "LHS0", "LHS1"],
    rhs: tm.Global["T", "RHS_BATCH", "RHS0", "RHS1"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS"],
    out: tm.Global["TO", "OUT", "M", "N"],
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
    OUT="B",
    WARP_M=64,
    TILE_N=256,
    TILE_K=64,
    GROUPS=2,
    STAGES=4,
    RASTER=8,
    GRID=132,
    SPLIT=1,
    STORE="tma",
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
):
    """As `matmul_tiles`.  With SPLIT > 1, out[batch * SPLIT + part] is the product over one part of K."""
    M, N = out.shape[1], out.shape[2]
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    tiles_m, tiles_n, steps = cdiv(M, TILE_M), cdiv(N, TILE_N), cdiv(K, TILE_K)
    tasks = out.shape[0] * tiles_m * tiles_n
    for block in parallel(select(tasks < GRID, tasks, GRID), level="block"):
        full = event(STAGES)
        empty = event(STAGES)
        lhs_s = (
            shared(T, TILE_M, TILE_K, copies=STAGES) if LHS == "row" else shared(T, TILE_K, TILE_M, copies=STAGES)
        )
        rhs_s = (
            shared(T, TILE_N, TILE_K, copies=STAGES) if RHS == "row" else shared(T, TILE_K, TILE_N, copies=STAGES)
        )
        if STORE == "tma":
            out_s = shared(TO, TILE_M, TILE_N)
        for wg in parallel(GROUPS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                filled = var(0)
                for t in foreach(tasks, start=block, step=GRID):
                    batch, _, m, n, first, end = work(t, tiles_m, tiles_n, RASTER, SPLIT, steps)
                    batches = tuple(0 if b == 1 else batch for b in (LHS_BATCH, RHS_BATCH))
                    for k in foreach(steps, start=first, stop=end):
                        wait(empty.at(filled))
                        slot = filled % STAGES
                        if LHS == "row":
                            left = lhs.subspan(1, TILE_M, TILE_K).at(batches[0], m, k).sqz()
                        else:
                            left = lhs.subspan(1, TILE_K, TILE_M).at(batches[0], k, m).sqz()
                        if RHS == "row":
                            right = rhs.subspan(1, TILE_N, TILE_K).at(batches[1], n, k).sqz()
                        else:
                            right = rhs.subspan(1, TILE_K, TILE_N).at(batches[1], k, n).sqz()
                        tma.copy(left, lhs_s[slot], async_=full.at(filled))
                        tma.copy(right, rhs_s[slot], async_=full.at(filled))
                        trigger(full.at(filled))
                        filled += 1
            with inthreads(wg >= 1, async_=True):
                used = var(0)
                for i in foreach(STAGES):
                    trigger(empty[i])
                for t in foreach(tasks, start=block, step=GRID):
                    batch, part, m, n, first, end = work(t, tiles_m, tiles_n, RASTER, SPLIT, steps)
                    mc = mma.fill(0.0, "f32")
                    for k in foreach(steps, start=first, stop=end):
                        wait(full.at(used))
                        if LHS == "row":
                            ma = mma.load(lhs_s[used % STAGES].subspan(WARP_M, TILE_K).at(wg - 1, 0))
                        else:
                            ma = mma.load(lhs_s[used % STAGES].subspan(TILE_K, WARP_M).at(0, wg - 1))
                        multiply(LHS, RHS)(mc, ma, mma.load(rhs_s[used % STAGES]))
                        mma.commit()
                        trigger(empty.at(used))
                        used += 1
                    row = m * TILE_M + (wg - 1) * WARP_M
                    use = Addends(alpha, beta, out if ADDEND == "out" else c, bias)
                    finish(mc, batch, row, n * TILE_N, use, SCALE, ADDEND != "", ALONG, ACTIVATION)
                    there = out.subspan(1, WARP_M, TILE_N).at(batch * SPLIT + part, m * GROUPS + wg - 1, n).sqz()
                    if STORE == "tma":
                        piece = out_s.subspan(WARP_M, TILE_N).at(wg - 1, 0)
                        mma.store(mc, piece)
                        tma.copy(piece, there)
                    else:
                        mma.store(mc, there)


@tm.kernel
def add_parts(
    partial: tm.Global["f32", "PARTS", "M", "N"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    TC="f16",
    TB="f16",
    TO="f16",
    C0="M",
    C1="N",
    BIAS="N",
    SPLIT=2,
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
    THREADS=256,
):
    """out[b] = activation(alpha * (partial[b * SPLIT] + partial[b * SPLIT + 1] + ..) + beta * c[b] + bias)."""
    B, M, N = out.shape
    for batch, row, chunk in parallel(B, M, cdiv(N, THREADS), level="block"):
        for lane in parallel(THREADS, level="thread"):
            column = chunk * THREADS + lane
            with tm.if_(column < N):
                total = partial[batch * SPLIT, row, column]
                for part in range(1, SPLIT):
                    total = total + partial[batch * SPLIT + part, row, column]
                use = Addends(alpha, beta, out if ADDEND == "out" else c, bias)
                out[batch, row, column] = combine(
                    total, batch, row, column, use, SCALE, ADDEND != "", ALONG, ACTIVATION
                )
