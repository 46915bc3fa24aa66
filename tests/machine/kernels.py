"""Hand-written PTX for the machine's tests: correct kernels, whose lines the tests remove or change.

Each returns PTX text with marks ``// @name`` at the ends of lines that tests refer to.
"""

# PTX is easier to read with an instruction group on a line.
# ruff: noqa: E501
from __future__ import annotations

import re


def header(version: str, target: str) -> str:
    return f".version {version}\n.target {target}\n.address_size 64\n"


def without(ptx: str, mark: str, nth: int | None = None) -> str:
    """The PTX less the lines marked ``mark`` (the nth only, if given)."""
    out, seen = [], 0
    for line in ptx.split("\n"):
        if f"// @{mark}" in line.split("//", 1)[-1].join(["//", ""]) or line.rstrip().endswith(f"// @{mark}"):
            seen += 1
            if nth is None or nth == seen - 1:
                continue
        out.append(line)
    assert seen, f"no line is marked {mark}"
    return "\n".join(out)


def replace(ptx: str, mark: str, old: str, new: str) -> str:
    """The PTX with ``old`` changed to ``new`` in the lines marked ``mark``."""
    out, seen = [], 0
    for line in ptx.split("\n"):
        if line.rstrip().endswith(f"// @{mark}"):
            assert old in line, line
            line, seen = line.replace(old, new), seen + 1
        out.append(line)
    assert seen, f"no line is marked {mark}"
    return "\n".join(out)


def marks(ptx: str) -> list[str]:
    return re.findall(r"// @([\w-]+)", ptx)


