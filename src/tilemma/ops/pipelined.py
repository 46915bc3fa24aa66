"""The pipelined matmul kernel for sm_90a, written by hand: persistent blocks, a producer warpgroup, a ring of
stages filled by TMA.

For plans with `Plan.by_hand`.  The compiler makes the same of `kernels.product_of_tiles`, the plain text, which
computes all other products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tilemma as tm
from tilemma import (
    cdiv,
    dma,
    else_,
    event,
    foreach,
    if_,
    inthreads,
    mma,
    parallel,
    select,
    shared,
    tma,
    trigger,
    var,
    wait,
)
from tilemma.ops.edges import Axis, in_parts
from tilemma.ops.epilogue import Place, PreloadedOperands, Scale, epilogue_function
from tilemma.ops.kernels import Groups, raster
from tilemma.ops.main_loop import WIDEST, MainLoop
from tilemma.ops.ring import QUAD, Operand, PipelineState, ring, scale_ring
from tilemma.ops.sums import multiply, zero
from tilemma.ops.task_queue import ClusterQueue, Consumer, Producer, Task, TaskQueue, draw_tiles

# Groups whose ends each block keeps in shared memory.
MOST_SHARED = 1024


def powers(columns: int) -> list[tuple[int, int]]:
    """(first, number) of parts of ``columns`` whose numbers are powers of two, the largest first."""
    found, first = [], 0
    while first < columns:
        width = 1 << (columns - first).bit_length() - 1
        found.append((first, width))
        first += width
    return found


@dataclass(frozen=True)
class Tasks:
    """``batches`` of ``tiles_m`` x ``tiles_n`` tiles in groups of ``raster`` rows (0: one group).

    ``steps`` along K make a tile, in ``split`` parts of a multiple of ``unit``.  With ``back`` every other group
    is traversed from right to left.
    """

    batches: Any
    tiles_m: Any
    tiles_n: Any
    raster: int
    split: int
    steps: Any
    back: bool

    def task(self, t: Any) -> tuple[Any, ...]:
        """(batch, part, m, n, first step, end) of task ``t``: the batches outermost, then the slices of K, so that
        blocks that run at the same time read the same slices."""
        batch, part, tile = 0, 0, t
        one = isinstance(self.batches, int) and self.batches == 1
        if self.split > 1 or not one:
            slices, tile = t // (self.tiles_m * self.tiles_n), t % (self.tiles_m * self.tiles_n)
            part = slices % self.split if self.split > 1 else 0
            batch = 0 if one else slices // self.split if self.split > 1 else slices
        if self.raster:
            m, n = raster(tile, self.tiles_m, self.tiles_n, self.raster, self.back)
        else:
            m, n = tile % self.tiles_m, tile // self.tiles_m
        if self.split == 1:
            return batch, part, m, n, 0, self.steps
        first, end = (x * self.steps // self.split for x in (part, part + 1))
        return batch, part, m, n, first, end


@tm.kernel
def matmul_by_hand(
    lhs: tm.Global["TL", "LHS_BATCH", "LHS0", "LHS1"],
    rhs: tm.Global["TR", "RHS_BATCH", "RHS0", "RHS1"],
    scale_lhs: tm.Global["f32", "SL_BATCH", "SL0", "SL1"],
    scale_rhs: tm.Global["f32", "SR_BATCH", "SR0", "SR1"],
    offsets: tm.Global["s32", "OFFSETS"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "OUT", "OUT0", "OUT1"],
    words: tm.Global["s64", "WORDS", "WORD1"],
    beside: tm.Global["TO", "OUT", "OUT0", "BESIDE"],
    below: tm.Global["TO", "OUT", "BELOW", "OUT1"],
    corner: tm.Global["TO", "OUT", "BELOW", "BESIDE"],
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
    WARP_M=64, TILE_N=256, TILE_K=64, GROUPS=2, STAGES=4, RASTER=8, GRID=132, SPLIT=1,
    CLUSTER_M=1, CLUSTER_N=1, SHARE=True, ONCE=False, BACK=False, TURNS=False, QUEUE=False,
    STORE="tma", LOADED=0, INSIDE=False, PROMPT=False, STREAMED="", KEPT=False, OVERLAP=True,
    SCALE_LHS="", SCALE_RHS="", PROMOTE=False, RING_LHS="", RING_RHS="", GROUPED="", HALVES=False,
    WORDS=1, WORD1=1, BESIDE=1, BELOW=1,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """As `matmul_tiles`.  With SPLIT > 1, out[batch * SPLIT + part] is the product over one slice of K.

    CLUSTER_M x CLUSTER_N blocks compute neighbouring tiles.  With SHARE, the blocks of a row multicast the tiles
    of lhs to each other, those of a column the tiles of rhs; without it, they only read the same part of the L2
    cache.  PROMOTE: a tile's columns are summed in parts of at most 128, and each part of rhs arrives by itself.
    STORE: through shared memory by "tma", by TMA in boxes of whole "rows" of the tile, or by a "copy", by TMA to
    ``out`` of [batch, N, M] ("turned"), or "direct".  LOADED, if not 0: a tile has so many rows of lhs, and
    zeros besides.  INSIDE: the last tiles end at the edges, and are stored to ``beside``, ``below`` and ``corner``
    (`edges`).  PROMPT: slots are released without waiting for the next step.  STREAMED: the operand that is
    read once, or "both".  RING_LHS, RING_RHS: the scales of a step arrive with its tiles, from arrays of "steps",
    or "turned", [batch, extent, steps].  ONCE: there are no more tasks than GRID.  BACK: the number of working
    blocks is chosen such that every pass over the grid has the same number of tasks; every other group of tiles is
    traversed from right to left, and every other pass from the end of K, so that the data read last are read again
    while the L2 cache has them.  TURNS: in each round the tasks are those of other blocks.  QUEUE: blocks, or
    clusters, take their tasks from a queue.  KEPT: the L2 cache gives up the operands last.
    """
    M, N = out.shape[1], out.shape[2]
    if STORE == "turned":
        M, N = N, M
    if INSIDE:
        M, N = lhs.shape[1 if LHS == "row" else 2], rhs.shape[1 if RHS == "row" else 2]
    K = lhs.shape[2 if LHS == "row" else 1]
    TILE_M = GROUPS * WARP_M
    down_axis, across_axis = Axis(M, TILE_M), Axis(N, TILE_N)
    CLUSTERED = CLUSTER_M * CLUSTER_N > 1
    HEIGHT = LOADED or TILE_M
    REST = HEIGHT - (GROUPS - 1) * WARP_M
    tiles_m, tiles_n, steps = cdiv(M, CLUSTER_M * HEIGHT), cdiv(N, CLUSTER_N * TILE_N), cdiv(K, TILE_K)
    PARTED = cdiv(TILE_N, WIDEST) if PROMOTE else 1
    count = out.shape[0] * tiles_m * tiles_n
    batches = out.shape[0] // SPLIT
    tasks = Tasks(batches, tiles_m, tiles_n, RASTER, SPLIT, steps, BACK)
    shares = CLUSTERED and SHARE
    teams, pace = count if ONCE else select(count < GRID, count, GRID), GRID
    if BACK:
        some = tm.math.max(count, 1)
        teams = pace = cdiv(some, cdiv(some, GRID))
    if GROUPED:
        teams = pace = GRID
    left, right = Scale(scale_lhs, SCALE_LHS, SL_BATCH != 1), Scale(scale_rhs, SCALE_RHS, SR_BATCH != 1)
    flags = SCALE, ADDEND, ALONG, ACTIVATION
    epilogue = epilogue_function((alpha, beta), (c, bias, out), flags, (left, right), BIAS_BATCH != 1)

    def block(first: Any, down: Any, across: Any) -> None:
        full = event(STAGES)
        more = [event(STAGES) for _ in range(1, PARTED)]
        empty = event(STAGES, ready=True)
        lhs_s, rhs_s = ring(TL, LHS, TILE_M, TILE_K, STAGES), ring(TR, RHS, TILE_N, TILE_K, STAGES)
        left_s = scale_ring(left, TILE_M, STAGES, GROUPED == "rows", RING_LHS)
        right_s = scale_ring(right, TILE_N, STAGES, GROUPED == "columns", RING_RHS)
        usual = "last" if KEPT else None
        evictions = {name: "first" if STREAMED in (name, "both") else usual for name in ("lhs", "rhs")}
        a = Operand(
            lhs, lhs_s, LHS, TILE_M, TILE_K, LHS_BATCH != 1, shares and CLUSTER_N > 1, left, left_s, loaded=LOADED,
            evict=evictions["lhs"], turned=RING_LHS == "turned",
        )  # fmt: skip
        b = Operand(
            rhs, rhs_s, RHS, TILE_N, TILE_K, RHS_BATCH != 1, shares and CLUSTER_M > 1, right, right_s, PARTED,
            evict=evictions["rhs"], turned=RING_RHS == "turned",
        )  # fmt: skip
        if STORE == "turned":
            out_s = shared(TO, TILE_N // PARTED, TILE_M)
        elif STORE != "direct":
            out_s = shared(TO, TILE_M, TILE_N // PARTED)
        if ALONG == "columns":
            bias_s = shared(TB, GROUPS, TILE_N)
        if SCALE_RHS == "vector":
            vector_s = shared("f32", GROUPS, TILE_N)

        def settled(task: Any) -> list[Any]:
            """The task, as variables that are set once: places are compared by them."""
            return [x if isinstance(x, int) or x is steps else var(x) for x in task]

        if ONCE:
            # Found while the kernel before still runs.
            only = settled(tasks.task(first))

        def issue_load(
            task: Any, filled: Any, back: Any = None, begins: Any = (None, None), b: Operand = b, a: Operand = a,
            ahead: Any = None,
        ) -> None:  # fmt: skip
            (batch_a, batch_b), m, n, begin, end = task
            if back is not None:
                step = var(select(back == 1, end - 1, begin))
            for k in foreach(steps, start=begin, stop=end):
                wait(empty[filled.slot])
                slot = filled.slot
                at = k if back is None else step
                a.issue_load(batch_a, m, at, slot, full[filled.slot], begins[0])
                b.issue_load(batch_b, n, at, slot, full[filled.slot], begins[1])
                trigger(full[filled.slot])
                for piece, later in enumerate(more, 1):
                    b.issue_load(batch_b, n, at, slot, later[slot], begins[1], piece)
                    trigger(later[slot])
                filled.advance()
                if back is not None:
                    step += 1 - 2 * back
                if ahead is not None:
                    # The ring is full: there is time to find the next task.  Taken earlier, it would wait for a
                    # block that may be done later than others.
                    with if_(k == tm.math.max(end - STAGES, 0)):
                        ahead()

        def columns_of(array: Any, room: Any, batch: Any, part_m: Any, column: Any, width: int) -> tuple[Any, Any]:
            """Numbers for the tile's columns: a copy to shared memory that completes while it is multiplied."""
            preloaded = room.subspan(1, width).at(part_m, 0).sqz()
            return preloaded, dma.copy(array.view(1, width).from_(batch, column).sqz(), preloaded, async_=True)

        def compute(
            begin: Any,
            end: Any,
            used: Any,
            part_m: Any,
            place: Place,
            task: Any,
            back: Any = None,
            columns: int = TILE_N,
        ) -> None:
            mine = place.offset_rows(part_m * WARP_M)
            preloaded, pending = PreloadedOperands(), []
            if ALONG == "columns":
                group = mine.group if BIAS_BATCH != 1 else 0
                biases, copied = columns_of(bias, bias_s, group, part_m, mine.column, columns)
                preloaded.bias = biases.__getitem__
                pending.append(copied)
            if SCALE_RHS == "vector":
                which = mine.right if right.batched else 0
                factors = vector_s.subspan(1, columns).at(part_m, 0).sqz()
                source = scale_rhs.view(1, 1, columns).from_(which, 0, mine.column).sqz()
                preloaded.right = factors.__getitem__
                pending.append(dma.copy(source, factors, async_=True))
            elif SCALE_RHS == "tensor":
                number = var(right.at(mine.right, 0, 0))
                preloaded.right = lambda _: number
            if SCALE_LHS == "vector":
                which = mine.left if left.batched else 0
                scales = mma.load(
                    scale_lhs.view(1, 1, WARP_M).from_(which, 0, mine.row).sqz(), into=mma.frag("f32", WARP_M)
                )
                preloaded.left = scales.__getitem__
            elif SCALE_LHS == "tensor":
                once = var(left.at(mine.left, 0, 0))
                preloaded.left = lambda _: once
            shift = (mine.row, 0) if GROUPED == "rows" else (0, mine.column) if GROUPED else (0, 0)
            main_loop = MainLoop(
                a, b, full, more, empty, used, part_m, mine, ACC, zero(ACC), multiply(LHS, RHS), WARP_M, columns,
                shares, tuple(x % QUAD for x in shift), back, PARTED, PROMPT,
            )  # fmt: skip
            if PROMOTE:
                pieces = main_loop.promoted(steps, begin, end)
            else:
                pieces = main_loop.plain(steps, begin, end)
            if pending:
                wait(*pending)
            width = columns // PARTED
            for piece, mc in enumerate(pieces):
                done = epilogue.finished(mc, mine.offset_columns(piece * width), preloaded.offset(piece * width))
                if GROUPED:
                    there = out.view(1, WARP_M, width).from_(0, mine.row, mine.column + piece * width).sqz()
                    some = {"rows": mine.rows, "columns": mine.offset_columns(piece * width).columns}
                elif LOADED and STORE == "direct":
                    batch, part, _, _ = task
                    column = mine.column + piece * width
                    there = out.view(1, WARP_M, width).from_(batch * SPLIT + part, mine.row, column).sqz()
                    some = {"rows": REST} if part_m == GROUPS - 1 else {}
                else:
                    batch, part, m, n = task
                    row, column = (m * CLUSTER_M + down) * GROUPS + part_m, n * CLUSTER_N + across
                    if STORE == "turned":
                        there = out.subspan(1, width, WARP_M).at(batch, column * PARTED + piece, row).sqz()
                    else:
                        place = batch * SPLIT + part, row, column * PARTED + piece
                        there = out.subspan(1, WARP_M, width).at(*place).sqz()
                    some = {}
                if INSIDE:
                    store_inside(done, task, part_m, piece)
                elif STORE == "direct" or columns < TILE_N:
                    # Of halves there is one for each block, the last.
                    mma.store(done, there, **some)
                elif GROUPED:
                    # The last rows of a group are followed by those of the next.
                    with if_(mine.rows >= WARP_M):
                        store_whole(done, there, part_m)
                    with else_():
                        mma.store(done, there, **some)
                else:
                    store_whole(done, there, part_m)

        def store_whole(done: Any, there: Any, part_m: Any) -> None:
            """Store a tile through shared memory."""
            if STORE == "turned":
                staged = out_s.subspan(*done.shape[::-1]).at(0, part_m)
            else:
                staged = out_s.subspan(*done.shape).at(part_m, 0)
            mma.store(done, staged, transp=STORE == "turned")
            if STORE != "copy":
                tma.copy(staged, there, swizzle=0 if STORE == "rows" else None)
                return
            # Of a power of two of columns: threads find their elements without a division.
            for column, width in powers(done.shape[1]):
                source, target = (x.subspan(done.shape[0], width).at(0, column // width) for x in (staged, there))
                dma.copy(source, target)

        def store_inside(done: Any, task: Any, part_m: Any, piece: int) -> None:
            """Store a tile to the part of the result that it belongs to."""
            m, n = task[2] * CLUSTER_M + down, task[3] * CLUSTER_N + across
            last = m == down_axis.last, n == across_axis.last
            at = (m * GROUPS + part_m, n * PARTED + piece), (part_m, piece)
            turns = -1 if STORE == "turned" else 1

            def store(part: Any, row: Any, column: Any) -> None:
                place = part.subspan(1, *done.shape[::turns]).at(task[0], *(row, column)[::turns]).sqz()
                store_whole(done, place, part_m)

            edges = (below, beside) if STORE == "turned" else (beside, below)
            in_parts((out, *edges, corner), last, *at, store)

        def in_turn(t: Any) -> Any:
            """The task instead of ``t``: the tasks of a round are divided otherwise than those of the one before.

            Where tiles at an edge take less time, blocks that always have these would leave the others behind.
            """
            if not TURNS:
                return t
            begin = t - first
            return select(begin + pace <= count, begin + (first + t // pace) % pace, t)

        def iterates_backward(t: Any) -> Any:
            """Whether task ``t`` goes from the last step to the first."""
            return t // teams % 2 if BACK else None

        def load_tile(task: Any, filled: Any, back: Any = None) -> None:
            batch, _, m, n, begin, end = task
            m, n, starts = m * CLUSTER_M + down, n * CLUSTER_N + across, (None, None)
            if INSIDE:
                m, n, starts = 0, 0, (down_axis.start(m), across_axis.start(n))
            issue_load(((batch, batch), m, n, begin, end), filled, back, starts)

        def compute_tile(task: Any, used: Any, part_m: Any, back: Any = None) -> None:
            batch, part, m_, n_, begin, end = task
            m, n = m_ * CLUSTER_M + down, n_ * CLUSTER_N + across
            row, column = (down_axis.start(m), across_axis.start(n)) if INSIDE else (m * HEIGHT, n * TILE_N)
            place = Place(batch, batch, batch, batch, row, column)
            compute(begin, end, used, part_m, place, (batch, part, m_, n_), back)

        def load_numbered(filled: Any, number: Any) -> None:
            load_tile(tasks.task(number), filled)

        def compute_numbered(part_m: Any, used: Any, task: Task) -> None:
            compute_tile(settled(tasks.task(task.group)), used, part_m)

        def drain(filled: Any) -> None:
            """Where tiles are shared, wait until the consumers of the other blocks have arrived: nothing more
            happens to this block's memory."""
            if shares:
                for _ in foreach(STAGES):
                    wait(empty[filled.slot])
                    filled.advance()

        by_rows = GROUPED == "rows"
        ends = offsets
        if GROUPED and OFFSETS <= MOST_SHARED:
            ends = shared("s32", OFFSETS)
            dma.copy(offsets, ends)
        groups = Groups(
            ends, OFFSETS, M if by_rows else N, TILE_M if by_rows else TILE_N, tiles_n if by_rows else tiles_m,
            RASTER or 16, by_rows,
        )  # fmt: skip

        queue = TaskQueue(words[0, 0], pace) if by_rows or QUEUE else None
        together = ClusterQueue(queue, words, first, (down == 0) & (across == 0)) if QUEUE and CLUSTERED else None
        half = replace(b, rows=TILE_N // 2, narrow=True)

        def load_columns(e: Any, begin: Any, end: Any, m: Any, n: Any) -> None:
            issue_load(((e, 0), m, n, 0, steps), filled, None, (None, begin))

        def compute_columns(part: Any, e: Any, begin: Any, end: Any, m: Any, n: Any) -> None:
            column = n * TILE_N
            place = Place(0, e, 0, e, m * TILE_M, begin + column, columns=end - begin - column)
            compute(0, steps, used, part, place, None)

        def load_rows(b: Operand, task: Task, ahead: Any) -> None:
            def load(a: Operand) -> None:
                where = (0, task.group), 0, task.column, 0, steps
                issue_load(where, filled, None, (task.row, None), b, a, ahead)

            if GROUPS == 1 or RING_LHS:
                load(a)
                return
            with if_(task.rows <= WARP_M):
                # The other warpgroups have no rows.
                load(replace(a, rows=WARP_M, narrow=True))
            with else_():
                load(a)

        def compute_rows(part: Any, columns: int, task: Task) -> None:
            place = Place(0, 0, task.group, task.group, task.row, task.column * columns, rows=task.rows)
            if GROUPS == 1:
                compute(0, steps, used, part, place, None, columns=columns)
                return
            with if_(task.rows > part * WARP_M):
                compute(0, steps, used, part, place, None, columns=columns)
            with else_():
                # None of this warpgroup's rows belong to the group: the tensor cores are the others'.
                for _ in foreach(steps):
                    for event_ in (full, *more):
                        wait(event_[used.slot])
                    trigger(empty[used.slot])
                    used.advance()

        def clear_rest() -> None:
            """The rows of lhs that are not loaded, which the last warpgroup multiplies, are zero."""
            zeros, each = shared(TL, 8, TILE_K), 128 // TILE_K
            for lane in parallel(128, level="thread"):
                for i in range(8 // each):
                    zeros[i * each + lane // TILE_K, lane % TILE_K] = 0.0
            for stage in range(STAGES):
                for i in foreach((TILE_M - LOADED) // 8):
                    dma.copy(zeros, lhs_s[stage].subspan(8, TILE_K).at(LOADED // 8 + i, 0))

        for wg in parallel(GROUPS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                filled = PipelineState(var(0), STAGES)
                if by_rows:
                    load_half = partial(load_rows, half) if HALVES else None
                    groups.draw(first, Producer(queue), partial(load_rows, b), load_half)
                elif GROUPED:
                    groups.visit(first, pace, load_columns)
                elif QUEUE:
                    # A warp alone gets the numbers without a barrier.
                    for warp in parallel(4, level="group"):
                        with inthreads(warp == 0, async_=True):
                            load = partial(load_numbered, filled)
                            if together is not None:
                                together.draw(first, count, load)
                            else:
                                draw_tiles(queue, first, count, load)
                            drain(filled)
                elif ONCE:
                    load_tile(only, filled)
                else:
                    for t in foreach(count, start=first, step=pace):
                        load_tile(tasks.task(in_turn(t)), filled, iterates_backward(t))
                if not QUEUE:
                    drain(filled)
            # The compiler cannot know that two warpgroups store to different places where tiles start at any row,
            # or are found by a division or in a queue.  As one role they would wait for each other after every
            # tile.
            apart = GROUPED or STORE == "copy" or LOADED or QUEUE
            for some, part in ((wg == x + 1, x) for x in range(GROUPS)) if apart else ((wg >= 1, wg - 1),):
                with inthreads(some, async_=True):
                    used = PipelineState(var(0), STAGES)
                    if LOADED and part == GROUPS - 1:
                        clear_rest()
                    if by_rows:
                        compute_half = partial(compute_rows, part, TILE_N // 2) if HALVES else None
                        Consumer(queue).tasks(partial(compute_rows, part, TILE_N), compute_half)
                    elif GROUPED:
                        groups.visit(first, pace, partial(compute_columns, part))
                    elif QUEUE:
                        Consumer(queue).tasks(partial(compute_numbered, part, used))
                    elif ONCE:
                        compute_tile(only, used, part)
                    else:
                        for t in foreach(count, start=first, step=pace):
                            compute_tile(tasks.task(in_turn(t)), used, part, iterates_backward(t))

    if CLUSTERED:
        for first in parallel(teams, level="cluster", overlap=OVERLAP, drained=shares):
            for down, across in parallel(CLUSTER_M, CLUSTER_N, level="block"):
                block(first, down, across)
    else:
        for first in parallel(teams, level="block", overlap=OVERLAP):
            block(first, 0, 0)


@tm.kernel
def add_parts(
    partial: tm.Global["ACC", "PARTS", "M", "N"],
    scale_lhs: tm.Global["f32", "SL_BATCH", "SL0", "SL1"],
    scale_rhs: tm.Global["f32", "SR_BATCH", "SR0", "SR1"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Scalar["TS"],
    beta: tm.Scalar["TS"],
    *,
    # Element types.
    ACC="f32", TS="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    SL_BATCH=1, SL0=1, SL1=1, SR_BATCH=1, SR0=1, SR1=1, C0="M", C1="N", BIAS_BATCH=1, BIAS="N",
    # The plan.
    SPLIT=2, SCALE_LHS="", SCALE_RHS="", THREADS=256, EACH=4, OVERLAP=True,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * (partial[b * SPLIT] + partial[b * SPLIT + 1] + ..) + beta * c[b] + bias)."""
    B, M, N = out.shape
    left, right = Scale(scale_lhs, SCALE_LHS, SL_BATCH != 1), Scale(scale_rhs, SCALE_RHS, SR_BATCH != 1)
    flags = SCALE, ADDEND, ALONG, ACTIVATION
    epilogue = epilogue_function((alpha, beta), (c, bias, out), flags, (left, right))
    # Rows are short: a block takes several of them.
    for batch, chunk in parallel(B, cdiv(M * N, THREADS * EACH), level="block", overlap=OVERLAP):
        for lane in parallel(THREADS, level="thread"):
            numbers = [var(chunk * (THREADS * EACH) + i * THREADS + lane) for i in range(EACH)]
            places = [(var(x // N), var(x % N)) for x in numbers]
            # All are read before the first is written: reads wait for memory together.
            totals = [
                var(
                    sum(
                        (partial[batch * SPLIT + part, row, x] for part in range(1, SPLIT)),
                        partial[batch * SPLIT, row, x],
                    )
                )
                for row, x in places
            ]

            def finished(total: Any, row: Any, column: Any, batch: Any = batch) -> Any:
                place = Place(batch, batch, batch, batch, row, column)
                return total if epilogue.plain else epilogue.of(total, place, 0, 0)

            # An activation has a variable: an addend that is `out` itself is then read apart from the write.  The
            # compiler puts a barrier between the reads of the block and its writes: no read is conditional.
            apart = ADDEND == "out" and ACTIVATION != ""
            if apart:
                totals = [var(finished(x, *place)) for x, place in zip(totals, places, strict=True)]
            for (row, column), total in zip(places, totals, strict=True):
                with tm.if_(row < M):
                    out[batch, row, column] = total if apart else finished(total, row, column)
