"""Lanes of a warp on different paths: waiting for one another, leaving, and code that relies on lockstep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import machine

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
FRAME = (
    HEAD
    + """.visible .entry k(.param .u64 x, .param .u64 out, .param .u32 n) {
  .reg .b64 %x, %o, %d; .reg .b32 %r<20>; .reg .pred %p<8>; .shared .align 4 .b8 s[512];
  ld.param.u64 %x, [x]; ld.param.u64 %o, [out]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x;
  mul.wide.u32 %d, %r1, 4; add.s64 %x, %x, %d; add.s64 %o, %o, %d; mov.u32 %r2, s; shl.b32 %r3, %r1, 2;
  add.u32 %r3, %r3, %r2;
BODY
  st.global.u32 [%o], %r9;
END: ret;
}
"""
)


def check(body: str, *, n: int = 20, block: int = 32, schedules: int = 12) -> tuple[machine.Verdict, Any]:
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    args = {"x": x, "out": out, "n": n}
    launch = {"grid": 1, "block": block}
    return machine.check(FRAME.replace("BODY", body), launch, args, schedules=schedules), out


LEAVE = "setp.ge.u32 %p0, %r1, %r0; @%p0 bra END;"
# Instructions that wait for the lanes of a full mask, and what lane i of the first 20 gets.
TOGETHER = {
    "vote.sync.ballot.b32 %r9, 1, -1;": lambda i: (1 << 20) - 1,
    "shfl.sync.idx.b32 %r9, %r1, 3, 31, -1;": lambda i: 3,
    "redux.sync.add.u32 %r9, %r1, -1;": lambda i: 190,
    "match.any.sync.b32 %r9, %r0, -1;": lambda i: (1 << 20) - 1,
    "bar.warp.sync -1; mov.u32 %r9, 7;": lambda i: 7,
    "bar.sync 0; mov.u32 %r9, 7;": lambda i: 7,
}


@pytest.mark.parametrize("code", TOGETHER)
def test_lanes_that_leave_for_the_exit_are_waited_for(code: str) -> None:
    verdict, out = check(f"{LEAVE} {code}")
    assert verdict.ok, verdict.render()
    assert out[:20].tolist() == [TOGETHER[code](i) for i in range(20)] and not out[20:].any()


def test_lanes_of_two_paths_meet_at_one_instruction() -> None:
    body = """and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 0; mov.u32 %r9, 5; @%p1 bra EVEN;
      st.shared.u32 [%r3], %r1; bra.uni MEET;
EVEN: st.shared.u32 [%r3], %r1; ld.shared.u32 %r5, [%r3];
MEET: vote.sync.ballot.b32 %r9, %p1, -1;"""
    verdict, out = check(body)
    assert verdict.ok, verdict.render()
    assert (out[:32] == 0x55555555).all()


@pytest.mark.parametrize("code", ["vote.sync.ballot.b32 %r9, 1, -1;", "shfl.sync.idx.b32 %r9, %r1, 3, 31, -1;"])
def test_lanes_that_never_come_are_missed(code: str) -> None:
    verdict, _ = check(f"mov.u32 %r9, 0; setp.ge.u32 %p0, %r1, %r0; @%p0 bra SKIP; {code}\nSKIP:")
    assert {h.code for h in verdict.hazards} == {"aligned-under-divergence"}


def test_a_shuffle_from_a_lane_that_has_left() -> None:
    verdict, _ = check(f"{LEAVE} shfl.sync.down.b32 %r9, %r1, 8, 31, -1;")
    assert {h.code for h in verdict.hazards} == {"shuffle-inactive-lane"}
    limited, _ = check(f"{LEAVE} shfl.sync.down.b32 %r9, %r1, 8, 19, -1;")
    assert limited.ok, limited.render()
    masked, _ = check("mov.u32 %r9, 0; setp.lt.u32 %p0, %r1, 16; @%p0 shfl.sync.down.b32 %r9, %r1, 8, 31, 0xffff;")
    assert {h.code for h in masked.hazards} == {"shuffle-inactive-lane"}
    missing, _ = check("shfl.sync.bfly.b32 %r9, %r1, 16, 31, -1;", block=20)
    assert {h.code for h in missing.hazards} == {"shuffle-inactive-lane"}


def reduction(sync: str, kind: str = "volatile.") -> str:
    steps = []
    for distance in (16, 8, 4, 2, 1):
        steps.append(
            f"""setp.lt.u32 %p2, %r1, {distance};
      @%p2 ld.{kind}shared.u32 %r5, [%r3+{4 * distance}]; @%p2 ld.{kind}shared.u32 %r6, [%r3];
      @%p2 add.u32 %r6, %r6, %r5; {sync} @%p2 st.{kind}shared.u32 [%r3], %r6; {sync}"""
        )
    return f"""ld.global.u32 %r4, [%x]; st.{kind}shared.u32 [%r3], %r4; {sync} {"".join(steps)}
      ld.{kind}shared.u32 %r9, [%r2];"""


@pytest.mark.parametrize("kind", ["volatile.", ""])
def test_a_reduction_that_relies_on_lockstep(kind: str) -> None:
    verdict, _ = check(reduction("", kind))
    assert "race" in {h.code for h in verdict.hazards}
    assert "bar.warp.sync" in verdict.hazards[0].render()
    sound, out = check(reduction("bar.warp.sync -1;", kind))
    assert sound.ok, sound.render()
    assert (out[:32] == 496).all()


def test_a_lane_may_poll_what_another_lane_of_its_warp_writes() -> None:
    body = """setp.eq.u32 %p3, %r1, 0; @!%p3 bra NEXT; st.volatile.shared.u32 [%r2], 0;
