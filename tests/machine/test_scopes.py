"""The memory model: scopes, litmus tests, and correct idioms of widely used code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"

# The first thread hands the bytes at x over to the second through the flag at y; SELECT says which these are.
PASSING = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 out) CLUSTER {
  .reg .b64 %x, %y, %o; .reg .b32 %r<8>; .reg .pred %p<4>;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %o, [out];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; SELECT
  setp.eq.u32 %p0, %r2, 0; setp.eq.u32 %p1, %r2, 1;
  @%p1 bra SECOND; @!%p0 bra END;
  st.global.u32 [%x], 42;
  RELEASE
  bra END;
SECOND:
  ACQUIRE
  setp.eq.u32 %p2, %r3, 0; @%p2 bra SECOND;
  AFTER
  ld.global.u32 %r4, [%x]; st.global.u32 [%o], %r4;
END:
  ret;
}
"""
)
APART = "mov.u32 %r2, %r0; setp.ne.u32 %p3, %r1, 0; @%p3 mov.u32 %r2, 9;"
TOGETHER = "shr.u32 %r2, %r1, 5; and.b32 %r5, %r1, 31; setp.ne.u32 %p3, %r5, 0; @%p3 mov.u32 %r2, 9;"


def passing(
    release: str, acquire: str, after: str = "", *, select: str = APART, cluster: str = ""
) -> machine.Verdict:
    ptx = PASSING.replace("SELECT", select).replace("RELEASE", release).replace("ACQUIRE", acquire)
    ptx = ptx.replace("AFTER", after).replace("CLUSTER", cluster)
    x, y, out = (np.zeros(1, np.uint32) for _ in range(3))
    launch = {"grid": 2 if select == APART else 1, "block": 64}
    verdict = machine.check(ptx, launch, {"x": x, "y": y, "out": out}, schedules=8)
    if verdict.ok:
        assert out[0] == 42
    return verdict


