"""Message passing between the generic and the async proxy.

With order and fence it is right in every schedule; without either some schedule has a hazard.

A writer makes bytes, a reader in another warp (shared memory) or another block (global memory) uses them, each
through one of the proxies.  PTX ISA, Memory Consistency Model, Proxies.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import small

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

# Words of `x` are 0, 1, ..; the message is the first 64 bytes.
MESSAGE = np.arange(16, dtype=np.uint32)
SETUP = """
  mov.u32 %r0, smem; add.s32 %r1, %r0, 512; add.s32 %r9, %r0, 520;
  setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %t, 32; ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y];
  @%p0 mbarrier.init.shared.b64 [%r1], 1; @%p0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""
# Thread 0 makes the bytes at smem, through a proxy; `done` follows in the writer's thread.
GENERIC_WRITE = """
  shl.b32 %r2, %t, 2; add.s32 %r2, %r2, %r0; setp.lt.u32 %p2, %t, 16; @%p2 st.shared.u32 [%r2], %t;
"""
ASYNC_WRITE = """
  @%p0 mbarrier.arrive.expect_tx.shared.b64 %d3, [%r1], 64;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 64, [%r1];
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0; @!%p3 bra W;"
BARRIER = "bar.sync 0;"
FENCE = "fence.proxy.async.shared::cta;"
# The second warp uses them: its lanes read, or its first lane copies them out.
GENERIC_READ = """
  setp.ge.u32 %p4, %t, 32; setp.lt.u32 %p5, %t, 48; and.pred %p4, %p4, %p5;
  add.u32 %r3, %t, -32; shl.b32 %r4, %r3, 2; add.s32 %r5, %r4, %r0; cvt.u64.u32 %d4, %r4; add.s64 %d5, %d1, %d4;
  @%p4 ld.shared.u32 %r6, [%r5]; @%p4 st.global.u32 [%d5], %r6;
"""
ASYNC_READ = """
  @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r0], 64;
  @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
"""
WRITES = {"generic": GENERIC_WRITE, "async": ASYNC_WRITE}
READS = {"generic": GENERIC_READ, "async": ASYNC_READ}
# What has to stand between: the completion of an async write is visible to both proxies.
BETWEEN = {
    ("generic", "generic"): [BARRIER],
    ("generic", "async"): [FENCE, BARRIER],
    ("async", "generic"): [WAIT],
    ("async", "async"): [WAIT],
}


def outcome(write: str, between: list[str], read: str, *, strict: bool = False) -> machine.Verdict:
    ptx, launch, args = small(SETUP + WRITES[write] + "\n".join(between) + READS[read])
    verdict = machine.check(ptx, launch, args, schedules=24, strict=strict)
    if verdict.ok:
        assert (args["y"][:16] == MESSAGE).all()
    return verdict


@pytest.mark.parametrize(("write", "read"), BETWEEN)
def test_with_order_and_fence_every_schedule_passes_the_message(write: str, read: str) -> None:
    verdict = outcome(write, BETWEEN[write, read], read, strict=True)
    assert verdict.ok, [h.message for h in verdict.hazards]


@pytest.mark.parametrize(
    ("write", "read", "left_out"),
    [pytest.param(w, r, i, id=f"{w}-{r}-{i}") for (w, r), steps in BETWEEN.items() for i in range(len(steps))],
)
def test_without_one_of_them_some_schedule_has_a_hazard(write: str, read: str, left_out: int) -> None:
    between = [step for i, step in enumerate(BETWEEN[write, read]) if i != left_out]
    assert not outcome(write, between, read).ok


def test_the_fence_may_stand_in_the_reader_after_the_barrier() -> None:
    assert outcome("generic", [BARRIER, FENCE], "async", strict=True).ok


# A slot is used again: the first use ends before the second begins.
AGAIN = {
    "read, then overwritten by a copy": (
        ASYNC_WRITE + WAIT + GENERIC_READ,
        BARRIER,
        ASYNC_WRITE.replace("[%r1]", "[%r9]").replace("[%d0]", "[%d0+64]"),
        "W2: mbarrier.try_wait.parity.shared.b64 %p3, [%r9], 0; @!%p3 bra W2;",
    ),
    "copied out, then written": (
        GENERIC_WRITE + FENCE + BARRIER + ASYNC_READ,
        BARRIER,
        GENERIC_WRITE,
        "",
    ),
}
SECOND = """
  @%p0 mbarrier.init.shared.b64 [%r9], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
"""


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("ordered", [True, False])
def test_a_slot_is_used_again_only_after_its_reader(name: str, ordered: bool) -> None:
    first, order, second, end = AGAIN[name]
    ptx, launch, args = small(SETUP + SECOND + first + (order if ordered else "") + second + end)
    verdict = machine.check(ptx, launch, args, schedules=24)
    assert verdict.ok == ordered, [h.message for h in verdict.hazards]
    if ordered:
        assert (args["y"][:16] == MESSAGE).all()


# Bytes of global memory written by one block and copied by another through the async proxy.
ACROSS = """
  mov.u32 %r0, smem; add.s32 %r1, %r0, 512; mov.u32 %r2, %ctaid.x;
  setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %r2, 0; 
  ld.param.u64 %d0, [z]; ld.param.u64 %d1, [y]; ld.param.u64 %d2, [f];
  @%p0 mbarrier.init.shared.b64 [%r1], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
  @!%p0 bra E;
  @!%p1 bra READER;
  st.global.v4.u32 [%d0], {1, 2, 3, 4};
  WRITER_FENCE
  st.release.gpu.global.u32 [%d2], 1;
  bra E;
READER:
  ld.acquire.gpu.global.u32 %r3, [%d2]; setp.eq.u32 %p2, %r3, 0; @%p2 bra READER;
  READER_FENCE
  mbarrier.arrive.expect_tx.shared.b64 %d3, [%r1], 16;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 16, [%r1];
  W: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0; @!%p3 bra W;
  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r0]; st.global.v4.u32 [%d1], {%r4, %r5, %r6, %r7};
E:
"""


@pytest.mark.parametrize(
    ("writer", "reader", "clean"),
    [
        ("fence.proxy.async.global;", "", True),
        ("", "fence.proxy.async.global;", True),
        ("fence.proxy.async;", "", True),
        ("", "", False),
        ("fence.proxy.async.shared::cta;", "", False),
    ],
)
def test_global_bytes_cross_the_proxies_with_a_fence(writer: str, reader: str, clean: bool) -> None:
    body = ACROSS.replace("WRITER_FENCE", writer).replace("READER_FENCE", reader)
    arrays = {"z": np.zeros(16, np.uint32), "f": np.zeros(1, np.uint32)}
    ptx, launch, args = small(body, grid=2, **arrays)
    verdict = machine.check(ptx, launch, args, schedules=24, strict=True)
    assert verdict.ok == clean, [h.message for h in verdict.hazards]
    if clean:
        assert args["y"][:4].tolist() == [1, 2, 3, 4]
    else:
        assert {h.code for h in verdict.hazards} == {"missing-proxy-fence-global"}
