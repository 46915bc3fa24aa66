"""discard, st.bulk, arrivals that must not complete a phase, and operands that no modifier announces."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma import machine
from tilemma.errors import TilemmaError

pytestmark = pytest.mark.usefixtures("engine")

LANES = np.arange(32, dtype=np.uint32)
HEAD = """.version 9.0
.target {arch}
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 o) {{
  .reg .b64 %d<8>; .reg .b32 %r<8>; .reg .pred %p<4>; .shared .align 128 .b8 s[256];
  ld.param.u64 %d0, [a]; ld.param.u64 %d1, [o]; mov.u32 %r0, %tid.x; mov.u32 %r7, s;
  mul.wide.u32 %d2, %r0, 4; add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2;
{code}
  ret;
}}"""


def check(code: str, arch: str = "sm_90a") -> tuple[machine.Verdict, np.ndarray, np.ndarray]:
    a, o = LANES.copy(), np.zeros(32, np.uint32)
    verdict = machine.check(
        HEAD.format(code=code, arch=arch), {"grid": 1, "block": 32}, {"a": a, "o": o}, schedules=2
    )
    return verdict, a, o


def test_discarded_bytes_have_no_value() -> None:
    verdict, a, o = check(
        """ld.global.u32 %r1, [%d3]; st.global.u32 [%d4], %r1; bar.warp.sync 0xffffffff; setp.eq.u32 %p0, %r0, 0;
        @%p0 discard.global.L2 [%d0], 128;"""
    )
    assert verdict.ok and (o == LANES).all() and (a != LANES).all()
    verdict, _, _ = check("setp.eq.u32 %p0, %r0, 0; @%p0 discard.global.L2 [%d0], 128; ld.global.u32 %r1, [%d3];")
    assert "race" in [h.code for h in verdict.hazards]


def test_zeros_in_bulk() -> None:
    code = """shl.b32 %r1, %r0, 3; add.u32 %r1, %r1, %r7; st.shared.v2.u32 [%r1], {%r0, %r0};
        bar.warp.sync 0xffffffff;
        setp.eq.u32 %p0, %r0, 0; mov.u64 %d5, 128; cvt.u64.u32 %d6, %r7; @%p0 st.bulk.shared::cta [%d6], %d5, 0;
        bar.warp.sync 0xffffffff; ld.shared.u32 %r2, [%r1]; st.global.u32 [%d4], %r2;"""
    verdict, _, o = check(code, "sm_100")
    assert verdict.ok and (o == np.where(LANES < 16, 0, LANES)).all()
    verdict, _, _ = check(code.replace("bar.warp.sync 0xffffffff; ld", "ld"), "sm_100")
    assert "race" in [h.code for h in verdict.hazards]


@pytest.mark.parametrize("size", [1 << 40, -8])
def test_zeros_of_any_size_end_at_the_memory(size: int) -> None:
    code = f"""setp.eq.u32 %p0, %r0, 0; mov.u64 %d5, {size}; cvt.u64.u32 %d6, %r7;
        @%p0 st.bulk.shared::cta [%d6], %d5, 0;"""
    verdict, _, _ = check(code, "sm_100")
    assert [h.code for h in verdict.hazards] == ["out-of-bounds"]


@pytest.mark.parametrize(("count", "codes"), [(2, []), (1, ["mbarrier-complete"])])
def test_no_complete_keeps_its_promise(count: int, codes: list[str]) -> None:
    verdict, _, _ = check(
        f"""setp.eq.u32 %p0, %r0, 0; @!%p0 bra END; mbarrier.init.shared.b64 [%r7], {count};
        mbarrier.arrive.noComplete.shared.b64 %d5, [%r7], 1; END:"""
    )
    assert [h.code for h in verdict.hazards] == codes


@pytest.mark.parametrize(
    "code",
    [
        # A mask without .multicast, a policy without .L2::cache_hint, a hint without its policy.
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d0], 16, [%r7], %h0;",
        "cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r7], 16, %d1;",
        "cp.async.cg.shared.global.L2::cache_hint [%r7], [%d0], 16;",
        "ld.global.u32 %r1, [%d3], %d4;",
        "st.global.L2::cache_hint.u32 [%d3], %r1;",
        "bar.sync 16;",
        "bar.arrive 1, 40;",
    ],
)
def test_operands_that_the_modifiers_do_not_announce_are_refused(code: str) -> None:
    with pytest.raises(TilemmaError) as caught:
        check(f".reg .b16 %h<4>; {code}")
    assert caught.value.code == "ptx-operand", str(caught.value)
