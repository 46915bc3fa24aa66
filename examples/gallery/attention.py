"""Attention with one pass over the keys; the twin of attention.co.

`largest` and `total` are vectors, a number for each row. When a row's largest score rises, what was summed before
shrinks. The weights p are an operand computed in registers. Iteration n multiplies the values of tile n - 1, while
it computes the weights of tile n: the last one has no keys. HQ heads of queries share HKV heads of keys. The tiles
suit DIM=64; rows of 128 need BLOCK_M=128, or the sums do not fit in registers.
"""

import tilemma as tm
from tilemma import apply, cdiv, compose, dma, foreach, if_, mma, parallel, select, shared


@tm.kernel
def attention(
    q: tm.Global["f16", "B", "HQ", "SQ", "DIM"],
    k: tm.Global["f16", "B", "HKV", "SKV", "DIM"],
    v: tm.Global["f16", "B", "HKV", "SKV", "DIM"],
    output: tm.Global["f16", "B", "HQ", "SQ", "DIM"],
    scale: tm.Float,
    causal: tm.Bool,
    *,
    DIM=64,
    BLOCK_M=192,
    BLOCK_N=128,
    WG_M=64,
):
    B, HQ, SQ, _ = q.shape
    _, HKV, SKV, _ = k.shape
    for bm, head, batch in parallel(cdiv(SQ, BLOCK_M), HQ, B, level="block"):
        shared_head = head // (HQ // HKV)
        q_head = q.subspan(1, 1, SQ, DIM).at(batch, head, 0, 0).sqz()
        k_head = k.subspan(1, 1, SKV, DIM).at(batch, shared_head, 0, 0).sqz()
        v_head = v.subspan(1, 1, SKV, DIM).at(batch, shared_head, 0, 0).sqz()
        o_head = output.subspan(1, 1, SQ, DIM).at(batch, head, 0, 0).sqz()
        q_s = shared("f16", BLOCK_M, DIM)
        k_s = shared("f16", BLOCK_N, DIM)
        v_s = shared("f16", BLOCK_N, DIM)
        dma.copy(q_head.subspan(BLOCK_M, DIM).at(bm, 0), q_s)
        past = SKV - SQ
        keys = select(causal, tm.math.max(0, tm.math.min(SKV, (bm + 1) * BLOCK_M + past)), SKV)
        for wg in parallel(BLOCK_M // WG_M, level="group-4"):
            largest = mma.frag("f32", WG_M, init=-1.0e30)
            before = mma.frag("f32", WG_M)
            shrink = mma.frag("f32", WG_M)
            part = mma.frag("f32", WG_M)
            total = mma.frag("f32", WG_M, init=0.0)
            p = mma.frag("f16", WG_M, BLOCK_N, init=0.0)
            acc = mma.fill(0.0, "f32")
            for n in foreach(cdiv(keys, BLOCK_N) + 1, pipeline=tm.Pipeline(stages=3)):
                dma.copy(k_head.subspan(BLOCK_N, DIM).at(n, 0), k_s)
                dma.copy(v_head.subspan(BLOCK_N, DIM).at(tm.math.max(n - 1, 0), 0), v_s)
                s = mma.fill(0.0, "f32")
                mma.row.row(s, q_s.subspan(WG_M, DIM).at(wg, 0), k_s)
                mma.row.col(acc, p, v_s)
                first = bm * BLOCK_M + wg * WG_M
                with if_((n + 1) * BLOCK_N > select(causal, tm.math.min(SKV, first + past + 1), SKV)):
                    for i, j in apply(s):
                        with if_(n * BLOCK_N + j >= select(causal, tm.math.min(SKV, first + i + past + 1), SKV)):
                            s[i, j] = -float("inf")
                before.set(largest)
                mma.reduce_max(part, s)
                for i in apply(largest):
                    largest[i] = tm.math.max(before[i], part[i])
                    shrink[i] = tm.math.exp2_ftz((before[i] - largest[i]) * scale)
                    part[i] = -largest[i] * scale
                for i, j in apply(s):
                    s[i, j] = tm.math.exp2_ftz(tm.math.fma(s[i, j], scale, part[i]))
                mma.reduce_sum(part, s)
                total.set(total * shrink + part)
                for i, j in apply(acc):
                    acc[i, j] = acc[i, j] * shrink[i]
                p.set(s)
            for i, j in apply(acc):
                acc[i, j] = select(total[i] > 0.0, acc[i, j] / total[i], 0.0)
            mma.store(acc, o_head.subspan(WG_M, DIM).at(compose(bm, wg), 0))
