"""The schedule that starves one warp: a warp that can miss a phase of an mbarrier misses it."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import header, without

from tilemma import machine
from tilemma.machine import HazardError

pytestmark = pytest.mark.usefixtures("engine")

# Thread 0 completes a phase alone, as often as it likes; all threads of `warps` warps wait for each phase.  The
# barrier marked `step` keeps thread 0 from the next phase until all warps have seen this one.
WAITERS = (
    header("8.6", "sm_90a")
    + """
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<4>;
  .shared .align 8 .b8 phase[8];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, phase;
  setp.ne.s32 %p0, %r0, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [%r1], 1;
READY:
  bar.sync 0;
  mov.u32 %r2, 0;
TURN:
  @%p0 bra WAIT;
  mbarrier.arrive.shared::cta.b64 _, [%r1];
WAIT:
  and.b32 %r3, %r2, 1;
POLL:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r3;
  @!%p1 bra POLL;
  bar.sync 0; // @step
  add.s32 %r2, %r2, 1;
  setp.lt.s32 %p2, %r2, 3;
  @%p2 bra TURN;
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r0, 4;
  add.s64 %d2, %d0, %d1;
  st.global.b32 [%d2], %r2;
  ret;
}"""
)


def deadlocks(ptx: str, warps: int, seed: int, schedule: str) -> bool:
    out = np.zeros(32 * warps, np.int32)
    try:
        machine.run(ptx, {"grid": 1, "block": 32 * warps}, {"out": out}, seed=seed, schedule=schedule, strict=True)
    except HazardError as error:
        assert error.code == "deadlock"
        return True
    assert (out == 3).all()
    return False


@pytest.mark.parametrize("warps", [2, 3, 4, 8])
def test_every_warp_that_can_miss_a_phase_misses_it(warps: int) -> None:
    """Seed n starves warp n; warp 0 completes the phases, so the others cannot be ahead of it."""
    found = [deadlocks(without(WAITERS, "step"), warps, seed, "starve") for seed in range(warps)]
    assert found == [False, *[True] * (warps - 1)]


@pytest.mark.parametrize("warps", [2, 4])
def test_a_warp_that_lags_where_it_may_is_no_hazard(warps: int) -> None:
    assert not any(deadlocks(WAITERS, warps, seed, "starve") for seed in range(2 * warps))


def test_a_warp_that_only_follows_is_a_note() -> None:
    """After the last wait only thread 0 does anything: nothing depends on a warp that has missed a phase."""
    follows = without(WAITERS, "step").replace("  st.global.b32", "  @!%p0 st.global.b32")
    out = np.zeros(4 * 32, np.int32)
    verdict = machine.check(follows, {"grid": 1, "block": 128}, {"out": out}, schedules=20)
    assert verdict.ok and out[0] == 3, verdict.render()
    assert "deadlock" in {h.code for h in verdict.letter}
    assert deadlocks(follows, 4, 1, "starve")
    # A phase that nobody completes stays an error.
    wrong = follows.replace("mbarrier.init.shared::cta.b64 [%r1], 1", "mbarrier.init.shared::cta.b64 [%r1], 2")
    verdict = machine.check(wrong, {"grid": 1, "block": 128}, {"out": out}, schedules=5)
    assert {h.code for h in verdict.hazards} == {"deadlock"}


def test_a_check_starves_warps() -> None:
    """In every five runs of a check two starve a warp, each time another one."""
    out = np.zeros(4 * 32, np.int32)
    verdict = machine.check(without(WAITERS, "step"), {"grid": 1, "block": 128}, {"out": out}, schedules=20)
    assert [h.code for h in verdict.hazards] == ["deadlock"]
    from tilemma.machine.run import schedule_of

    starving = [i for i in range(20) if schedule_of(i) == "starve"]
    assert len(starving) == 8 and {i % 4 for i in starving} == {0, 1, 2, 3}
