"""`gated_matmul`, `sparse_matmul`, `mixed_matmul`, `conv2d`: the CPU reference, the PTX machine, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from form_cases import FORMS, drawn, share, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from products import problem

import tilemma as tm
from tests.sampling import examples, pairwise
from tilemma import ops, testing
from tilemma.errors import TilemmaError
from tilemma.ops import forms, launch_cache, mixed_plan
from tilemma.ops import mixed as mixed_products
from tilemma.ops.candidates import ranked
from tilemma.ops.form_kernels import gated_tiles, sparse_tiles
from tilemma.ops.mixed_kernels import mixed_sums
from tilemma.ops.mixed_plan import MixedTile
from tilemma.ops.plan import Hardware
from tilemma.runtime.arrays import describe


@pytest.mark.parametrize("seed", range(examples(12)))
@pytest.mark.parametrize("name", FORMS)
def test_random_calls_are_within_the_bound(name: str, seed: int) -> None:
    assert share(name, seed) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("first", range(100, 600, 25))
def test_many_random_calls_are_within_the_bound(name: str, first: int) -> None:
    for seed in range(first, first + 25):
        assert share(name, seed) <= 1, seed


# Tiles of the size that a GPU gets, one and two warpgroups.
SMALL = {"TILE_M": 64, "TILE_N": 64, "GROUPS": 1}
LARGE = {"TILE_M": 128, "TILE_N": 128, "GROUPS": 2}
TILES: dict[str, tuple[dict[str, int], ...]] = {
    "gated": ({**SMALL, "TILE_N": 128, "TILE_K": 32}, {**LARGE, "TILE_K": 64}),
    "sparse": (SMALL, LARGE),
    "mixed": ({"TILE_M": 16, "TILE_K": 64, "GROUPS": 1}, {"TILE_M": 24, "TILE_K": 128, "GROUPS": 2}),
    "convolution": (
        {"TILE_B": 1, "TILE_P": 8, "TILE_Q": 8, "GROUPS": 1},
        {"TILE_B": 2, "TILE_P": 8, "TILE_Q": 8, "GROUPS": 2},
    ),
}


@pytest.mark.parametrize(
    "name, tile, arch, seed", pairwise(FORMS, (0, 1), ("sm_90a", "sm_80"), range(examples(24)))
)
def test_calls_on_the_machine(name: str, tile: int, arch: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = forms.run

    def run(ready: forms.Prepared) -> None:
        changed = []
        for s in ready.steps:
            constants = {**s.constants, **TILES[name][tile]}
            if s.kernel.name == "sums_of_groups":
                # As in every plan, no step has parts of two groups.
                constants["TILE_K"] = math.gcd(constants["TILE_K"], constants["GROUP"])
            changed.append(replace(s, constants=constants))
        compute(replace(ready, steps=tuple(changed)), "machine", arch=arch, seed=seed)

    monkeypatch.setattr(forms, "run", run)
    if name == "sparse" and arch == "sm_80":
        # e4m3 has no sparse instruction before sm_89.
        f8 = tm.dtypes.dtype("f8_e4m3").numpy
        seed = next(s for s in range(seed, 100) if drawn(name, 1000 + s)[0].operands["b"].dtype != f8)
    assert share(name, 1000 + seed) <= 1


@pytest.mark.parametrize("target", ["cpu", "machine"])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("seed", range(examples(4)))
def test_weights_of_16_bits(target: str, registers: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for many rows on a GPU: a kernel computes weights of 16 bits in registers, or in memory, and `matmul`
    multiplies."""
    compute, kernels = forms.run, []

    def run(ready: forms.Prepared) -> None:
        kernels.extend(s.kernel.name for s in ready.steps)
        compute(ready, "machine", arch="sm_90a", seed=seed) if target == "machine" else compute(ready)

    monkeypatch.setattr(forms, "run", run)
    monkeypatch.setattr(
        mixed_products, "_many", lambda _, a, weights, group, kind: a.rank == 2 and group % 32 == 0
    )
    if registers:
        monkeypatch.setattr(mixed_products, "_streams", lambda *_: True)
        monkeypatch.setattr(mixed_products, "_prefers_widening", lambda *_: False)
        monkeypatch.setattr(forms, "staged", lambda result: result.shape[1] * result.itemsize % 16 == 0)
        monkeypatch.setattr(mixed_plan, "_PRODUCT_ROWS", (24,))
    assert share("mixed", 2000 + seed) <= 1
    assert ("widened_weights" in kernels) == ("product_of_tiles" in kernels)
    assert not (registers and "widened_weights" in kernels and "mixed_products" in kernels)


