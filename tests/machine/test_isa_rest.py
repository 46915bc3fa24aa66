"""Instructions that the other tests do not cover: each has the semantics of the ISA, and none is missing."""

# ruff: noqa: E501
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import execute, ptx_for
from kernels import header
from ptx_programs import small

from dev.pages import instructions
from tilemma import machine
from tilemma.machine.decode import supported
from tilemma.machine.isa.contents import CONTENTS, REFUSED, Listed

LANES = np.arange(32, dtype=np.uint32)
FLOATS = (LANES.astype(np.float32) - 16) / 4
ONE = 0x3F800000

# Code -> what %o0 is, lane by lane, for %i0 = the lane's number and %i1 = (lane - 16) / 4 as f32.
SCALAR: dict[str, Any] = {
    "set.lt.u32.u32 %o0, %i0, 5;": np.where(LANES < 5, 0xFFFFFFFF, 0),
    "set.ge.f32.u32 %o0, %i0, 30;": np.where(LANES >= 30, ONE, 0),
    "mov.b32 %t0, -1; slct.u32.s32 %o0, %i0, 7, %t0;": np.full(32, 7),
    "slct.u32.f32 %o0, %i0, 7, %i1;": np.where(FLOATS >= 0, LANES, 7),
    "copysign.f32 %o0, %i1, 0f3F800000;": np.where(FLOATS < 0, 0xBF800000, ONE),
    "testp.finite.f32 %q0, %i1; selp.b32 %o0, 1, 0, %q0;": np.ones(32),
    "testp.normal.f32 %q0, %i1; selp.b32 %o0, 1, 0, %q0;": (FLOATS != 0).astype(np.uint32),
    "mad24.lo.u32 %o0, %i0, 3, 4;": LANES * 3 + 4,
    "cnot.b32 %o0, %i0;": (LANES == 0).astype(np.uint32),
    "bfi.b32 %o0, %i0, 0xff00ff, 4, 4;": 0xFF000F | (LANES & 15) << 4,
    "activemask.b32 %o0;": np.full(32, 0xFFFFFFFF),
    "match.all.sync.b32 %o0, 7, 0xffffffff;": np.full(32, 0xFFFFFFFF),
    "match.all.sync.b32 %o0|%q0, %i0, 0xffffffff; selp.b32 %o0, 1, 2, %q0;": np.full(32, 2),
    "{ .shared .align 4 .b8 s[4]; cvta.shared.u64 %d0, s; isspacep.shared %q0, %d0; selp.b32 %o0, 1, 0, %q0; }": np.ones(32),
    "{ .shared .align 4 .b8 s[4]; mov.u32 %t0, s; getctarank.shared::cluster.u32 %o0, %t0; }": np.zeros(32),
    "membar.cta; nanosleep.u32 20; pmevent 1; mov.b32 %o0, 3;": np.full(32, 3),
    "ldu.global.b32 %o0, [%p1];": FLOATS.view(np.uint32),
    "cp.async.bulk.prefetch.L2.global [%p0], 128; prefetch.global.L2 [%p1]; prefetchu.L1 [%p1]; applypriority.global.L2::evict_normal [%p1], 128; mov.b32 %o0, 1;": np.ones(32),
    "createpolicy.fractional.L2::evict_first.b64 %d0, 1.0; mov.b32 %o0, 1;": np.ones(32),
    "griddepcontrol.launch_dependents; griddepcontrol.wait; mov.b32 %o0, 1;": np.ones(32),
    "movmatrix.sync.aligned.m8n8.trans.b16 %t0, %i0; movmatrix.sync.aligned.m8n8.trans.b16 %o0, %t0;": LANES,
}  # fmt: skip


@pytest.mark.parametrize("code", SCALAR)
def test_scalar(code: str, assembles: Callable[[str, str], None]) -> None:
    assembles(ptx_for(code, ["b32"], ["b32", "f32"], "sm_90a", "8.6"), "sm_90a")
    (out,) = execute(code, ["b32"], {"b32/a": LANES, "f32/b": FLOATS})
    assert out.tolist() == np.asarray(SCALAR[code]).tolist()


