"""The pipelined matmul kernel for sm_90a: persistent blocks, a producer warpgroup, a ring of stages filled by
TMA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilemma as tm
from tilemma import cdiv, dma, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, var, wait
from tilemma.ops.epilogue import Addends, combine, finish
from tilemma.ops.kernels import multiply, raster


@dataclass(frozen=True)
class Tasks:
    """``batches`` of ``tiles_m`` x ``tiles_n`` tiles in groups of ``raster`` rows (0: one group).

    ``steps`` along K make a tile, in ``split`` parts.  With ``back`` every other group is traversed from right to
    left.
    """

    batches: Any
    tiles_m: Any
    tiles_n: Any
    raster: int
    split: int
    steps: Any
    back: bool

    def task(self, t: Any) -> tuple[Any, ...]:
        """(batch, part, m, n, first step, end) of task ``t``: the parts of K innermost, the batches outermost."""
        part, tile = (t % self.split, t // self.split) if self.split > 1 else (0, t)
        batch = 0
        if not (isinstance(self.batches, int) and self.batches == 1):
            batch, tile = tile // (self.tiles_m * self.tiles_n), tile % (self.tiles_m * self.tiles_n)
        if self.raster:
            m, n = raster(tile, self.tiles_m, self.tiles_n, self.raster, self.back)
        else:
            m, n = tile % self.tiles_m, tile // self.tiles_m
        if self.split == 1:
            return batch, part, m, n, 0, self.steps
        return batch, part, m, n, part * self.steps // self.split, (part + 1) * self.steps // self.split


@dataclass(frozen=True)
class Operand:
    """One operand: tiles of ``rows`` x ``depth`` of ``array`` go through ``ring``.

    ``major``: "row" where the depth is contiguous.  ``batched``: there is a matrix for each batch.  ``shared``:
    the blocks of a cluster need the same tile; each loads a part of it and multicasts it to all of them.
    """

    array: Any
    ring: Any
    major: str
    rows: int
    depth: int
    batched: bool
    shared: bool

    def bring(self, batch: Any, tile: Any, k: Any, slot: Any, filled: Any) -> None:
        """Start to load step ``k`` of tile ``tile`` into ``slot``."""
        batch = batch if self.batched else 0
        if self.major == "row":
            there = self.array.subspan(1, self.rows, self.depth).at(batch, tile, k).sqz()
        else:
            there = self.array.subspan(1, self.depth, self.rows).at(batch, k, tile).sqz()
        tma.copy(there, self.ring[slot], async_=filled, multicast=self.shared)

    def load(self, slot: Any, part: Any, rows: int) -> Any:
        """Rows part * rows to (part + 1) * rows of the tile in ``slot``."""
        if self.major == "row":
            return mma.load(self.ring[slot].subspan(rows, self.depth).at(part, 0))
        return mma.load(self.ring[slot].subspan(self.depth, rows).at(0, part))


def ring(dtype: str, major: str, rows: int, depth: int, stages: int) -> Any:
    """Shared memory for ``stages`` tiles of an operand."""
    return shared(dtype, *((rows, depth) if major == "row" else (depth, rows)), copies=stages)


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
    CLUSTER_M=1,
    CLUSTER_N=1,
    SHARE=True,
    ONCE=False,
    BACK=False,
    STORE="tma",
    SCALE=False,
    ADDEND="",
    ALONG="",
    ACTIVATION="",
):
    """As `matmul_tiles`.  With SPLIT > 1, out[batch * SPLIT + part] is the product over one part of K.

    CLUSTER_M x CLUSTER_N blocks compute neighbouring tiles.  With SHARE, the blocks of a row multicast the tiles
    of lhs to each other, those of a column the tiles of rhs; without it, they only read the same part of the L2
    cache.  ONCE: there are no more tasks than GRID.  BACK: the number of working blocks is chosen such that every
    pass over the grid has the same number of tasks; every other group of tiles is traversed from right to left,
    and every other pass from the end of K, so that the data read last are read again while the L2 cache has them.
    """
    M, N = out.shape[1], out.shape[2]
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    CLUSTERED = CLUSTER_M * CLUSTER_N > 1
    tiles_m, tiles_n, steps = cdiv(M, CLUSTER_M * TILE_M), cdiv(N, CLUSTER_N * TILE_N), cdiv(K, TILE_K)
    count = out.shape[0] * tiles_m * tiles_n
    tasks = Tasks(out.shape[0] // SPLIT, tiles_m, tiles_n, RASTER, SPLIT, steps, BACK)
    shares = CLUSTERED and SHARE
    teams, pace = count if ONCE else select(count < GRID, count, GRID), GRID
    if BACK:
        some = tm.math.max(count, 1)
        teams = pace = cdiv(some, cdiv(some, GRID))

    def block(first: Any, down: Any, right: Any) -> None:
        full = event(STAGES)
        empty = event(STAGES, ready=True)
        lhs_s, rhs_s = ring(T, LHS, TILE_M, TILE_K, STAGES), ring(T, RHS, TILE_N, TILE_K, STAGES)
        a = Operand(lhs, lhs_s, LHS, TILE_M, TILE_K, LHS_BATCH != 1, shares and CLUSTER_N > 1)
        b = Operand(rhs, rhs_s, RHS, TILE_N, TILE_K, RHS_BATCH != 1, shares and CLUSTER_M > 1)
        if STORE == "tma":
            out_s = shared(TO, TILE_M, TILE_N)
        if ALONG == "columns":
            bias_s = shared(TB, GROUPS, TILE_N)
        if ONCE:
            # Found while the kernel before still runs.
            only = [x if isinstance(x, int) or x is steps else var(x) for x in tasks.task(first)]

        def bring(task: Any, filled: Any, back: Any = None) -> None:
            batch, _, m, n, begin, end = task
            if back is not None:
                step = var(select(back == 1, end - 1, begin))
            for k in foreach(steps, start=begin, stop=end):
                wait(empty.at(filled))
                slot = filled % STAGES
                at = k if back is None else step
                a.bring(batch, m * CLUSTER_M + down, at, slot, full.at(filled))
                b.bring(batch, n * CLUSTER_N + right, at, slot, full.at(filled))
                trigger(full.at(filled))
                filled.set(filled + 1)
                if back is not None:
                    step += 1 - 2 * back

        def compute(task: Any, used: Any, part_m: Any) -> None:
            batch, part, m, n, begin, end = task
            m, n = m * CLUSTER_M + down, n * CLUSTER_N + right
            near = None
            if ALONG == "columns":
                # It arrives while the tile is multiplied.
                near = bias_s.subspan(1, TILE_N).at(part_m, 0).sqz()
                coming = dma.copy(bias.subspan(TILE_N).at(n), near, async_=True)
            mc = mma.fill(0.0, "f32")
            for k in foreach(steps, start=begin, stop=end):
                wait(full.at(used))
                slot = used % STAGES
                multiply(LHS, RHS)(mc, a.load(slot, part_m, WARP_M), b.load(slot, 0, TILE_N))
                mma.commit()
                trigger(empty.at(used), cluster=shares)
                used.set(used + 1)
            use = Addends(alpha, beta, out if ADDEND == "out" else c, bias)
            if ALONG == "columns":
                wait(coming)
            row = m * TILE_M + part_m * WARP_M
            finish(mc, batch, row, n * TILE_N, use, SCALE, ADDEND != "", ALONG, ACTIVATION, near)
            there = out.subspan(1, WARP_M, TILE_N).at(batch * SPLIT + part, m * GROUPS + part_m, n).sqz()
            if STORE == "tma":
                piece = out_s.subspan(WARP_M, TILE_N).at(part_m, 0)
                mma.store(mc, piece)
                tma.copy(piece, there)
            else:
                mma.store(mc, there)

        for wg in parallel(GROUPS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                filled = var(0)
                if ONCE:
                    bring(only, filled)
                else:
                    for t in foreach(count, start=first, step=pace):
                        bring(tasks.task(t), filled, t // teams % 2 if BACK else None)
            with inthreads(wg >= 1, async_=True):
                used = var(0)
                if ONCE:
                    compute(only, used, wg - 1)
                else:
                    for t in foreach(count, start=first, step=pace):
                        compute(tasks.task(t), used, wg - 1)

    if CLUSTERED:
        for first in parallel(teams, level="cluster", overlap=True):
            for down, right in parallel(CLUSTER_M, CLUSTER_N, level="block"):
                block(first, down, right)
    else:
        for first in parallel(teams, level="block", overlap=True):
            block(first, 0, 0)


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
    EACH=4,
):
    """out[b] = activation(alpha * (partial[b * SPLIT] + partial[b * SPLIT + 1] + ..) + beta * c[b] + bias)."""
    B, M, N = out.shape
    for batch, row, chunk in parallel(B, M, cdiv(N, THREADS * EACH), level="block", overlap=True):
        for lane in parallel(THREADS, level="thread"):
            columns = [chunk * (THREADS * EACH) + i * THREADS + lane for i in range(EACH)]
            # All are read before the first is written: reads wait for memory together.
            totals = [
                var(
                    sum(
                        (partial[batch * SPLIT + part, row, x] for part in range(1, SPLIT)),
                        partial[batch * SPLIT, row, x],
                    )
                )
                for x in columns
            ]
            for column, total in zip(columns, totals, strict=True):
                with tm.if_(column < N):
                    use = Addends(alpha, beta, out if ADDEND == "out" else c, bias)
                    out[batch, row, column] = combine(
                        total, batch, row, column, use, SCALE, ADDEND != "", ALONG, ACTIVATION
                    )