@pytest.mark.parametrize(
    "rows, bits, zeros, memory",
    [(4096, 4, False, False), (512, 4, True, False), (512, 8, False, False), (8192, 8, True, True)],
)
def test_weights_of_many_rows_are_computed_where_it_is_faster(
    rows: int, bits: int, zeros: bool, memory: bool
) -> None:
    """In registers each tile of rows computes them again."""
    shape = mixed_plan.MixedShape(1, rows, 8192, 8192, bits, 128, True, zeros)
    tile = mixed_plan.product_rows(shape, Hardware())
    product = ranked(problem(rows, 8192, 8192, "bf16"), Hardware())[0].seconds
    widened = mixed_plan.widening(shape, Hardware()) + product
    assert (widened < mixed_plan.product_seconds(tile, shape, Hardware())) == memory
    # Steps that are neither whole groups nor parts of one.
    assert mixed_plan.product_rows(replace(shape, group=96), Hardware()) == 0


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_gated_products_of_more_steps_than_rows(layout: str) -> None:
    """Integers, whose sums are exact."""
    x = np.asarray(np.ones((3, 300)), np.float16, order="F" if layout == "columns" else "C")
    gate, up = np.full((300, 16), 1 / 4, np.float16), np.ones((300, 16), np.float16)
    assert np.all(ops.gated_matmul(x, gate, up, activation=None, out_dtype="f32") == 75 * 300)


def test_the_gate_is_not_rounded() -> None:
    x, gate = np.full((8, 8), 3, np.float16), np.full((8, 8), 1000, np.float16)
    up = np.full((8, 8), 2.0**-10, np.float16)
    assert np.all(ops.gated_matmul(x, gate, up) == 24000 * 24 * 2.0**-10)


def test_quantized_weights_come_back() -> None:
    w = testing.random_array((128, 24), "f32", 0)
    for kind, steps in (("s8", 127), ("s4", 7)):
        for zeros in (False, True):
            for group in (None, 64, 2):
                q = tm.quantize(w, kind, group, zeros=zeros)
                size = group or 128
                reach = np.abs(w.reshape(-1, size, 24)).max(1) / steps
                error = np.abs(q.dequantize() - w).reshape(-1, size, 24)
                assert np.all(error <= reach[:, None] * (1.02 if zeros else 0.51)), (kind, zeros, group)
    whole = np.arange(-7, 9, dtype=np.float32).reshape(16, 1).clip(-7, 7)
    q = tm.quantize(whole, "s4")
    assert q.values.shape == (1, 8) and q.values.dtype == np.uint8 and np.array_equal(q.dequantize(), whole)
    # Even k in the low four bits.
    assert q.values[0, 0] == (-7 & 15) | (-6 & 15) << 4


