"""Registers that nothing wrote: what instructions on registers make of them, and where they matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

KERNEL = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out, .param .u32 n) {
  .reg .b64 %x, %o, %d; .reg .b32 %r<12>; .reg .pred %p<8>;
  ld.param.u64 %x, [x]; ld.param.u64 %o, [out]; ld.param.u32 %r9, [n];
  mov.u32 %r0, %tid.x; mul.wide.u32 %d, %r0, 4; add.s64 %x, %x, %d; add.s64 %o, %o, %d;
  mov.u32 %r5, 7;
  setp.lt.u32 %p0, %r0, %r9;
  @%p0 ld.global.u32 %r1, [%x];
BODY
  st.global.u32 [%o], %r5;
  ret;
}
"""
N = 40


def verdict(body: str) -> tuple[machine.Verdict, Any]:
    x, out = np.arange(100, 164, dtype=np.uint32), np.zeros(64, np.uint32)
    found = machine.check(
        KERNEL.replace("BODY", body), {"grid": 1, "block": 64}, {"x": x, "out": out, "n": N}, schedules=5
    )
    return found, out


# What is made of the element that lanes beyond the end have not loaded, and the result there.
DISCARDED = {
    "selected": ("selp.u32 %r5, %r1, 7, %p0;", 7),
    "selected by the negation": ("not.pred %p1, %p0; selp.u32 %r5, 7, %r1, %p1;", 7),
    "combined, then selected": ("add.u32 %r2, %r1, 3; sub.u32 %r2, %r2, 3; selp.u32 %r5, %r2, 7, %p0;", 7),
    "compared beside the bound": (
        "setp.gt.u32 %p1, %r1, 5; and.pred %p2, %p1, %p0; selp.u32 %r5, %r1, 7, %p2;", 7),
    "compared with the bound": ("setp.gt.and.u32 %p2, %r1, 5, %p0; selp.u32 %r5, %r1, 7, %p2;", 7),
    "compared, or beyond the bound": (
        "not.pred %p1, %p0; setp.lt.or.u32 %p2, %r1, 5, %p1; selp.u32 %r5, 7, %r1, %p2;", 7),
    "or of predicates": (
        "not.pred %p1, %p0; setp.lt.u32 %p3, %r1, 5; or.pred %p2, %p3, %p1; selp.u32 %r5, 7, %r1, %p2;", 7),
    "moved under a predicate": ("mov.u32 %r2, %r1; @%p0 mov.u32 %r5, %r2;", 7),
    "moved and replaced": ("mov.u32 %r5, %r1; @!%p0 mov.u32 %r5, 9;", 9),
    "stored by the others": ("@%p0 st.global.u32 [%o], %r1; @%p0 mov.u32 %r5, %r1;", 7),
    "a branch around it": ("@!%p0 bra L; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; mov.u32 %r5, %r1; L:", 7),
    "exchanged by a shuffle": (
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; shfl.sync.bfly.b32 %r2, %r2, 1, 31, -1;"
        "selp.u32 %r5, %r2, 7, %p0;", 7),
    "in a loop": (
        "mov.u32 %r3, 0; M: add.u32 %r1, %r1, 1; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 4; @%p1 bra M;"
        " sub.u32 %r1, %r1, 4; selp.u32 %r5, %r1, 7, %p0;", 7),
}  # fmt: skip


