"""Rules of single instructions: a program that breaks one, what the report says, and that the rest is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels import header, without
from ptx_programs import barrier, bulk_load, change, cluster, exchange, insert, plain, wgmma, with_registers

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

# Warp 1 waits; one thread of warp 0 arrives, and does so again after many instructions.
INVALIDATED = """
  mov.u32 %r0, smem; setp.eq.u32 %p0, %t, 0; setp.ge.u32 %p2, %t, 32;
  @%p0 mbarrier.init.shared.b64 [%r0], 2;
  bar.sync 0;
  @%p2 bra WAIT;
  @%p0 mbarrier.arrive.shared.b64 _, [%r0];
  @%p0 mbarrier.inval.shared.b64 [%r0]; // @inval
  @%p0 mbarrier.arrive.shared.b64 _, [%r0]; // @last
  bra END;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;
  @!%p1 bra WAIT;
END:
"""
# One of four warps commits before it has issued the product.
EARLY_COMMIT = "  setp.eq.u32 %p3, %w, 3; @%p3 wgmma.commit_group.sync.aligned;"
SAME_PLACE = """
  mov.u32 %r0, smem; shr.u32 %r1, %t, 1; shl.b32 %r1, %r1, 2; add.u32 %r1, %r0, %r1;
  mov.b32 %r2, 7; st.shared.b32 [%r1], %r2; // @store
  bar.sync 0; ld.shared.b32 %r3, [%r1]; st.global.b32 [%Y], %r3;
"""
PRINTED = (
    header("7.0", "sm_80")
    + """.extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[3] = {104, 105, 0};
.visible .entry k(.param .u64 y) { .reg .b32 %r<4>; .reg .b64 %d<4>; .local .align 8 .b8 block[8];
  mov.u64 %d2, text; cvta.global.u64 %d2, %d2; // @format
  mov.u64 %d3, block; cvta.local.u64 %d3, %d3;
  { .param .b64 format; .param .b64 arguments; .param .b32 status;
  st.param.b64 [format], %d2; st.param.b64 [arguments], %d3; call.uni (status), vprintf, (format, arguments);
  ld.param.b32 %r1, [status]; }
  ret; }"""
)

Build = Callable[..., Any]


def printed(edit: Callable[[str], str] = lambda p: p) -> Any:
    return edit(PRINTED), {"grid": 1, "block": 32}, {"y": np.zeros(1, np.uint32)}


# The last thread of each CTA starts a copy and waits for it alone.
ONE_WAITS = """
  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 63; ld.param.u64 %d0, [x];
  @%p0 bra END;
  mbarrier.init.shared.b64 [%r0], 1; fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r0], 64;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+64], [%d0], 64, [%r0];
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;
  @!%p1 bra WAIT; // @wait
