"""The hazard `operand-layout`: reported for wrong layouts, and for no intended one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptx_programs import wgmma_cp_async

import tilemma as tm
from dev.ptx_mutation import survey as mutate
from tilemma import cdiv, dma, foreach, machine, mma, parallel, shared
from tilemma.kernels import facts_of

LAYOUT = frozenset({"operand-layout"})


# Not pipelined: the ring of a pipelined loop begins with copies whose place does not matter.
@tm.kernel(pipeline=False)
def backwards(
    lhs: tm.Global["f16", "M", "K"],
    rhs: tm.Global["f16", "N", "K"],
    output: tm.Global["f32", "M", "N"],
    *,
    SCOPE="group-4",
):
    """lhs times rhs with its columns taken backwards, sixteen at a time."""
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, 64), cdiv(N, 32), level="block"):
        lhs_s, rhs_s = shared("f16", 64, 32), shared("f16", 32, 32)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(lhs.subspan(64, 32).at(m, k), lhs_s)
            dma.copy(rhs.subspan(32, 32).at(n, cdiv(K, 32) - 1 - k), rhs_s)
            for _ in parallel(1, level=SCOPE):
                for kk in foreach(2):
                    ma = mma.load(lhs_s.subspan(64, 16).at(0, kk))
                    mma.row.row(mc, ma, mma.load(rhs_s.subspan(32, 16).at(0, 1 - kk)))
        for _ in parallel(1, level=SCOPE):
            mma.store(mc, output.subspan(64, 32).at(m, n))


def operands(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        x: rng.integers(-4, 5, (r, k)).astype(np.float16) for x, r in (("lhs", 64), ("rhs", 32))
    }
    return {**arrays, "output": np.zeros((64, 32), np.float32)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_operands_may_start_at_different_columns(arch: str) -> None:
    arrays = operands(128)
    backwards.on("machine", arch=arch, strict=True)(*arrays.values())
    turned = arrays["rhs"].reshape(32, -1, 16)[:, ::-1].reshape(32, -1)
    np.testing.assert_array_equal(arrays["output"], arrays["lhs"].astype(np.float32) @ turned.astype(np.float32).T)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_other_places_are_seen_all_the_same(arch: str) -> None:
    """The same program with a swizzle left out, or a stride of its descriptors changed."""
    arrays = operands(64)
    compiled = backwards.compile(arch, facts=facts_of(arrays))
    trial = mutate.Trial(compiled.ptx, compiled.launches[0], arrays, schedules=2)
    changed = [m for m in trial.mutants if m.key.startswith(("no exchange", "other s"))]
    assert sum(trial.judge(replace(m, expected=LAYOUT)).as_expected for m in changed) >= 2
    # What remains reads right tiles at other columns: only its result is wrong.
    assert all(trial.judge(m).as_expected for m in changed)


def flat(edit: Any = lambda p: p) -> Any:
    """A tile of an array without named rows."""
    ptx, launch, args = wgmma_cp_async(edit)
    return ptx, launch, {**args, "x": args["x"].reshape(-1)}


def test_a_flat_array_is_not_taken_for_a_wrong_tile() -> None:
    assert machine.check(*flat(), schedules=4, strict=True).ok


def test_a_wrong_tile_of_a_flat_array_is_seen() -> None:
    """Rows 2 and 3 of B's core matrix exchange their halves."""
    ptx, launch, args = flat(lambda p: p.replace("[%r1], [%d0], 16; // @fill", "[%r12], [%d0], 16; // @fill"))
    swapped = "  setp.eq.u32 %p3, %t, 5; selp.b32 %r12, 256, 0, %p3; xor.b32 %r12, %r12, %r1;"
    ptx = ptx.replace("  cp.async.cg", f"{swapped}\n  cp.async.cg", 1)
    verdict = machine.check(ptx, launch, args, schedules=2)
    assert {"operand-layout", "race", "uninitialised-shared"} & {h.code for h in verdict.hazards}


