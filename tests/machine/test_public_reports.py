"""Published bugs as mutants of small programs: each has the hazard of the published report.

A program stands for the mechanism, not for the reporter's kernel.  Those of ``REFUSED`` never become PTX.
"""

# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from kernels import without
from ptx_programs import (
    ampere,
    bulk_load,
    bulk_store,
    bulk_twice,
    change,
    cluster,
    columns,
    cp_async,
    drop,
    exchange,
    plain,
    sparse,
    staged,
    tma,
    two_groups,
    wgmma,
)

import tilemma as tm
from dev.ptx_mutation import survey as mutate
from tilemma import inthreads, machine, parallel, shared
from tilemma.targets.ptx.passes.place_sync import BarrierPartialWarp

Edit = Callable[[str], str]


@dataclass(frozen=True)
class Report:
    """A public report: its mistake, a program, the edit that introduces the mistake, and the expected hazard."""

    name: str
    what: str
    build: Callable[..., Any]
    edit: Edit
    code: str
    strict: bool = False


def both(*edits: Edit) -> Edit:
    def edit(ptx: str) -> str:
        for e in edits:
            ptx = e(ptx)
        return ptx

    return edit


def bf16(edit: Edit) -> Any:
    """The gemm on bf16, as in the report."""
    ptx, launch, args = ampere(64, 64, 64)
    return edit(ptx.replace(".f32.f16.f16.f32", ".f32.bf16.bf16.f32")), launch, args


def pair(edit: Edit) -> Any:
    return tma(edit, cluster=2)


# Each thread writes its word, then threads 10 and up of the lower warp clear words of others.
FILL = plain("""
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0;
  st.shared.b32 [%r1], %t;
  bar.sync 0; // @barrier
  setp.ge.u32 %p0, %t, 6; mov.b32 %r2, 0; @!%p0 st.shared.b32 [%r1+200], %r2;
  bar.sync 0; // @after
  ld.shared.b32 %r3, [%r1]; st.global.b32 [%Y], %r3;
""")

# Eight lanes add up their words by halves.
BUTTERFLY = plain("""
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0; st.shared.b32 [%r1], %t;
  bar.sync 0;
  setp.ge.u32 %p0, %t, 4; @%p0 bra END;
  ld.shared.b32 %r2, [%r1]; ld.shared.b32 %r3, [%r1+16]; add.s32 %r2, %r2, %r3;
  st.shared.b32 [%r1], %r2;
  bar.warp.sync 0xf; // @warp
  setp.ge.u32 %p1, %t, 2; @%p1 bra END;
  ld.shared.b32 %r3, [%r1+8]; add.s32 %r2, %r2, %r3; st.global.b32 [%Y], %r2;
END:
""")

# The upper 32 threads exchange words behind a condition.
ELSE = plain("""
  mov.u32 %r0, smem; shl.b32 %r1, %t, 2; add.s32 %r1, %r1, %r0;
  setp.lt.u32 %p0, %t, 64; @%p0 bra END;
  st.shared.b32 [%r1], %t;
  bar.sync 1, 64; // @barrier
  xor.b32 %r2, %t, 63; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r0; ld.shared.b32 %r3, [%r2]; st.global.b32 [%Y], %r3;
END:
""", block=128)  # fmt: skip

