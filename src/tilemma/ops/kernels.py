"""Kernels of the products in plain text: those that take any strides, and those that the compiler pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import tilemma as tm
from tilemma import cdiv, dma, else_, foreach, if_, mma, parallel, select, shared, var, while_
from tilemma.kernels import Kernel
from tilemma.ops.epilogue import Inputs, Place, Scale, epilogue_function
from tilemma.ops.sums import Operand, Sum
from tilemma.ops.task_queue import NONE, PART, WHOLE, Producer, Task

# Rows of a group of tiles, at most, that are divided by the numbers which they can be.
KNOWN_ROWS = 4


def raster(t: Any, tiles_m: Any, tiles_n: Any, rows: int, back: bool = False) -> tuple[Any, Any]:
    """(m, n) of the t-th tile: groups of ``rows`` tile rows, each walked column by column, so that blocks
    running at the same time share operands in the L2 cache.  With ``back`` every other group is walked from its
    last column, which the cache still has of the group before."""
    group = t // (rows * tiles_n)
    # Never below 0, which the analysis of ranges does not find.
    first, rest = group * rows, tm.math.max(t - group * (rows * tiles_n), 0)
    height = select(tiles_m - first < rows, tiles_m - first, rows)
    column = _divided(rest, height, rows)
    row = first + rest - column * height
    if back:
        column = select(group % 2 == 1, tiles_n - 1 - column, column)
    return row, column


def _divided(x: Any, by: Any, most: int) -> Any:
    """``x // by`` of 1 to ``most``.  Divisions by numbers that the compiler knows take little of the time for
    which a block waits for its place."""
    if most > KNOWN_ROWS:
        return x // by
    found = x
    for number in range(2, most + 1):
        found = select(by == number, x // number, found)
    return found


def inside(tile: Any, tiles: Any, size: int, extent: Any) -> tuple[Any, Any]:
    """(first, count): where tile ``tile`` of ``tiles`` starts along an axis, and how much of it is its own.

    The last starts earlier, to end where the array ends, and the one before stores only what the last does not:
    TMA takes longer for a line of zeros beyond the edge than for one in the L2 cache (the model of `few_rows`).
    """
    # A multiple of eight keeps the alignment of rows.
    last = cdiv(tm.math.max(extent - size, 0), 8) * 8
    first = select(tile == tiles - 1, last, tile * size)
    return first, select(tile == tiles - 2, last - first, size)


def group_end(offsets: Any, e: Any, begin: Any, tokens: Any) -> Any:
    """The end of group ``e``, which begins at ``begin``: never before it, and never outside the array."""
    return tm.math.min(tm.math.max(offsets[e], begin), tokens)


# Tiles of a group, on average, for which the tensor cores take longer than memory for the weights: of 1024 rows in
# 8 groups by 4096 x 4096, halved tasks took 1.05 times as long as whole ones.
MANY_TILES = 2


class Cursor:
    """The group of a task among the tasks of ``groups``, which are numbered one after another."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.begin, self.end, self.following, self.tasks, self.base = (var(0) for _ in range(5))

    def advance(self, t: Any) -> None:
        """Go on to the group of task ``t``, or to the last."""
        groups = self.groups
        with while_(lambda: (t >= self.base + self.tasks) & (self.following < groups.count)):
            self.base.set(self.base + self.tasks)
            self.begin.set(self.end)
            self.end.set(group_end(groups.offsets, self.following, self.begin, groups.tokens))
            self.tasks.set(cdiv(self.end - self.begin, groups.each) * groups.others)
            self.following.set(self.following + 1)

    @property
    def count(self) -> Any:
        """The number of tasks up to the end of the group."""
        return self.base + self.tasks

    def holds(self, t: Any) -> Any:
        """Whether there is a task ``t``."""
        return t < self.count

    def task(self, t: Any) -> tuple[Any, ...]:
        """(group, begin, end, m, n) of task ``t``; an empty group if there is none."""
        groups, some = self.groups, self.holds(t)
        limit = var(select(some, self.end, self.begin))
        mine = tm.math.max(cdiv(self.end - self.begin, groups.each), 1)
        tiles_m, tiles_n = (mine, groups.others) if groups.down else (groups.others, mine)
        m, n = raster(var(select(some, t - self.base, 0)), tiles_m, tiles_n, groups.raster)
        return self.following - 1, self.begin, limit, var(m), var(n)


