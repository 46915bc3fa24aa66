from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import any_plan, case, expected, run

from tilemma import ops, testing
from tilemma.errors import LaunchError
from tilemma.ops import product
from tilemma.ops.plan import Plan


@pytest.mark.parametrize("seed", range(48))
def test_random_products_are_within_the_bound(seed: int) -> None:
    assert run(case(seed)) <= 1


@pytest.mark.parametrize("seed", range(9, 90, 20))
def test_any_plan_that_could_is_within_the_bound(seed: int) -> None:
    with any_plan(seed):
        assert run(case(seed)) <= 1


def test_any_plan_draws_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "run", lambda problem, plan: None)
    drawn: list[Plan] = []
    for seed in range(9, 400, 10):
        x = case(seed)
        with any_plan(seed) as found:
            ops.matmul(x.a, x.b, out=x.out, c=x.c, bias=x.bias, **x.options)
        drawn += found
    assert {p.kernel for p in drawn} == {"tiles", "pipelined"}
    assert any(p.split > 1 for p in drawn) and any(p.swap for p in drawn) and any(p.pack for p in drawn)
    assert any(p.cluster == (2, 1) for p in drawn) and any(p.cluster == (1, 2) for p in drawn)


def test_cases_cover_what_they_should() -> None:
    """The fixed sample above has every kind of call in it."""
    found = [case(seed) for seed in range(48)]
    assert {x.options.get("activation") for x in found} == {None, "relu", "gelu", "silu"}
    assert any(x.c is not None and x.c is x.out for x in found)
    assert any(x.a.ndim != x.b.ndim for x in found) and any(x.a.ndim == 4 for x in found)
    assert any(x.a.size == 0 for x in found)
    assert {x.out_dtype for x in found} == {"f16", "bf16", "f32"}
    assert any(x.bias is not None and x.bias.ndim == 2 and x.bias.shape[1] == 1 < x.bias.shape[0] for x in found)


def test_the_surroundings_are_watched() -> None:
    x = next(c for c in map(case, range(100)) if c.out is not None and c.out.size)
    frame = x.frames["out"]
    before = frame.copy()
    frame[(0,) * frame.ndim] = 1
    from cases import surroundings_kept

    assert not surroundings_kept(before, frame, frame, x.out)


def matrices(m: int = 9, n: int = 10, k: int = 11) -> tuple[Any, Any]:
    return testing.random_array((m, k), "f16", 0), testing.random_array((k, n), "f16", 1)


def test_small_integers_are_exact() -> None:
    a = testing.random_array((70, 33), "bf16", 0, "small_integers")
    b = testing.random_array((33, 65), "bf16", 1, "small_integers")
    result = ops.matmul(a, b, out_dtype="f32")
    assert np.array_equal(result, a.astype(np.float64) @ b.astype(np.float64))


def test_beta_zero_never_reads_c() -> None:
    a, b = matrices()
    c = np.full((9, 10), np.nan, np.float16)
    assert np.array_equal(ops.matmul(a, b, c=c, beta=0.0), ops.matmul(a, b))


def test_no_depth_gives_the_epilogue_of_zero() -> None:
    a, b = np.ones((3, 0), np.float16), np.ones((0, 4), np.float16)
    c, bias = np.full((3, 4), 2, np.float16), np.arange(4, dtype=np.float16)
    assert np.array_equal(ops.matmul(a, b, c=c, beta=3, bias=bias), np.full((3, 4), 6) + np.arange(4))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_nan_stays_nan(activation: str) -> None:
    a, b = matrices()
    a[2, 3] = np.nan
    result = ops.matmul(a, b, activation=activation)
    assert np.isnan(result[2]).all() and not np.isnan(np.delete(result, 2, 0)).any()


def test_the_same_call_gives_the_same_bits() -> None:
    a, b = matrices(100, 90, 300)
    assert ops.matmul(a, b).tobytes() == ops.matmul(a, b).tobytes()


