"""The kernels of `mixed_matmul`: weights of 8 and 4 bits become operands of 16 bits in registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, if_, mma, parallel, shared, tma
from tilemma.kernels import Kernel
from tilemma.ops.epilogue import EpilogueFunction, Place, epilogue_function
from tilemma.ops.split_k import SplitKReduction

# Weights that a warpgroup multiplies, or a warp: its rows of the transposed product.
ROWS = 64
# Stores sums, of a share of the columns of this number and width.
Finish = Callable[[Any, Any, int], None]
# Of the sums of an instance, its number, and what stores their total.
Join = Callable[[Any, Any, Finish], None]


@dataclass(frozen=True)
class ResultTile:
    """A block's tile of the result: ``columns`` rows of activations, and ``groups`` of ROWS weights."""

    batch: Any
    m: Any
    n: Any
    columns: int
    groups: int


def store_transposed(
    mc: Any, out: Any, epilogue: EpilogueFunction, tile: ResultTile, slices: int = 1, level: str = "group-4",
    join: Join | None = None,
) -> None:  # fmt: skip
    """Stores the transposed tile ``mc`` [groups * ROWS, columns] of a block with the epilogue.

    The instances of ``level`` of ``slices`` slices of K have sums of their own, which are added in the order of K.
    ``join`` adds these to the sums of other blocks.
    """
    groups, part = tile.groups, (ROWS, tile.columns)

    def store(mc: Any, p: Any) -> None:
        finish = partial(store_part, out, epilogue, tile, p)
        if join is None:
            finish(mc, 0, tile.columns)
        else:
            join(mc, p, finish)

    if slices == 1:
        for p, _ in parallel(groups, 1, level=level):
            store(mc, p)
        return
    # The sums of the first slice stay in registers.
    room = shared("f32", slices - 1, groups * ROWS, tile.columns)
    for p, s in parallel(groups, slices, level=level):
        with if_(s > 0):
            mma.store(mc, room.subspan(1, *part).at(s - 1, p, 0).sqz())
    for p, s in parallel(groups, slices, level=level):
        with if_(s == 0):
            for other in range(1, slices):
                more = mma.frag("f32", *part)
                mma.load(room.subspan(1, *part).at(other - 1, p, 0).sqz(), into=more)
                for i, j in apply(mc):
                    mc[i, j] = mc[i, j] + more[i, j]
            store(mc, p)