# How a release is written, and an acquire, with a blank for the scope.
RELEASES = {
    "st.release": "st.release.{0}.global.u32 [%y], 1;",
    "fence and relaxed store": "fence.acq_rel.{0}; st.relaxed.gpu.global.u32 [%y], 1;",
    "fence and relaxed store of the scope": "fence.acq_rel.gpu; st.relaxed.{0}.global.u32 [%y], 1;",
    "fence.sc": "fence.sc.{0}; st.volatile.global.u32 [%y], 1;",
    "atom.release": "atom.release.{0}.global.exch.b32 %r6, [%y], 1;",
    "red after a fence": "fence.acq_rel.{0}; red.relaxed.gpu.global.add.u32 [%y], 1;",
}
ACQUIRES = {
    "ld.acquire": ("ld.acquire.{0}.global.u32 %r3, [%y];", ""),
    "relaxed load and fence": ("ld.relaxed.gpu.global.u32 %r3, [%y];", "fence.acq_rel.{0};"),
    "relaxed load of the scope and fence": ("ld.relaxed.{0}.global.u32 %r3, [%y];", "fence.acq_rel.gpu;"),
    "atom.acquire": ("atom.acquire.{0}.global.or.b32 %r3, [%y], 0;", ""),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("acquire", ACQUIRES)
def test_message_passing_between_blocks_needs_scopes_that_reach(release: str, acquire: str) -> None:
    read, after = ACQUIRES[acquire]
    for a in ("gpu", "cta"):
        for b in ("gpu", "cta"):
            verdict = passing(RELEASES[release].format(a), read.format(b), after.format(b))
            assert verdict.ok == (a == b == "gpu"), (a, b, str(verdict))
            if not verdict.ok:
                assert {h.code for h in verdict.hazards} == {"race"}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("acquire", ACQUIRES)
def test_within_a_block_the_narrowest_scope_is_enough(release: str, acquire: str) -> None:
    read, after = ACQUIRES[acquire]
    verdict = passing(RELEASES[release].format("cta"), read.format("cta"), after.format("cta"), select=TOGETHER)
    assert verdict.ok, verdict.render()


def test_the_scope_of_a_cluster_reaches_its_blocks_and_no_others() -> None:
    release, acquire = RELEASES["st.release"].format("cluster"), ACQUIRES["ld.acquire"][0].format("cluster")
    assert passing(release, acquire, cluster=".explicitcluster .reqnctapercluster 2, 1, 1").ok
    assert not passing(release, acquire).ok


def test_relaxed_accesses_alone_pass_nothing() -> None:
    assert not passing("st.relaxed.gpu.global.u32 [%y], 1;", "ld.relaxed.gpu.global.u32 %r3, [%y];").ok
    assert not passing("st.global.u32 [%y], 1;", "ld.acquire.gpu.global.u32 %r3, [%y];").ok


COUNTER = (
    HEAD
    + """.visible .entry k(.param .u64 n) {
  .reg .b64 %n; .reg .b32 %r<4>; ld.param.u64 %n, [n]; atom.relaxed.SCOPE.global.add.u32 %r0, [%n], 1; ret;
}
"""
)


def test_atomics_of_blocks_count_together_only_with_a_scope_that_reaches() -> None:
    for scope, ok in (("gpu", True), ("sys", True), ("cta", False)):
        n = np.zeros(1, np.uint32)
        verdict = machine.check(COUNTER.replace("SCOPE", scope), {"grid": 3, "block": 32}, {"n": n}, schedules=3)
        assert verdict.ok == ok, str(verdict)
        if ok:
            assert n[0] == 96
    n = np.zeros(1, np.uint32)
    assert machine.check(COUNTER.replace("SCOPE", "cta"), {"grid": 1, "block": 96}, {"n": n}, schedules=3).ok


UNEVEN = (
    HEAD
    + """.visible .entry k(.param .u64 n) {
  .reg .b64 %n, %d; .reg .b32 %r<8>; .reg .pred %p, %q; ld.param.u64 %n, [n];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mul.wide.u32 %d, %r1, 4; add.s64 %d, %d, %n;
  mul.lo.u32 %r2, %r0, 60; add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r1, 16; selp.u32 %r3, 0, 1, %p;
  setp.eq.u32 %q, %r3, %r0; setp.eq.or.u32 %q, %r0, 2, %q;
L: @%q red.relaxed.gpu.global.add.u32 [%d], 1;
  sub.u32 %r2, %r2, 1; setp.ne.u32 %p, %r2, 0; @%p bra L; ret;
}
"""
)


def test_blocks_with_histories_of_very_different_length_meet_in_one_instruction() -> None:
    for seed in range(6):
        n = np.zeros(32, np.uint32)
        assert machine.run(UNEVEN, {"grid": 3, "block": 32}, {"n": n}, seed=seed).ok


# Litmus tests: threads of one warp each in a block of their own; registers are stored at the end.
LITMUS: dict[str, tuple[list[str], Callable[..., bool]]] = {
    "coherence of reads": (
        ["st.relaxed.gpu.global.u32 [%x], 1; st.relaxed.gpu.global.u32 [%x], 2;",
         "ld.relaxed.gpu.global.u32 %a, [%x]; ld.relaxed.gpu.global.u32 %b, [%x];"],
        lambda t: t[1][0] <= t[1][1],
    ),
    "coherence of a thread's own write and read": (
        ["st.relaxed.gpu.global.u32 [%x], 1; ld.relaxed.gpu.global.u32 %a, [%x];",
         "st.relaxed.gpu.global.u32 [%x], 2;"],
        lambda t: t[0][0] in (1, 2),
    ),
    "store buffering with fence.sc": (
        ["st.relaxed.gpu.global.u32 [%x], 1; fence.sc.gpu; ld.relaxed.gpu.global.u32 %a, [%y];",
         "st.relaxed.gpu.global.u32 [%y], 1; fence.sc.gpu; ld.relaxed.gpu.global.u32 %a, [%x];"],
        lambda t: t[0][0] + t[1][0] >= 1,
    ),
    "load buffering with releases": (
        ["ld.acquire.gpu.global.u32 %a, [%x]; st.release.gpu.global.u32 [%y], 1;",
         "ld.acquire.gpu.global.u32 %a, [%y]; st.release.gpu.global.u32 [%x], 1;"],
        lambda t: t[0][0] + t[1][0] <= 1,
    ),
    "message passing": (
        ["st.relaxed.gpu.global.u32 [%x], 1; st.release.gpu.global.u32 [%y], 1;",
         "ld.acquire.gpu.global.u32 %a, [%y]; ld.relaxed.gpu.global.u32 %b, [%x];"],
        lambda t: t[1][0] <= t[1][1],
    ),
    "independent reads of independent writes": (
        ["st.relaxed.gpu.global.u32 [%x], 1;", "st.relaxed.gpu.global.u32 [%y], 1;",
         "ld.relaxed.gpu.global.u32 %a, [%x]; fence.sc.gpu; ld.relaxed.gpu.global.u32 %b, [%y];",
         "ld.relaxed.gpu.global.u32 %a, [%y]; fence.sc.gpu; ld.relaxed.gpu.global.u32 %b, [%x];"],
        lambda t: not (t[2] == (1, 0) and t[3] == (1, 0)),
    ),
    "atomics lose nothing": (
        ["atom.relaxed.gpu.global.add.u32 %a, [%x], 1;", "atom.relaxed.gpu.global.add.u32 %a, [%x], 1;"],
        lambda t: {t[0][0], t[1][0]} == {0, 1},
    ),
}  # fmt: skip


def litmus(threads: list[str], seed: int) -> list[tuple[int, int]]:
    bodies = "".join(
        f"B{i}: setp.ne.u32 %p, %c, {i}; @%p bra B{i + 1}; {text} bra E;\n" for i, text in enumerate(threads)
    )
    ptx = (
        HEAD
        + f""".visible .entry k(.param .u64 x, .param .u64 y, .param .u64 out) {{
  .reg .b64 %x, %y, %o, %d; .reg .b32 %a, %b, %c; .reg .pred %p;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %o, [out]; mov.u32 %a, 0; mov.u32 %b, 0;
  mov.u32 %c, %ctaid.x;
{bodies}B{len(threads)}: ret;
E: mul.wide.u32 %d, %c, 8; add.s64 %o, %o, %d; st.global.v2.u32 [%o], {{%a, %b}}; ret;
}}
"""
    )
    x, y, out = np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros((len(threads), 2), np.uint32)
    machine.run(ptx, {"grid": len(threads), "block": 1}, {"x": x, "y": y, "out": out}, seed=seed)
    return [(int(a), int(b)) for a, b in out]


@pytest.mark.parametrize("name", LITMUS)
def test_no_outcome_that_the_model_forbids(name: str) -> None:
    threads, allowed = LITMUS[name]
    outcomes = set()
    for seed in range(60):
        found = litmus(threads, seed)
        assert allowed(found), found
        outcomes.add(tuple(found))
    # The threads do interleave.
    assert len(outcomes) > 1 or name.startswith("coherence of a thread")


LAST_BLOCK = (
    HEAD
    + """.visible .entry k(.param .u64 parts, .param .u64 count, .param .u64 out, .param .u32 n) {
  .reg .b64 %d<6>; .reg .b32 %r<12>; .reg .pred %p<4>;
  ld.param.u64 %d0, [parts]; ld.param.u64 %d1, [count]; ld.param.u64 %d2, [out]; ld.param.u32 %r0, [n];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.ne.u32 %p0, %r2, 0; @%p0 bra END;
  mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d3, %d0; add.u32 %r3, %r1, 1; st.global.u32 [%d3], %r3;
  membar.gl; atom.global.inc.u32 %r4, [%d1], %r0;
  sub.u32 %r5, %r0, 1; setp.ne.u32 %p1, %r4, %r5; @%p1 bra END;
  membar.gl; mov.u32 %r6, 0; mov.u32 %r7, 0;
L: ld.global.u32 %r8, [%d0]; add.u32 %r6, %r6, %r8; add.s64 %d0, %d0, 4; add.u32 %r7, %r7, 1;
  setp.lt.u32 %p2, %r7, %r0; @%p2 bra L;
  st.global.u32 [%d2], %r6; st.global.u32 [%d1], 0;
END: ret;
}
"""
)


def test_the_last_block_sums_and_resets_the_counter() -> None:
    args = {
        "parts": np.zeros(6, np.uint32),
        "count": np.zeros(1, np.uint32),
        "out": np.zeros(1, np.uint32),
        "n": 6,
    }
    verdict = machine.check(LAST_BLOCK, {"grid": 6, "block": 32}, args, schedules=20)
    assert verdict.ok, verdict.render()
    assert args["out"][0] == 21 and args["count"][0] == 0
    unfenced = LAST_BLOCK.replace("membar.gl; atom", "atom")
    assert not machine.check(unfenced, {"grid": 6, "block": 32}, args, schedules=20).ok


CLUSTER_INIT = (
    HEAD
    + """.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {
  .reg .b64 %o, %d; .reg .b32 %r<9>; .reg .pred %p<4>; .shared .align 8 .b8 bar[8];
  ld.param.u64 %o, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, bar;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared.b64 [%r2], 32;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;
  xor.b32 %r3, %r1, 1; mapa.shared::cluster.u32 %r4, %r2, %r3;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra W;
  mad.lo.u32 %r5, %r1, 32, %r0; mul.wide.u32 %d, %r5, 4; add.s64 %o, %o, %d; st.global.u32 [%o], %r5;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
}
"""
)


def test_inits_of_mbarriers_are_told_by_a_relaxed_arrival_after_their_fence(
    assembles: Callable[[str, str], None],
) -> None:
    assembles(CLUSTER_INIT, "sm_90a")
    out: Any = np.zeros(64, np.uint32)
    verdict = machine.check(CLUSTER_INIT, {"grid": 2, "block": 32}, {"out": out}, schedules=10)
    assert verdict.ok, verdict.render()
    unfenced = CLUSTER_INIT.replace("fence.mbarrier_init.release.cluster;", "")
    codes = {h.code for h in machine.check(unfenced, {"grid": 2, "block": 32}, {"out": out}, schedules=10).hazards}
    assert "mbarrier-before-init" in codes


COPIES = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 out) {
  .reg .b64 %d<4>; .reg .b32 %r<9>; .reg .pred %p<4>;
  .shared .align 16 .b8 tile[1024]; .shared .align 8 .b8 bars[16];
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r2, bars;
  setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [%r2], 32; @%p0 mbarrier.init.shared.b64 [%r2+8], 32;
  bar.sync 0; shl.b32 %r3, %r0, 4; add.u32 %r4, %r1, %r3; mul.wide.u32 %d2, %r0, 16; add.s64 %d0, %d0, %d2;
  cp.async.cg.shared.global [%r4], [%d0], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
  cp.async.cg.shared.global [%r4+512], [%d0+512], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r2+8];
