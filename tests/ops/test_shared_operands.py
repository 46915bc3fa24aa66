"""Batches that share an operand are one product, where the other operand and the result continue their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import dtypes, ops, testing
from tilemma.ops import arguments, forms, product
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import ranked
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem
from tilemma.runtime.arrays import ArrayRef, describe


def values(*shape: int) -> Any:
    return testing.random_array(shape, "f16", sum(shape))


def problem(a: Any, b: Any, out: Any = None, **more: Any) -> Problem:
    arrays = {n: describe(more.pop(n)) for n in ("c", "bias") if n in more}
    call = Call(describe(a), describe(b), **arrays, **more)
    shape = arguments.check(call)[0]
    result = np.empty(shape, np.float16) if out is None else out
    return arguments.problem(call, describe(result), made=False)


@pytest.mark.parametrize(
    ("a", "b", "extents", "batch"),
    [
        (values(5, 3, 8), values(8, 16), (15, 16, 8), 1),
        (values(5, 1, 8), values(8, 16), (5, 16, 8), 1),
        (values(2, 5, 3, 8), values(8, 16), (30, 16, 8), 1),
        (values(2, 5, 3, 8), values(2, 1, 8, 16), (15, 16, 8), 2),
        (values(5, 3, 8), values(1, 8, 16), (15, 16, 8), 1),
        (values(3, 8), values(5, 8, 1), (5, 3, 8), 1),
        (values(8, 5, 1).transpose(1, 2, 0), values(8, 16), (5, 16, 8), 1),
        # These have rows between the products, or the same rows.
        (values(5, 4, 8)[:, :3], values(8, 16), (3, 16, 8), 5),
        (np.broadcast_to(values(3, 8), (5, 3, 8)), values(8, 16), (3, 16, 8), 5),
        (values(5, 3, 8), values(5, 8, 16), (3, 16, 8), 5),
        (values(3, 8), values(5, 8, 16), (3, 16, 8), 5),
    ],
)
def test_rows_of_all_products(a: Any, b: Any, extents: tuple[int, int, int], batch: int) -> None:
    p = problem(a, b)
    assert (p.shape, p.batch * len(p.outer)) == (extents, batch)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(ops.matmul(a, b, out_dtype="f32") - wanted).max() < 1e-4


def test_results_that_lie_apart_or_beside_each_other() -> None:
    a, b = values(5, 3, 8), values(8, 16)
    apart = np.empty((5, 4, 16), np.float16)[:, :3]
    turned = np.empty((3, 5, 16), np.float16).transpose(1, 0, 2)
    assert problem(a, b, apart).batch == problem(a, b, turned).batch == 5
    # The columns of all products, of one lhs, are those of one result.
    left, right = values(3, 8), values(5, 16, 8).swapaxes(1, 2)
    p = problem(left, right, turned)
    assert (p.shape, p.batch) == ((3, 80, 8), 1)
    ops.matmul(left, right, out=turned)
    assert np.abs(turned - left.astype(np.float64) @ right.astype(np.float64)).max() < 1e-2


def test_addends_and_biases_that_continue_too() -> None:
    a, b, c = values(5, 3, 8), values(8, 16), values(5, 3, 16)
    assert problem(a, b, bias=values(16)).batch == 1
    assert problem(a, b, c=c, beta=2.0).batch == 1
    assert problem(a, b, c=values(1, 1), beta=2.0).batch == 1
    assert problem(a, b, bias=values(3, 1)).batch == 5
    assert problem(a, b, c=values(3, 16), beta=2.0).batch == 5
    product_ = a.astype(np.float64) @ b.astype(np.float64)
    for bias in (values(16), values(3, 1)):
        found = ops.matmul(a, b, c=c, beta=2.0, bias=bias, out_dtype="f32")
        assert np.abs(found - (product_ + 2.0 * c + bias)).max() < 1e-3
    shared = values(3, 16)
    found = ops.matmul(a, b, c=shared, beta=2.0, out_dtype="f32")
    assert np.abs(found - (product_ + 2.0 * shared)).max() < 1e-3


@pytest.mark.parametrize(
    ("left", "right", "batch"),
    [
        ((3, 70, 1), (1, 40), 1),
        ((3, 70, 2), (2, 40), 1),
        ((3, 70, 2), (2, 1), 1),
        ((3, 1, 1), (1, 40), 3),
        ((70, 1), (1, 40), 3),
        ((3, 70, 1), (3, 1, 40), 3),
        ((1, 1), (1, 40), 1),
    ],
)
def test_scales_that_continue_or_do_not(left: tuple[int, ...], right: tuple[int, ...], batch: int) -> None:
    a = testing.random_array((3, 70, 136), "s8", 0).astype(np.int8)
    b = testing.random_array((136, 40), "s8", 1).astype(np.int8)
    scales = [np.random.default_rng(i).random(s, np.float32) + 0.5 for i, s in enumerate((left, right))]
    found = ops.scaled_matmul(a, b, *scales, out_dtype="f32")
    one = [x[e] if x.ndim == 3 else x for e in range(3) for x in scales]
    for e in range(3):
        np.testing.assert_array_equal(
            found[e], ops.scaled_matmul(a[e], b, *one[2 * e : 2 * e + 2], out_dtype="f32")
        )
    call = Call(
        describe(a), describe(b), scale_a=describe(scales[0]), scale_b=describe(scales[1]), rules=arguments.SCALED
    )
    out = np.empty((3, 70, 40), np.float32)
    assert arguments.problem(call, describe(out), made=False).batch == batch


@pytest.mark.parametrize("rows", [128, 256, 200])
def test_blocks_of_scales_continue_where_they_are_whole(rows: int) -> None:
    a = testing.random_array((2, rows, 256), "s8", 0).astype(np.int8)
    b = testing.random_array((256, 40), "s8", 1).astype(np.int8)
    scale = np.random.default_rng(0).random((2, -(-rows // 128), 2), np.float32)
    other = np.random.default_rng(1).random((2, 1), np.float32)
    found = ops.scaled_matmul(a, b, scale, other, out_dtype="f32")
    for e in range(2):
        np.testing.assert_array_equal(found[e], ops.scaled_matmul(a[e], b, scale[e], other, out_dtype="f32"))


@pytest.mark.parametrize("kernel", ["tiles", "pipelined"])
def test_on_the_machine(kernel: str) -> None:
    """Three products of 30 rows by the same weights, in tiles of 64 rows."""
    a, b = values(3, 30, 72), values(72, 72)
    out, bias = np.full((3, 30, 72), np.nan, np.float16), values(72)
    p = problem(a, b, out, bias=bias, c=out, beta=0.0, activation="relu")
    assert p.shape == (90, 72, 72)
    plan = Plan("tiles", (64, 64, 64), 1) if kernel == "tiles" else Plan("pipelined", (64, 64, 64), 1, 2, grid=1)
    product.run(p, plan, "machine", arch="sm_90a", strict=True)
    value = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    for left, one, wanted in zip(a, out, value, strict=True):
        bound = testing.error_bound(left, b, bias=bias, activation="relu")
        assert testing.share_of_bound(one, wanted, bound) <= 1


@pytest.mark.parametrize("shape", [(5, 3, 256), (2, 5, 1, 256), (1, 1, 256), (4, 256)])
@pytest.mark.parametrize("along", ["columns", "rows"])
def test_products_of_other_forms(shape: tuple[int, ...], along: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One product, too, but where a bias of the rows is another for each."""
    found: list[tuple[int, ...]] = []
    prepared = forms.prepared
    monkeypatch.setattr(forms, "prepared", lambda *x, **y: found.append(x[2].shape) or prepared(*x, **y))
    a, (gate, up) = values(*shape), (values(256, 48), values(256, 48)[:, ::-1])
    x = a.astype(np.float64) / 8
    c, bias = values(*shape[:-1], 48), values(48) if along == "columns" else values(shape[-2], 1)
    quantized = tm.quantize(gate.astype(np.float32), "s8", group=128)
    mixed = ops.mixed_matmul(a, quantized, alpha=0.125, c=c, beta=2.0, bias=bias, out_dtype="f32")
    assert np.abs(mixed - (x @ quantized.dequantize() + 2.0 * c + bias)).max() < 1e-2
    gated = ops.gated_matmul(
        a, gate, up, alpha=0.125, c=c, beta=2.0, bias=bias, activation="relu", out_dtype="f32"
    )
    wanted = 8 * np.maximum(x @ gate, 0) * (x @ up) + 2.0 * c + bias
    assert np.abs(gated - wanted).max() < 1e-3 * np.abs(wanted).max()
    one = along == "columns" or shape[-2] == 1 or np.prod(shape[:-2]) == 1
    assert [len(x) for x in found] == [2 if one else len(shape)] * 2


