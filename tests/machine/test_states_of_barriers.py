"""What an arrival at an mbarrier returns: the phase, and the arrivals that were still pending before it."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import header

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

# The count of an arrival is in the first register that is declared.
STATES = """
.visible .entry k(.param .u64 y) {
  .reg .b32 %two; .reg .b32 %r<16>; .reg .b64 %s<4>; .reg .b64 %Y; .reg .pred %p<4>;
  .shared .align 8 .b64 bar;
  mov.u32 %r0, %tid.x; mov.u32 %r1, bar; ld.param.u64 %Y, [y]; mov.b32 %two, 2; mov.b32 %r9, 0;
  setp.ne.u32 %p0, %r0, 0; @%p0 exit;
  ADDRESS
  mbarrier.init.shared.b64 [%r1], 5;
LOOP:
  mbarrier.arrive.b64 %s0, AT;
  mbarrier.arrive.b64 %s1, AT, %two;
  mbarrier.test_wait.b64 %p1, AT, %s1;
  selp.b32 %r4, 1, 0, %p1;
  mbarrier.arrive.b64 %s2, AT, %two;
  mbarrier.test_wait.b64 %p1, AT, %s2;
  selp.b32 %r5, 1, 0, %p1;
  mbarrier.test_wait.b64 %p1, AT, %s0;
  selp.b32 %r6, 1, 0, %p1;
  mbarrier.pending_count.b64 %r2, %s0; st.global.b32 [%Y], %r2;
  mbarrier.pending_count.b64 %r2, %s1; st.global.b32 [%Y+4], %r2;
  mbarrier.pending_count.b64 %r2, %s2; st.global.b32 [%Y+8], %r2;
  st.global.b32 [%Y+12], %r4; st.global.b32 [%Y+16], %r5; st.global.b32 [%Y+20], %r6;
  add.s64 %Y, %Y, 24; add.s32 %r9, %r9, 1; setp.lt.s32 %p2, %r9, 3; @%p2 bra LOOP;
  ret;
}"""


@pytest.mark.parametrize("generic", [False, True])
def test_states_of_three_phases(generic: bool) -> None:
    """At an address in shared memory, and at a generic one."""
    text = header("8.0", "sm_90a") + STATES
    if generic:
        text = text.replace("ADDRESS", ".reg .b64 %g; cvt.u64.u32 %g, %r1; cvta.shared.u64 %g, %g;")
        text = text.replace("AT", "[%g]")
    else:
        text = text.replace("ADDRESS", "").replace("AT", "[%r1]")
        text = text.replace("arrive.b64", "arrive.shared.b64").replace("test_wait.b64", "test_wait.shared.b64")
    y = np.zeros((3, 6), np.uint32)
    verdict = machine.check(text, {"grid": 1, "block": 32}, {"y": y}, schedules=2)
    assert verdict.ok, verdict.render()
    # The phase of the first state is over once its last arrival has come.
    assert y.tolist() == [[5, 4, 2, 0, 1, 1]] * 3