BARRIERS: dict[str, tuple[str, int]] = {
    # One of the two threads leaves for good: the second phase needs one arrival.
    "arrive_drop": (
        """mbarrier.init.shared.b64 [%r0], 2; mbarrier.arrive.shared.b64 _, [%r0]; mbarrier.arrive_drop.shared.b64 _, [%r0];
        mbarrier.arrive.shared.b64 %d0, [%r0]; mbarrier.test_wait.shared.b64 %p1, [%r0], %d0; selp.b32 %r1, 1, 0, %p1;""",
        1,
    ),
    "complete_tx": (
        """mbarrier.init.shared.b64 [%r0], 1; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 64;
        mbarrier.arrive.shared.b64 _, [%r0]; mbarrier.test_wait.parity.shared.b64 %p1, [%r0], 0; selp.b32 %r2, 10, 0, %p1;
        mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r0], 64; mbarrier.test_wait.parity.shared.b64 %p1, [%r0], 0;
        selp.b32 %r1, 1, 0, %p1; add.u32 %r1, %r1, %r2;""",
        1,
    ),
    # The bytes serve as data after the invalidation.
    "inval": (
        """mbarrier.init.shared.b64 [%r0], 1; mbarrier.inval.shared.b64 [%r0]; mov.b32 %r2, 9; st.shared.b32 [%r0], %r2;
        ld.shared.b32 %r1, [%r0];""",
        9,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BARRIERS)
def test_mbarrier(name: str, assembles: Callable[[str, str], None]) -> None:
    code, want = BARRIERS[name]
    body = f"  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 0; @%p0 bra END;\n{code}\n  st.global.b32 [%Y], %r1;\nEND:"
    ptx, launch, args = small(body)
    assembles(ptx, "sm_90a")
    assert machine.check(ptx, launch, args, schedules=3, strict=True).ok
    assert args["y"][0] == want


@pytest.mark.parametrize("code", ["trap;", "brkpt;"])
def test_stops(code: str) -> None:
    with pytest.raises(machine.HazardError) as caught:
        machine.run(*small(f"  {code}"))
    assert caught.value.code == "trap"


ARRIVES = """
  mov.u32 %r0, smem; setp.ne.u32 %p0, %t, 0; @!%p0 mbarrier.init.shared.b64 [%r0], 64;
  bar.sync 0;
  shl.b32 %r1, %t, 4; add.s32 %r1, %r1, %r0; and.b32 %r2, %t, 63; mul.wide.u32 %d0, %r2, 16; ld.param.u64 %d1, [x]; add.s64 %d1, %d1, %d0;
  cp.async.cg.shared.global [%r1+16], [%d1], 16;
  cp.async.mbarrier.arrive.noinc.shared.b64 [%r0]; // @arrive
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;
  @!%p1 bra WAIT;
  xor.b32 %r3, %t, 63; shl.b32 %r3, %r3, 4; add.s32 %r3, %r3, %r0; ld.shared.b32 %r4, [%r3+16]; st.global.b32 [%Y], %r4;
"""


def test_copies_that_arrive_on_an_mbarrier(assembles: Callable[[str, str], None]) -> None:
    ptx, launch, args = small(ARRIVES, shared=2048)
    assembles(ptx, "sm_90a")
    assert machine.check(ptx, launch, args, schedules=10, strict=True).ok
    assert args["y"][:64].tolist() == [4 * (63 - t) for t in range(64)]
    early = ptx.replace("cp.async.mbarrier.arrive.noinc.shared.b64 [%r0];", "mbarrier.arrive.shared.b64 _, [%r0];")
    codes = {h.code for h in machine.check(early, launch, args, schedules=5).hazards}
    assert "read-before-arrival" in codes


REDUCE = """.visible .entry k(.param .align 128 .b8 map[128]) {
  .reg .b32 %t, %r<4>; .reg .b64 %d; .reg .pred %p; .shared .align 128 .b8 s[1024];
  mov.u32 %t, %tid.x; shl.b32 %r0, %t, 2; mov.u32 %r1, s; add.s32 %r0, %r0, %r1; st.shared.b32 [%r0], %t;
  fence.proxy.async.shared::cta; bar.sync 0;
  setp.ne.u32 %p, %t, 0; @%p bra END;
  mov.b64 %d, map; cvta.param.u64 %d, %d; mov.b32 %r2, 0;
  cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%d, {%r2, %r2}], [%r1];
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
  ret; }"""


def test_a_tensor_copy_that_adds(assembles: Callable[[str, str], None]) -> None:
    y = np.full((8, 8), 100, np.uint32)
    ptx = header("8.0", "sm_90a") + REDUCE
    assembles(ptx, "sm_90a")
    verdict = machine.check(ptx, {"grid": 1, "block": 64}, {"y": machine.TensorMap(y, (8, 8))}, schedules=4)
    assert verdict.ok, verdict.render()
    assert y.reshape(-1).tolist() == [100 + t for t in range(64)]


def test_every_instruction_has_a_test() -> None:
    text = "\n".join(p.read_text(encoding="utf-8") for p in Path(__file__).parent.rglob("*.py"))
    missing = [x for x in supported() if not re.search(rf"(?<![\w.]){re.escape(x)}(?!\w)", text)]
    assert missing == []


def test_the_page_lists_the_instructions() -> None:
    text = instructions.PAGE.read_text(encoding="utf-8")
    assert text == instructions.rewritten(text), "run `python -m dev.pages.instructions`"


def test_the_contents_and_the_decoders_agree() -> None:
    executed = {x.name for x in CONTENTS if x.status != REFUSED}
    # `add.cc`, `sub.cc` and `mad.cc` are forms of `add`, `sub` and `mad`.
    assert set(supported()) == executed - {"add.cc", "sub.cc", "mad.cc"}


@pytest.mark.parametrize("listed", [x for x in CONTENTS if x.status == REFUSED], ids=lambda x: x.name)
def test_a_refused_instruction_is_refused_by_name_line_and_section(listed: Listed) -> None:
    ptx = header("8.6", "sm_90a") + f".visible .entry k() {{\n  {listed.name}.b32 [0], 0;\n  ret;\n}}\n"
    with pytest.raises(machine.UnsupportedInstruction) as caught:
        machine.run(ptx, {"grid": 1, "block": 32}, {})
    error = caught.value
    assert listed.name in error.message and listed.why in error.message
    assert listed.section in error.render() and error.span is not None and error.span.line == 5


MAPPED = """.visible .entry k(.param .u64 out) {
  .reg .b64 %d<4>; .reg .b32 %r<4>; .shared .align 16 .b8 first[48]; .shared .align 16 .b8 s[64];
  mov.u32 %r0, s; mapa.shared::cluster.u32 %r1, %r0, 0; mapa.shared::cluster.u32 %r2, s, 0;
  mapa.shared::cluster.u64 %d1, s, 0; cvt.u32.u64 %r3, %d1;
  ld.param.u64 %d0, [out]; st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r3}; ret; }"""


def test_mapa_of_a_variable(assembles: Callable[[str, str], None]) -> None:
    ptx, out = header("8.6", "sm_90a") + MAPPED, np.zeros(4, np.uint32)
    assembles(ptx, "sm_90a")
    machine.run(ptx, {"grid": 1, "block": 1}, {"out": out})
    assert len(set(out.tolist())) == 1


ACCELERATED = """.visible .entry k() .maxntid 128 .minnctapersm 1 {
  .shared .align 128 .b8 map[128]; setmaxnreg.dec.sync.aligned.u32 40;
  tensormap.replace.tile.rank.shared::cta.b1024.b32 [map], 1; ret; }"""


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_later_targets_have_the_accelerated_instructions_of_sm_90a(
    arch: str, assembles: Callable[[str, str], None]
) -> None:
    ptx = header("8.7", arch) + ACCELERATED.replace("tensormap", "@%p tensormap").replace(
        ".shared", ".reg .pred %p; .reg .b32 %t; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 0; .shared", 1
    )
    assembles(ptx, arch)
    machine.run(ptx, {"grid": 1, "block": 128}, {})
    with pytest.raises(machine.HazardError, match="needs sm_90a"):
        machine.run(ptx.replace(arch, arch[:-1]), {"grid": 1, "block": 128}, {})