def test_what_all_products_read_counts_once() -> None:
    """Memory is read once for an operand that all share: the rest bounds the time."""
    bf16 = dtypes.dtype("bf16")

    def seconds(step: int) -> float:
        a = ArrayRef(1 << 40, (73, 400, 912), (step, 912, 1), bf16, ("cuda", 0), None, "torch")
        b = ArrayRef(2 << 40, (73, 912, 40), (912 * 40, 1, 912), bf16, ("cuda", 0), None, "torch")
        out = ArrayRef(3 << 40, (73, 400, 40), (400 * 40, 40, 1), bf16, ("cuda", 0), None, "torch")
        return ranked(arguments.problem(Call(a, b), out, made=True), Hardware())[0].seconds

    assert 3e-6 < seconds(0) < 0.6 * seconds(400 * 912)


def test_extents_stay_within_limits() -> None:
    """So many rows are no longer an extent that kernels count in 32 bits."""
    a = describe(values(2, 8))._replace(shape=(1 << 16, 1 << 16, 8), strides=(8 << 16, 8, 1))
    out = a._replace(shape=(1 << 16, 1 << 16, 16), strides=(16 << 16, 16, 1), dtype=dtypes.dtype("f16"))
    p = arguments.problem(Call(a, describe(values(8, 16))), out._replace(pointer=1 << 50), made=True)
    assert p.batch == 1 << 16