@pytest.mark.parametrize("scales", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_quantized_value_is_half_a_step_from_the_original(zeros: bool, scales: str) -> None:
    """Groups that are small, large, constant, far from 0, or of one sign."""
    w = testing.random_array((64, 16), "f32", 0).astype(np.float32)
    factor = np.float32(1e-40 if scales != "f16" else 1e-6)
    groups = [w, w * factor, np.abs(w), w * 0, w * 0 + 0.3, w * 0 - 7, w * 1e-3 + 10, w * 1e-3 - 1000, w * 1e3]
    if scales == "f32":
        groups += [np.sign(w) * np.float32(3.4e38), w * np.float32(1e-45)]
    whole = np.concatenate(groups)
    for kind in ("s8", "s4"):
        q = tm.quantize(whole, kind, 64, zeros=zeros, scales=scales)
        wide = q.scales.astype(np.float64)
        error = np.abs(q.dequantize().astype(np.float64) - whole).reshape(-1, 64, 16)
        assert np.isfinite(error).all() and (wide > 0).all()
        assert np.all(error <= wide[:, None] * 0.5 + np.abs(whole).reshape(-1, 64, 16) * 2e-7), kind
        constant = error[4:6].max() / 7
        assert constant <= (0.01 if zeros or kind == "s8" else 0.1)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_a_matrix_without_elements_is_quantized(shape: tuple[int, int]) -> None:
    for kind, zeros in (("s8", True), ("s4", False), ("f8_e4m3", False)):
        assert tm.quantize(np.ones(shape, np.float32), kind, 2, zeros=zeros).dequantize().shape == shape


def test_matrices_are_compared_and_hashed_as_objects() -> None:
    for x in (S4, SPARSE):
        assert x == x and x != replace(x) and len({x, replace(x)}) == 2


@pytest.mark.parametrize("given", [np.int64(16), 16])
def test_names_and_numbers_of_other_libraries_are_taken(given: Any) -> None:
    q = tm.quantize(W16, tm.dtypes.s8, given, scales=tm.dtypes.f16)
    assert q.type == "s8" and type(q.group) is int and q.scales.dtype == np.float16


F16 = np.ones((16, 32), np.float16)
W16 = np.ones((32, 16), np.float16)
SPARSE = tm.sparse.compress(tm.sparse.prune(F16))
S4 = tm.quantize(np.ones((32, 16), np.float32), "s4", 16)
IMAGE, FILTER = np.ones((1, 4, 4, 8), np.float16), np.ones((8, 3, 3, 8), np.float16)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "another shape of up": (lambda: ops.gated_matmul(F16, W16, W16[:, :8]), "matmul-shape"),
    "another type of up": (lambda: ops.gated_matmul(F16, W16, W16.astype(np.float32)), "matmul-dtype"),
    "gate": (lambda: ops.gated_matmul(F16, W16, W16, activation="tanh"), "matmul-activation"),
    "f32 gate": (lambda: ops.gated_matmul(*(np.ones((8, 8), np.float32),) * 3), "matmul-dtype"),
    "dense a": (lambda: ops.sparse_matmul(F16, W16), "wrong-type"),
    "K of sparse": (lambda: ops.sparse_matmul(SPARSE, W16[:16]), "matmul-shape"),
    "type of sparse": (lambda: ops.sparse_matmul(SPARSE, W16.astype(np.float32)), "matmul-dtype"),
    "types of sparse": (lambda: ops.sparse_matmul(SPARSE, W16.astype(np.int8)), "matmul-dtype"),
    "metadata": (
        lambda: ops.sparse_matmul(tm.sparse.Sparse(SPARSE.values, SPARSE.metadata[:8], (16, 32)), W16),
        "matmul-shape",
    ),
    "fast": (lambda: ops.sparse_matmul(SPARSE, W16, fast=1), "wrong-type"),
    "no shape of sparse": (lambda: ops.sparse_matmul(replace(SPARSE, shape=None), W16), "wrong-argument"),
    "a row of sparse": (lambda: ops.sparse_matmul(replace(SPARSE, shape=(16,)), W16), "wrong-argument"),
    "dense weights": (lambda: ops.mixed_matmul(F16, W16), "wrong-type"),
    "f32 activations": (lambda: ops.mixed_matmul(F16.astype(np.float32), S4), "matmul-dtype"),
    "K of weights": (lambda: ops.mixed_matmul(F16[:, :16], S4), "matmul-shape"),
    "values": (lambda: ops.mixed_matmul(F16, replace(S4, values=S4.values[:8])), "wrong-argument"),
    "scales": (lambda: ops.mixed_matmul(F16, replace(S4, scales=S4.scales[:1])), "wrong-argument"),
    "type of weights": (lambda: ops.mixed_matmul(F16, replace(S4, type="s8")), "wrong-argument"),
    "no type": (lambda: replace(S4, type=[]).dequantize(), "wrong-argument"),
    "group of a matrix": (lambda: replace(S4, group=5).dequantize(), "wrong-argument"),
    "zeros": (lambda: replace(S4, zeros=S4.values).dequantize(), "wrong-argument"),
    "group": (lambda: tm.quantize(W16, "s4", 5), "wrong-argument"),
    "zeros of floats": (lambda: tm.quantize(W16, "f8_e4m3", zeros=True), "wrong-argument"),
    "type": (lambda: tm.quantize(W16, "s3"), "wrong-argument"),
    "integers": (lambda: tm.quantize(np.ones((4, 4), np.int8)), "wrong-argument"),
    "NaN": (lambda: tm.quantize(W16 * np.nan), "wrong-argument"),
    "infinity": (lambda: tm.quantize(W16 * np.inf, zeros=True), "wrong-argument"),
    "beyond f32": (lambda: tm.quantize(W16.astype(np.float64) * 1e300), "wrong-argument"),
    "large scales": (lambda: tm.quantize(W16.astype(np.float32) * 1e9, scales="f16"), "wrong-argument"),
    "groups": (lambda: ops.conv2d(IMAGE, FILTER, groups=2), "convolution-extent"),
    "stride": (lambda: ops.conv2d(IMAGE, FILTER, stride=0), "convolution-extent"),
    "padding": (lambda: ops.conv2d(IMAGE, FILTER, padding=(1, -1)), "convolution-extent"),
    "dilation": (lambda: ops.conv2d(IMAGE, FILTER, dilation=1.5), "convolution-extent"),
    "channels": (lambda: ops.conv2d(IMAGE[..., :4], FILTER), "matmul-shape"),
    "filter": (lambda: ops.conv2d(IMAGE[:, :2], FILTER), "matmul-shape"),
    "rank": (lambda: ops.conv2d(IMAGE[0], FILTER), "matmul-shape"),
    "type of filter": (lambda: ops.conv2d(IMAGE, FILTER.astype(np.float32)), "matmul-dtype"),
    "bias of convolution": (lambda: ops.conv2d(IMAGE, FILTER, bias=np.ones((2, 1), np.float16)), "matmul-shape"),
    "out of convolution": (lambda: ops.conv2d(IMAGE, FILTER, out=IMAGE), "matmul-shape"),
    "beta": (lambda: ops.gated_matmul(F16, W16, W16, beta=1.0), "matmul-addend"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_before_anything_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, code = WRONG[name]
    monkeypatch.setattr(forms, "run", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(TilemmaError) as error:
        call()
    assert error.value.code == code and error.value.remedy


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: ops.gated_matmul(F16[0], W16, W16), "x"),
        (lambda: ops.gated_matmul(F16, W16.astype(np.float32), W16), "gate"),
        (lambda: ops.gated_matmul(F16, W16[:8], W16[:8]), "gate"),
        (lambda: ops.gated_matmul(F16, W16, W16.copy(), out=F16[:, :16]), "x"),
        (lambda: ops.conv2d(IMAGE, FILTER, out=FILTER[:1, :2, :2]), "w"),
    ],
    ids=["vector", "type", "K", "memory", "memory of the filter"],
)
def test_arguments_are_named_as_the_caller_does(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(TilemmaError, match=f"`{name}`") as error:
        call()
    assert "`a`" not in error.value.render() and "`b`" not in error.value.render()


@pytest.mark.parametrize("kind, zeros", [("s4", True), ("s8", False)])
@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("target", ["cpu", "machine"])
def test_parts_of_k(target: str, parts: int, kind: str, zeros: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU sums parts of K apart where there are few rows."""
    compute, options = forms.run, {"arch": "sm_90a"} if target == "machine" else {}
    monkeypatch.setattr(forms, "run", lambda ready: compute(ready, target, **options))
    for name in ("tile", "single"):
        monkeypatch.setattr(mixed_plan, name, lambda *_, **__: MixedTile(24, 1, 1, 64, parts))
    b = tm.quantize(testing.random_array((512, 136), "f32", 0), kind, 64, zeros=zeros)
    a, bias = testing.random_array((20, 512), "f16", 1), testing.random_array((136,), "f32", 2)
    c = testing.random_array((20, 136), "f16", 3)
    found = ops.mixed_matmul(a, b, bias=bias, alpha=0.5, c=c, beta=2.0, activation="silu")
    weights = b.dequantize().astype(np.float16)
    value = testing.ACTIVATIONS["silu"].value(0.5 * (wide(a) @ wide(weights)) + 2 * wide(c) + wide(bias))
    bound = testing.error_bound(a, weights, "f32", "f16", 0.5, 2.0, c, bias, "silu")
    assert testing.share_of_bound(found, value, bound) <= 1


# Warpgroups along the columns and along K, and the depth of their steps; whether these are warps, and of how much
# of K the conversion overlaps the multiplication.
SLICES = (
    (1, 2, 64, False, 32), (1, 4, 32, False, 0), (2, 2, 64, False, 0), (1, 4, 64, True, 0), (2, 1, 128, False, 32),
    (1, 4, 128, True, 0), (2, 2, 32, True, 32),
)  # fmt: skip


@pytest.mark.parametrize(
    "target, tile, kind, group, depth",
    pairwise(("cpu", "sm_80", "sm_90a"), range(len(SLICES)), ("s4", "s8"), (32, 64, 128), (384, 640)),
)
def test_slices_of_k_have_warpgroups_of_their_own(
    target: str, tile: int, kind: str, group: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = forms.run
    options: dict[str, Any] = {"target": "cpu"} if target == "cpu" else {"target": "machine", "arch": target}
    monkeypatch.setattr(forms, "run", lambda ready: compute(ready, **options))
    groups, slices, step, warps, overlapped = SLICES[tile]
    chosen = MixedTile(24, groups, slices, step, 1, warps, overlapped)
    monkeypatch.setattr(mixed_plan, "tile", lambda *_, **__: chosen)
    b = tm.quantize(testing.random_array((depth, 136), "f32", 0), kind, group)
    a, bias = testing.random_array((20, depth), "bf16", 1), testing.random_array((136,), "f32", 2)
    found = ops.mixed_matmul(a, b, bias=bias, alpha=0.5, out_dtype="f32", activation="relu")
    # The sums of groups are scaled in f32, and weights are no longer rounded to the type of `a`.
    weights = b.dequantize()
    value = np.maximum(0.5 * (wide(a) @ wide(weights)) + wide(bias), 0)
    bound = testing.error_bound(a, weights.astype(a.dtype), "f32", "f32", 0.5, 0.0, None, bias, "relu")
    assert testing.share_of_bound(found, value, 1.01 * bound) <= 1


# Rows, warpgroups along the columns and along K, and parts.
PARTED = ((16, 1, 1, 2), (24, 2, 1, 4), (64, 1, 2, 2))


@pytest.mark.parametrize(
    "target, looks, tile, kind, epilogue",
    pairwise(("cpu", "sm_80", "sm_90a"), (0, 32), range(len(PARTED)), ("s4", "s8"), (True, False)),
)
def test_parts_of_k_are_added_in_the_kernel(
    target: str, looks: int, tile: int, kind: str, epilogue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By blocks that wait for each other, or by the last one."""
    compute = forms.run
    options: dict[str, Any] = {"target": "cpu"} if target == "cpu" else {"target": "machine", "arch": target}
    monkeypatch.setattr(forms, "run", lambda ready: compute(ready, **options))
    monkeypatch.setattr(mixed_products, "LOOKS", looks)
    monkeypatch.setattr(mixed_products, "_streams", lambda *_: target == "sm_90a")
    rows, groups, slices, parts = PARTED[tile]
    chosen = MixedTile(rows, groups, slices, 64, parts, step=32, joined=True)
    monkeypatch.setattr(mixed_plan, "tile", lambda *_, **__: chosen)
    b = tm.quantize(testing.random_array((512, 136), "f32", 0), kind, 64)
    a, bias = testing.random_array((20, 512), "bf16", 1), testing.random_array((136,), "f32", 2)
    given: dict[str, Any] = {"bias": bias, "alpha": 0.5, "activation": "relu"} if epilogue else {}
    found = ops.mixed_matmul(a, b, out_dtype="f32", **given)
    weights = b.dequantize()
    value = wide(a) @ wide(weights)
    if epilogue:
        value = np.maximum(0.5 * value + wide(bias), 0)
    scaled = (0.5, 0.0, None, bias, "relu") if epilogue else (1.0, 0.0, None, None, None)
    bound = testing.error_bound(a, weights.astype(a.dtype), "f32", "f32", *scaled)
    assert testing.share_of_bound(found, value, 1.01 * bound) <= 1


@settings(deadline=None)
@given(
    st.integers(1, 64), st.integers(1, 30_000), st.integers(1, 300), st.sampled_from((32, 64, 96, 128, 256)),
    st.sampled_from((4, 8)), st.integers(1, 200), st.booleans(),
)  # fmt: skip
def test_tiles_of_mixed_products(m: int, n: int, steps: int, group: int, bits: int, sms: int, plain: bool) -> None:
    """Steps and groups meet, three stages fit beside the sums of slices, and parts of K are whole steps."""
    s, on = mixed_plan.MixedShape(1, m, n, steps * group, bits, group, plain), Hardware(sms=sms)
    t = mixed_plan.tile(s, on, on_cpu=False)
    assert t.rows >= m and t.groups * t.slices <= (8 if t.warps else 4)
    assert min(group, t.depth) % t.own(group)["STEP"] == 0
    for length in (t.depth, t.slices * t.depth):
        assert length % group == 0 or group % length == 0
    stage = t.slices * t.depth * (t.groups * 64 * bits // 8 + 2 * t.rows)
    sums = 4 * (t.slices - 1) * t.groups * 64 * t.rows
    assert t.slices == 1 or 3 * stage + sums <= on.shared
    assert t.parts == 1 or (plain and s.k % (t.parts * t.slices * t.depth) == 0 and s.k // t.parts % group == 0)


@pytest.mark.parametrize(
    "tile, group",
    [(MixedTile(16, 1, 2, 256, 1, step=32), 32), (MixedTile(40, 2, 2, 128, 1, step=32), 128)],
    ids=str,
)
def test_the_ring_leaves_room_for_the_sums_of_slices(tile: MixedTile, group: int) -> None:
    """Rows of stored sums are padded, which takes shared memory from the stages."""
    constants = {"TV": "s4", "GROUP": group, **tile.constants, **tile.own(group)}
    assert "in a ring of" in str(mixed_sums().compile("sm_90a", **constants).explain())


def test_launches_take_their_addresses_from_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a repeated call finds the addresses of its launches by these names."""
    seen: list[str] = []

    def run(ready: forms.Prepared) -> None:
        for step in ready.steps:
            arrays = step.kernel.build(**step.constants).arrays
            assert len(step.sources) == len(arrays)
            seen.extend(name for name, _ in step.sources)

    monkeypatch.setattr(forms, "run", run)
    ops.gated_matmul(F16, W16, W16, bias=W16[0])
    ops.mixed_matmul(F16, S4)
    ops.sparse_matmul(SPARSE, W16, c=np.ones((16, 16), np.float16), beta=1.0)
    ops.conv2d(IMAGE, FILTER)
    ops.conv2d(IMAGE, FILTER[:, :1, :1])
    ops.conv2d(IMAGE, np.ascontiguousarray(FILTER[:, :1, :1]))
    monkeypatch.setattr(mixed_plan, "tile", lambda *_, **__: MixedTile(16, 1, 1, 32, 2))
    ops.mixed_matmul(F16, S4)
    assert set(seen) <= {*launch_cache.NAMES, "work.partial"} and {"a", "b", "scale_a", "c", "bias", "out"} <= set(
        seen
    )


def test_results_without_elements() -> None:
    assert ops.gated_matmul(F16[:0], W16, W16).shape == (0, 16)
    assert ops.mixed_matmul(F16[:0], S4).shape == (0, 16)
    assert ops.sparse_matmul(SPARSE, W16[:, :0]).shape == (16, 0)
    assert ops.conv2d(IMAGE[:0], FILTER).shape == (0, 2, 2, 8)


WIDE = {"TILE_M": 128, "TILE_N": 256}
LARGEST: dict[str, tuple[Any, dict[str, Any]]] = {
    "gated": (gated_tiles, {**LARGE, "TILE_K": 64}),
    "sparse f16": (sparse_tiles, {**WIDE, "TILE_K": 64, "SPAN": 2}),
    "sparse e4m3": (
        sparse_tiles, {**WIDE, "TILE_K": 128, "SPAN": 1, "TA": "f8_e4m3", "TB_": "f8_e4m3", "TO": "bf16"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGEST)
def test_large_tiles_leave_room_for_copies_ahead(name: str) -> None:
    """Registers hold the sums of the largest tile, its result leaves by TMA, and there are three stages."""
    kernel, constants = LARGEST[name]
    compiled = kernel.compile("sm_90a", **constants)
    plan = compiled.explain()
    rings = [d.data["stages"] for d in plan.decisions if d.pass_name == "pipeline" and "stages" in d.data]
    assert rings and min(rings) >= 3
    assert any(c["to"].startswith("out[") and c["engine"] == "tma" for c in plan.copies)
    cubin = compiled.assembled()
    assert not cubin.spills and not cubin.warnings


def test_tiles_fill_one_round_rather_than_two() -> None:
    """128 tiles of 128 x 128 on 132 SMs are faster than twice as many of half the size."""

    def chosen(m: int, n: int) -> tuple[int, int]:
        result = describe(np.empty((1, 1), np.float16))._replace(shape=(m, n), device=("no device", 0))
        found = forms.tile(result, m, n, 64, lambda rows, columns: forms.clocks(rows, columns, 128, 128))
        return found["TILE_M"], found["TILE_N"]

    assert chosen(512, 4096) == (128, 128)
    assert chosen(64, 14336)[0] == 64
    assert chosen(8192, 8192) == (128, 256)
