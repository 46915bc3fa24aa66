from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.errors import TilemmaError
from tilemma.testing import (
    ACTIVATIONS,
    differential,
    error_bound,
    guarded,
    half_ulp,
    random_array,
    reference,
    share_of_bound,
    to_float64,
)

Array = np.ndarray[Any, Any]
FLOATS = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")


def products(a: Array, b: Array) -> Array:
    """[M, N, K], exact."""
    return a.astype(np.float64)[:, None, :] * b.astype(np.float64).T[None, :, :]


def truncate(x: Array, bits: int) -> Array:
    """``x`` cut to ``bits`` significant bits, toward zero."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits)


def tensor_core(p: Array, step: int, bits: int = 24, result: Callable[[Array], Array] | None = None) -> Array:
    """Steps of ``step`` products: addends aligned to the largest exponent and truncated, and so is the sum."""
    total = np.zeros(p.shape[:-1])
    for k in range(0, p.shape[-1], step):
        addends = np.concatenate([total[..., None], p[..., k : k + step]], axis=-1)
        _, exponent = np.frexp(np.abs(addends).max(axis=-1, keepdims=True))
        grain = np.ldexp(1.0, exponent - bits)
        total = truncate((np.trunc(addends / grain) * grain).sum(axis=-1), bits)
        total = result(total) if result else total
    return total


def sequential(p: Array, t: Any) -> Array:
    total = np.zeros(p.shape[:-1], t)
    for k in range(p.shape[-1]):
        total = (total + p[..., k].astype(t)).astype(t)
    return total


def pairwise(p: Array, t: Any) -> Array:
    q = p.astype(t)
    while q.shape[-1] > 1:
        if q.shape[-1] % 2:
            q = np.concatenate([q, np.zeros((*q.shape[:-1], 1), t)], axis=-1)
        q = (q[..., ::2] + q[..., 1::2]).astype(t)
    return q[..., 0]


def split(p: Array, parts: int) -> Array:
    pieces = [tensor_core(x, 16) for x in np.array_split(p, parts, axis=-1)]
    total = np.zeros(p.shape[:-1], np.float32)
    for piece in pieces:
        total = total + piece.astype(np.float32)
    return total


F32_ORDERS: dict[str, Callable[[Array], Array]] = {
    "sequential": lambda p: sequential(p, np.float32),
    "reversed": lambda p: sequential(p[..., ::-1], np.float32),
    "pairwise": lambda p: pairwise(p, np.float32),
    "steps of 4": lambda p: tensor_core(p, 4),
    "steps of 8": lambda p: tensor_core(p, 8),
    "steps of 16": lambda p: tensor_core(p, 16),
    "split in 3": lambda p: split(p, 3),
    "split in 16": lambda p: split(p, 16),
}


@st.composite
def operands(draw: st.DrawFn, types: tuple[str, ...] = ("f16", "bf16")) -> tuple[Array, Array]:
    m, n, k = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 70))
    t = draw(st.sampled_from(types))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Magnitudes apart by up to 2^20, and one sign: the cases where truncation hurts most.
    spread = draw(st.sampled_from([0, 0, 3, 10]))
    signed = draw(st.booleans())

    def make(shape: tuple[int, int]) -> Array:
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-spread, spread + 1, shape))
        with np.errstate(over="ignore"):
            return (x if signed else np.abs(x)).astype(dtypes.dtype(t).numpy)

    return make((m, k)), make((k, n))


@given(operands(), st.sampled_from(["f32", "f16", "bf16"]))
@settings(max_examples=examples(150))
def test_no_order_of_f32_accumulation_exceeds_the_bound(ab: tuple[Array, Array], out: str) -> None:
    a, b = ab
    wanted = reference("mk,kn->mn", a, b)
    bound = error_bound(a, b, "f32", out)
    for name, add in F32_ORDERS.items():
        with np.errstate(over="ignore"):
            result = add(products(a, b)).astype(np.float32).astype(dtypes.dtype(out).numpy)
        assert share_of_bound(result, wanted, bound) <= 1, name


@given(operands(("f8_e4m3", "f8_e5m2")))
def test_fp8_with_14_bits_while_adding(ab: tuple[Array, Array]) -> None:
    a, b = (np.nan_to_num(x.astype(np.float32), posinf=1, neginf=1).astype(x.dtype) for x in ab)
    result = tensor_core(products(a, b), 32, bits=14)
    assert share_of_bound(result, reference("mk,kn->mn", a, b), error_bound(a, b, "f32", "f32")) <= 1


@given(operands(("f16",)))
def test_f16_accumulators(ab: tuple[Array, Array]) -> None:
    a, b = ab
    wanted = reference("mk,kn->mn", a, b)
    bound = error_bound(a, b, "f16", "f16")

    def cut(x: Array) -> Array:
        with np.errstate(over="ignore"):
            return truncate(x, 11).astype(np.float16).astype(np.float64)

    with np.errstate(over="ignore", invalid="ignore"):
        results = [
            sequential(products(a, b), np.float16),
            tensor_core(products(a, b), 4, result=cut),
            tensor_core(products(a, b), 16, result=cut),
        ]
    for result in results:
        assert share_of_bound(result, wanted, bound) <= 1


@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("step", [4, 8, 16])
def test_truncation_that_always_loses_stays_within_and_uses_a_good_part(acc: str, step: int) -> None:
    depth = 1 + 16 * 20
    a, b = np.ones((1, depth), np.float16), np.ones((depth, 1), np.float16)
    # 1, and then addends just below its last place; in f16 it is their sum over a step that is.
    below = 1 - 2.0**-11
    a[0, 1:], b[1:, 0] = (2.0**-11, 2.0**-12 * below) if acc == "f32" else (2.0**-10 / step, below)

    def cut(x: Array) -> Array:
        return truncate(x, 11)

    p = products(a, b)
    # The 1 comes as a step of its own: it is in the accumulator from then on.
    p = np.concatenate([p[..., :1], np.zeros((1, 1, step - 1)), p[..., 1:]], axis=-1)
    result = tensor_core(p, step, result=cut if acc == "f16" else None)
    share = share_of_bound(result, reference("mk,kn->mn", a, b), error_bound(a, b, acc, acc))
    assert (0.3 if acc == "f32" else 1.5 / step) < share <= 1


@given(operands(("f32",)))
def test_f32_and_tf32_operands(ab: tuple[Array, Array]) -> None:
    a, b = ab
    wanted = reference("mk,kn->mn", a, b)
    result = sequential(products(a, b).astype(np.float32), np.float32)
    assert share_of_bound(result, wanted, error_bound(a, b, "f32", "f32")) <= 1
    cut = [truncate(x.astype(np.float64), 11) for x in ab]
    result = tensor_core(products(*cut), 4)
    assert share_of_bound(result, wanted, error_bound(a, b, "f32", "f32", operands="tf32")) <= 1
    if wanted.size and np.abs(result - wanted).max() > 1e-3 * np.abs(products(a, b)).sum(axis=-1).max():
        assert share_of_bound(result, wanted, error_bound(a, b, "f32", "f32")) > 1


@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("out", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("depth", [1, 2, 15, 17, 65])
def test_a_dropped_last_element_is_convicted(depth: int, out: str, acc: str) -> None:
    a, b = random_array((64, depth), "f16", 1), random_array((depth, 64), "f16", 2)
    wanted = reference("mk,kn->mn", a, b)
    wrong = reference("mk,kn->mn", a[:, :-1], b[:-1]).astype(dtypes.dtype(out).numpy)
    assert share_of_bound(wrong, wanted, error_bound(a, b, acc, out)) > 1


def test_small_integers_make_an_exact_test_at_any_depth() -> None:
    a = random_array((8, 4096), "f16", 1, "small_integers")
    b = random_array((4096, 8), "f16", 2, "small_integers")
    wanted = reference("mk,kn->mn", a, b)
    bound = error_bound(a, b, "f32", "f32")
    assert (bound == 0).all()
    for add in F32_ORDERS.values():
        assert share_of_bound(add(products(a, b)), wanted, bound) == 0
    assert share_of_bound(wanted + np.eye(8), wanted, bound) == np.inf
    eighth = (a.astype(np.float32) / 8).astype(np.float16)
    assert (error_bound(eighth, b, "f32", "f32") == 0).all()
    eighth[0, 0] = 2.0**-24
    assert (error_bound(eighth, b, "f32", "f32") > 0).all()


def test_integers_are_exact_until_they_wrap() -> None:
    a, b = random_array((4, 300), "s8", 1), random_array((300, 4), "s8", 2)
    wanted = reference("mk,kn->mn", a, b)
    bound = error_bound(a, b, "s32", "s32")
    assert (bound == 0).all() and share_of_bound(wanted.astype(np.int32), wanted, bound) == 0
    assert share_of_bound(wanted + 1, wanted, bound) == np.inf
    clipped = np.clip(wanted, -128, 127).astype(np.int8)
    assert share_of_bound(clipped, wanted, error_bound(a, b, "s32", "s8")) <= 1
    assert share_of_bound(np.maximum(clipped, 0), wanted, error_bound(a, b, "s32", "s8")) > 1
    deep = np.full((1, 140_000), 127, np.int8)
    assert np.isinf(error_bound(deep, deep.T, "s32", "s32")).all()


@given(operands(), st.sampled_from(["f16", "bf16", "f32"]), st.sampled_from([None, *ACTIVATIONS]))
def test_epilogues(ab: tuple[Array, Array], out: str, activation: str | None) -> None:
    a, b = ab
    m, n = a.shape[0], b.shape[1]
    c, bias = random_array((m, n), "f16", 3), random_array((n,), "f32", 4)
    alpha, beta = -1.25, 0.7
    exact = alpha * reference("mk,kn->mn", a, b) + beta * to_float64(c) + to_float64(bias)
    wanted = ACTIVATIONS[activation].value(exact) if activation else exact
    bound = error_bound(a, b, "f32", out, alpha, beta, c, bias, activation)
    acc = F32_ORDERS["steps of 8"](products(a, b)).astype(np.float32)
    value = np.float32(alpha) * acc + np.float32(beta) * c.astype(np.float32) + bias
    assert value.dtype == np.float32
    with np.errstate(over="ignore"):
        if activation == "relu":
            value = np.maximum(value, 0)
        elif activation == "silu":
            value = value / (1 + np.exp(-value))
        elif activation == "gelu_tanh":
            inner = np.float32(0.7978845608) * (value + np.float32(0.044715) * value**3)
            value = np.float32(0.5) * value * (1 + np.tanh(inner) * np.float32(1 - 2.0**-12))
        elif activation == "gelu":
            value = ACTIVATIONS["gelu"].value(value.astype(np.float64)).astype(np.float32)
        result = value.astype(dtypes.dtype(out).numpy)
    assert share_of_bound(result, wanted, bound) <= 1
    for less in ({"c": c * 0}, {"bias": bias * 0}):
        forgotten = alpha * reference("mk,kn->mn", a, b)
        forgotten = forgotten + beta * to_float64(less.get("c", c)) + to_float64(less.get("bias", bias))
        plain = error_bound(a, b, "f32", "f32", alpha, beta, c, bias)
        if np.abs(forgotten - exact).max() > 1e-2 * np.abs(products(a, b)).sum():
            assert share_of_bound(forgotten, exact, plain) > 1


def test_rounding_in_the_epilogue_counts_where_terms_cancel() -> None:
    a, b = random_array((40, 16), "f16", 1, "small_integers"), random_array((16, 40), "f16", 2, "small_integers")
    product = reference("mk,kn->mn", a, b)
    alpha, c = 1.1, (-product * 1.1 / 0.7).astype(np.float32)
    wanted = alpha * product + 0.7 * to_float64(c)
    result = (np.float32(alpha) * product.astype(np.float32)).astype(np.float32) + np.float32(0.7) * c
    share = share_of_bound(result, wanted, error_bound(a, b, "f32", "f32", alpha, 0.7, c))
    assert 0.1 < share <= 1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_accumulators_error_passes_through_an_activation(name: str) -> None:
    a, b = random_array((64, 256), "f16", 1), random_array((256, 64), "f16", 2)
    b = (b * np.float16(2.0**-4)).astype(np.float16)
    value, f = reference("mk,kn->mn", a, b), ACTIVATIONS[name].value
    before, after = error_bound(a, b, "f16", "f16"), error_bound(a, b, "f16", "f64", activation=name)
    shares = [share_of_bound(f(value + sign * before), f(value), after) for sign in (-1, 1)]
    assert 0.85 < max(shares) <= 1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lipschitz_constants(name: str) -> None:
    f = ACTIVATIONS[name]
    x = np.linspace(-12, 12, 200_001)
    slopes = np.abs(np.diff(f.value(x)) / np.diff(x))
    assert 0.97 * f.lipschitz < slopes.max() <= f.lipschitz * (1 + 1e-9)


@pytest.mark.parametrize("name", FLOATS)
def test_half_ulp_bounds_rounding_and_is_reached(name: str) -> None:
    t = dtypes.dtype(name)
    x = np.abs(random_array((20_000,), "f64", 5)) * np.exp2(np.random.default_rng(6).integers(-20, 5, 20_000))
    x = np.concatenate([x, x * 2.0**-120 if t.bits > 16 else x * 2.0**-10, [0.0]])
    error = np.abs(x - x.astype(t.numpy).astype(np.float64))
    allowed = half_ulp(x, t)
    assert (error <= allowed).all()
    if name != "f64":
        assert (error > 0.9 * allowed).any()


@pytest.mark.parametrize("name", FLOATS)
def test_the_largest_value_of_each_type(name: str) -> None:
    t = dtypes.dtype(name)
    info = ml_dtypes.finfo(t.numpy) if t.bits <= 16 else np.finfo(t.numpy)
    f = t.floating
    assert (
        float(info.max) == f.largest and info.nmant == f.mantissa and float(info.smallest_normal) == 2.0**f.lowest
    )


def test_overflow_claims_nothing_and_saturation_is_allowed() -> None:
    a = np.full((1, 8), 200, np.float16)
    assert np.isinf(error_bound(a, a.T, "f32", "f16")).all()
    assert np.isfinite(error_bound(a, a.T, "f32", "bf16")).all()
    assert np.isinf(error_bound(a, a.T, "f16", "f32")).all()
    wanted = reference("mk,kn->mn", a, a.T)
    assert share_of_bound(np.array([[448.0]]), wanted, error_bound(a, a.T, "f32", "f8_e4m3")) <= 1
    assert share_of_bound(np.array([[-448.0]]), wanted, error_bound(a, a.T, "f32", "f8_e4m3")) > 1


def test_empty_contractions_are_exact() -> None:
    a, b = np.zeros((3, 0), np.float16), np.zeros((0, 5), np.float16)
    bound = error_bound(a, b)
    assert bound.shape == (3, 5) and share_of_bound(np.zeros((3, 5)), np.zeros((3, 5)), bound) == 0
    assert share_of_bound(np.full((3, 5), 2.0**-20), np.zeros((3, 5)), bound) > 1
    assert error_bound(np.zeros((0, 4), np.float16), np.zeros((4, 5), np.float16)).shape == (0, 5)
    with pytest.raises(ValueError, match="K, N"):
        error_bound(np.zeros((3, 4)), np.zeros((5, 4)))


def test_share_of_bound_at_the_edges() -> None:
    one = np.ones(2)
    assert share_of_bound(one, one, 0 * one) == 0
    assert share_of_bound(one + 1, one, 0 * one) == np.inf
    assert share_of_bound(np.array([1.0, np.nan]), one, one) == np.inf
    assert share_of_bound(np.array([1.0, np.inf]), one, one) == np.inf
    assert share_of_bound(np.array([1.0, np.inf]), np.array([1.0, np.inf]), one) == 0
    assert share_of_bound(np.array([1.0, np.inf]), np.array([1.0, -np.inf]), one) == np.inf
    assert share_of_bound(np.array([1.0, np.nan]), np.array([1.0, np.nan]), one) == 0
    assert share_of_bound(np.array([1.0, 0.0]), np.array([1.0, np.nan]), one) == np.inf
    assert share_of_bound(np.array([1.5, np.nan]), one, np.array([1.0, np.inf])) == 0.5
    assert share_of_bound(one, one, np.nan * one) == 0 and share_of_bound(one + 1, one, np.nan * one) == np.inf
    assert share_of_bound(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3))) == 0
    with pytest.raises(ValueError, match="shape"):
        share_of_bound(one, np.ones(3), one)


@pytest.mark.parametrize("name", [n for n in dtypes.BY_NAME if n not in ("u64", "s64")])
@pytest.mark.parametrize("kind", ["randn", "small_integers", "onehot"])
def test_random_arrays(name: str, kind: str) -> None:
    x = random_array((6, 9), name, 3, kind)
    assert x.shape == (6, 9) and x.dtype == dtypes.dtype(name).numpy
    assert np.array_equal(x.astype(float), random_array((6, 9), name, 3, kind).astype(float))
    assert not np.array_equal(x.astype(float), random_array((6, 9), name, 4, kind).astype(float))
    if kind == "onehot" and name not in ("b1", "bool"):
        assert (x.astype(float).sum(axis=1) == 1).all() and (x.astype(float).max(axis=1) == 1).all()
    assert random_array((0, 4), name, 0, kind).shape == (0, 4)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="onehot"):
        random_array((2,), "f16", 0, "uniform")


@given(
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from(["f16", "f32", "s8", "f8_e4m3"]),
    st.sampled_from([0, 4, 16]),
    st.sampled_from([0, 4, 16]),
)
def test_guards_see_every_byte_outside_and_none_inside(
    shape: tuple[int, int], t: str, gap: int, misalignment: int
) -> None:
    x = random_array(shape, t, 1)
    g = guarded(x, margin=128, gap=gap, misalignment=misalignment)
    assert np.array_equal(g.array.astype(float), x.astype(float))
    assert not x.size or g.array.ctypes.data % 128 == misalignment
    g.check()
    g.array[...] = random_array(shape, t, 2)
    g.check()
    inside = 0
    for i in range(g.memory.size):
        saved, g.memory[i] = int(g.memory[i]), 0x5A
        try:
            g.check()
            inside += 1
        except AssertionError:
            pass
        g.memory[i] = saved
    assert inside == x.nbytes


def test_guards_say_where() -> None:
    g = guarded(np.zeros((2, 4), np.float16), gap=2)
    g.memory[4096 + 8] = 0
    with pytest.raises(AssertionError, match="1 bytes outside the array were written, the first 8 bytes"):
        g.check()


def test_a_read_around_a_guarded_array_shows() -> None:
    for t in ("f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"):
        g = guarded(random_array((2, 3), t, 0), margin=128)
        around = g.memory[:128].view(g.array.dtype).astype(np.float64)
        assert np.isnan(around).all()


def test_differential_names_the_wrong_one() -> None:
    a, b = random_array((8, 16), "f16", 1), random_array((8, 16), "f16", 2)
    wanted, bound = reference("mk,nk->mn", a, b), error_bound(a, b.T, "f32", "f32")
    good: dict[str, Callable[..., Any]] = {
        "numpy": lambda x, y: x.astype("f4") @ y.astype("f4").T,
        "double": lambda x, y: x.astype("f8") @ y.astype("f8").T,
    }
    shares = differential(good, [a, b], wanted, bound)
    assert set(shares) == {"numpy", "double"} and max(shares.values()) <= 1
    with pytest.raises(AssertionError, match="tail uses"):
        differential({**good, "tail": lambda x, y: good["numpy"](x[:, :-1], y[:, :-1])}, [a, b], wanted, bound)
    with pytest.raises(AssertionError, match="numpy and double differ"):
        differential(good, [a, b], wanted, bound, identical=[("numpy", "double")])

    def greedy(x: Array, y: Array) -> Array:
        x[...] = 0
        return wanted

    differential({"greedy": greedy, **good}, [a, b], wanted, bound)
    assert a.any()


@pytest.mark.parametrize(
    "array",
    [np.ones((1, 1)).view(np.matrix), np.array([None, 1]), np.zeros(2, [("a", "O")]), [1, 2], None, "x"],
    ids=repr,
)
def test_guarded_takes_plain_arrays_only(array: Any) -> None:
    with pytest.raises(TypeError, match="guarded"):
        guarded(array)


@pytest.mark.parametrize(
    "options", [{"margin": 5}, {"gap": 3}, {"gap": -4}, {"margin": -128}, {"misalignment": -1}]
)
def test_guarded_refuses_odd_sizes(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        guarded(np.zeros(4, np.float32), **options)


@pytest.mark.parametrize(
    "arguments",
    [
        {"shape": 5}, {"shape": None}, {"shape": "ab"}, {"shape": (1.5,)}, {"shape": (-1,)}, {"shape": (1,) * 40},
        {"shape": (10**9, 10**9)}, {"shape": (2,), "seed": -1}, {"shape": (2,), "seed": "x"},
        {"shape": (2,), "kind": 5},
        {"shape": (2,), "dtype": "O"}, {"shape": (2,), "dtype": None}, {"shape": (2,), "dtype": object},
        {"shape": (np.ones((1, 1), int).view(np.matrix),)},
    ],
    ids=str,
)  # fmt: skip
def test_random_array_refuses_what_is_no_array(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        random_array(**arguments)
    assert isinstance(caught.value, TilemmaError)