NEXT: bar.warp.sync -1; @!%p3 bra POLL; st.volatile.shared.u32 [%r2], 1; bra.uni DONE;
POLL: ld.volatile.shared.u32 %r5, [%r2]; setp.eq.u32 %p4, %r5, 0; @%p4 bra POLL;
DONE: mov.u32 %r9, 1;"""
    verdict, out = check(body)
    assert verdict.ok, verdict.render()
    assert (out[:32] == 1).all()


def test_the_sides_of_a_branch_keep_their_lanes_when_the_predicate_changes() -> None:
    body = """mov.u32 %r9, 0; mov.u32 %r6, 0; setp.lt.u32 %p5, %r1, 20; @%p5 bra LOOP; bra.uni END;
LOOP: add.u32 %r9, %r9, %r1; add.u32 %r6, %r6, 1; setp.lt.u32 %p5, %r6, %r1; st.shared.u32 [%r3], %r9;
  @%p5 bra LOOP;"""
    verdict, out = check(body)
    assert verdict.ok, verdict.render()
    assert out[:20].tolist() == [i * max(1, i) for i in range(20)] and not out[20:].any()


@pytest.mark.parametrize(
    "code", ["redux.sync.add.u32 %r9, %r1, %r7;", "shfl.sync.idx.b32 %r9, %r1, 0, 0x181f, %r7;"]
)
def test_groups_of_a_warp_have_masks_of_their_own(code: str) -> None:
    body = f"and.b32 %r6, %r1, 24; mov.u32 %r7, 255; shl.b32 %r7, %r7, %r6; {code}"
    verdict, out = check(body)
    assert verdict.ok, verdict.render()
    groups = np.arange(32).reshape(4, 8)
    want = groups.sum(1) if "redux" in code else groups[:, 0]
    assert (out[:32].reshape(4, 8) == want[:, None]).all()


@pytest.mark.parametrize(
    ("source", "clean"), [("idx.b32 %r9, %r6, 0, 31", True), ("down.b32 %r9, %r6, 1, 31", False)]
)
def test_a_leader_shares_a_register_that_it_alone_has_written(source: str, clean: bool) -> None:
    verdict, out = check(f"setp.eq.u32 %p1, %r1, 0; @%p1 mov.u32 %r6, 7; shfl.sync.{source}, -1;", schedules=2)
    assert [h.code for h in verdict.hazards[:1]] == ([] if clean else ["uninitialised-register"])
    assert not clean or (out[:32] == 7).all()


def test_mapa_of_a_generic_address() -> None:
    ptx = (
        HEAD
        + """.visible .entry k(.param .u64 out) .explicitcluster .reqnctapercluster 2, 1, 1 {
  .reg .b64 %d<6>; .reg .b32 %r<8>; .shared .align 4 .b8 s[128];
  ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.u64 %d1, s;
  cvta.shared.u64 %d1, %d1;
  mul.wide.u32 %d2, %r0, 4; add.s64 %d3, %d1, %d2; mad.lo.u32 %r2, %r1, 100, %r0; st.u32 [%d3], %r2;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
  xor.b32 %r3, %r1, 1; mapa.u64 %d4, %d3, %r3; ld.u32 %r4, [%d4];
  mad.lo.u32 %r5, %r1, 32, %r0; mul.wide.u32 %d2, %r5, 4; add.s64 %d0, %d0, %d2; st.global.u32 [%d0], %r4;
  barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; ret;
}
"""
    )
    out = np.zeros(64, np.uint32)
    verdict = machine.check(ptx, {"grid": 2, "block": 32}, {"out": out}, schedules=4)
    assert verdict.ok, verdict.render()
    assert out.tolist() == [*range(100, 132), *range(32)]


# Each thread adds one to a counter under a lock that the lanes of its warp compete for.
LOCKED = """setp.eq.u32 %p3, %r1, 0; @%p3 st.shared.v2.u32 [%r2], {{0, 0}}; bar.sync 0;
TRY: {clock} atom.acquire.cta.shared.cas.b32 %r5, [%r2], 0, 1; setp.ne.u32 %p4, %r5, 0; @%p4 bra TRY;
ld.shared.u32 %r9, [%r2+4]; add.u32 %r6, %r9, 1; st.shared.u32 [%r2+4], %r6;
atom.release.cta.shared.exch.b32 %r7, [%r2], 0; {after}"""


@pytest.mark.parametrize("after", ["", "bar.warp.sync -1;", "shfl.sync.idx.b32 %r7, %r9, 0, 31, -1;"])
@pytest.mark.parametrize("clock", ["", "mov.u32 %r8, %clock;"])
def test_lanes_of_a_warp_compete_for_a_lock(clock: str, after: str) -> None:
    """The lane with the lock does not wait, behind the loop, for those that spin (measured on an H200)."""
    verdict, out = check(LOCKED.format(clock=clock, after=after), block=5, schedules=5)
    assert verdict.ok, verdict.render()
    assert sorted(out[:5]) == list(range(5))


def test_a_lock_in_front_of_a_barrier_of_whole_warps() -> None:
    """The assembler may make the lanes meet behind the loop; on an H200, such a kernel did not end."""
    verdict, _ = check(LOCKED.format(clock="", after="bar.sync 0;"), block=5, schedules=1)
    (hazard,) = verdict.hazards
    assert hazard.code == "deadlock"
    assert "lanes" in hazard.render() and "bar.sync" in hazard.render()


@pytest.mark.parametrize("lanes", [16, 40])
@pytest.mark.parametrize("clock", ["", "mov.u32 %r8, %clock;"])
def test_a_barrier_in_a_divergent_branch(lanes: int, clock: str) -> None:
    body = f"{clock} mov.u32 %r9, 0; setp.ge.u32 %p0, %r1, {lanes}; @%p0 bra SKIP; bar.sync 0;\nSKIP:"
    verdict, _ = check(body, block=64)
    assert "aligned-under-divergence" in {h.code for h in verdict.hazards}


def test_lanes_that_wait_long_for_others_in_a_program_with_a_clock() -> None:
    body = """mov.u32 %r5, %clock; mov.u32 %r6, 0; setp.ne.u32 %p3, %r1, 7; @%p3 bra NEXT;
LONG: ld.volatile.global.u32 %r7, [%x]; add.u32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, 9000; @%p4 bra LONG;
NEXT: bar.sync 0; mov.u32 %r9, %r6;"""
    verdict, out = check(body, schedules=1)
    assert verdict.ok, verdict.render()
    assert out[7] == 9000 and (out[:7] == 0).all()