def test_swapped_layouts_give_the_same_bits() -> None:
    a, b = matrices(40, 50, 60)
    first = ops.matmul(a, b)
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b)):
            assert ops.matmul(left, right).tobytes() == first.tobytes()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "depths": ({"b": np.ones((5, 10), np.float16)}, "matmul-shape"),
    "vector": ({"a": np.ones(11, np.float16)}, "matmul-shape"),
    "batches": ({"a": np.ones((2, 9, 11), np.float16), "b": np.ones((3, 11, 10), np.float16)}, "matmul-shape"),
    "f32 operand": ({"a": np.ones((9, 11), np.float32)}, "matmul-dtype"),
    "mixed operands": ({"b": testing.random_array((11, 10), "bf16", 0)}, "matmul-dtype"),
    "integer out": ({"out": np.ones((9, 10), np.int32)}, "matmul-dtype"),
    "unknown out_dtype": ({"out_dtype": "f17"}, "matmul-dtype"),
    "Python's float, an f64": ({"out_dtype": float}, "matmul-dtype"),
    "out against out_dtype": ({"out": np.ones((9, 10), np.float16), "out_dtype": "f32"}, "matmul-dtype"),
    "out shape": ({"out": np.ones((10, 9), np.float16)}, "matmul-shape"),
    "bias shape": ({"bias": np.ones(9, np.float16)}, "matmul-shape"),
    "bias matrix": ({"bias": np.ones((9, 10), np.float16)}, "matmul-shape"),
    "c shape": ({"c": np.ones((9, 9), np.float16), "beta": 1.0}, "matmul-shape"),
    "c type": ({"c": np.ones((9, 10), np.float64), "beta": 1.0}, "matmul-dtype"),
    "no c": ({"beta": 1.0}, "matmul-addend"),
    "alpha array": ({"alpha": np.ones(3)}, "matmul-scalar"),
    "beta text": ({"beta": "1"}, "matmul-scalar"),
    "activation": ({"activation": "gleu"}, "matmul-activation"),
    "tune number": ({"tune": 1}, "wrong-type"),
    "no array": ({"a": 3}, "not-an-array"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_before_anything_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, code = WRONG[name]
    monkeypatch.setattr("tilemma.ops.product.run", lambda *a, **k: pytest.fail("it ran"))
    a, b = matrices()
    arguments = {"a": a, "b": b, **changes}
    with pytest.raises(LaunchError) as error:
        ops.matmul(arguments.pop("a"), arguments.pop("b"), **arguments)
    assert error.value.code == code
    assert error.value.expectation and error.value.remedy


def test_out_that_shares_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilemma.ops.product.run", lambda *a, **k: pytest.fail("it ran"))
    room = np.zeros(400, np.float16)
    a, b = room[:99].reshape(9, 11), np.ones((11, 10), np.float16)
    for out, code in (
        (room[50:140].reshape(9, 10), "array-overlap"),
        (np.lib.stride_tricks.as_strided(room[200:], (9, 10), (2, 2)), "array-self-overlap"),
        (np.broadcast_to(np.float16(0), (9, 10)), "array-read-only"),
    ):
        with pytest.raises(LaunchError) as error:
            ops.matmul(a, b, out=out)
        assert error.value.code == code


def test_out_may_be_c_itself_but_not_a_part_of_it() -> None:
    a, b = matrices()
    room = testing.random_array((10, 10), "f16", 5)
    wanted = ops.matmul(a, b, c=room[:9].copy(), beta=0.5)
    with pytest.raises(LaunchError, match="shares memory"):
        ops.matmul(a, b, out=room[:9], c=room[1:], beta=0.5)
    assert ops.matmul(a, b, out=room[:9], c=room[:9], beta=0.5).tobytes() == wanted.tobytes()


def test_expected_notices_a_wrong_result() -> None:
    x = next(c for c in map(case, range(100)) if c.out is None and c.a.size and c.b.size)
    wanted, bound = expected(x)
    result = ops.matmul(x.a, x.b, c=x.c, bias=x.bias, **x.options)
    spoiled = result.astype(np.float64)
    spoiled.flat[0] += max(1.0, abs(spoiled.flat[0]))
    assert testing.share_of_bound(result, wanted, bound) <= 1 < testing.share_of_bound(spoiled, wanted, bound)