W: mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0; @!%p1 bra W;
  xor.b32 %r5, %r4, 16; ld.shared.u32 %r6, [%r5];
V: mbarrier.try_wait.parity.shared.b64 %p1, [%r2+8], 0; @!%p1 bra V;
  ld.shared.u32 %r7, [%r5+512]; add.u32 %r6, %r6, %r7;
  mul.wide.u32 %d2, %r0, 4; add.s64 %d1, %d1, %d2; st.global.u32 [%d1], %r6; ret;
}
"""
)


def test_each_copy_counts_for_the_first_mbarrier_that_waits_for_it(assembles: Callable[[str, str], None]) -> None:
    assembles(COPIES, "sm_90a")
    x, out = np.arange(256, dtype=np.uint32), np.zeros(32, np.uint32)
    verdict = machine.check(COPIES, {"grid": 1, "block": 32}, {"x": x, "out": out}, schedules=20)
    assert verdict.ok, verdict.render()
    assert out.tolist() == [int(x[4 * (i ^ 1)] + x[128 + 4 * (i ^ 1)]) for i in range(32)]
    # Committed and then counted on an mbarrier: the wait for the mbarrier is enough.
    grouped = COPIES.replace("16; cp.async.mbarrier", "16; cp.async.commit_group; cp.async.mbarrier")
    assert machine.check(grouped, {"grid": 1, "block": 32}, {"x": x, "out": out}, schedules=20).ok
    early = COPIES.replace("W: mbarrier", "bra S; W: mbarrier").replace(
        "xor.b32 %r5, %r4, 16", "S: xor.b32 %r5, %r4, 16"
    )
    assert not machine.check(early, {"grid": 1, "block": 32}, {"x": x, "out": out}, schedules=5).ok


@pytest.mark.parametrize(
    ("threads", "inc", "dec"), [(128, 240, 24), (256, 240, 40), (256, 256, 24), (384, 240, 24), (512, 152, 24)]
)
def test_the_pool_of_registers_is_what_ptxas_gives(threads: int, inc: int, dec: int) -> None:
    ptx = (
        HEAD
        + f""".visible .entry k(.param .u64 x) .maxntid {threads}, 1, 1 .minnctapersm 1 {{
  .reg .b64 %d; .reg .b32 %r; .reg .pred %p; mov.u32 %r, %tid.x; setp.lt.u32 %p, %r, 128; @%p bra A;
  setmaxnreg.inc.sync.aligned.u32 {inc}; ret;
A: setmaxnreg.dec.sync.aligned.u32 {dec}; ret;
}}
"""
    )
    x = np.zeros(1, np.uint32)
    # What the first warpgroup gives back is enough for the others.
    enough = (threads // 128 - 1) * max(0, inc - _share(threads, inc)) <= _share(threads, inc) - dec
    assert machine.check(ptx, {"grid": 1, "block": threads}, {"x": x}, schedules=5).ok == enough


def _share(threads: int, inc: int) -> int:
    return inc if threads * inc <= 65536 else 65536 // threads // 8 * 8


# The first warp of block 1 polls the flag of block 0 for the others of its block.
FLAG = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 out) {
  .reg .b64 %x, %y, %o, %d; .reg .b32 %r<8>; .reg .pred %p<4>;
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %o, [out];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r0, 1; setp.ne.u32 %p1, %r1, 0;
  mul.wide.u32 %d, %r1, 4; add.s64 %x, %x, %d; add.s64 %o, %o, %d;
  @%p0 bra SECOND;
  st.global.u32 [%x], %r1;
  BEFORE
  @%p1 bra END;
  st.volatile.global.u32 [%y], 1;
  bra END;
SECOND:
  @%p1 bra READ;
POLL: ld.volatile.global.u32 %r3, [%y]; setp.eq.u32 %p2, %r3, 0; @%p2 bra POLL;
READ:
  AFTER
  ld.global.u32 %r4, [%x]; st.global.u32 [%o], %r4;
END:
  ret;
}
"""
)
PASSED_ON = [
    # The others of a block fence after the barrier, or before it: `fence.sc` has one order for all threads.
    ("bar.sync 0; membar.gl;", "bar.sync 0; membar.gl;", True),
    ("membar.gl; bar.sync 0;", "bar.sync 0; fence.sc.gpu;", True),
    ("fence.sc.gpu; barrier.sync 1, 64;", "barrier.sync 2, 64; membar.sys;", True),
    ("membar.gl; bar.sync 0;", "membar.gl; bar.sync 0;", True),
    # `fence.acq_rel` covers reads and writes of its own thread only; the barrier has to stand on the right side.
    ("bar.sync 0; membar.gl;", "bar.sync 0; fence.acq_rel.gpu;", False),
    ("fence.acq_rel.gpu; bar.sync 0;", "bar.sync 0; membar.gl;", False),
    ("bar.sync 0; membar.gl;", "bar.sync 0;", False),
    ("bar.sync 0;", "bar.sync 0; membar.gl;", False),
    ("membar.gl; bar.sync 0;", "bar.sync 0; membar.cta;", False),
    ("membar.gl;", "bar.sync 0; membar.gl;", False),
]


