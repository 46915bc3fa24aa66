"""The kernel of `mixed_matmul` for few rows of activations and 4-bit weights, written by hand: a producer, and
consumers that work in turns."""

from __future__ import annotations

from typing import Any

import tilemma as tm
from tilemma import apply, cdiv, event, foreach, if_, inthreads, mma, parallel, shared, tma, trigger, var, wait
from tilemma.ops.epilogue import epilogue_function
from tilemma.ops.mixed_kernels import ROWS, ResultTile, store_part
from tilemma.ops.ring import PipelineState


@tm.kernel
def mixed_streams(
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
    T="f16", TV="s4", TS="f32", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    AB="B", VB=1, SB=1, C0="M", C1="N", BIAS_BATCH=1, BIAS="N",
    # The plan.
    GROUP=128, TILE_M=16, TILE_K=128, SLICES=8, STEP=128, LEVEL="group", SHARE=2, STAGES=8,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a[b] x (values * scales) + beta * c[b] + bias); see
    `mixed_kernels.sums_of_groups`.

    Each of SLICES instances of LEVEL multiplies every SLICES-th part of TILE_K of K.  SHARE of them use the same
    stages of the ring, and the others different ones: these convert weights while those multiply.  Instances that
    wait for the same stage do both at the same time.  TMA copies all operands.  SHARE divides SLICES,
    SLICES / SHARE divides STAGES, and STEP divides GROUP and TILE_K: so many of K are multiplied while the next
    are converted.
    """
    M, N, K = out.shape[1], out.shape[2], a.shape[2]
    UNIT, EACH = min(GROUP, TILE_K), max(TILE_K // GROUP, 1)
    DEPTH, TURNS, WARPS = SHARE * TILE_K, SLICES // SHARE, LEVEL == "group"
    LINES, STEPS = max(DEPTH // GROUP, 1), cdiv(K, DEPTH)
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    for batch, n, m in parallel(out.shape[0], cdiv(N, ROWS), cdiv(M, TILE_M), level="block", overlap=True):
        full = event(STAGES)
        empty = event(STAGES, ready=True, threads=SHARE * (32 if WARPS else 128))
        a_s, w_s = shared(T, TILE_M, DEPTH, copies=STAGES), shared(TV, ROWS, DEPTH, copies=STAGES)
        s_s = shared(TS, 1, LINES, ROWS, copies=STAGES)
        room = shared("f32", SLICES, ROWS, TILE_M)
        for p in parallel(1 + SLICES, level=LEVEL):
            with inthreads(p == 0, async_=True):
                filled = PipelineState(var(0), STAGES)
                own = [batch if x != 1 else 0 for x in (AB, VB, SB)]
                for k in foreach(STEPS):
                    slot = filled.slot
                    wait(empty[slot])
                    tma.copy(
                        values.subspan(1, ROWS, DEPTH).at(own[1], n, k).sqz(), w_s[slot], async_=full[slot],
                        evict="first",
                    )  # fmt: skip
                    tma.copy(a.subspan(1, TILE_M, DEPTH).at(own[0], m, k).sqz(), a_s[slot], async_=full[slot])
                    lines = scales.view(1, LINES, ROWS).from_(own[2], k * DEPTH // GROUP, n * ROWS)
                    tma.copy(lines, s_s[slot], async_=full[slot], evict="first")
                    trigger(full[slot])
                    filled.advance()
            with inthreads(p >= 1, async_=True):
                part = (p - 1) % SHARE if SHARE > 1 else 0
                mc = mma.frag("f32", ROWS, TILE_M, init=0.0)
                used = PipelineState(var((p - 1) // SHARE), STAGES)
                for _ in foreach(STEPS, start=(p - 1) // SHARE, step=TURNS):
                    slot = used.slot
                    wait(full[slot])
                    sums = []
                    for g in range(EACH):
                        some, factor = mma.fill(0.0, "f32"), mma.frag(TS, ROWS)
                        for q in range(UNIT // STEP):
                            at = (part * EACH + g) * (UNIT // STEP) + q
                            weights = mma.load(w_s[slot].subspan(ROWS, STEP).at(0, at), dtype=T)
                            mma.row.row(some, weights, mma.load(a_s[slot].subspan(TILE_M, STEP).at(0, at)))
                        line = part * TILE_K // GROUP + g
                        mma.load(s_s[slot].subspan(1, 1, ROWS).at(0, line, 0).sqz(), factor)
                        sums.append((some, factor))
                    if WARPS:
                        trigger(empty[slot])
                    for some, factor in sums:
                        for i, j in apply(mc):
                            mc[i, j] = tm.math.fma(some[i, j], factor[i].astype("f32"), mc[i, j])
                    if not WARPS:
                        trigger(empty[slot])
                    used.advance(TURNS)
                mma.store(mc, room.subspan(1, ROWS, TILE_M).at(p - 1, 0, 0).sqz())
                with if_(p == 1):
                    for other in range(1, SLICES):
                        more = mma.frag("f32", ROWS, TILE_M)
                        mma.load(room.subspan(1, ROWS, TILE_M).at(other, 0, 0).sqz(), into=more)
                        for i, j in apply(mc):
                            mc[i, j] = mc[i, j] + more[i, j]
                    tile: Any = ResultTile(batch, m, n, TILE_M, 1)
                    store_part(out, epilogue, tile, 0, mc, 0, TILE_M)