def gemm_sm80(bm: int = 64, bn: int = 64, stages: int = 2) -> str:
    """C[M,N] = A[M,K] B[N,K]^T, f16 in, f32 accumulate and out: cp.async, ldmatrix, mma.sync; ragged edges.

    Four warps in 2 x 2, K in steps of 32; rows of 64 bytes in shared memory, 16-byte units exchanged by the
    row (unit ^ (row / 2 % 4)).
    """
    wm, wn = bm // 2, bn // 2
    mt, nt = wm // 16, wn // 8
    a_bytes, b_bytes = bm * 64, bn * 64
    stage = a_bytes + b_bytes
    acc = [[[f"%acc{i}_{j}_{v}" for v in range(4)] for j in range(nt)] for i in range(mt)]
    out = [header("7.0", "sm_80")]
    out.append(f""".extern .shared .align 128 .b8 smem[];
.visible .entry gemm(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pm, .param .u32 pn, .param .u32 pk)
.maxntid 128, 1, 1
{{
  .reg .pred %p<8>, %more; .reg .b32 %r<64>, %M, %N, %K, %t, %lane, %warp, %wm, %wn, %bm, %bn, %kt, %nk, %s, %buf;
  .reg .b32 %a<{4 * mt}>, %b<{2 * nt}>; .reg .b64 %rd<16>, %A, %B, %C; .reg .f32 {", ".join(x for i in acc for j in i for x in j)};
  mov.u32 %t, %tid.x; and.b32 %lane, %t, 31; shr.u32 %warp, %t, 5;
  and.b32 %wm, %warp, 1; shr.u32 %wn, %warp, 1;
  ld.param.u64 %A, [pa]; ld.param.u64 %B, [pb]; ld.param.u64 %C, [pc];
  ld.param.u32 %M, [pm]; ld.param.u32 %N, [pn]; ld.param.u32 %K, [pk];
  mov.u32 %bm, %ctaid.x; mul.lo.s32 %bm, %bm, {bm}; mov.u32 %bn, %ctaid.y; mul.lo.s32 %bn, %bn, {bn};
  add.s32 %nk, %K, 31; shr.u32 %nk, %nk, 5;
  mov.u32 %s, smem;""")
    out += [f"  mov.f32 {x}, 0f00000000;" for i in acc for j in i for x in j]

    def load(tag: str) -> str:
        """Copy k-tile %r60 into buffer %r61: a thread takes 16-byte units tid, tid + 128, ..."""
        lines = []
        for base, name, ext, row0, rows in ((0, "A", "M", "bm", bm), (a_bytes, "B", "N", "bn", bn)):
            for i in range(rows * 4 // 128):
                lines.append(f"""
  add.s32 %r1, %t, {128 * i}; shr.u32 %r2, %r1, 2; and.b32 %r3, %r1, 3;
  add.s32 %r4, %r2, %{row0}; shl.b32 %r5, %r60, 5; shl.b32 %r6, %r3, 3; add.s32 %r5, %r5, %r6;
  sub.s32 %r7, %K, %r5; min.s32 %r7, %r7, 8; max.s32 %r7, %r7, 0; shl.b32 %r7, %r7, 1;
  setp.lt.s32 %p1, %r4, %{ext}; selp.b32 %r7, %r7, 0, %p1;
  setp.gt.s32 %p2, %r7, 0; selp.b32 %r8, %r4, 0, %p2; selp.b32 %r9, %r5, 0, %p2;
  mad.wide.s32 %rd1, %r8, %K, 0; cvt.s64.s32 %rd2, %r9; add.s64 %rd1, %rd1, %rd2; shl.b64 %rd1, %rd1, 1; add.s64 %rd1, %{name}, %rd1;
  shr.u32 %r10, %r2, 1; and.b32 %r10, %r10, 3; xor.b32 %r10, %r10, %r3; shl.b32 %r10, %r10, 4; // @swizzle-write
  shl.b32 %r11, %r2, 6; add.s32 %r10, %r10, %r11; add.s32 %r10, %r10, {base};
  mad.lo.s32 %r10, %r61, {stage}, %r10; add.s32 %r10, %s, %r10;
  cp.async.cg.shared.global [%r10], [%rd1], 16, %r7;""")
        return (
            "".join(lines).replace("mad.wide.s32 %rd1, %r8, %K, 0;", "mul.wide.s32 %rd1, %r8, %K;")
            + f"\n  cp.async.commit_group; // @commit-{tag}\n"
        )

    for i in range(stages - 1):
        out.append(f"  mov.u32 %r60, {i}; mov.u32 %r61, {i};{load('first')}")
    out.append(f"""  mov.u32 %kt, 0;
LOOP:
  setp.ge.s32 %p3, %kt, %nk; @%p3 bra DONE;
  cp.async.wait_group {stages - 2}; // @wait
  bar.sync 0; // @barrier-arrived
  add.s32 %r60, %kt, {stages - 1}; rem.u32 %r61, %r60, {stages};{load("next")}
  rem.u32 %buf, %kt, {stages}; mul.lo.s32 %buf, %buf, {stage}; add.s32 %buf, %buf, %s;""")
    for kk in range(2):
        for i in range(mt):
            out.append(f"""  mul.lo.s32 %r20, %wm, {wm}; and.b32 %r21, %lane, 15; add.s32 %r20, %r20, %r21; add.s32 %r20, %r20, {16 * i};
  shr.u32 %r22, %lane, 4; add.s32 %r22, %r22, {2 * kk}; shr.u32 %r23, %r20, 1; and.b32 %r23, %r23, 3; xor.b32 %r22, %r22, %r23; // @swizzle-read
  shl.b32 %r22, %r22, 4; shl.b32 %r24, %r20, 6; add.s32 %r24, %r24, %r22; add.s32 %r24, %buf, %r24;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a{4 * i}, %a{4 * i + 1}, %a{4 * i + 2}, %a{4 * i + 3}}}, [%r24];""")
        for j in range(0, nt, 2):
            out.append(f"""  mul.lo.s32 %r20, %wn, {wn}; and.b32 %r21, %lane, 7; shr.u32 %r25, %lane, 4; shl.b32 %r25, %r25, 3; add.s32 %r21, %r21, %r25;
  add.s32 %r20, %r20, %r21; add.s32 %r20, %r20, {8 * j}; shr.u32 %r22, %lane, 3; and.b32 %r22, %r22, 1; add.s32 %r22, %r22, {2 * kk};
  shr.u32 %r23, %r20, 1; and.b32 %r23, %r23, 3; xor.b32 %r22, %r22, %r23;
  shl.b32 %r22, %r22, 4; shl.b32 %r24, %r20, 6; add.s32 %r24, %r24, %r22; add.s32 %r24, %buf, %r24; add.s32 %r24, %r24, {a_bytes};
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%b{2 * j}, %b{2 * j + 1}, %b{2 * j + 2}, %b{2 * j + 3}}}, [%r24];""")
        for i in range(mt):
            for j in range(nt):
                regs = ", ".join(acc[i][j])
                a = ", ".join(f"%a{4 * i + v}" for v in range(4))
                out.append(
                    f"  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{regs}}}, {{{a}}}, "
                    f"{{%b{2 * j}, %b{2 * j + 1}}}, {{{regs}}};"
                )
    out.append("""  add.s32 %kt, %kt, 1; bra LOOP;
DONE:
  shr.u32 %r30, %lane, 2; and.b32 %r31, %lane, 3; shl.b32 %r31, %r31, 1;""")
    for i in range(mt):
        for j in range(nt):
            for v in range(4):
                out.append(f"""  mul.lo.s32 %r32, %wm, {wm}; add.s32 %r32, %r32, %r30; add.s32 %r32, %r32, {16 * i + 8 * (v // 2)}; add.s32 %r32, %r32, %bm;
  mul.lo.s32 %r33, %wn, {wn}; add.s32 %r33, %r33, %r31; add.s32 %r33, %r33, {8 * j + v % 2}; add.s32 %r33, %r33, %bn;
  setp.lt.s32 %p4, %r32, %M; setp.lt.and.s32 %p4, %r33, %N, %p4;
  mul.wide.s32 %rd4, %r32, %N; cvt.s64.s32 %rd5, %r33; add.s64 %rd4, %rd4, %rd5; shl.b64 %rd4, %rd4, 2; add.s64 %rd4, %C, %rd4;
  @%p4 st.global.f32 [%rd4], {acc[i][j][v]}; // @store""")
    out.append("  cp.async.wait_group 0;\n  ret;\n}")
    return "\n".join(out)


def gemm_sm80_bytes(bm: int = 64, bn: int = 64, stages: int = 2) -> int:
    return stages * (bm + bn) * 64


def gemm_tma(
    bn: int = 128, consumers: int = 2, stages: int = 3, cluster: int = 1, store: str = "tma", per_tile: int = 1
) -> str:
    """C[M,N] = A[M,K] B[N,K]^T: TMA ring, one producer warp, consumer warpgroups on wgmma, TMA store.

    Tiles of 64 * consumers x bn x 64, f16 in and out, f32 accumulate.  With ``cluster`` 2 the pair of CTAs along M
    shares B: each loads half of it and multicasts.
    """
    bm = 64 * consumers
    a_bytes, b_bytes = bm * 128, bn * 128
    off_b = stages * a_bytes
    off_c = off_b + stages * b_bytes
    off_full = off_c + bm * bn * 2
    off_empty = off_full + 8 * stages
    total = off_empty + 8 * stages
    acc = [f"%acc{i}" for i in range(bn // 2)]
    expect = a_bytes + b_bytes
    arrivals = 4 * consumers * cluster
    threads = 128 + 128 * consumers
    multicast = cluster > 1
    half = bn // cluster
    cluster_directive = f".explicitcluster\n.reqnctapercluster {cluster}, 1, 1" if multicast else ""
    load_b = (
        f"""
  mad.lo.s32 %r20, %rank, {half * 128}, %r12; mad.lo.s32 %r21, %rank, {half}, %bn; mov.b16 %h1, {(1 << cluster) - 1};
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r20], [%tb, {{%r13, %r21}}], [%r10], %h1; // @load-b"""
        if multicast
        else """
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r12], [%tb, {%r13, %bn}], [%r10]; // @load-b"""
    )
    sync = (
        "  barrier.cluster.arrive.aligned; // @cluster-arrive-0\n  barrier.cluster.wait.aligned; // @cluster-wait-0"
        if multicast
        else "  bar.sync 0; // @barrier-init"
    )
    release = (
        "\n".join(
            f"""  mapa.shared::cluster.u32 %r31, %r30, {c};
  @%first mbarrier.arrive.shared::cluster.b64 _, [%r31]; // @release-{c}"""
            for c in range(cluster)
        )
        if multicast
        else "  @%first mbarrier.arrive.shared.b64 _, [%r30]; // @release"
    )
    end = (
        "  barrier.cluster.arrive.aligned; // @cluster-arrive-1\n  barrier.cluster.wait.aligned; // @cluster-wait-1"
        if multicast
        else ""
    )
    wgmmas = []
    for kk in range(4):
        scale = "%accumulate" if kk == 0 else "1"
        wgmmas.append(f"""  add.s64 %da, %rda, {2 * kk}; add.s64 %db, %rdb, {2 * kk}; // @descriptor
  wgmma.mma_async.sync.aligned.m64n{bn}k16.f32.f16.f16 {{{", ".join(acc)}}}, %da, %db, {scale}, 1, 1, 0, 0;""")
    nl = "\n"
    stores = []
    for i in range(bn // 8):
        for h in range(2):
            stores.append(
                f"  cvt.rn.f16x2.f32 %r40, {acc[4 * i + 2 * h + 1]}, {acc[4 * i + 2 * h]}; "
                f"st.shared.b32 [%r41+{h * 8 * bn * 2 + 16 * i}], %r40; // @stage"
            )
    return (
        header("8.0", "sm_90a")
        + f""".extern .shared .align 1024 .b8 smem[];
.visible .entry gemm(.param .align 128 .b8 pa[128], .param .align 128 .b8 pb[128], .param .align 128 .b8 pc[128], .param .u32 pk)
{cluster_directive}
.maxntid {threads}, 1, 1
.minnctapersm 1
{{
  .reg .pred %p<8>, %leader, %first, %accumulate; .reg .b16 %h<4>;
  .reg .b32 %r<64>, %t, %wg, %bm, %bn, %kt, %nk, %slot, %phase, %rank, %s;
  .reg .b64 %rd<8>, %ta, %tb, %tc, %da, %db, %rda, %rdb; .reg .f32 {", ".join(acc)};
  mov.u32 %t, %tid.x; shr.u32 %wg, %t, 7; mov.u32 %s, smem;
  mov.u32 %rank, %cluster_ctarank;
  mov.b64 %ta, pa; mov.b64 %tb, pb; mov.b64 %tc, pc;
  cvta.param.u64 %ta, %ta; cvta.param.u64 %tb, %tb; cvta.param.u64 %tc, %tc;
  mov.u32 %bm, %ctaid.x; mul.lo.s32 %bm, %bm, {bm}; mov.u32 %bn, %ctaid.y; mul.lo.s32 %bn, %bn, {bn};
  ld.param.u32 %nk, [pk]; add.s32 %nk, %nk, 63; shr.u32 %nk, %nk, 6;
  setp.ne.s32 %p0, %t, 0; @%p0 bra READY;
{nl.join(f"  mbarrier.init.shared.b64 [%s+{off_full + 8 * i}], 1; // @init-full{nl}  mbarrier.init.shared.b64 [%s+{off_empty + 8 * i}], {arrivals}; // @init-empty" for i in range(stages))}
  fence.mbarrier_init.release.cluster; // @fence-init
READY:
{sync}
  mov.u32 %kt, 0; mov.u32 %slot, 0; mov.u32 %phase, 0;
  setp.ne.s32 %p1, %wg, 0; @%p1 bra CONSUMER;
{"  setmaxnreg.dec.sync.aligned.u32 40;" if consumers == 2 else ""}
  setp.ge.s32 %p2, %t, 32; @%p2 bra END;
  elect.sync %r1|%leader, 0xffffffff; @!%leader bra END;
PRODUCE:
  setp.ge.s32 %p3, %kt, %nk; @%p3 bra DRAIN;
  xor.b32 %r2, %phase, 1; shl.b32 %r10, %slot, 3; add.s32 %r11, %s, %r10; add.s32 %r11, %r11, {off_empty}; // @phase-empty
WAIT_EMPTY:
  mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %r2; // @wait-empty
  @!%p4 bra WAIT_EMPTY; // @wait-empty-loop
  add.s32 %r10, %s, %r10; add.s32 %r10, %r10, {off_full};
  mbarrier.arrive.expect_tx.shared.b64 _, [%r10], {expect}; // @expect
  mul.lo.s32 %r14, %slot, {a_bytes}; add.s32 %r14, %s, %r14; mul.lo.s32 %r12, %slot, {b_bytes}; add.s32 %r12, %s, %r12; add.s32 %r12, %r12, {off_b};
  shl.b32 %r13, %kt, 6;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r14], [%ta, {{%r13, %bm}}], [%r10]; // @load-a{load_b}
  add.s32 %kt, %kt, 1; add.s32 %slot, %slot, 1; setp.ne.s32 %p5, %slot, {stages}; @%p5 bra PRODUCE;
  mov.u32 %slot, 0; xor.b32 %phase, %phase, 1; // @phase-produce
  bra PRODUCE;
DRAIN:
  bra END;
CONSUMER:
{"  setmaxnreg.inc.sync.aligned.u32 232;" if consumers == 2 else ""}
  sub.s32 %wg, %wg, 1; and.b32 %r3, %t, 127; setp.eq.s32 %leader, %r3, 0; and.b32 %r4, %t, 31; setp.eq.s32 %first, %r4, 0;
  setp.ne.s32 %accumulate, 0, 0;
CONSUME:
  setp.ge.s32 %p3, %kt, %nk; @%p3 bra STORE;
  shl.b32 %r10, %slot, 3; add.s32 %r10, %s, %r10; add.s32 %r11, %r10, {off_full}; add.s32 %r30, %r10, {off_empty};
WAIT_FULL:
  mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %phase; // @wait-full
  @!%p4 bra WAIT_FULL; // @wait-full-loop
  mul.lo.s32 %r14, %slot, {a_bytes}; add.s32 %r14, %s, %r14; mad.lo.s32 %r14, %wg, 8192, %r14;
  mul.lo.s32 %r12, %slot, {b_bytes}; add.s32 %r12, %s, %r12; add.s32 %r12, %r12, {off_b};
  shr.u32 %r14, %r14, 4; and.b32 %r14, %r14, 0x3fff; cvt.u64.u32 %rda, %r14; or.b64 %rda, %rda, 0x4000004000010000; // @descriptor-a
  shr.u32 %r12, %r12, 4; and.b32 %r12, %r12, 0x3fff; cvt.u64.u32 %rdb, %r12; or.b64 %rdb, %rdb, 0x4000004000010000; // @descriptor-b
  wgmma.fence.sync.aligned; // @fence-loop
{nl.join(wgmmas)}
  wgmma.commit_group.sync.aligned; // @commit
  setp.eq.s32 %accumulate, 0, 0;
  wgmma.wait_group.sync.aligned 0; // @wait-group
{release}
  add.s32 %kt, %kt, 1; add.s32 %slot, %slot, 1; setp.ne.s32 %p5, %slot, {stages}; @%p5 bra CONSUME;
  mov.u32 %slot, 0; xor.b32 %phase, %phase, 1; // @phase-consume
  bra CONSUME;
STORE:
  and.b32 %r42, %t, 31; shr.u32 %r43, %r42, 2; and.b32 %r44, %r42, 3; shr.u32 %r45, %r3, 5; shl.b32 %r45, %r45, 4;
  add.s32 %r43, %r43, %r45; mad.lo.s32 %r43, %wg, 64, %r43; mul.lo.s32 %r41, %r43, {bn * 2}; shl.b32 %r44, %r44, 2; add.s32 %r41, %r41, %r44;
  add.s32 %r41, %r41, %s; add.s32 %r41, %r41, {off_c};
{nl.join(stores)}
  fence.proxy.async.shared::cta; // @fence-store
  add.s32 %r46, %wg, 1; bar.sync %r46, 128; // @barrier-store
  @!%leader bra END;
  mad.lo.s32 %r47, %wg, {64 * bn * 2}, %s; add.s32 %r47, %r47, {off_c}; mad.lo.s32 %r48, %wg, 64, %bm;
  cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%tc, {{%bn, %r48}}], [%r47]; // @store
  cp.async.bulk.commit_group; // @commit-store
  cp.async.bulk.wait_group.read 0; // @wait-store
END:
{end}
  ret;
}}
"""
    )


def gemm_tma_bytes(bn: int = 128, consumers: int = 2, stages: int = 3) -> int:
    bm = 64 * consumers
    return stages * (bm + bn) * 128 + bm * bn * 2 + 16 * stages
