"""`matmul` of integers, `scaled_matmul` and `grouped_matmul` on the CPU reference, and their refusals."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typed_cases import case, expected, run

from tests.sampling import examples
from tilemma import ops, testing
from tilemma.errors import LaunchError
from tilemma.ops import arguments, product
from tilemma.ops.plan import Plan
from tilemma.runtime.arrays import describe


@pytest.mark.parametrize("seed", range(examples(18)))
def test_random_products_are_within_the_bound(seed: int) -> None:
    assert run(case(seed)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 5100, 100))
def test_many_random_products_are_within_the_bound(first: int) -> None:
    for seed in range(first, first + 100):
        assert run(case(seed)) <= 1, seed


def test_cases_cover_what_they_should() -> None:
    found = [case(seed) for seed in range(120)]
    assert {x.function for x in found} == {"matmul", "scaled_matmul", "grouped_matmul"}
    assert {x.out_dtype for x in found} == {"s32", "s8", "bf16", "f16", "f32"}
    scales = [x.arrays["scale_a"].shape for x in found if "scale_a" in x.arrays]
    assert any(len(s) == 0 for s in scales) and any(len(s) > 1 and s[-1] > 1 for s in scales)
    ends = [x.arrays["offsets"] for x in found if "offsets" in x.arrays]
    assert any(np.any(np.diff(e, prepend=0) == 0) for e in ends) and any(len(set(e)) > 2 for e in ends)


def test_a_wrong_scale_is_noticed() -> None:
    x = next(c for c in map(case, range(300)) if c.function == "scaled_matmul" and "scale_a" in c.arrays)
    wanted, bound = expected(x)
    x.arrays["scale_a"][...] *= 2
    assert testing.share_of_bound(wanted, expected(x)[0], bound) > 1


def test_integers_are_exact_and_saturate_in_narrow_results() -> None:
    a, b = testing.random_array((20, 300), "s8", 0), testing.random_array((300, 30), "u8", 1)
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(ops.matmul(a, b), wanted) and ops.matmul(a, b).dtype == np.int32
    assert np.array_equal(ops.matmul(a, b, out_dtype="s8"), np.clip(wanted, -128, 127))


def test_numbers_and_arrays_are_equal_scales() -> None:
    a, b = testing.random_array((20, 40), "f8_e4m3", 0), testing.random_array((40, 30), "f8_e5m2", 1)
    one = ops.scaled_matmul(a, b, np.float32(0.5).reshape(1, 1), 2.0)
    assert one.dtype.name == "bfloat16"
    assert one.tobytes() == ops.scaled_matmul(a, b, 1.0, np.full((1, 30), 1, np.float32)).tobytes()


@pytest.mark.parametrize("shapes", [((5, 0), (0, 7)), ((5, 0), (0, 1)), ((1, 0), (0, 7))], ids=str)
@pytest.mark.parametrize("dtype", ["s8", "f8_e4m3"])
def test_without_k_there_are_no_scales_to_read(dtype: str, shapes: tuple[tuple[int, int], ...]) -> None:
    a, b = (testing.random_array(s, dtype, 0) for s in ((5, 0), (0, 7)))
    scales, bias = (np.ones(s, np.float32) for s in shapes), np.arange(7, dtype=np.float32)
    assert np.array_equal(ops.scaled_matmul(a, b, *scales, bias=bias, out_dtype="f32"), np.tile(bias, (5, 1)))


def test_rows_after_the_last_group_are_not_written() -> None:
    a, b = testing.random_array((20, 40), "f16", 0), testing.random_array((3, 40, 30), "f16", 1)
    out = np.full((20, 30), 7, np.float16)
    ops.grouped_matmul(a, b, np.array([0, 5, 9], np.int32), out=out)
    assert (out[9:] == 7).all() and not (out[:9] == 7).any()


def scaled(**changes: Any) -> Callable[[], Any]:
    given = {
        "a": testing.random_array((20, 300), "f8_e4m3", 0),
        "b": testing.random_array((300, 30), "f8_e5m2", 1),
    }
    given |= changes
    return lambda: ops.scaled_matmul(given.pop("a"), given.pop("b"), **given)


def grouped(offsets: Any, **changes: Any) -> Callable[[], Any]:
    given = {"a": testing.random_array((20, 40), "bf16", 0), "b": testing.random_array((3, 40, 30), "bf16", 1)}
    given |= changes
    return lambda: ops.grouped_matmul(given.pop("a"), given.pop("b"), offsets, **given)


ENDS = np.array([5, 5, 20], np.int32)
ONES = np.ones
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "f16 operands": (scaled(a=ONES((20, 300), np.float16)), "matmul-dtype"),
    "integers with floats": (scaled(b=ONES((300, 30), np.int8)), "matmul-dtype"),
    "f8 in matmul": (lambda: ops.matmul(*(testing.random_array((8, 8), "f8_e4m3", 0),) * 2), "matmul-dtype"),
    "s8 with f16": (lambda: ops.matmul(ONES((8, 8), np.int8), ONES((8, 8), np.float16)), "matmul-dtype"),
    "s32 of floats": (scaled(out_dtype="s32"), "matmul-dtype"),
    "s16": (lambda: ops.matmul(ONES((8, 8), np.int8), ONES((8, 8), np.int8), out_dtype="s16"), "matmul-dtype"),
    "f64 scale": (scaled(scale_a=ONES((20, 1))), "matmul-scale"),
    "shape of scale": (scaled(scale_a=ONES((20, 2), np.float32)), "matmul-scale"),
    "vector scale": (scaled(scale_b=ONES(30, np.float32)), "matmul-scale"),
    "batch of scale": (scaled(scale_b=ONES((2, 1, 30), np.float32)), "matmul-scale"),
    "text scale": (scaled(scale_b="1"), "matmul-scalar"),
    "fast": (scaled(fast=2), "wrong-type"),
    "s64 offsets": (grouped(ENDS.astype(np.int64)), "matmul-offsets"),
    "number of offsets": (grouped(ENDS[:2]), "matmul-offsets"),
    "falling offsets": (grouped(ENDS[::-1]), "matmul-offsets"),
    "offsets beyond": (grouped(ENDS + np.int32(1)), "matmul-offsets"),
    "no offsets": (grouped(None), "not-an-array"),
    "matrix for groups": (grouped(ENDS, b=testing.random_array((40, 30), "bf16", 1)), "matmul-shape"),
    "batched rows": (grouped(ENDS, a=testing.random_array((1, 20, 40), "bf16", 1)), "matmul-shape"),
    "bias of groups": (grouped(ENDS, bias=ONES((2, 30), np.float32)), "matmul-shape"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_before_anything_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, code = WRONG[name]
    monkeypatch.setattr("tilemma.ops.product.run", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(LaunchError) as error:
        call()
    assert error.value.code == code
    assert error.value.expectation and error.value.remedy


class Tensor(np.ndarray):
    """Stands for a torch tensor that requires a gradient."""

    requires_grad = True


@pytest.mark.parametrize("name", ["a", "b", "c", "bias", "out"])
def test_a_gradient_that_would_be_lost_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call works as the error advises."""
    enabled = [True]
    torch = types.SimpleNamespace(Tensor=Tensor, is_grad_enabled=lambda: enabled[0])
    monkeypatch.setitem(sys.modules, "torch", torch)
    given = {"a": ONES((8, 8), np.float16), "b": ONES((8, 8), np.float16), "beta": 1.0}
    given |= {n: np.zeros((8, 8) if n != "bias" else 8, np.float16) for n in ("c", "bias", "out")}
    given[name] = given[name].view(Tensor)
    with pytest.raises(LaunchError) as error:
        ops.matmul(given["a"], given["b"], **{n: x for n, x in given.items() if n not in "ab"})
    assert error.value.code == "matmul-gradient" and f"`{name}`" in error.value.message
    assert error.value.remedy == f"call it under `torch.no_grad()`, or pass `{name}.detach()`"
    enabled[0] = False
    ops.matmul(given["a"], given["b"], **{n: x for n, x in given.items() if n not in "ab"})
    enabled[0], given[name] = True, given[name].view(np.ndarray)
    ops.matmul(given["a"], given["b"], **{n: x for n, x in given.items() if n not in "ab"})


