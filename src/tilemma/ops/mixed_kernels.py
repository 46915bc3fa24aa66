"""The kernels of `mixed_matmul`: weights of 8 and 4 bits become operands of 16 bits in registers."""

from __future__ import annotations

from typing import Any

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, if_, mma, parallel, shared
from tilemma.ops.epilogue import EpilogueFunction, Place, epilogue_function

# Weights that a warpgroup multiplies, or a warp: its rows of the transposed product.
ROWS = 64


def store_transposed(
    mc: Any, out: Any, epilogue: EpilogueFunction, tile: tuple[Any, Any, Any], columns: int, groups: int,
    slices: int = 1, level: str = "group-4",
) -> None:  # fmt: skip
    """Stores the transposed tile ``mc`` [groups * ROWS, columns] of a block with the epilogue.

    The instances of ``level`` of ``slices`` slices of K have sums of their own, which are added in the order of K.
    """
    if slices == 1:
        for p, _ in parallel(groups, 1, level=level):
            _store_part(mc, out, epilogue, tile, columns, groups, p)
        return
    room = shared("f32", slices, groups * ROWS, columns)
    for p, s in parallel(groups, slices, level=level):
        mma.store(mc, room.subspan(1, ROWS, columns).at(s, p, 0).sqz())
    for p, s in parallel(groups, slices, level=level):
        with if_(s == 0):
            for other in range(1, slices):
                more = mma.frag("f32", ROWS, columns)
                mma.load(room.subspan(1, ROWS, columns).at(other, p, 0).sqz(), into=more)
                for i, j in apply(mc):
                    mc[i, j] = mc[i, j] + more[i, j]
            _store_part(mc, out, epilogue, tile, columns, groups, p)


def _store_part(
    mc: Any, out: Any, epilogue: EpilogueFunction, tile: tuple[Any, Any, Any], columns: int, groups: int, p: Any
) -> None:
    """Stores part ``p`` of the tile, that of an instance."""
    batch, m, n = tile
    at = Place(batch, batch, batch, batch, m * columns, (n * groups + p) * ROWS)
    if not epilogue.plain:
        for i, j in apply(mc):
            mc[i, j] = epilogue.of(mc[i, j], at, j, i)
    mma.store(mc, out.subspan(1, columns, ROWS).at(batch, m, n * groups + p).sqz(), transp=True)


@tm.kernel(pipeline=tm.Pipeline(producer=True))
def mixed_sums(
    a: tm.Global["T", "AB", "M", "K"],
    values: tm.Global["TV", "VB", "N", "K"],
    scales: tm.Global["TS", "SB", "GROUP_COUNT", "N"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TV="s8", TS="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    AB="B", VB=1, SB=1, C0="M", C1="N", BIAS_BATCH=1, BIAS="N",
    # The plan.
    GROUP=128, TILE_M=16, TILE_K=64, GROUPS=1, SLICES=1, STEP=32, LEVEL="group-4",
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a[b] x (values * scales) + beta * c[b] + bias).

    The transposed product is computed: the weights are its left operand.  Their values are exact in T.  The
    products of each group are summed apart, and this sum is scaled in f32.  SLICES steps along K are copied
    together, and each is multiplied by warpgroups of its own, or with LEVEL "group" by warps.  SLICES * TILE_K is
    a multiple of GROUP, or divides it.  STEP divides GROUP and TILE_K: so many of K are multiplied while the next
    are converted.
    """
    M, N, K = out.shape[1], out.shape[2], a.shape[2]
    UNIT, EACH, DEPTH = min(GROUP, TILE_K), max(TILE_K // GROUP, 1), SLICES * TILE_K
    LINES = max(DEPTH // GROUP, 1)
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    for batch, n, m in parallel(out.shape[0], cdiv(N, GROUPS * ROWS), cdiv(M, TILE_M), level="block"):
        a_s, w_s = shared(T, TILE_M, DEPTH), shared(TV, GROUPS * ROWS, DEPTH)
        s_s = shared(TS, 1, LINES, GROUPS * ROWS)
        mc = mma.frag("f32", ROWS, TILE_M, init=0.0)
        for k in foreach(cdiv(K, DEPTH)):
            own = batch if VB != 1 else 0
            dma.copy(values.subspan(1, GROUPS * ROWS, DEPTH).at(own, n, k).sqz(), w_s)
            dma.copy(a.subspan(1, TILE_M, DEPTH).at(batch if AB != 1 else 0, m, k).sqz(), a_s)
            which, first = k * DEPTH // GROUP, n * GROUPS * ROWS
            dma.copy(scales.view(1, LINES, GROUPS * ROWS).from_(batch if SB != 1 else 0, which, first), s_s)
            for p, s in parallel(GROUPS, SLICES, level=LEVEL):
                parts = []
                for g in range(EACH):
                    part = mma.fill(0.0, "f32")
                    for q in range(UNIT // STEP):
                        at = (s * EACH + g) * (UNIT // STEP) + q
                        weights = mma.load(w_s.subspan(ROWS, STEP).at(p, at), dtype=T)
                        mma.row.row(part, weights, mma.load(a_s.subspan(TILE_M, STEP).at(0, at)))
                    step, line = mma.frag(TS, ROWS), s * TILE_K // GROUP + g
                    mma.load(s_s.subspan(1, 1, ROWS).at(0, line, p).sqz(), step)
                    parts.append((part, step))
                for part, step in parts:
                    for i, j in apply(mc):
                        mc[i, j] = tm.math.fma(part[i, j], step[i].astype("f32"), mc[i, j])
        store_transposed(mc, out, epilogue, (batch, m, n), TILE_M, GROUPS, SLICES, LEVEL)


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
    for batch, n, m in parallel(out.shape[0], cdiv(N, GROUPS * ROWS), cdiv(M, TILE_M), level="block"):
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
        store_transposed(mc, out, epilogue, (batch, m, n), TILE_M, GROUPS)


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
    for n, k in parallel(cdiv(N, WARPS * EACH), cdiv(K, COLUMNS), level="block"):
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
