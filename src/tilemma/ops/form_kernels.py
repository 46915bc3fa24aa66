"""The kernels of `gated_matmul` and `sparse_matmul`."""

from __future__ import annotations

import tilemma as tm
from tilemma import apply, cdiv, dma, foreach, mma, parallel, shared
from tilemma.ops.epilogue import Place, activate, epilogue_function
from tilemma.ops.sums import multiply, zero

# Small tiles too are fed by a producer.  Pairs of blocks that share tiles are no faster, and one may be idle.
PRODUCER = tm.Pipeline(producer=True, cluster=1)


@tm.kernel(pipeline=PRODUCER)
def gated_tiles(
    x: tm.Global["T", "XB", "X0", "X1"],
    gate: tm.Global["T", "GB", "G0", "G1"],
    up: tm.Global["T", "UB", "U0", "U1"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    T="f16", TC="f16", TB="f16", TO="f16",
    # Dimensions of the arrays, and which of them are contiguous.
    XB="B", GB="B", UB="B", X0="M", X1="K", G0="N", G1="K", U0="N", U1="K", X="row", GATE="row",
    UP="row", C0="M", C1="N", BIAS_BATCH=1, BIAS="N",
    # The plan.
    TILE_M=128, TILE_N=128, TILE_K=64, GROUPS=2, GATED="silu",
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = alpha * GATED(x[b] x gate[b]) * (x[b] x up[b]) + beta * c[b] + bias; "row": K is contiguous."""
    M, N = out.shape[1], out.shape[2]
    K = x.shape[2 if X == "row" else 1]
    WARP_M = TILE_M // GROUPS
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    for batch, m, n in parallel(out.shape[0], cdiv(M, TILE_M), cdiv(N, TILE_N), level="block", overlap=True):
        x_s = shared(T, TILE_M, TILE_K) if X == "row" else shared(T, TILE_K, TILE_M)
        gate_s = shared(T, TILE_N, TILE_K) if GATE == "row" else shared(T, TILE_K, TILE_N)
        up_s = shared(T, TILE_N, TILE_K) if UP == "row" else shared(T, TILE_K, TILE_N)
        left, right = mma.fill(0.0, "f32"), mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, TILE_K)):
            for array, buffer, size, major, several, tile in (
                (x, x_s, TILE_M, X, XB, m),
                (gate, gate_s, TILE_N, GATE, GB, n),
                (up, up_s, TILE_N, UP, UB, n),
            ):
                which = batch if several != 1 else 0
                if major == "row":
                    dma.copy(array.subspan(1, size, TILE_K).at(which, tile, k).sqz(), buffer)
                else:
                    dma.copy(array.subspan(1, TILE_K, size).at(which, k, tile).sqz(), buffer)
            for p in parallel(GROUPS, level="group-4"):
                if X == "row":
                    mine = mma.load(x_s.subspan(WARP_M, TILE_K).at(p, 0))
                else:
                    mine = mma.load(x_s.subspan(TILE_K, WARP_M).at(0, p))
                multiply(X, GATE)(left, mine, mma.load(gate_s))
                multiply(X, UP)(right, mine, mma.load(up_s))
        for p in parallel(GROUPS, level="group-4"):
            at = Place(batch, batch, batch, batch, m * TILE_M + p * WARP_M, n * TILE_N)
            for i, j in apply(left):
                value = activate(left[i, j], GATED) * right[i, j]
                left[i, j] = value if epilogue.plain else epilogue.of(value, at, i, j)
            mma.store(left, out.subspan(1, WARP_M, TILE_N).at(batch, m * GROUPS + p, n).sqz())


@tm.kernel(pipeline=PRODUCER)
def sparse_tiles(
    a: tm.Global["TA", "AB", "M", "HALF"],
    b: tm.Global["TB_", "BB", "B0", "B1"],
    metadata: tm.Global["TE", "EB", "M", "WORDS"],
    c: tm.Global["TC", "B", "C0", "C1"],
    bias: tm.Global["TB", "BIAS_BATCH", "BIAS"],
    out: tm.Global["TO", "B", "M", "N"],
    alpha: tm.Float,
    beta: tm.Float,
    *,
    # Element types.
    TA="f16", TB_="f16", TE="u32", TC="f16", TB="f16", TO="f16", ACC="f32",
    # Dimensions of the arrays, and which of them are contiguous.
    AB=1, BB="B", EB=1, B0="N", B1="K", RHS="row", C0="M", C1="N", BIAS_BATCH=1, BIAS="N",
    # The plan.
    TILE_M=128, TILE_N=256, TILE_K=64, WORD=32, SPAN=2, GROUPS=2, FAST=True,
    # The epilogue.
    SCALE=False, ADDEND="", ALONG="", ACTIVATION="",
):  # fmt: skip
    """out[b] = activation(alpha * a x b[b] + beta * c[b] + bias); WORD columns of ``a`` are described
    by one element of ``metadata``.

    Each step copies the metadata of SPAN steps: TMA copies 16 bytes or more of a row.
    """
    M, N = out.shape[1], out.shape[2]
    K = b.shape[2 if RHS == "row" else 1]
    WARP_M = TILE_M // GROUPS
    epilogue = epilogue_function((alpha, beta), (c, bias, out), (SCALE, ADDEND, ALONG, ACTIVATION))
    for batch, m, n in parallel(out.shape[0], cdiv(M, TILE_M), cdiv(N, TILE_N), level="block", overlap=True):
        a_s, e_s = shared(TA, TILE_M, TILE_K // 2), shared(TE, TILE_M, SPAN * TILE_K // WORD)
        b_s = shared(TB_, TILE_N, TILE_K) if RHS == "row" else shared(TB_, TILE_K, TILE_N)
        which = batch if BB != 1 else 0
        mc = mma.fill(zero(ACC), ACC, fast=FAST)
        for k in foreach(cdiv(K, TILE_K)):
            dma.copy(a.subspan(1, TILE_M, TILE_K // 2).at(0, m, k).sqz(), a_s)
            words = metadata.subspan(1, TILE_M, SPAN * TILE_K // WORD)
            dma.copy(words.at(0, m, k // SPAN).sqz(), e_s)
            if RHS == "row":
                dma.copy(b.subspan(1, TILE_N, TILE_K).at(which, n, k).sqz(), b_s)
            else:
                dma.copy(b.subspan(1, TILE_K, TILE_N).at(which, k, n).sqz(), b_s)
            for p in parallel(GROUPS, level="group-4"):
                mine = mma.load(a_s.subspan(WARP_M, TILE_K // 2).at(p, 0))
                kept = mma.load(e_s.subspan(WARP_M, TILE_K // WORD).at(p, k % SPAN))
                if RHS == "row":
                    mma.row.row.sp(mc, mine, mma.load(b_s), kept)
                else:
                    mma.row.col.sp(mc, mine, mma.load(b_s), kept)
        for p in parallel(GROUPS, level="group-4"):
            at = Place(batch, batch, batch, batch, m * TILE_M + p * WARP_M, n * TILE_N)
            done = epilogue.finished(mc, at)
            mma.store(done, out.subspan(1, WARP_M, TILE_N).at(batch, m * GROUPS + p, n).sqz())