@dataclass(frozen=True)
class Groups:
    """``offsets``, the ends of ``count`` groups, divide ``tokens`` rows or columns; each group has its own tiles.

    ``each``: rows of a tile.  ``others``: tiles along the other axis.  The tasks of all groups are numbered one
    after another.
    """

    offsets: Any
    count: int
    tokens: Any
    each: int
    others: Any
    raster: int
    down: bool

    @property
    def most(self) -> Any:
        """At least as many as there are tasks."""
        return (self.tokens // self.each + self.count) * self.others

    def visit(self, first: Any, pace: int, work: Any) -> None:
        """Call ``work(group, begin, end, m, n)`` for every ``pace``-th task from ``first`` on."""
        cursor, t = Cursor(self), var(first)
        cursor.advance(t)
        with while_(lambda: cursor.holds(t)):
            work(*cursor.task(t))
            t += pace
            cursor.advance(t)

    def draw(self, first: Any, queue: Producer, load: Any, halve: Any = None) -> None:
        """Pass task ``first`` and those whose numbers ``queue`` gives to the consumers, and call
        ``load(task, ahead)`` for each, which calls ``ahead`` once: it finds the next task.

        With ``halve`` the tasks are counted: two blocks share each of the last ones, which are loaded by
        ``halve``, so that blocks end at the same time.
        """
        cursor, number, found, pace = Cursor(self), var(first), Task.none(), queue.queue.pace
        whole = None if halve is None else var(self._whole(pace))

        def find() -> None:
            """The task of ``number``: ``whole`` + i is a half of task ``whole`` + i / 2."""
            kind, half, task = WHOLE, None, number
            if whole is not None:
                part = var(number - whole)
                task = var(select(part < 0, number, whole + part // 2))
                kind, half = select(part < 0, WHOLE, PART), part % 2
            cursor.advance(task)
            e, begin, end, m, n = cursor.task(task)
            if half is not None:
                n = select(number < whole, n, n * 2 + half)
            row = var(begin + m * self.each)
            found.set((select(cursor.holds(task), kind, NONE), e, row, end - row, n))

        def ahead() -> None:
            number.set(queue.take())
            find()

        find()
        for kind, work in ((WHOLE, load), (PART, halve)):
            if work is not None:
                with while_(partial(found.is_of, kind)):
                    task = found.copy()
                    queue.post(task)
                    work(task, ahead)
        queue.post(found)
        shared_tasks = 0 if whole is None else tm.math.max(cursor.count - whole, 0)
        queue.finish(number, cursor.count + shared_tasks)

    def _whole(self, pace: int) -> Any:
        """The number of tasks before the last ones, which are shared.

        These are the tasks of the last round, if it leaves half of the blocks without one.  Where tiles of few
        rows take less time there are no rounds: they are those of three eighths of the blocks, or none if groups
        of few tiles wait for their weights from memory.
        """
        begin, count, few = var(0), var(0), var(0)
        for e in foreach(self.count):
            end = var(group_end(self.offsets, e, begin, self.tokens))
            count += cdiv(end - begin, self.each) * self.others
            rest = (end - begin) % self.each
            few.set(select((rest > 0) & (rest * 2 <= self.each), 1, few))
            begin.set(end)
        few_last = select(count >= MANY_TILES * self.count * self.others, pace * 3 // 8, 0)
        last = select(few > 0, few_last, select(count % pace * 2 <= pace, count % pace, 0))
        return tm.math.max(count - last, 0)


def product_of_tiles(
    lhs: tm.Global["TL", "LHS_BATCH", "LHS0", "LHS1"],
    rhs: tm.Global["TR", "RHS_BATCH", "RHS0", "RHS1"],
    scale_lhs: tm.Global["f32", "SL_BATCH", "SL0", "SL1"],
    scale_rhs: tm.Global["f32", "SR_BATCH", "SR0", "SR1"],
    offsets: tm.Global["s32", "OFFSETS"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "OUT", "OUT0", "OUT1"],
    alpha: tm.Scalar["TS"],
    beta: tm.Scalar["TS"],
    *,
    # Element types.
    TL="f16", TR="f16", TC="f16", TB="f16", TO="f16", ACC="f32", TS="f32",
    # Dimensions of the arrays, and which of them are contiguous.
    LHS_BATCH="B", RHS_BATCH="B", LHS0="M", LHS1="K", RHS0="N", RHS1="K", LHS="row", RHS="row",
    SL_BATCH=1, SL0=1, SL1=1, SR_BATCH=1, SR0=1, SR1=1, OFFSETS=1, C0="M", C1="N", BIAS_BATCH=1,
    BIAS="N", OUT="B", OUT0="M", OUT1="N",
    # The plan.
    WARP_M=64, TILE_N=128, TILE_K=64, GROUPS=2, RASTER=8, GRID=0, SPLIT=1, STORE="direct",
    BLOCKS=0, EARLY=False, SCALE_LHS="", SCALE_RHS="", PROMOTE=False, GROUPED="",
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * lhs[b] x rhs[b] + beta * c[b] + bias); see `ops.matmul`.

    With SPLIT > 1, out[batch * SPLIT + part] is the product over one slice of K.  RASTER: the order of the blocks
    (see `raster`); 0: the compiler's.  STORE: "tma", through shared memory, "rows", the same in boxes of whole
    rows of the tile, "turned", as "tma" for ``out`` of [batch, N, M], or "direct".  EARLY: the inputs of the
    epilogue are read before the sum, and arrive meanwhile.
    SCALE_LHS, SCALE_RHS: the kinds of `epilogue.Scale`.  PROMOTE: each step of K is summed apart and added in f32.
    GROUPED: "rows" of lhs and the result, or "columns" (rows of rhs, columns of the result), are divided by
    ``offsets`` into groups, each with its matrix of the other operand.  GRID: the blocks that compute groups, one
    tile after another; 0: a block for each tile.  BLOCKS: so many are to fit on an SM; 0: as ptxas likes.
    """
    M, N = out.shape[1], out.shape[2]
    if STORE == "turned":
        M, N = N, M
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    left, right = Scale(scale_lhs, SCALE_LHS, SL_BATCH != 1), Scale(scale_rhs, SCALE_RHS, SR_BATCH != 1)
    flags = SCALE, ADDEND, ALONG, ACTIVATION
    epilogue = epilogue_function((alpha, beta), (c, bias, out), flags, (left, right), BIAS_BATCH != 1)

    def tile(at: Place, lhs_row: Any, rhs_row: Any, part: Any = 0) -> None:
        """Compute the tile ``at`` from these rows of the operands on."""
        if STORE in ("tma", "rows", "copy"):
            out_s = shared(TO, TILE_M, TILE_N)
        elif STORE == "turned":
            out_s = shared(TO, TILE_N, TILE_M)
        inputs = Inputs(epilogue, GROUPS, WARP_M, TILE_N)
        if EARLY:
            inputs.read(at)
        batches = (at.left if LHS_BATCH != 1 else 0), (at.right if RHS_BATCH != 1 else 0)
        a = Operand(lhs, TL, LHS, TILE_M, TILE_K, batches[0], lhs_row, left, at.left)
        b = Operand(rhs, TR, RHS, TILE_N, TILE_K, batches[1], rhs_row, right, at.right)
        sums = Sum(a, b, GROUPS, ACC)
        total = sums.apart if PROMOTE else sums.plain
        count = cdiv(K, TILE_K)
        first, end = (0, count) if SPLIT == 1 else [x * count // SPLIT for x in (part, part + 1)]
        mc = total(count, first, end)
        for p in parallel(GROUPS, level="group-4"):
            mine = at.offset_rows(p * WARP_M)
            preloaded = inputs.preloaded(p) if EARLY else None
            done = epilogue.finished(mc, mine, preloaded)
            if STORE in ("tma", "rows", "copy"):
                mma.store(done, out_s.subspan(WARP_M, TILE_N).at(p, 0))
            elif STORE == "turned":
                mma.store(done, out_s.subspan(TILE_N, WARP_M).at(0, p), transp=True)
            else:
                there = out.view(1, WARP_M, TILE_N).from_(at.batch * SPLIT + part, mine.row, mine.column).sqz()
                mma.store(done, there, rows=mine.rows, columns=mine.columns)
        if STORE in ("tma", "rows", "copy"):
            there = out.view(1, TILE_M, TILE_N).from_(at.batch, at.row, at.column).sqz()
            dma.copy(out_s, there, swizzle=0 if STORE == "rows" else None)
        elif STORE == "turned":
            dma.copy(out_s, out.view(1, TILE_N, TILE_M).from_(at.batch, at.column, at.row).sqz())

    if GROUPED == "" and RASTER == 0:
        extents = out.shape[0], cdiv(M, TILE_M), cdiv(N, TILE_N)
        for z, m, n in parallel(*extents, level="block", overlap=True, min_blocks=BLOCKS or None):
            b, part = (z // SPLIT, z % SPLIT) if SPLIT > 1 else (z, 0)
            row, column, rows, columns = m * TILE_M, n * TILE_N, None, None
            if SPLIT > 1 and not PROMOTE:
                row, rows = inside(m, cdiv(M, TILE_M), TILE_M, M)
                column, columns = inside(n, cdiv(N, TILE_N), TILE_N, N)
            tile(Place(b, b, b, b, row, column, rows, columns), row, column, part)
    elif GROUPED == "":
        tiles_m, tiles_n = cdiv(M, TILE_M), cdiv(N, TILE_N)
        blocks = BLOCKS or None
        for block in parallel(out.shape[0] * tiles_m * tiles_n, level="block", overlap=True, min_blocks=blocks):
            b = block // (tiles_m * tiles_n)
            m, n = raster(block % (tiles_m * tiles_n), tiles_m, tiles_n, RASTER)
            tile(Place(b, b, b, b, m * TILE_M, n * TILE_N), m * TILE_M, n * TILE_N)
    else:
        down = GROUPED == "rows"
        tokens, each, others = (M, TILE_M, cdiv(N, TILE_N)) if down else (N, TILE_N, cdiv(M, TILE_M))
        groups = Groups(offsets, OFFSETS, tokens, each, others, RASTER or 16, down)

        def work(e: Any, begin: Any, end: Any, m: Any, n: Any) -> None:
            row, column = m * TILE_M, n * TILE_N
            if down:
                place = Place(0, 0, e, e, begin + row, column, rows=end - begin - row)
            else:
                place = Place(0, e, 0, e, row, begin + column, columns=end - begin - column)
            tile(place, place.row, place.column)

        teams = GRID or tm.math.max(groups.most, 1)
        for first in parallel(teams, level="block", overlap=True, min_blocks=BLOCKS or None):
            groups.visit(first, teams, work)


matmul_tiles = tm.kernel(pipeline=False)(product_of_tiles)
# The compiler copies tiles ahead.  At 8192^3 on an H200 a block for each tile was 2 % faster for f32 and 1 % for
# f64 than persistent blocks.
matmul_ahead = tm.kernel(pipeline=tm.Pipeline(persistent=False))(product_of_tiles)


@cache
def matmul_in_stages(stages: int) -> Kernel:
    """`matmul_ahead` with so many buffers for each tile."""
    return tm.kernel(pipeline=tm.Pipeline(stages=stages, persistent=False))(product_of_tiles)


@cache
def matmul_pipelined(settings: tm.Pipeline) -> Kernel:
    """The kernel with blocks of a producer and consumers, as ``settings`` say."""
    return tm.kernel(pipeline=settings)(product_of_tiles)


# Warps of a block that copies rows, and columns of each.
PACKERS, PACKED = 8, 128


def packs_of(array: Any, rows: int) -> Any:
    """Blocks that copy to ``array``, each warp so many rows."""
    batches, height, width = array.shape
    return batches * cdiv(height, rows * PACKERS) * cdiv(width, PACKED)


def copy_rows(src: Any, dst: Any, room: Any, task: Any, rows: int) -> None:
    """Copy part ``task`` of ``src`` to ``dst``, whose rows are longer: the rest of each row becomes 0.

    Through shared memory, from where lanes write 16 bytes each: they read single elements.
    """
    down, across = cdiv(dst.shape[1], rows * PACKERS), cdiv(dst.shape[2], PACKED)
    batch, block, column = task // (down * across), task // across % down, task % across
    # As many as a lane reads before it writes the first.
    each = min(rows, 2)
    for warp in parallel(PACKERS, level="group"):
        mine = room.subspan(each, PACKED).at(warp, 0)
        for i in foreach(rows // each):
            place = batch, (block * PACKERS + warp) * (rows // each) + i, column
            dma.copy(src.subspan(1, each, PACKED).at(*place).sqz(), mine)
            dma.copy(mine, dst.subspan(1, each, PACKED).at(*place).sqz())


@tm.kernel
def pack(src: tm.Global["T", "B", "R", "C"], dst: tm.Global["T", "B", "R", "W"], *, T="f16", ROWS=8):
    """dst[:, :, :C] = src, the rest of each row 0: the same elements in aligned rows."""
    for task in parallel(packs_of(dst, ROWS), level="block", overlap=True):
        copy_rows(src, dst, shared(T, PACKERS * min(ROWS, 2), PACKED), task, ROWS)


@tm.kernel
def pack_pair(
    src: tm.Global["T", "B", "R", "C"],
    dst: tm.Global["T", "B", "R", "W"],
    other_src: tm.Global["T", "BO", "RO", "CO"],
    other_dst: tm.Global["T", "BO", "RO", "WO"],
    *, T="f16", ROWS=8,
):  # fmt: skip
    """`pack` of two arrays."""
    count = packs_of(dst, ROWS)
    for task in parallel(count + packs_of(other_dst, ROWS), level="block", overlap=True):
        room = shared(T, PACKERS * min(ROWS, 2), PACKED)
        with if_(task < count):
            copy_rows(src, dst, room, task, ROWS)
        with else_():
            copy_rows(other_src, other_dst, room, task - count, ROWS)


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