@pytest.mark.parametrize(("before", "after", "ordered"), PASSED_ON)
def test_a_sequentially_consistent_fence_of_another_thread_beyond_a_barrier(
    before: str, after: str, ordered: bool
) -> None:
    x, y, out = np.zeros(64, np.uint32), np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    ptx = FLAG.replace("BEFORE", before).replace("AFTER", after)
    verdict = machine.check(ptx, {"grid": 2, "block": 64}, {"x": x, "y": y, "out": out}, schedules=12)
    assert verdict.ok == ordered, verdict.render()
    if ordered:
        assert out.tolist() == list(range(64))
    else:
        assert {h.code for h in verdict.hazards} == {"race"}


# Each thread stores a value and takes a ticket; the thread with the last ticket reads all of them.
LAST = (
    HEAD
    + """.visible .entry k(.param .u64 out) {
  .shared .align 4 .b8 values[256]; .shared .u32 count;
  .reg .b64 %o; .reg .b32 %r<8>; .reg .pred %p<4>;
  ld.param.u64 %o, [out]; mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2;
  mov.u32 %r2, values; add.u32 %r2, %r2, %r1;
  setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [count], 0;
  bar.sync 0;
  st.shared.u32 [%r2], %r0;
  TICKET
  setp.ne.u32 %p1, %r3, 63; @%p1 bra END;
  AFTER
  mov.u32 %r4, 0; mov.u32 %r5, values; mov.u32 %r6, 0;
SUM:
  ld.shared.u32 %r7, [%r5]; add.u32 %r4, %r4, %r7; add.u32 %r5, %r5, 4;
  add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, 64; @%p2 bra SUM;
  st.global.u32 [%o], %r4;
END:
  ret;
}
"""
)
TICKET = "atom.{0}.cta.shared.add.u32 %r3, [count], 1;"


