"""The kernel of batches of small products: the whole rhs of a product stays in shared memory while the rows of lhs
pass by, so that each operand is read once."""

from __future__ import annotations

import itertools
from typing import Any

import tilemma as tm
from tilemma import cdiv, event, foreach, inthreads, mma, parallel, select, shared, tma, trigger, var, wait
from tilemma.ops.batch_model import ATOM, WIDEST
from tilemma.ops.requests import LINE
from tilemma.ops.resident_plans import steps_of
from tilemma.ops.ring import PipelineState
from tilemma.ops.sums import zero


def parts_of(columns: int) -> list[tuple[int, int]]:
    """(first, number) of nearly equal parts of ``columns``, multiples of 8, which an instruction multiplies."""
    count, units = -(-columns // WIDEST), columns // 8
    edges = [part * units // count * 8 for part in range(count + 1)]
    return [(first, end - first) for first, end in itertools.pairwise(edges)]


def turned_parts(columns: int) -> list[tuple[int, int]]:
    """(first, number) of parts of ``columns``, rows of an instruction whose result is transposed.

    The first has what the others leave: the rest of its rows are columns of the next part.
    """
    edges = [0, *range((columns - 1) % ATOM + 1, columns + 1, ATOM)]
    return [(first, end - first) for first, end in itertools.pairwise(edges)]


# Elements of a line, of 16 bits.
ELEMENTS = LINE // 2


@tm.kernel
def matmul_resident(
    lhs: tm.Global["TL", "B", "M", "K"],
    rhs: tm.Global["TR", "B", "N", "K"],
    out: tm.Global["TO", "B", "OUT0", "OUT1"],
    *,
    # Element types, and the dimensions of the result.
    TL="f16", TR="f16", TO="f16", ACC="f32", OUT0="M", OUT1="N",
    # The plan.
    GROUPS=2, HEIGHT=64, TILE_N=64, TILE_K=64, STAGES=4, SLOTS=2, GRID=132, STORE="lines",
):  # fmt: skip
    """out[b] = lhs[b] x rhs[b].

    Blocks compute whole products, as long as all of them have one, and share the tiles, HEIGHT * GROUPS rows and
    all columns, of the rest.  The rows of a product need its rhs, TILE_N columns of TILE_K, which goes through
    SLOTS buffers; lhs goes through STAGES.  HEIGHT: 64, or fewer rows, whose transpose is computed, 64 columns at
    a time.
    STORE: "tma", or "lines" for ``out`` in lines of 64 elements: 64 rows of TILE_N columns are TILE_N of them.
    """
    B, M = lhs.shape[0], lhs.shape[1]
    TURNED = HEIGHT < ATOM
    ROWS, steps, parts = HEIGHT * GROUPS, steps_of(TILE_K, TURNED), parts_of(TILE_N)
    tiles, rounds = cdiv(M, ROWS), B // GRID
    rest = (B - rounds * GRID) * tiles
    share = cdiv(rest, GRID)
    teams = select(rounds > 0, GRID, cdiv(rest, tm.math.max(share, 1)))

    def tasks(block: Any) -> None:
        full, empty = event(STAGES), event(STAGES, ready=True)
        whole, free = event(SLOTS), event(SLOTS, ready=True)
        lhs_s = [shared(TL, ROWS, width, copies=STAGES) for _, width in steps]
        rhs_s = [shared(TR, TILE_N, width, copies=SLOTS) for _, width in steps]
        out_s = [shared(TO, HEIGHT, TILE_N) for _ in range(GROUPS)]
        first, last = var(block * share), var(tm.math.min(block * share + share, rest))
        some = var(first // tiles)
        count = var(rounds + select(first < last, cdiv(last, tiles) - some, 0))

        def product(i: Any) -> tuple[Any, Any, Any]:
            """The i-th product of the block, and its first tile and the end: all tiles in whole rounds."""
            divided = some + i - rounds
            begin, end = tm.math.max(first - divided * tiles, 0), tm.math.min(last - divided * tiles, tiles)
            whole = i < rounds
            return (
                var(select(whole, block + i * GRID, rounds * GRID + divided)),
                var(select(whole, 0, begin)),
                var(select(whole, tiles, end)),
            )

        def load_rhs(b: Any, kept: PipelineState) -> None:
            wait(free[kept.slot])
            for (k, width), buffers in zip(steps, rhs_s, strict=True):
                for column, columns in parts:
                    there = rhs.view(1, columns, width).from_(b, column, k).sqz()
                    room = buffers[kept.slot].view(columns, width).from_(column, 0)
                    tma.copy(there, room, async_=whole[kept.slot])
            trigger(whole[kept.slot])

        def load_rows(b: Any, m: Any, filled: PipelineState) -> None:
            wait(empty[filled.slot])
            for (k, width), buffers in zip(steps, lhs_s, strict=True):
                there = lhs.view(1, ROWS, width).from_(b, m * ROWS, k).sqz()
                tma.copy(there, buffers[filled.slot], async_=full[filled.slot])
            trigger(full[filled.slot])

        def store(mc: Any, room: Any, column: int, columns: int) -> None:
            some = {"rows": columns} if columns < ATOM and TURNED else {}
            shape = mc.shape[::-1] if TURNED else mc.shape
            mma.store(mc, room.view(*shape).from_(0, column), transp=TURNED, **some)

        def multiply(b: Any, m: Any, group: int, used: PipelineState, kept: PipelineState) -> None:
            wait(full[used.slot])
            room, before = out_s[group], None
            for column, columns in turned_parts(TILE_N) if TURNED else parts:
                height = ATOM if TURNED else columns
                mc = mma.fill(zero(ACC), ACC, fast=True)
                for (_, width), left, right in zip(steps, lhs_s, rhs_s, strict=True):
                    mine = mma.load(left[used.slot].subspan(HEIGHT, width).at(group, 0))
                    those = mma.load(right[kept.slot].view(height, width).from_(column, 0))
                    mma.row.row(mc, *((those, mine) if TURNED else (mine, those)))
                if before is not None:
                    # Stored while this part is multiplied.
                    mma.commit()
                    mma.wait(1)
                    store(*before)
                before = mc, room, column, columns
                last = column + columns == TILE_N
                if last or not TURNED:
                    mma.wait(0)
                    if last:
                        trigger(empty[used.slot])
                    store(*before)
                    before = None
            row = m * GROUPS + group
            if STORE == "lines":
                lines = HEIGHT * TILE_N // ELEMENTS
                there = out.subspan(1, lines, ELEMENTS).at(b, row, 0).sqz()
                tma.copy(room.span_as(lines, ELEMENTS), there)
            else:
                tma.copy(room, out.subspan(1, HEIGHT, TILE_N).at(b, row, 0).sqz())

        for wg in parallel(GROUPS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                filled, kept = PipelineState(var(0), STAGES), PipelineState(var(0), SLOTS)
                for i in foreach(B, stop=count):
                    b, begin, end = product(i)
                    load_rhs(b, kept)
                    for m in foreach(tiles, start=begin, stop=end):
                        load_rows(b, m, filled)
                        filled.advance()
                    kept.advance()
            for group in range(GROUPS):
                with inthreads(wg == group + 1, async_=True):
                    used, kept = PipelineState(var(0), STAGES), PipelineState(var(0), SLOTS)
                    for i in foreach(B, stop=count):
                        b, begin, end = product(i)
                        wait(whole[kept.slot])
                        for m in foreach(tiles, start=begin, stop=end):
                            multiply(b, m, group, used, kept)
                            used.advance()
                        trigger(free[kept.slot])
                        kept.advance()

    for block in parallel(teams, level="block", overlap=True):
        tasks(block)