def store_part(
    out: Any, epilogue: EpilogueFunction, tile: ResultTile, p: Any, mc: Any, share: Any, width: int
) -> None:
    """Stores ``width`` columns of part ``p`` of the tile, that of an instance: the share of this number."""
    n = tile.n * tile.groups + p
    _finish(mc, epilogue, tile, n, tile.m * tile.columns + share * width)
    there = out.subspan(1, width, ROWS).at(tile.batch, tile.m * (tile.columns // width) + share, n)
    mma.store(mc, there.sqz(), transp=True)


def _finish(mc: Any, epilogue: EpilogueFunction, tile: ResultTile, n: Any, row: Any) -> None:
    """Applies the epilogue to the transposed sums ``mc`` of the n-th ROWS weights, and of rows from ``row`` on."""
    if not epilogue.plain:
        at = Place(*[tile.batch] * 4, row, n * ROWS)
        for i, j in apply(mc):
            mc[i, j] = epilogue.of(mc[i, j], at, j, i)


def _add_part(
    room: tuple[Any, Any], split: int, looks: int, tile: ResultTile, number: Any, part: Any, mc: Any, p: Any,
    finish: Finish,
) -> None:  # fmt: skip
    """Adds the sums of part ``p`` of tile ``number`` to those of the other parts of K."""
    SplitKReduction(*room, p, split, ROWS, tile.columns, looks).add(mc, number, part, finish)


def sums_of_groups(
    a: tm.Global["T", "AB", "M", "K"],
    values: tm.Global["TV", "VB", "N", "K"],
    scales: tm.Global["TS", "SB", "GROUP_COUNT", "N"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    parts: tm.Global["f32", "PARTS", "PART0", "PART1"],
    words: tm.Global["s64", "WORDS", "WORD1"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TV="s8", TS="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    AB="B", VB=1, SB=1, C0="M", C1="N", BIAS_BATCH=1, BIAS="N", PARTS=1,
    PART0=1, PART1=1, WORDS=1, WORD1=1,
    # The plan.
    GROUP=128, TILE_M=16, TILE_K=64, GROUPS=1, SLICES=1, STEP=32, LEVEL="group-4",
    STREAM=False, SPLIT=1, LOOKS=0,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a[b] x (values * scales) + beta * c[b] + bias).

    The transposed product is computed: the weights are its left operand.  Their values are exact in T.  The
    products of each group are summed apart, and this sum is scaled in f32.  SLICES steps along K are copied
    together, and each is multiplied by warpgroups of its own, or with LEVEL "group" by warps.
    SLICES * TILE_K is a multiple of GROUP, or divides it.  STEP divides GROUP and TILE_K: so many of K are
    multiplied while the next are converted.  With SPLIT > 1 each block multiplies one of so many parts of K, and
    those of a tile add theirs in the order of K: `split_k`.  STREAM: TMA can copy the weights, which leave the L2
    cache before what is read again.
    """
    M, N, K = out.shape[1], out.shape[2], a.shape[2]
    UNIT, EACH, DEPTH = min(GROUP, TILE_K), max(TILE_K // GROUP, 1), SLICES * TILE_K
    LINES = max(DEPTH // GROUP, 1)
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    STEPS = cdiv(K, DEPTH) if SPLIT == 1 else K // (SPLIT * DEPTH)
    tiles = cdiv(N, GROUPS * ROWS), cdiv(M, TILE_M)
    for z, n, m in parallel(out.shape[0] * SPLIT, *tiles, level="block", overlap=True):
        batch, part = (z, 0) if SPLIT == 1 else (z // SPLIT, z % SPLIT)
        a_s, w_s = shared(T, TILE_M, DEPTH), shared(TV, GROUPS * ROWS, DEPTH)
        s_s = shared(TS, 1, LINES, GROUPS * ROWS)
        mc = mma.frag("f32", ROWS, TILE_M, init=0.0)
        for step in foreach(STEPS):
            own, k = batch if VB != 1 else 0, step if SPLIT == 1 else part * STEPS + step
            taken = values.subspan(1, GROUPS * ROWS, DEPTH).at(own, n, k).sqz()
            if STREAM:
                tma.copy(taken, w_s, evict="first")
            else:
                dma.copy(taken, w_s)
            dma.copy(a.subspan(1, TILE_M, DEPTH).at(batch if AB != 1 else 0, m, k).sqz(), a_s)
            which, first = k * DEPTH // GROUP, n * GROUPS * ROWS
            dma.copy(scales.view(1, LINES, GROUPS * ROWS).from_(batch if SB != 1 else 0, which, first), s_s)
            for p, s in parallel(GROUPS, SLICES, level=LEVEL):
                sums = []
                for g in range(EACH):
                    some = mma.fill(0.0, "f32")
                    for q in range(UNIT // STEP):
                        at = (s * EACH + g) * (UNIT // STEP) + q
                        weights = mma.load(w_s.subspan(ROWS, STEP).at(p, at), dtype=T)
                        mma.row.row(some, weights, mma.load(a_s.subspan(TILE_M, STEP).at(0, at)))
                    factor, line = mma.frag(TS, ROWS), s * TILE_K // GROUP + g
                    mma.load(s_s.subspan(1, 1, ROWS).at(0, line, p).sqz(), factor)
                    sums.append((some, factor))
                for some, factor in sums:
                    for i, j in apply(mc):
                        mc[i, j] = tm.math.fma(some[i, j], factor[i].astype("f32"), mc[i, j])

        tile, number = ResultTile(batch, m, n, TILE_M, GROUPS), n * tiles[1] + m
        join = partial(_add_part, (parts, words), SPLIT, LOOKS, tile, number, part) if SPLIT > 1 else None
        store_transposed(mc, out, epilogue, tile, SLICES, LEVEL, join)


@cache
def mixed_sums(persistent: bool = True) -> Kernel:
    """The kernel, with blocks that compute several tiles one after another, or one."""
    return tm.kernel(pipeline=tm.Pipeline(producer=True, persistent=persistent))(sums_of_groups)


@tm.kernel(pipeline=tm.Pipeline(producer=True))
def mixed_tiles(
    a: tm.Global["T", "AB", "M", "K"],
    values: tm.Global["TV", "VB", "N", "STORED"],
    scales: tm.Global["TS", "SB", "GROUP_COUNT", "N"],
    zeros: tm.Global["TZ", "ZB", "ZERO_COUNT", "ZN"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TV="s8", TS="f32", TZ="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    AB="B", VB=1, SB=1, ZB=1, ZERO_COUNT="GROUP_COUNT", ZN="N", C0="M", C1="N", BIAS_BATCH=1,
    BIAS="N",
    # The plan.
    PACKED=False, ZEROS=False, GROUP=128, TILE_M=16, TILE_K=64, GROUPS=1,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a[b] x w + beta * c[b] + bias), w = (values - zeros) * scales in type T.

    The transposed product is computed: the weights are its left operand, made in registers.
    """
    M, N, K = out.shape[1], out.shape[2], a.shape[2]
    EACH = 2 if PACKED else 1
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    for batch, n, m in parallel(
        out.shape[0], cdiv(N, GROUPS * ROWS), cdiv(M, TILE_M), level="block", overlap=True
    ):
        a_s, w_s = shared(T, TILE_M, TILE_K), shared(TV, GROUPS * ROWS, TILE_K // EACH)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(a.subspan(1, TILE_M, TILE_K).at(batch if AB != 1 else 0, m, k).sqz(), a_s)
            own = batch if VB != 1 else 0
            dma.copy(values.subspan(1, GROUPS * ROWS, TILE_K // EACH).at(own, n, k).sqz(), w_s)
            for p, _ in parallel(GROUPS, 1, level="group-4"):
                weights = mma.frag(T, ROWS, TILE_K)
                first = (n * GROUPS + p) * ROWS
                if GROUP % TILE_K == 0:
                    step, shift = mma.frag(TS, ROWS), mma.frag(TZ, ROWS)
                    which = k // (GROUP // TILE_K)
                    mma.load(scales.view(1, 1, ROWS).from_(own, which, first).sqz(), step)
                    if ZEROS:
                        mma.load(zeros.view(1, 1, ROWS).from_(own, which, first).sqz(), shift)
                for i, j in apply(weights):
                    if PACKED:
                        both = w_s[p * ROWS + i, j // 2].astype("s32")
                        value = ((both >> (j % 2 * 4)) & 15 ^ 8) - 8
                    else:
                        value = w_s[p * ROWS + i, j]
                    value = value.astype("f32")
                    if GROUP % TILE_K == 0:
                        factor, away = step[i], shift[i] if ZEROS else None
                    else:
                        which = (k * TILE_K + j) // GROUP
                        factor = scales[own, which, first + i]
                        away = zeros[own, which, first + i] if ZEROS else None
                    if away is not None:
                        value = value - away.astype("f32")
                    weights[i, j] = (value * factor.astype("f32")).astype(T)
                mma.row.row(mc, weights, mma.load(a_s))
        store_transposed(mc, out, epilogue, ResultTile(batch, m, n, TILE_M, GROUPS))


@tm.kernel(pipeline=tm.Pipeline(producer=True, persistent=True, cluster=1))
def mixed_products(
    a: tm.Global["T", "AB", "M", "K"],
    values: tm.Global["TV", "VB", "N", "K"],
    scales: tm.Global["TS", "SB", "GROUP_COUNT", "N"],
    zeros: tm.Global["TZ", "ZB", "ZERO_COUNT", "ZN"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TV="s8", TS="f32", TZ="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    AB="B", VB=1, SB=1, ZB=1, ZERO_COUNT="GROUP_COUNT", ZN="N", C0="M", C1="N", BIAS_BATCH=1,
    BIAS="N",
    # The plan.
    ZEROS=False, GROUP=128, TILE_M=256, TILE_K=64, GROUPS=2, STEP=32, STAGED=False,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a[b] x w + beta * c[b] + bias), w = (values - zeros) * scales in type T.

    The transposed product is computed: the weights are its left operand, made in registers, STEP of K while those
    before are multiplied.  STEP divides GROUP and TILE_K, and one of these divides the other.  STAGED: the result
    goes through shared memory.
    """
    M, N, K = out.shape[1], out.shape[2], a.shape[2]
    LINES = max(TILE_K // GROUP, 1)
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    tiles = cdiv(N, GROUPS * ROWS), cdiv(M, TILE_M)
    for batch, n, m in parallel(out.shape[0], *tiles, level="block", overlap=True):
        a_s, w_s = shared(T, TILE_M, TILE_K), shared(TV, GROUPS * ROWS, TILE_K)
        s_s, z_s = shared(TS, 1, LINES, GROUPS * ROWS), shared(TZ, 1, LINES, GROUPS * ROWS)
        mc = mma.fill(0.0, "f32")
        own, first = batch if VB != 1 else 0, n * GROUPS * ROWS
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(a.subspan(1, TILE_M, TILE_K).at(batch if AB != 1 else 0, m, k).sqz(), a_s)
            dma.copy(values.subspan(1, GROUPS * ROWS, TILE_K).at(own, n, k).sqz(), w_s)
            for array, buffer in ((scales, s_s), (zeros, z_s))[: 1 + ZEROS]:
                dma.copy(array.view(1, LINES, GROUPS * ROWS).from_(own, k * TILE_K // GROUP, first), buffer)
            for p, _ in parallel(GROUPS, 1, level="group-4"):
                for q in range(TILE_K // STEP):
                    line = q * STEP // GROUP
                    factor, away = mma.frag(TS, ROWS), mma.frag(TZ, ROWS)
                    mma.load(s_s.subspan(1, 1, ROWS).at(0, line, p).sqz(), factor)
                    if ZEROS:
                        mma.load(z_s.subspan(1, 1, ROWS).at(0, line, p).sqz(), away)
                    weights = mma.load(w_s.subspan(ROWS, STEP).at(p, q), dtype=T)
                    for i, j in apply(weights):
                        value = weights[i, j].astype("f32")
                        if ZEROS:
                            value = value - away[i].astype("f32")
                        weights[i, j] = (value * factor[i].astype("f32")).astype(T)
                    mma.row.row(mc, weights, mma.load(a_s.subspan(TILE_M, STEP).at(0, q)))
        tile = ResultTile(batch, m, n, TILE_M, GROUPS)
        if STAGED:
            out_s = shared(TO, TILE_M, GROUPS * ROWS)
            for p, _ in parallel(GROUPS, 1, level="group-4"):
                _finish(mc, epilogue, tile, n * GROUPS + p, m * TILE_M)
                mma.store(mc, out_s.subspan(TILE_M, ROWS).at(0, p), transp=True)
            dma.copy(out_s, out.subspan(1, TILE_M, GROUPS * ROWS).at(batch, m, n).sqz())
        else:
            store_transposed(mc, out, epilogue, tile)


@tm.kernel
def widened_weights(
    values: tm.Global["TV", "N", "K"],
    scales: tm.Global["TS", "GROUP_COUNT", "N"],
    zeros: tm.Global["TZ", "ZERO_COUNT", "ZN"],
    out: tm.Global["T", "N", "K"],
    *,
    T="f16",
    TV="s8",
    TS="f32",
    TZ="f32",
    ZERO_COUNT="GROUP_COUNT",
    ZN="N",
    ZEROS=False,
    GROUP=128,
    COLUMNS=128,
):
    """out = (values - zeros) * scales, computed in f32 and rounded to T.  COLUMNS divides GROUP, or is it."""
    N, K = out.shape
    WARPS, EACH = 4, 32
    for n, k in parallel(cdiv(N, WARPS * EACH), cdiv(K, COLUMNS), level="block", overlap=True):
        v_s, w_s = shared(TV, WARPS * EACH, COLUMNS), shared(T, WARPS * EACH, COLUMNS)
        dma.copy(values.subspan(WARPS * EACH, COLUMNS).at(n, k), v_s)
        step, shift = mma.frag(TS, EACH, init=0.0), mma.frag(TZ, EACH, init=0.0)
        # Scales are on their way while the values arrive.
        for p in parallel(WARPS, level="group"):
            which, first = k * COLUMNS // GROUP, (n * WARPS + p) * EACH
            mma.load(scales.view(1, EACH).from_(which, first).sqz(), step)
            if ZEROS:
                mma.load(zeros.view(1, EACH).from_(which, first).sqz(), shift)
        for p in parallel(WARPS, level="group"):
            weights = mma.load(v_s.subspan(EACH, COLUMNS).at(p, 0), dtype=T)
            for i, j in apply(weights):
                value = weights[i, j].astype("f32")
                if ZEROS:
                    value = value - shift[i].astype("f32")
                weights[i, j] = (value * step[i].astype("f32")).astype(T)
            mma.store(weights, w_s.subspan(EACH, COLUMNS).at(p, 0))
        dma.copy(w_s, out.subspan(WARPS * EACH, COLUMNS).at(n, k))