END:
"""
invalidated, one_waits = plain(INVALIDATED), plain(ONE_WAITS, grid=4)
CASES: list[tuple[Build, Callable[[str], str], str, str]] = [
    (cluster, insert("end-arrive", "  barrier.cluster.arrive.aligned;"), "barrier-count", "arrives twice"),
    (cluster, insert("end-wait", "  barrier.cluster.wait.aligned;"), "barrier-count", "a second `wait`"),
    (cluster, lambda p: without(without(p, "end-arrive"), "end-wait").replace(
        "barrier.cluster.arrive.aligned; ", ""), "barrier-count", "without an `arrive`"),
    (exchange, change("barrier", "bar.sync 0", "bar.warp.sync -1; bar.arrive 0, 64"), "race", "bar.sync"),
    (with_registers, change("count", "dec.sync.aligned.u32 40", "dec.sync.aligned.u32 72"),
     "setmaxnreg-pool", "by a warp that has 64 registers"),
    (with_registers, change("count", "dec.sync.aligned.u32 40", "inc.sync.aligned.u32 56"),
     "setmaxnreg-pool", "by a warp that has 64 registers"),
    (wgmma, insert("fence", EARLY_COMMIT), "wgmma-not-uniform", "commits"),
    (printed, change("format", "cvta.global.u64 %d2, %d2;", "mov.b64 %d2, 64;"), "out-of-bounds",
     "a string at 0x40"),
    (plain(SAME_PLACE), change("store", "mov.b32 %r2, 7", "mov.b32 %r2, %t"), "race",
     "different values by several lanes"),
    (barrier, change("arrive", "[%r0]", "[%r0], 65"), "mbarrier-arrivals", "65"),
]  # fmt: skip


@pytest.mark.parametrize("build, edit, code, said", CASES, ids=[f"{c[2]}: {c[3]}" for c in CASES])
def test_a_broken_rule_is_reported(build: Build, edit: Callable[[str], str], code: str, said: str) -> None:
    ptx, launch, args = build(edit)
    found = machine.check(ptx, launch, args, schedules=4)
    told = [h.render() for h in found.hazards if h.code == code]
    assert any(said in x for x in told), found.render()
    ptx, launch, args = build()
    assert machine.check(ptx, launch, args, schedules=4).ok


def test_a_barrier_that_threads_wait_on_is_not_invalidated() -> None:
    """Whether they wait already depends on the schedule."""
    ptx, launch, args = invalidated(lambda p: without(p, "last"))
    found = machine.check(ptx, launch, args, schedules=20)
    assert any("invalidated while threads wait" in h.render() for h in found.hazards), found.render()
    ptx, launch, args = invalidated(lambda p: without(p, "inval"))
    assert machine.check(ptx, launch, args, schedules=20).ok


def test_one_thread_of_each_block_of_a_cluster_waits_for_its_copy() -> None:
    ptx, launch, args = one_waits()
    assert machine.check(ptx, {**launch, "cluster": (2, 1, 1)}, args, schedules=4).ok
    ptx = (
        without(ptx, "wait").replace("WAIT:", "").replace("mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;", "")
    )
    found = machine.check(ptx, {**launch, "cluster": (2, 1, 1)}, args, schedules=4)
    assert {h.code for h in found.hazards} == {"exit-with-pending"}


def test_the_warps_of_a_product_make_whole_warpgroups() -> None:
    ptx, launch, args = wgmma()
    found = machine.check(ptx, {**launch, "block": 96}, args, schedules=1)
    assert [h.code for h in found.hazards if h.code.startswith("wgmma")] == ["wgmma-not-uniform"]
    assert "do not make a whole warpgroup" in found.render()


# What a deadlock advises, by what its threads wait for.
PHASE = change("try", "[%r0], 0", "[%r0], 1")
DEADLOCKS: list[tuple[Build, Callable[[str], str], str]] = [
    (bulk_load, change("expect", ", 256", ", 512"), "check `expect_tx` against the bytes"),
    (barrier, change("init", ", 64", ", 65"), "check the count of `mbarrier.init`"),
    (barrier, lambda p: PHASE(p).replace("@!%p1 bra WAIT;", "@!%p1 bra WAIT; AGAIN: mbarrier.try_wait.parity"
     ".shared.b64 %p1, [%r0], 1; @!%p1 bra AGAIN;"), "check the count of `mbarrier.init`"),
    (exchange, change("barrier", "bar.sync 0", "setp.lt.u32 %p0, %t, 32; @%p0 bar.sync 0, 64;"
     " @!%p0 bar.sync 1, 64"), "check that all the warps counted reach the barrier"),
    (plain("  mov.b32 %r1, 0; // @flag"), insert("flag", "L: ld.relaxed.gpu.global.b32 %r1, [%Y]; setp.eq.u32 %p0,"
     " %r1, 0; @%p0 bra L;"), "check that the store or atomic operation that ends this loop is executed"),
]  # fmt: skip


@pytest.mark.parametrize("build, edit, advice", DEADLOCKS, ids=[d[2] for d in DEADLOCKS])
def test_a_deadlock_advises_by_what_is_waited_for(build: Build, edit: Callable[[str], str], advice: str) -> None:
    ptx, launch, args = build(edit)
    found = machine.check(ptx, launch, args, schedules=1, max_steps=200_000)
    assert any(advice in h.remedy for h in found.hazards if h.code in ("deadlock", "step-limit")), found.render()


EXCHANGED = """
  setp.lt.u32 %p0, %t, 128; @!%p0 bra SECOND;
  setmaxnreg.dec.sync.aligned.u32 40; bar.sync 1, 256; setmaxnreg.inc.sync.aligned.u32 64; bra END;
SECOND:
  setmaxnreg.inc.sync.aligned.u32 88; bar.sync 1, 256; setmaxnreg.dec.sync.aligned.u32 64; // @second
END:
"""


def exchanged(most: int) -> Any:
    ptx, launch, args = plain(EXCHANGED, block=256)(change("second", "u32 88", f"u32 {most}"))
    return ptx.replace(")\n{", ")\n.maxntid 256, 1, 1\n.maxnreg 64\n{", 1), launch, args


def test_warpgroups_exchange_the_registers_that_the_pool_has() -> None:
    """One gives up 24 of each thread's, the other takes them, and back: the pool is empty in between."""
    assert machine.check(*exchanged(88), schedules=6).ok
    found = machine.check(*exchanged(96), schedules=2)
    assert {h.code for h in found.hazards} == {"setmaxnreg-pool"}, found.render()
