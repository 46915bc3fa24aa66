"""`mixed_streams`: slices of K that work in turns, on the CPU reference and on the PTX machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from form_cases import wide
from hypothesis import given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.sampling import pairwise
from tilemma import ops, testing
from tilemma.ops import forms, mixed_plan
from tilemma.ops import mixed as mixed_products
from tilemma.ops.mixed_plan import MixedTile
from tilemma.ops.mixed_streams import mixed_streams
from tilemma.ops.plan import Hardware

# Warps and warpgroups; one, two and four of them at the same stages; a last turn that not all have.
TILES = (
    MixedTile(8, 1, 8, 128, 1, True, 128, share=2, stages=8),
    MixedTile(24, 1, 3, 256, 1, step=64, share=1, stages=3),
    MixedTile(40, 1, 2, 256, 1, step=128, share=1, stages=4),
    MixedTile(16, 1, 4, 64, 1, True, 32, share=4, stages=2),
)


@pytest.mark.parametrize(
    "target, tile, group, parts, epilogue, batched",
    pairwise(("cpu", "machine"), range(len(TILES)), (64, 128, 256), (1, 2), (True, False), (True, False)),
)
def test_slices_that_work_in_turns(
    target: str, tile: int, group: int, parts: int, epilogue: bool, batched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, kernels = forms.run, []
    options: dict[str, Any] = {"arch": "sm_90a"} if target == "machine" else {}

    def run(ready: forms.Prepared) -> None:
        kernels.extend(s.kernel.name for s in ready.steps)
        compute(ready, target, **options)

    chosen = TILES[tile]
    parts = 1 if batched else parts
    monkeypatch.setattr(forms, "run", run)
    monkeypatch.setattr(mixed_products, "_streams", lambda *_: True)
    monkeypatch.setattr(
        mixed_plan, "tile", lambda *_, **__: replace(chosen, parts=parts, step=min(chosen.step, group))
    )
    b = tm.quantize(testing.random_array((1536, 136), "f32", 0), "s4", group)
    rows = (2, chosen.rows - 3) if batched else (chosen.rows + 5,)
    a, bias = testing.random_array((*rows, 1536), "bf16", 1), testing.random_array((136,), "f32", 2)
    given: dict[str, Any] = {"bias": bias, "alpha": 0.5, "activation": "relu"} if epilogue else {}
    found = ops.mixed_matmul(a, b, out_dtype="f32", **given)
    weights = b.dequantize()
    value = wide(a) @ wide(weights)
    if epilogue:
        value = np.maximum(0.5 * value + wide(bias), 0)
    scaled = (0.5, 0.0, None, bias, "relu") if epilogue else (1.0, 0.0, None, None, None)
    bound = testing.error_bound(a, weights.astype(a.dtype), "f32", "f32", *scaled)
    assert testing.share_of_bound(found, value, 1.01 * bound) <= 1
    assert kernels[0] == "mixed_streams"


@settings(deadline=None)
@given(
    st.integers(1, 64), st.integers(1, 10_000), st.integers(1, 300), st.sampled_from((32, 96, 128, 256, 384)),
    st.integers(1, 200), st.booleans(),
)  # fmt: skip
def test_tiles_that_work_in_turns(m: int, n: int, steps: int, group: int, sms: int, plain: bool) -> None:
    """All blocks run at once, parts are whole groups, steps and groups meet, and all buffers fit."""
    s, on = mixed_plan.MixedShape(1, m, n, steps * group, 4, group, plain), Hardware(sms=sms)
    t, old = (mixed_plan.tile(s, on, on_cpu=False, streams=x) for x in (True, False))
    if not t.stages:
        assert t == old
        return
    assert t.rows >= m and t.blocks(s) <= sms and s.k // t.parts % group == s.k % t.parts == 0
    for length in (t.depth, t.share * t.depth):
        assert length % group == 0 or group % length == 0
    assert t.stages % (t.slices // t.share) == 0 and t.slices % t.share == 0 and min(group, t.depth) % t.step == 0
    step = t.share * t.depth
    stage = step * (32 + 2 * t.rows) + 256 * max(step // group, 1)
    assert t.stages * stage + 4 * t.slices * 64 * t.rows <= on.shared


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("rows", range(8, 65, 8))
def test_tiles_in_turns_compile_for_their_rows(rows: int) -> None:
    """Their buffers fit, and their registers without spills."""
    s = mixed_plan.MixedShape(1, rows, 4096, 8192, 4, 128, True)
    t = next(mixed_plan.in_turns(s, Hardware(), rows))
    compiled = mixed_streams.compile("sm_90a", T="bf16", TV="s4", GROUP=128, **t.turns())
    cubin = compiled.assembled()
    assert all(x.spills_loads == 0 for x in cubin.entries)


@pytest.mark.parametrize(
    "rows, n, bits, streams, turns",
    [(16, 8192, 4, True, True), (64, 8192, 4, True, True), (8, 6144, 4, True, True), (8, 8192, 4, True, False),
     (16, 8192, 4, False, False), (16, 8192, 8, True, False), (16, 14336, 4, True, False)],
)  # fmt: skip
def test_where_slices_work_in_turns(rows: int, n: int, bits: int, streams: bool, turns: bool) -> None:
    """Where TMA copies 4-bit weights and each block has one tile; not where the memory limits the fewest rows."""
    s = mixed_plan.MixedShape(1, rows, n, 8192, bits, 128, True)
    assert bool(mixed_plan.tile(s, Hardware(), on_cpu=False, streams=streams).stages) == turns
