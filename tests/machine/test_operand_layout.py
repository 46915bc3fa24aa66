"""The hazard `operand-layout`: what is certainly wrong, and nothing that a program may mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ptx_programs import wgmma_cp_async

import tilemma as tm
from tilemma import cdiv, dma, foreach, machine, mma, parallel, shared
from tilemma.kernels import facts_of
from tilemma.machine import mutate

LAYOUT = frozenset({"operand-layout"})


@tm.kernel
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
    """A tile of an array whose rows nobody has named."""
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