@pytest.mark.parametrize("name", DISCARDED)
@pytest.mark.parametrize("native", ["0", "1"])
def test_an_undefined_value_that_nothing_uses_is_no_hazard(
    name: str, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEMMA_NATIVE", native)
    body, beyond = DISCARDED[name]
    found, out = verdict(body)
    assert found.ok, found.render()
    assert out.tolist() == [100 + i if i < N else beyond for i in range(64)]


USED = {
    "stored": ("mov.u32 %r5, %r1;", "%r1", "st.global.u32"),
    "stored after a sum": ("mov.u32 %r2, %r1; add.u32 %r5, %r2, 1;", "%r1", "st.global.u32"),
    "selected": ("selp.u32 %r5, 7, %r1, %p0;", "%r1", "st.global.u32"),
    "the selection itself": (
        "setp.gt.u32 %p1, %r1, 5; selp.u32 %r5, 1, 2, %p1;", "%r1", "st.global.u32"),
    "a predicate that does not decide": (
        "setp.gt.u32 %p1, %r1, 5; or.pred %p2, %p1, %p0; selp.u32 %r5, 1, 2, %p2;", "%r1", "st.global.u32"),
    "a branch": ("setp.gt.u32 %p1, %r1, 5; @%p1 bra L; L:", "%r1", "bra"),
    "an address": ("cvt.u64.u32 %d, %r1; add.s64 %o, %o, %d;", "%r1", "st.global.u32"),
    "a predicate of a store": ("setp.gt.u32 %p1, %r1, 5; @%p1 st.global.u32 [%o], %r5;", "%r1", "st.global.u32"),
    "a predicate of a move": ("setp.gt.u32 %p1, %r1, 5; @%p1 mov.u32 %r5, 1;", "%r1", "st.global.u32"),
    "a shuffle": ("shfl.sync.idx.b32 %r5, %r1, 31, 31, -1;", "%r1", "st.global.u32"),
    "a register that nothing writes": ("add.u32 %r5, %r7, 1;", "%r7", "st.global.u32"),
}  # fmt: skip


@pytest.mark.parametrize("name", USED)
@pytest.mark.parametrize("native", ["0", "1"])
def test_an_undefined_value_is_reported_where_it_was_read_first_once_it_matters(
    name: str, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEMMA_NATIVE", native)
    body, register, use = USED[name]
    found, _ = verdict(body)
    hazard = found.hazards[0]
    assert hazard.code == "uninitialised-register", found.render()
    assert hazard.facts["register"] == register
    assert (f"reaches `{use or 'shfl'}" in hazard.render()) == bool(use), hazard.render()
    if register == "%r1" and name != "a shuffle":
        assert set(hazard.facts["lanes"]) <= set(range(8, 32))


# Lanes store an element that they may not have loaded, and load that of another lane.
SHARED = (
    "mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r1; bar.sync 0;"
    "xor.b32 %r4, %r0, 1; setp.lt.u32 %p1, %r4, %r9; shl.b32 %r3, %r4, 2; mov.u32 %r2, s; add.u32 %r2, %r2, %r3;"
    "ld.shared.u32 %r6, [%r2]; USE"
)


@pytest.mark.parametrize("native", ["0", "1"])
def test_undefined_values_pass_through_shared_memory(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEMMA_NATIVE", native)
    variable = ".shared .align 4 .b8 s[256]; "
    found, out = verdict(variable + SHARED.replace("USE", "selp.u32 %r5, %r6, 7, %p1;"))
    assert found.ok, found.render()
    assert out.tolist() == [100 + (i ^ 1) if i < N else 7 for i in range(64)]
    found, _ = verdict(variable + SHARED.replace("USE", "mov.u32 %r5, %r6;"))
    (hazard,) = found.hazards
    assert hazard.code == "uninitialised-register" and hazard.facts["register"] == "%r1"
    assert hazard.facts["lanes"] == list(range(8, 32)) or set(hazard.facts["lanes"]) <= set(range(8, 32))
    # A later store defines the bytes.
    again = variable + "bar.sync 0;".join(SHARED.split("bar.sync 0;", 1)).replace(
        "bar.sync 0;", "st.shared.u32 [%r2], %r0; bar.sync 0;"
    )
    found, out = verdict(again.replace("USE", "mov.u32 %r5, %r6;"))
    assert found.ok, found.render()
    assert out.tolist() == [i ^ 1 for i in range(64)]
    # Other readers of shared memory are not followed: the store is reported.
    matrix = SHARED.replace(
        "USE", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r2]; selp.u32 %r5, %r6, 7, %p1;"
    )
    found, _ = verdict(variable + matrix)
    assert str(found.hazards[0].facts["instruction"]).startswith("st.shared"), found.render()
