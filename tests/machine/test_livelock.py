"""Loops that wait for what no warp will do end early, with the place that waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import machine

HEAD = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {
  .reg .b64 %x, %y, %d; .reg .b32 %r<12>; .reg .pred %p<8>; .shared .align 8 .b8 bar[16];
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r7, bar;
"""
LOOPS = {
    "a flag that nothing sets": (
        "L: ld.volatile.global.u32 %r2, [%x]; setp.eq.u32 %p0, %r2, 0; @%p0 bra L;", "ld"),
    "a flag at another address": (
        "st.volatile.global.u32 [%y], 1; L: ld.acquire.gpu.global.u32 %r2, [%x+4]; setp.eq.u32 %p0, %r2, 0;"
        " @%p0 bra L;", "ld"),
    "a lock that is not given back": (
        "L: atom.acquire.gpu.global.cas.b32 %r2, [%x], 0, 1; setp.ne.u32 %p0, %r2, 0; @%p0 bra L;", "atom"),
    "a barrier of the grid that counts too few": (
        "setp.ne.u32 %p1, %r0, 0; @%p1 bra E; atom.acq_rel.gpu.global.add.u32 %r2, [%x], 1;"
        "L: atom.acquire.gpu.global.or.b32 %r2, [%x], 0; setp.lt.u32 %p0, %r2, 5; @%p0 bra L; E: bar.sync 0;",
        "atom"),
    "lanes that wait for each other": (
        "setp.lt.u32 %p1, %r0, 7; @%p1 bra L; L: ld.volatile.global.u32 %r2, [%x]; and.b32 %r3, %r0, 1;"
        " setp.eq.u32 %p2, %r3, 0; @%p2 bra M; add.u32 %r4, %r2, 1; bra N; M: add.u32 %r4, %r2, 2;"
        " N: setp.lt.u32 %p0, %r4, 3; @%p0 bra L;", "ld"),
    "with local memory": (
        "L: ld.volatile.global.u32 %r2, [%x]; st.local.u32 [spill], %r2; ld.local.u32 %r3, [spill];"
        " setp.eq.u32 %p0, %r3, 0; @%p0 bra L;", "ld"),
    "nothing at all": ("L: setp.ge.u32 %p0, %r0, 4096; @%p0 bra E; bra L; E:", ""),
    "a sleep in the loop": (
        "L: ld.relaxed.gpu.global.u32 %r2, [%x]; setp.ne.u32 %p0, %r2, 0; @%p0 bra E; nanosleep.u32 100; bra L;"
        " E:", "ld"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("schedule", ["random", "late", "starve"])
def test_a_loop_that_waits_for_ever(name: str, schedule: str) -> None:
    body, read = LOOPS[name]
    ptx = HEAD + ".local .align 4 .b8 spill[4];\n" + body + "\nret;\n}\n"
    for seed in range(2):
        x: Any = np.zeros(2, np.uint32)
        report = machine.run(
            ptx, {"grid": 2, "block": 64}, {"x": x, "y": x.copy()}, seed=seed, schedule=schedule, collect=True
        )
        (hazard,) = report.hazards
        assert hazard.code == "deadlock", hazard.render()
        assert report.instructions < 2_000_000
        assert (f"`{read}." in hazard.render()) == bool(read), hazard.render()
        assert "no warp can go on" in hazard.render()


# Long waits that end: for another warp's work, for a count of turns, for a clock.
ENDING = {
    "a long computation of another warp": (
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; mov.u32 %r3, 0;"
        "M: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 20000; @%p2 bra M;"
        "membar.gl; st.volatile.global.u32 [%x], 1; bra E;"
        "L: ld.volatile.global.u32 %r2, [%x]; setp.eq.u32 %p0, %r2, 0; @%p0 bra L; E:"),
    "a count of turns": (
        "mov.u32 %r3, 0; L: ld.volatile.global.u32 %r2, [%x]; add.u32 %r3, %r3, 1;"
        "setp.lt.u32 %p2, %r3, 9000; setp.eq.and.u32 %p0, %r2, 0, %p2; @%p0 bra L;"),
    "a count of turns in local memory": (
        "mov.u32 %r3, 0; st.local.u32 [spill], %r3;"
        "L: ld.local.u32 %r3, [spill]; add.u32 %r3, %r3, 1; st.local.u32 [spill], %r3;"
        "setp.lt.u32 %p2, %r3, 4000; mov.u32 %r3, 0; @%p2 bra L;"),
    "a clock": (
        "L: mov.u64 %d, %clock64; setp.lt.u64 %p0, %d, 300000; mov.u64 %d, 0; @%p0 bra L;"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("schedule", ["random", "starve"])
def test_a_long_loop_that_ends(name: str, schedule: str) -> None:
    ptx = HEAD + ".local .align 4 .b8 spill[4];\n" + ENDING[name] + "\nret;\n}\n"
    x: Any = np.zeros(2, np.uint32)
    report = machine.run(ptx, {"grid": 1, "block": 64}, {"x": x, "y": x.copy()}, schedule=schedule)
    assert report.ok and report.instructions > 20_000


AFTER_A_COPY = """.shared .align 16 .b8 copied[16];
  setp.ge.u32 %p2, %r0, 32; @%p2 bra P; setp.ne.u32 %p1, %r0, 0; @%p1 bra E; mbarrier.init.shared.b64 [%r7], 1;
  fence.proxy.async.shared::cta; mbarrier.arrive.expect_tx.shared.b64 _, [%r7], 16; mov.u32 %r8, copied;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r8], [%y], 16, [%r7];
  L: mbarrier.try_wait.parity.shared.b64 %p3, [%r7], 0; @!%p3 bra L;
  mov.u32 %r3, 1; st.release.gpu.global.u32 [%x], %r3; bra E;
  P: COUNT ld.acquire.gpu.global.u32 %r2, [%x]; setp.eq.u32 %p0, %r2, 0; @%p0 bra P; E:
"""


@pytest.mark.parametrize("schedule", ["random", "late"])
@pytest.mark.parametrize("count", ["", "add.u32 %r9, %r9, 1;"], ids=["the same state", "another state"])
def test_polls_for_what_is_written_after_a_copy(schedule: str, count: str) -> None:
    """The copy, and the warp that waits for it, come to their turn, however long others poll memory."""
    ptx = HEAD + "mov.u32 %r9, 0;\n" + AFTER_A_COPY.replace("COUNT", count) + "\nret;\n}\n"
    for seed in range(3):
        x: Any = np.zeros(4, np.uint32)
        report = machine.run(
            ptx, {"grid": 1, "block": 64}, {"x": x, "y": x.copy()}, seed=seed, schedule=schedule, collect=True
        )
        assert report.ok and x[0] == 1, report
        assert report.instructions < 500_000
