"""Every `.aligned` instruction that a part of a warp executes is reported, and every `.sync` one without a lane of
its mask."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from kernels import header

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")


def registers(letter: str, count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}"


R1, R2, R4, R8 = (registers("r", n, 8) for n in (1, 2, 4, 8))
# The instruction in front of it, for all lanes, and the instruction; by target.  %r0 is an address of zeros in
# shared memory, %d1 one in global memory, %d2 a descriptor, %r1 all lanes, %r2 zero, %r3 metadata.
STATEMENTS = {
    "sm_90a": [
        ("", "bar.sync 0;"),
        ("", "bar.arrive 1, 64;"),
        ("", "barrier.sync.aligned 0;"),
        ("", "bar.red.popc.u32 %r8, 1, %p0;"),
        ("", "bar.warp.sync %r1;"),
        ("", "barrier.cluster.arrive.aligned;"),
        ("barrier.cluster.arrive;", "barrier.cluster.wait.aligned;"),
        ("", "shfl.sync.idx.b32 %r8, %r9, 0, 31, %r1;"),
        ("", "vote.sync.all.pred %p1, %p0, %r1;"),
        ("", "vote.sync.ballot.b32 %r8, %p0, %r1;"),
        ("", "match.any.sync.b32 %r8, %r9, %r1;"),
        ("", "match.all.sync.b32 %r8|%p1, %r9, %r1;"),
        ("", "redux.sync.add.s32 %r8, %r9, %r1;"),
        ("", "elect.sync %r8|%p1, %r1;"),
        ("", "setmaxnreg.dec.sync.aligned.u32 40;"),
        ("", f"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {R1}, [%r0];"),
        ("", f"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {R4}, [%r0];"),
        ("", f"stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r0], {R2};"),
        ("", "movmatrix.sync.aligned.m8n8.trans.b16 %r8, %r9;"),
        ("", f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {R4}, {R4}, {R2}, {R4};"),
        ("", f"mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {R4}, {R2}, {R2}, {R4};"),
        ("", f"mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {R4}, {R4}, {R4}, {R4},"
         " %r3, 0;"),
        ("", f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {R8}, [%d1], 16;"),
        ("", f"wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {R4}, {R8}, {R8}, {R4};"),
        ("", f"wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%d1], {R4}, 16;"),
        ("", "wgmma.fence.sync.aligned;"),
        ("", "wgmma.commit_group.sync.aligned;"),
        ("", "wgmma.wait_group.sync.aligned 0;"),
        ("wgmma.fence.sync.aligned;",
         f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {R4}, %d2, %d2, 0, 1, 1, 0, 0;"),
        ("", "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
         " [%d1], [%r0], 128;"),
    ],
    "sm_100a": [
        ("", f"ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {R2}, [%r0];"),
        ("", f"stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r0], {R1};"),
    ],
    "sm_120a": [
        ("", f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e2m1.f32 {R4}, {R4}, {R2}, {R4};"),
        ("", "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0"
         f" {R4}, {R4}, {R2}, {R4}, %r2, {{0, 0}}, %r2, {{0, 0}};"),
    ],
}  # fmt: skip
CASES = [(arch, *case) for arch, cases in STATEMENTS.items() for case in cases]


def codes(arch: str, before: str, statement: str, lanes: int) -> set[str]:
    """The hazards of ``statement`` where so many lanes of each warp execute it."""
    ptx = f"""{header("8.7", arch)}
.visible .entry k(.param .u64 x) {{
  .shared .align 128 .b8 smem[4096]; .reg .b32 %r<32>; .reg .b64 %d<4>; .reg .pred %p<4>;
  ld.param.u64 %d1, [x]; mov.u32 %r0, smem; mov.u32 %r2, %tid.x; shl.b32 %r2, %r2, 5; add.u32 %r4, %r0, %r2;
  mov.b32 %r3, 0x44444444; mov.b32 %r1, -1; mov.b32 %r2, 0;
  {" ".join(f"mov.b32 %r{n}, 0;" for n in range(5, 32) if n != 4)}
  st.shared.v4.b32 [%r4], {{%r2, %r2, %r2, %r2}}; st.shared.v4.b32 [%r4+16], {{%r2, %r2, %r2, %r2}};
  shr.u32 %r6, %r0, 4; cvt.u64.u32 %d2, %r6; or.b64 %d2, %d2, 0x1000080000;
  bar.sync 0; fence.proxy.async; setp.eq.b32 %p0, %r2, 0;
  mov.u32 %r5, %laneid; setp.lt.u32 %p3, %r5, {lanes};
  {before}
  @%p3 {statement}
  ret;
}}"""
    verdict = machine.check(ptx, {"grid": 1, "block": 128}, {"x": np.zeros(256, np.uint32)}, schedules=1)
    return {h.code for h in verdict.hazards}


@pytest.mark.parametrize("arch, before, statement", CASES, ids=[c[2].split()[0] for c in CASES])
def test_a_part_of_a_warp_is_reported(arch: str, before: str, statement: str) -> None:
    code = "aligned-under-divergence"
    assert code in codes(arch, before, statement, 20)
    assert code not in codes(arch, before, statement, 32)


def test_every_instruction_with_the_rule_is_here() -> None:
    """The decoders of instructions whose modules ask for it."""
    source = Path(machine.__file__).parent / "exec"
    named = {
        name
        for path in source.glob("*.py")
        if "aligned." in (text := path.read_text(encoding="utf-8"))
        for names in re.findall(r"^@instruction\(([^)]*)\)", text, re.MULTILINE)
        for name in re.findall(r'"([\w.]+)"', names)
        if name.endswith(".sync") or name.startswith(("wgmma.", "mma.", "wmma.", "setmaxnreg", "bar.warp"))
    }
    have = {statement.split()[0].split(".")[0] for _, _, statement in CASES}
    assert {name.split(".")[0] for name in named} <= have