@tm.kernel
def product(lhs: tm.Global["f16", "M", "K"], rhs: tm.Global["f16", "N", "K"], output: tm.Global["f32", "M", "N"]):
    (M, K), N = lhs.shape, rhs.shape[0]
    for m, n in parallel(cdiv(M, 64), cdiv(N, 32), level="block"):
        lhs_s, rhs_s = shared("f16", 64, 32), shared("f16", 32, 32)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(lhs.subspan(64, 32).at(m, k), lhs_s)
            dma.copy(rhs.subspan(32, 32).at(n, k), rhs_s)
            for _ in parallel(1, level="group-4"):
                for kk in foreach(2):
                    ma = mma.load(lhs_s.subspan(64, 16).at(0, kk))
                    mma.row.row(mc, ma, mma.load(rhs_s.subspan(32, 16).at(0, kk)))
        for _ in parallel(1, level="group-4"):
            mma.store(mc, output.subspan(64, 32).at(m, n))


VIEWS = {
    "rows backwards": lambda a: a[::-1],
    "columns backwards": lambda a: a[:, ::-1],
    "both backwards": lambda a: a[::-1, ::-1],
    "every other row backwards": lambda a: np.repeat(a, 2, 0)[::-2],
    "turned and backwards": lambda a: np.ascontiguousarray(a.T).T[::-1],
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("which", [*VIEWS])
@pytest.mark.parametrize("operand", ["lhs", "rhs"])
def test_views_that_run_backwards_are_no_layout_error(arch: str, which: str, operand: str) -> None:
    arrays = operands(64)
    arrays[operand] = VIEWS[which](arrays[operand])
    product.on("machine", arch=arch, strict=True)(*arrays.values())
    expected = arrays["lhs"].astype(np.float32) @ arrays["rhs"].astype(np.float32).T
    np.testing.assert_array_equal(arrays["output"], expected)


# One warp: A [16, 16] and B [8, 16] through registers to swizzled tiles, then ldmatrix and mma.
THROUGH_REGISTERS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {
  .reg .b64 %a, %b, %c, %d; .reg .b32 %t, %r<20>, %x<4>, %y<4>, %m<4>, %n<2>; .reg .f32 %f<4>; .reg .pred %p;
  .shared .align 16 .b8 s[1024];
  ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; mov.u32 %t, %tid.x; mov.u32 %r0, s;
  mul.wide.u32 %d, %t, 16; add.s64 %a, %a, %d; add.s64 %b, %b, %d;
  shr.u32 %r1, %t, 1; and.b32 %r2, %t, 1; shr.u32 %r3, %r1, 2; and.b32 %r3, %r3, 1;
  xor.b32 %r4, %r2, %r3; // @write
  shl.b32 %r5, %r1, 5; shl.b32 %r4, %r4, 4; add.u32 %r5, %r5, %r4; add.u32 %r5, %r5, %r0;
  ld.global.v4.b32 {%x0, %x1, %x2, %x3}, [%a]; st.shared.v4.b32 [%r5], {%x0, %x1, %x2, %x3}; // @store
  setp.lt.u32 %p, %t, 16; @%p ld.global.v4.b32 {%y0, %y1, %y2, %y3}, [%b];
  @%p st.shared.v4.b32 [%r5+512], {%y0, %y1, %y2, %y3};
  bar.warp.sync -1;
  and.b32 %r6, %t, 15; shr.u32 %r7, %t, 4; shr.u32 %r8, %r6, 2; and.b32 %r8, %r8, 1;
  xor.b32 %r7, %r7, %r8; // @read
  shl.b32 %r6, %r6, 5; shl.b32 %r7, %r7, 4; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r0;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%m0, %m1, %m2, %m3}, [%r6]; // @load-a
  and.b32 %r9, %t, 7; shr.u32 %r10, %t, 3; and.b32 %r10, %r10, 1; shr.u32 %r11, %r9, 2; xor.b32 %r10, %r10, %r11;
  shl.b32 %r9, %r9, 5; shl.b32 %r10, %r10, 4; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r0;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%n0, %n1}, [%r9+512]; // @load-b
  mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%m0, %m1, %m2, %m3}, {%n0, %n1},
    {%f0, %f1, %f2, %f3};
  shr.u32 %r12, %t, 2; and.b32 %r13, %t, 3; shl.b32 %r12, %r12, 5; shl.b32 %r13, %r13, 3;
  add.u32 %r12, %r12, %r13;
  cvt.u64.u32 %d, %r12; add.s64 %c, %c, %d; st.global.v2.f32 [%c], {%f0, %f1};
  st.global.v2.f32 [%c+256], {%f2, %f3};
  ret;
}
"""
BROKEN = {
    "a swizzle that the writer leaves out": ("xor.b32 %r4, %r2, %r3; // @write", "mov.b32 %r4, %r2;"),
    "a swizzle that the reader leaves out": ("xor.b32 %r7, %r7, %r8; // @read", ""),
    "registers that are swapped": ("[%r5], {%x0, %x1, %x2, %x3}", "[%r5], {%x0, %x2, %x1, %x3}"),
    "a transposed load": ("x4.shared.b16", "x4.trans.shared.b16"),
}


def through_registers(ptx: str) -> Any:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (8, 16)))
    c = np.zeros((16, 8), np.float32)
    verdict = machine.check(ptx, {"grid": 1, "block": 32}, {"a": a, "b": b, "c": c}, schedules=2)
    return verdict, np.allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, atol=1e-2)


def test_tiles_that_stores_bring_are_followed_through_registers() -> None:
    verdict, right = through_registers(THROUGH_REGISTERS)
    assert verdict.ok, verdict.render()
    assert right


@pytest.mark.parametrize("name", BROKEN)
def test_a_tile_that_a_store_brings_to_the_wrong_place_is_named(name: str) -> None:
    old, new = BROKEN[name]
    assert old in THROUGH_REGISTERS
    verdict, right = through_registers(THROUGH_REGISTERS.replace(old, new))
    assert not right
    assert {h.code for h in verdict.hazards} == {"operand-layout"}


PACKED = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {
  .reg .b64 %a, %b, %c, %d; .reg .b32 %r<16>; .reg .f32 %f<4>;
  .shared .align 16 .b8 s[512]; .shared .align 16 .b8 t[256];
  ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %c, [c]; mov.u32 %r0, %tid.x;
  mul.wide.u32 %d, %r0, 4; add.s64 %a, %a, %d; add.s64 %b, %b, %d; mov.u32 %r1, s; mov.u32 %r2, t;
  shl.b32 %r3, %r0, 2; add.u32 %r4, %r1, %r3; add.u32 %r5, %r2, %r3;
  ld.global.u32 %r6, [%a]; st.shared.u32 [%r4], %r6; ld.global.u32 %r6, [%a+128]; st.shared.u32 [%r4+128], %r6;
  ld.global.u32 %r6, [%a+256]; st.shared.u32 [%r4+256], %r6;
  ld.global.u32 %r6, [%a+384]; st.shared.u32 [%r4+384], %r6;
  ld.global.u32 %r6, [%b]; st.shared.u32 [%r5], %r6; ld.global.u32 %r6, [%b+128]; st.shared.u32 [%r5+128], %r6;
  bar.warp.sync -1;
  and.b32 %r7, %r0, 15; shl.b32 %r8, %r7, 5; shr.u32 %r9, %r0, 4; shl.b32 %r9, %r9, 4;
  add.u32 %r8, %r8, %r9; add.u32 %r8, %r8, %r1; shl.b32 %r9, %r7, 4; add.u32 %r9, %r9, %r2;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r8];
  ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r14, %r15}, [%r9];
  mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
  mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, {%r14, %r15},
    {%f0, %f1, %f2, %f3};
  mul.wide.u32 %d, %r0, 8; add.s64 %c, %c, %d; st.global.v2.f32 [%c], {%f0, %f1};
  st.global.v2.f32 [%c+256], {%f2, %f3}; ret;
}
"""


@pytest.mark.parametrize("packed", [True, False])
def test_pairs_of_elements_may_be_passed_as_words(packed: bool) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-3, 4, (16, 16)).astype(np.float16), rng.integers(-3, 4, (16, 8)).astype(np.float16)
    c = np.zeros((16, 8), np.float32)
    given = {"a": a.view(np.uint32) if packed else a, "b": b.view(np.uint32) if packed else b, "c": c}
    verdict = machine.check(PACKED, {"grid": 1, "block": 32, "read_only": ["a", "b"]}, given, schedules=2)
    assert verdict.ok, verdict.render()
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()
    # Without `.trans`, B's columns are its rows.
    wrong = machine.check(PACKED.replace(".x2.trans", ".x2"), {"grid": 1, "block": 32}, given, schedules=2)
    assert {h.code for h in wrong.hazards} == LAYOUT, wrong.render()