@pytest.mark.parametrize(
    ("ticket", "after", "sound"),
    [
        (TICKET.format("acq_rel"), "", True),
        ("fence.acq_rel.cta; " + TICKET.format("relaxed"), "fence.acq_rel.cta;", True),
        ("fence.acq_rel.cta; " + TICKET.format("acquire"), "", True),
        (TICKET.format("relaxed"), "", False),
        (TICKET.format("release"), "", False),
        (TICKET.format("acquire"), "", False),
        ("fence.acq_rel.cta; " + TICKET.format("relaxed"), "", False),
        (TICKET.format("relaxed"), "fence.acq_rel.cta;", False),
    ],
)
@pytest.mark.parametrize("threads", [64, 32])
def test_a_lane_observes_the_lanes_before_it(ticket: str, after: str, sound: bool, threads: int) -> None:
    """The lanes of one atomic operation take effect one after the other."""
    ptx = LAST.replace("TICKET", ticket).replace("AFTER", after)
    ptx = ptx.replace("63", str(threads - 1)).replace("%r6, 64", f"%r6, {threads}")
    out = np.zeros(1, np.uint32)
    verdict = machine.check(ptx, {"grid": 1, "block": threads}, {"out": out}, schedules=6)
    assert verdict.ok == sound, str(verdict)
    assert out[0] == threads * (threads - 1) // 2 or not sound