FOLLOWED = frozenset({"matmul-gradient"})


def test_plans_of_8_bit_types_read_what_tma_and_wgmma_can() -> None:
    a, b = testing.random_array((256, 256), "s8", 0), testing.random_array((256, 512), "s8", 1)
    assert len(ops.plan(a, b).chosen.plan.pack) == 1
    assert not ops.plan(a, np.asfortranarray(b)).chosen.plan.pack
    left = testing.random_array((256, 256), "f8_e4m3", 0)
    right = np.asfortranarray(testing.random_array((256, 512), "f8_e4m3", 0))
    scales = np.ones((256, 2), np.float32), np.ones((2, 4), np.float32)
    for order in (np.ascontiguousarray, np.asfortranarray):
        plan = ops.plan(left, right, order(scales[0]), scales[1]).chosen.plan
        assert not plan.pack and plan.tile[2] == 128


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("dtype", ["f8_e4m3", "f8_e5m2", "s8", "bf16"])
def test_sums_of_8_bit_floats_are_promoted_unless_they_are_fast(dtype: str, fast: bool) -> None:
    """Tensor cores add products of 8-bit floats with fewer bits than f32 has."""
    a, b = (testing.random_array((64, 64), dtype, i) for i in range(2))
    rules = arguments.PLAIN if dtype == "bf16" else arguments.SCALED
    call = arguments.Call(describe(a), describe(b), rules=rules, fast=fast)
    p = arguments.problem(call, describe(np.empty((64, 64), np.float32)), made=True)
    assert p.promote == (dtype.startswith("f8") and not fast)


@pytest.mark.parametrize("side", ["a", "b"])
def test_each_product_of_a_batch_has_its_scales_where_parts_are_added(side: str) -> None:
    a, b = testing.random_array((2, 72, 264), "s8", 0), testing.random_array((2, 264, 80), "s8", 1)
    shape = (2, 72, 1) if side == "a" else (2, 1, 80)
    scale = testing.random_array(shape, "f32", 2)
    out = np.zeros((2, 72, 80), np.float32)
    call = arguments.Call(describe(a), describe(b), rules=arguments.SCALED, **{f"scale_{side}": describe(scale)})
    p = arguments.problem(call, describe(out), made=False)
    plan = Plan("pipelined", (64, 64, 64), 1, stages=2, grid=2, split=2, by_hand=True)
    if p.rhs_major == "col":
        plan = replace(plan, pack=("rhs",))
    product.run(p, plan, "cpu")
    wanted = (a.astype(np.int64) @ b.astype(np.int64)) * scale.astype(np.float64)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
