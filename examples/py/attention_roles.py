"""Attention with a producer and multiplying warpgroups, the twin of examples/co/attention_roles.co."""

import tilemma as tm
from tilemma import apply, cdiv, event, foreach, if_, inthreads, mma, parallel, select, shared, tma, trigger, wait


@tm.kernel
def attention_roles(
    q: tm.Global["f16", "B", "HQ", "SQ", "DIM"],
    k: tm.Global["f16", "B", "HKV", "SKV", "DIM"],
    v: tm.Global["f16", "B", "HKV", "SKV", "DIM"],
    output: tm.Global["f16", "B", "HQ", "SQ", "DIM"],
    scale: tm.Float,
    causal: tm.Bool,
    *,
    DIM=128,
    CONSUMERS=2,
    WG_M=64,
    BLOCK_N=128,
    STAGES=2,
):
    B, HQ, SQ, _ = q.shape
    _, HKV, SKV, _ = k.shape
    BLOCK_M = CONSUMERS * WG_M
    for bm, head, batch in parallel(cdiv(SQ, BLOCK_M), HQ, B, level="block"):
        shared_head = head // (HQ // HKV)
        q_head = q.subspan(1, 1, SQ, DIM).at(batch, head, 0, 0).sqz()
        k_head = k.subspan(1, 1, SKV, DIM).at(batch, shared_head, 0, 0).sqz()
        v_head = v.subspan(1, 1, SKV, DIM).at(batch, shared_head, 0, 0).sqz()
        o_head = output.subspan(1, 1, SQ, DIM).at(batch, head, 0, 0).sqz()
        q_s = shared("f16", BLOCK_M, DIM)
        k_s = shared("f16", BLOCK_N, DIM, copies=STAGES)
        v_s = shared("f16", BLOCK_N, DIM, copies=STAGES)
        q_full = event()
        k_full = event(STAGES)
        v_full = event(STAGES)
        k_empty = event(STAGES, ready=True)
        v_empty = event(STAGES, ready=True)
        past = SKV - SQ
        keys = select(causal, tm.math.max(0, tm.math.min(SKV, (bm + 1) * BLOCK_M + past)), SKV)
        tiles = cdiv(keys, BLOCK_N)
        for wg in parallel(CONSUMERS + 1, level="group-4"):
            with inthreads(wg == 0, async_=True):
                tma.copy(q_head.subspan(BLOCK_M, DIM).at(bm, 0), q_s, async_=q_full)
                trigger(q_full)
                for n in foreach(tiles):
                    wait(k_empty[n % STAGES])
                    tma.copy(k_head.subspan(BLOCK_N, DIM).at(n, 0), k_s[n % STAGES], async_=k_full[n % STAGES])
                    trigger(k_full[n % STAGES])
                    wait(v_empty[n % STAGES])
                    tma.copy(v_head.subspan(BLOCK_N, DIM).at(n, 0), v_s[n % STAGES], async_=v_full[n % STAGES])
                    trigger(v_full[n % STAGES])
            with inthreads(wg >= 1, async_=True):
                largest = mma.frag("f32", WG_M, init=-1.0e30)
                before = mma.frag("f32", WG_M)
                shrink = mma.frag("f32", WG_M)
                part = mma.frag("f32", WG_M)
                total = mma.frag("f32", WG_M, init=0.0)
                p = mma.frag("f16", WG_M, BLOCK_N)
                acc = mma.fill(0.0, "f32")
                first = bm * BLOCK_M + (wg - 1) * WG_M
                wait(q_full)
                for n in foreach(tiles):
                    s = mma.fill(0.0, "f32")
                    wait(k_full[n % STAGES])
                    mma.row.row(s, q_s.subspan(WG_M, DIM).at(wg - 1, 0), k_s[n % STAGES])
                    mma.commit()
                    trigger(k_empty[n % STAGES])
                    with if_((n + 1) * BLOCK_N > select(causal, tm.math.min(SKV, first + past + 1), SKV)):
                        for i, j in apply(s):
                            with if_(
                                n * BLOCK_N + j >= select(causal, tm.math.min(SKV, first + i + past + 1), SKV)
                            ):
                                s[i, j] = -float("inf")
                    before.set(largest)
                    mma.reduce_max(part, s)
                    for i in apply(largest):
                        largest[i] = tm.math.max(before[i], part[i])
                        shrink[i] = tm.math.exp2_ftz((before[i] - largest[i]) * scale)
                        part[i] = -largest[i] * scale
                    for i, j in apply(s):
                        s[i, j] = tm.math.exp2_ftz(tm.math.fma(s[i, j], scale, part[i]))
                    p.set(s)
                    mma.reduce_sum(part, s)
                    total.set(total * shrink + part)
                    for i, j in apply(acc):
                        acc[i, j] = acc[i, j] * shrink[i]
                    wait(v_full[n % STAGES])
                    mma.row.col(acc, p, v_s[n % STAGES])
                    mma.commit()
                    trigger(v_empty[n % STAGES])
                for i in apply(total):
                    shrink[i] = select(total[i] > 0.0, 1.0 / total[i], 0.0)
                for i, j in apply(acc):
                    acc[i, j] = acc[i, j] * shrink[i]
                mma.store(acc, o_head.subspan(WG_M, DIM).at(bm * CONSUMERS + wg - 1, 0))
