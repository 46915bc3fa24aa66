"""Products of f32, tf32 and f64: the CPU reference, the PTX machine, and refusals."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import strided

from tests.sampling import examples
from tilemma import ops, testing
from tilemma.errors import LaunchError
from tilemma.ops import product
from tilemma.ops.candidates import candidates
from tilemma.ops.plan import Hardware, Plan
from tilemma.ops.problem import Problem

KINDS = (("f32", None), ("f32", "tf32"), ("f64", None))
SIZES = (1, 2, 7, 16, 31, 33, 64, 72, 130)


def call(seed: int, kind: tuple[str, str | None]) -> tuple[dict[str, Any], Any, Any]:
    """Keywords of a random call, the float64 result and its bound."""
    rng = random.Random(seed)
    dtype, compute = kind
    m, n, k = (rng.choice(SIZES) for _ in range(3))
    batch = rng.choice([(), (), (2,)])

    def array(shape: tuple[int, ...], which: int) -> Any:
        values = testing.random_array(shape, dtype, 8 * seed + which)
        return strided(values, rng, rng.choice(["rows", "columns", "neither"]), str(which), {})

    given: dict[str, Any] = {"a": array((*batch, m, k), 0), "b": array((k, n), 1), "compute": compute}
    given["alpha"], given["activation"] = rng.choice([1.0, -0.75]), rng.choice([None, "relu", "gelu", "silu"])
    if rng.random() < 0.5:
        given |= {"c": array((m, n), 2), "beta": 0.5}
    if rng.random() < 0.5:
        given["bias"] = array((m, 1), 3) if rng.random() < 0.5 else array((1, n), 3)[0]
    out = "f32" if rng.random() < 0.3 else dtype
    given["out_dtype"] = out
    a, b = (testing.to_float64(given[x]) for x in "ab")
    value = given["alpha"] * (a @ b)
    for name, factor in (("c", given.get("beta", 0.0)), ("bias", 1.0)):
        if name in given:
            value = value + factor * testing.to_float64(given[name])
    if given["activation"]:
        value = testing.ACTIVATIONS[given["activation"]].value(value)
    bound = testing.error_bound(
        given["a"], given["b"], dtype, out, given["alpha"], given.get("beta", 0.0), given.get("c"),
        given.get("bias"), given["activation"], operands=compute,
    )  # fmt: skip
    return given, value, bound


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(examples(12)))
def test_random_products_are_within_the_bound(seed: int, kind: tuple[str, str | None]) -> None:
    given, wanted, bound = call(seed, kind)
    result = ops.matmul(**given)
    assert testing.describe(result).dtype.name == given["out_dtype"]
    assert testing.share_of_bound(result, wanted, bound) <= 1


def test_f32_is_exact_where_tf32_is_not() -> None:
    a = np.full((16, 16), 1 + 2**-20, np.float32)
    exact = ops.matmul(a, np.eye(16, dtype=np.float32))
    assert np.array_equal(exact, a)
    assert not np.array_equal(ops.matmul(a, np.eye(16, dtype=np.float32), compute="tf32"), a)


SMALL = Plan("pipelined", (64, 64, 32), 1, stages=2, grid=2)
VARIANTS: dict[str, tuple[Plan, tuple[str, str | None], str]] = {
    "tf32": (SMALL, ("f32", "tf32"), "rc"),
    "tf32 of other layouts": (SMALL, ("f32", "tf32"), "cr"),
    "tf32 in parts": (replace(SMALL, split=2), ("f32", "tf32"), "rc"),
    "tf32 swapped": (replace(SMALL, tile=(64, 16, 64), swap=True), ("f32", "tf32"), "rc"),
    "f32": (Plan("ahead", (64, 64, 32), 1), ("f32", None), "rc"),
    "f32 of other layouts": (Plan("ahead", (64, 64, 32), 1), ("f32", None), "cr"),
    "f64": (Plan("ahead", (64, 64, 16), 1), ("f64", None), "rc"),
    "f64 of other layouts": (Plan("tiles", (128, 128, 16), 2), ("f64", None), "cr"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_on_the_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, (dtype, compute), layout = VARIANTS[name]
    compute_ = product.run

    def run(problem: Problem, _: Plan) -> None:
        found = plan
        if plan.kernel == "pipelined":
            known = candidates(problem, Hardware())
            found = replace(
                plan, pack=next(c.pack for c in known if c.kernel == "pipelined" and c.swap == plan.swap)
            )
        compute_(problem, found, "machine", arch="sm_90a", seed=1)

    monkeypatch.setattr(product, "run", run)
    a, b = testing.random_array((40, 72), dtype, 0), testing.random_array((72, 48), dtype, 1)
    a, b = (np.asfortranarray(x) if order == "c" else x for x, order in zip((a, b), layout, strict=True))
    bias = testing.random_array((48,), dtype, 2)
    result = ops.matmul(a, b, compute=compute, bias=bias, activation="silu", alpha=0.5)
    wanted = testing.ACTIVATIONS["silu"].value(0.5 * (testing.to_float64(a) @ testing.to_float64(b)) + bias)
    bound = testing.error_bound(a, b, dtype, dtype, 0.5, bias=bias, activation="silu", operands=compute)
    assert testing.share_of_bound(result, wanted, bound) <= 1


ONES = np.ones
WRONG = {
    "tf32 of f64": ({"a": ONES((8, 8)), "b": ONES((8, 8)), "compute": "tf32"}, "matmul-compute"),
    "tf32 of f16": (
        {"a": ONES((8, 8), np.float16), "b": ONES((8, 8), np.float16), "compute": "tf32"},
        "matmul-compute",
    ),
    "another type": (
        {"a": ONES((8, 8), np.float32), "b": ONES((8, 8), np.float32), "compute": "f16"},
        "matmul-compute",
    ),
    "no name": ({"a": ONES((8, 8), np.float32), "b": ONES((8, 8), np.float32), "compute": 1}, "matmul-compute"),
    "f32 with f64": ({"a": ONES((8, 8), np.float32), "b": ONES((8, 8))}, "matmul-dtype"),
    "f64 bias": (
        {"a": ONES((8, 8), np.float32), "b": ONES((8, 8), np.float32), "bias": ONES(8)},
        "matmul-dtype",
    ),
    "f16 of f64": ({"a": ONES((8, 8)), "b": ONES((8, 8)), "out_dtype": "f16"}, "matmul-dtype"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, code = WRONG[name]
    monkeypatch.setattr("tilemma.ops.product.run", lambda *a, **k: pytest.fail("it ran"))
    with pytest.raises(LaunchError) as error:
        ops.matmul(**given)
    assert error.value.code == code and error.value.remedy