REPORTS = [
    Report("NVIDIA/cutlass#3197", "bf16 tiles written with a swizzle, loaded without", bf16, change("swizzle-read", "xor.b32 %r22, %r22, %r23;", ""), "operand-layout"),
    Report("NVIDIA/cutlass#3197", "bf16 tiles loaded with a swizzle, written without", bf16, change("swizzle-write", "xor.b32 %r10, %r10, %r3;", "mov.b32 %r10, %r3;"), "operand-layout"),
    Report("tile-ai/tilelang#2593", "N = 24: the stride along K of an unswizzled MN-major operand is a constant", columns, lambda p: p.replace(", 0x80000;", ", 0x100000;"), "operand-layout"),
    Report("tile-ai/tilelang#2593", "N = 24: the stride along N does not follow the tile", columns, lambda p: p.replace(", 0x2000000000;", ", 0x1000000000;"), "operand-layout"),
    Report("tile-ai/tilelang#2603", "N = 24, sparse: B's second group of rows is read from elsewhere", sparse, change("descriptor-b", "0x2000080000", "0x1000080000"), "operand-layout"),
    Report("tile-ai/tilelang#2634", "no proxy fence before a sparse wgmma", sparse, drop("proxy"), "missing-proxy-fence"),
    Report("tile-ai/tilelang#2642", "rows 72 bytes apart where ldmatrix wants 16-byte units", bf16, lambda p: p.replace("shl.b32 %r24, %r20, 6;", "mul.lo.s32 %r24, %r20, 72;"), "misaligned"),
    Report("tile-ai/tilelang#2642", "a descriptor of another layout than the tile's", tma, change("descriptor-a", "0x4000004000010000", "0x4000002000010000"), "inadmissible-descriptor"),
    Report("tile-ai/tilelang#2556", "48 threads exchange, their barrier is dropped", exchange, both(drop("barrier"), lambda p: p.replace("xor.b32 %r2, %t, 63;", "setp.ge.u32 %p1, %t, 48; @%p1 ret; sub.s32 %r2, 47, %t;")), "race"),
    Report("tile-ai/tilelang#2612", "the barrier stands before the branch, not inside", ELSE, both(drop("barrier"), lambda p: p.replace("setp.lt.u32 %p0, %t, 64;", "bar.sync 0; setp.lt.u32 %p0, %t, 64;")), "race"),
    Report("tile-ai/tilelang#3042", "the barrier of the other branch is dropped", ELSE, drop("barrier"), "race"),
    Report("tile-ai/tilelang#2698", "no barrier between a copy and a fill of part of it", FILL, drop("barrier"), "race"),
    Report("tile-ai/tilelang#2699", "no barrier between a fill and the reads of it", FILL, drop("after"), "race"),
    Report("tile-ai/tilelang#2628", "no warp barrier between the steps of a reduction", BUTTERFLY, drop("warp"), "race"),
    Report("triton-lang/triton#8554", "one slot too few: the newest product is still reading the one given back", tma, change("wait-group", " 0;", " 1;"), "overwrite-in-flight"),
    Report("triton-lang/triton#3106", "a slot is given back without a wait for its product", tma, drop("wait-group"), "overwrite-in-flight"),
    Report("triton-lang/triton#2457", "accumulators are read before the wait", wgmma, drop("wait"), "register-in-flight"),
    Report("triton-lang/triton#2457", "each warp of a warpgroup makes a descriptor of its own", wgmma, change("descriptor", "or.b64", "cvt.u64.u32 %d3, %w; shl.b64 %d3, %d3, 7; add.s64 %d1, %d1, %d3; or.b64"), "wgmma-not-uniform"),
    Report("triton-lang/triton#11047", "two warpgroups share a tile; each waits for its own product only", two_groups, drop("free"), "overwrite-in-flight"),
    Report("tile-ai/tilelang#2613", "two warpgroups share a tile; no barrier at the end of the loop's turn", two_groups, change("free", "bar.sync 0", "bar.warp.sync 0xffffffff"), "overwrite-in-flight"),
    Report("NVIDIA/Fuser#3573", "products are never committed to a group", wgmma, drop("commit"), "register-in-flight"),
    Report("NVIDIA/Fuser#1967", "no proxy fence between stores and a bulk store of them", bulk_store, drop("proxy"), "missing-proxy-fence"),
    Report("MoonshotAI/FlashKDA#24", "no proxy fence between the epilogue's stores and the TMA store", tma, drop("fence-store"), "missing-proxy-fence"),
    Report("MoonshotAI/FlashKDA#24", "mbarriers are not fenced after their init", tma, drop("fence-init"), "mbarrier-init-not-visible-cta", strict=True),
    Report("facebookexperimental/triton#368", "the proxy fence stands after the store", bulk_store, both(drop("proxy"), lambda p: p.replace("// @copy", "// @copy\n  fence.proxy.async.shared::cta;")), "missing-proxy-fence"),
    Report("deepseek-ai/DeepEP#657", "one store too many may still be reading when its source is written", bulk_store, change("wait", " 0;", " 1;"), "overwrite-in-flight"),
    Report("deepseek-ai/DeepEP#621", "no proxy fence between the reads of a tile and the copy that overwrites it", bulk_twice, drop("proxy"), "missing-proxy-fence-read", strict=True),
    Report("NVIDIA/nccl-extensions#8", "the fence stands behind the release of the buffer", bulk_twice, both(drop("proxy"), lambda p: p.replace("// @read", "// @read\n  @%p0 fence.proxy.async.shared::cta;")), "missing-proxy-fence-read", strict=True),
    Report("tile-ai/tilelang#2566", "bytes are expected, but nobody arrives", bulk_load, change("expect", "mbarrier.arrive.expect_tx.shared.b64 _,", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"), "deadlock"),
    Report("tile-ai/tilelang#3087", "the wait asks for the other parity", tma, change("wait-full", "mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %phase", "xor.b32 %r50, %phase, 1; mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %r50"), "read-before-arrival"),
    Report("tile-ai/tilelang#3087", "the wait asks for a parity that has already completed", bulk_load, change("wait", "%r0], 0", "%r0], 1"), "read-before-arrival"),
    Report("facebookexperimental/CUTracer#106", "the wait for the tile is left out", tma, drop("wait-full-loop"), "read-before-arrival"),
    Report("tile-ai/tilelang#2505", "cp.async: one group too many may be under way", cp_async, change("wait", " 0;", " 1;"), "read-before-arrival"),
    Report("inclusionAI/humming#53", "a multicast does not wait for the other CTA's slot", pair, both(drop("release-1"), drop("release-0"), lambda p: p.replace("// @wait-group", "// @wait-group\n  @%first mbarrier.arrive.shared.b64 _, [%r30]; @%first mbarrier.arrive.shared.b64 _, [%r30];")), "overwrite-in-flight"),
    Report("NVIDIA/cutlass#3658", "a multicast mask names a CTA that the cluster has not", pair, lambda p: p.replace("mov.b16 %h1, 3;", "mov.b16 %h1, 7;"), "tensor-map-inadmissible"),
    Report("triton-lang/triton#11731", "no cluster barrier at the end: a CTA leaves while others read its memory", cluster, lambda p: without(without(p, "end-arrive"), "end-wait"), "exit-before-cluster"),
]  # fmt: skip


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: r.name)
def test_is_convicted(report: Report) -> None:
    assert machine.check(*report.build(lambda p: p), schedules=2, strict=True).ok
    ptx, launch, args = report.build(report.edit)
    assert ptx != report.build(lambda p: p)[0]
    verdict = machine.check(ptx, launch, args, schedules=30, strict=report.strict)
    assert report.code in {h.code for h in verdict.hazards}, str(verdict)


WRONG = frozenset({mutate.WRONG})


@pytest.mark.parametrize("opcode", ["stmatrix", "ld.shared"])
@pytest.mark.parametrize("name", ["tile-ai/tilelang#2609", "tile-ai/tilelang#2714"])
def test_a_swizzled_buffer_seen_without_its_swizzle(name: str, opcode: str) -> None:
    """Views of and scans over a swizzled buffer that go through it in a straight line: the result tells."""
    ptx, launch, args = staged()
    trial = mutate.Trial(ptx, launch, args, schedules=1)
    lines = ptx.splitlines()
    ways = [m for m in trial.mutants if name in m.reports and m.key.startswith("no exchange")]
    ways = [m for m in ways if any(opcode in line for line in lines[m.line : m.line + 6])]
    assert ways
    assert all(set(trial.judge(m).codes) & {mutate.WRONG, "uninitialised-shared"} for m in ways)


@pytest.mark.parametrize("name", ["tile-ai/tilelang#2381", "tile-ai/tilelang#2605"])
def test_a_dropped_tail_of_k(name: str) -> None:
    """K = 40 in steps of 16: rounding down instead of up leaves eight columns out."""
    ptx, launch, args = ampere(16, 16, 40)
    trial = mutate.Trial(ptx, launch, args, schedules=1)
    dropped = mutate.Mutant(
        name, "the last step", 0, ptx.replace("add.s32 %nk, %K, 31;", "mov.u32 %nk, %K;"), WRONG
    )
    assert trial.judge(dropped).codes == (mutate.WRONG,)


def test_a_barrier_of_48_threads_is_refused() -> None:
    """tile-ai/tilelang#2556, in our language: not dropped, but refused by name."""

    @tm.kernel
    def exchange_48(output: tm.Global["s32", 64]):
        for _ in parallel(1, level="block"):
            words = shared("s32", 64)
            for t in parallel(64, level="thread"):
                with inthreads(t < 48):
                    words[t] = t
                    output[t] = words[47 - t]

    with pytest.raises(BarrierPartialWarp):
        exchange_48.compile("sm_80")


def test_there_are_enough() -> None:
    names = {r.name for r in REPORTS}
    assert len(REPORTS) >= 30
    assert len(names) >= 20
