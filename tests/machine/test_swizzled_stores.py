"""Bugs planted in a product whose tiles plain stores bring to swizzled shared memory: each is named.

Four warps copy A [64, 32] and B [32, 16] through registers, load fragments by ldmatrix and multiply by mma.sync.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pd)
{
.reg .b64 %rd<9>; .reg .b32 %r<54>; .reg .f32 %f<9>; .reg .pred %p;
.shared .align 128 .b8 sa[4096]; .shared .align 128 .b8 sb[1024];
ld.param.u64 %rd1, [pa]; ld.param.u64 %rd2, [pb]; ld.param.u64 %rd3, [pd];
mov.u32 %r1, %tid.x; mov.u32 %r2, sa; mov.u32 %r3, sb;
// A has rows of four 16-byte units; unit u of row r lies at u ^ (r / 2 % 4).
shl.b32 %r4, %r1, 4; cvt.u64.u32 %rd4, %r4; add.s64 %rd5, %rd1, %rd4;
ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd5];
ld.global.v4.b32 {%r14, %r15, %r16, %r17}, [%rd5+2048];
shr.u32 %r5, %r1, 2; and.b32 %r6, %r1, 3;
shr.u32 %r7, %r5, 1; and.b32 %r7, %r7, 3; // written
xor.b32 %r8, %r6, %r7; shl.b32 %r9, %r5, 6; shl.b32 %r8, %r8, 4; add.s32 %r9, %r9, %r8; add.s32 %r9, %r9, %r2;
st.shared.v4.b32 [%r9], {%r10, %r11, %r12, %r13}; // A
st.shared.v4.b32 [%r9+2048], {%r14, %r15, %r16, %r17};
setp.ge.u32 %p, %r1, 64;
@%p bra LOADED;
add.s64 %rd6, %rd2, %rd4; ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd6];
add.s32 %r18, %r3, %r4; st.shared.v4.b32 [%r18], {%r10, %r11, %r12, %r13};
LOADED:
bar.sync 0;
shr.u32 %r20, %r1, 5; and.b32 %r21, %r1, 31; and.b32 %r22, %r21, 15; shl.b32 %r23, %r20, 4;
add.s32 %r22, %r22, %r23; shr.u32 %r24, %r21, 4;
shr.u32 %r25, %r22, 1; and.b32 %r25, %r25, 3; // read
xor.b32 %r26, %r24, %r25; shl.b32 %r26, %r26, 4; shl.b32 %r27, %r22, 6; add.s32 %r27, %r27, %r2;
add.s32 %r28, %r27, %r26;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r30, %r31, %r32, %r33}, [%r28];
add.s32 %r24, %r24, 2; xor.b32 %r26, %r24, %r25; shl.b32 %r26, %r26, 4; add.s32 %r28, %r27, %r26;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r34, %r35, %r36, %r37}, [%r28];
shl.b32 %r40, %r21, 5; add.s32 %r40, %r40, %r3;
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r41, %r42, %r43, %r44}, [%r40];
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r45, %r46, %r47, %r48}, [%r40+16];
mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.f32 %f4, %f1;
mov.f32 %f5, %f1; mov.f32 %f6, %f1; mov.f32 %f7, %f1; mov.f32 %f8, %f1;
MMA {%f1, %f2, %f3, %f4}, {%r30, %r31, %r32, %r33}, {%r41, %r42}, {%f1, %f2, %f3, %f4};
MMA {%f1, %f2, %f3, %f4}, {%r34, %r35, %r36, %r37}, {%r43, %r44}, {%f1, %f2, %f3, %f4};
MMA {%f5, %f6, %f7, %f8}, {%r30, %r31, %r32, %r33}, {%r45, %r46}, {%f5, %f6, %f7, %f8};
MMA {%f5, %f6, %f7, %f8}, {%r34, %r35, %r36, %r37}, {%r47, %r48}, {%f5, %f6, %f7, %f8};
shr.u32 %r50, %r21, 2; add.s32 %r50, %r50, %r23; and.b32 %r51, %r21, 3;
shl.b32 %r52, %r50, 6; shl.b32 %r53, %r51, 3; add.s32 %r52, %r52, %r53;
cvt.u64.u32 %rd7, %r52; add.s64 %rd8, %rd3, %rd7;
st.global.v2.f32 [%rd8], {%f1, %f2}; st.global.v2.f32 [%rd8+512], {%f3, %f4};
st.global.v2.f32 [%rd8+32], {%f5, %f6}; st.global.v2.f32 [%rd8+544], {%f7, %f8};
ret;
}
""".replace("MMA", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")

WRITTEN, READ = "and.b32 %r7, %r7, 3; // written", "and.b32 %r25, %r25, 3; // read"
FIRST, FIRST_B = "{%r30, %r31, %r32, %r33}, {%r41", "{%r30, %r31, %r32, %r33}, {%r41, %r42}"
# What is replaced, by what, and the hazard.
BUGS = {
    "stores swizzle by other bits": (WRITTEN, "and.b32 %r7, %r5, 3;", "operand-layout"),
    "stores do not swizzle": (WRITTEN, "mov.b32 %r7, 0;", "operand-layout"),
    "ldmatrix swizzles by other bits": (READ, "and.b32 %r25, %r22, 3;", "operand-layout"),
    "ldmatrix does not swizzle": (READ, "mov.b32 %r25, 0;", "operand-layout"),
    "no .trans": (".trans", "", "operand-layout"),
    "no barrier": ("bar.sync 0;", "", "race"),
    "registers of A swapped": (FIRST, "{%r30, %r32, %r31, %r33}, {%r41", "operand-layout"),
    "registers of B swapped": (FIRST_B, "{%r30, %r31, %r32, %r33}, {%r42, %r41}", "operand-layout"),
    "registers of two columns": (FIRST_B, "{%r30, %r31, %r32, %r33}, {%r41, %r46}", "operand-layout"),
    "registers of two steps": (FIRST, "{%r30, %r31, %r34, %r35}, {%r41", "operand-layout"),
    "one register twice": (FIRST, "{%r30, %r31, %r30, %r31}, {%r41", "operand-layout"),
    "stored registers swapped": ("{%r10, %r11, %r12, %r13}; // A", "{%r11, %r10, %r12, %r13};", "operand-layout"),
    "offset beyond the buffer": ("[%r40+16]", "[%r40+512]", "out-of-bounds"),
}


def run(ptx: str) -> tuple[Any, bool]:
    """The verdict, and whether the result is right."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 32), (32, 16)))
    d = np.full((64, 16), np.nan, np.float32)
    verdict = machine.check(
        ptx, {"grid": (1, 1, 1), "block": (128, 1, 1)}, {"pa": a, "pb": b, "pd": d}, schedules=4
    )
    return verdict, np.allclose(d, a.astype(np.float32) @ b.astype(np.float32), atol=1e-2)


def test_the_program_is_right_and_clean() -> None:
    verdict, right = run(PTX)
    assert right
    assert verdict.ok, verdict.render()
    assert not verdict.letter


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_named(name: str) -> None:
    old, new, code = BUGS[name]
    assert old in PTX
    verdict, _ = run(PTX.replace(old, new))
    assert code in {h.code for h in verdict.hazards}, verdict.render()
