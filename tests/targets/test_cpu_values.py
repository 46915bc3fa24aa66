"""Conversions and arithmetic against exact definitions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import dtypes
from tilemma.arithmetic.convert import carrier, load, rounded, store
from tilemma.arithmetic.floats import LIBRARY as MATH
from tilemma.arithmetic.integers import bounds, wrap
from tilemma.dtypes import BY_NAME, DType
from tilemma.ir import expr as e
from tilemma.ir.expr import Binary, Cast, Const, Select, Unary, Var
from tilemma.targets.cpu.expressions import INSTANCE, Expressions, Names
from tilemma.targets.cpu.tasks import Block, Instance
from tilemma.targets.cpu.values import converted

# Functions of more than one argument.
SEVERAL = {"atan2", "fmaf", "max", "min", "pow"}
FLOATS = [t for t in BY_NAME.values() if t.is_float]
INTEGERS = [t for t in BY_NAME.values() if t.is_integer]


def grid(t: DType) -> list[float]:
    """All finite values of a type of 16 bits or fewer, in order."""
    bits = np.arange(1 << t.bits, dtype=np.uint16 if t.bits == 16 else np.uint8)
    with np.errstate(invalid="ignore"):
        values = bits.view(t.numpy).astype(np.float64)
    return sorted({float(v) for v in values[np.isfinite(values)]})


GRIDS = {t.name: grid(t) for t in FLOATS if t.bits <= 16}


def nearest_even(x: float, t: DType) -> float:
    """The definition: the nearest value of the type, the even one of two."""
    values = np.array(GRIDS[t.name])
    i = int(np.searchsorted(values, x))
    candidates = values[max(0, i - 1) : i + 1]
    distances = [abs(Fraction(float(c)) - Fraction(x)) for c in candidates]
    best = [float(c) for c, d in zip(candidates, distances, strict=True) if d == min(distances)]
    if len(best) == 2:
        kind = np.uint16 if t.bits == 16 else np.uint8
        best = [c for c in best if np.array(c).astype(t.numpy).view(kind) % 2 == 0]
    return best[0]


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from([t for t in FLOATS if t.bits <= 16]), st.floats(width=64, allow_nan=False))
def test_narrowing_rounds_once_to_nearest_even(t: DType, x: float) -> None:
    largest = GRIDS[t.name][-1]
    with np.errstate(all="ignore"):
        got = float(store(np.array([x]), dtypes.f64, t)[0])
    half = (largest - GRIDS[t.name][-2]) / 2
    if abs(x) < largest + half:
        assert got == nearest_even(x, t)
    elif t.bits == 8:
        assert abs(got) == largest, "fp8 saturates"
    else:
        assert np.isinf(got), "f16 and bf16 overflow"


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_every_value_survives_a_round_trip(t: DType) -> None:
    if t.bits <= 16:
        values = np.array(GRIDS[t.name]).astype(t.numpy)
        assert store(load(values, t), t, t).tobytes() == values.tobytes()
    assert t.format is not None
    assert not t.format.nan or np.isnan(float(store(np.array([np.nan], np.float32), dtypes.f32, t)[0]))


@pytest.mark.parametrize("t", INTEGERS, ids=str)
@settings(deadline=None, max_examples=examples(60))
@given(x=st.one_of(st.floats(), st.integers(-(2**70), 2**70).map(float), st.floats(-200, 300)))
def test_floats_to_integers_saturate(t: DType, x: float) -> None:
    got = int(store(np.array([x]), dtypes.f64, t)[0])
    low, high = bounds(t)
    if x != x:
        assert got == 0
    else:
        assert got == (high if x >= high else low if x <= low else round(x))


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_integers_to_integers_saturate(source: DType, target: DType) -> None:
    low, high = bounds(target)
    ends = {*bounds(source), 0, 1, low, high, high + 1, low - 1}
    xs = [x for x in ends if bounds(source)[0] <= x <= bounds(source)[1]]
    stored = store(np.array(xs, carrier(source)), source, target)
    for x, got in zip(xs, stored, strict=True):
        assert int(got) == min(max(x, low), high) == converted(x, source, target)


@given(st.integers(-(2**80), 2**80), st.sampled_from(INTEGERS))
def test_wrap_is_modular(x: int, t: DType) -> None:
    low, high = bounds(t)
    assert low <= wrap(x, t) <= high and (wrap(x, t) - x) % (1 << t.bits) == 0


def test_tf32_rounds_to_ten_bits() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-12, -1 - 2**-10, np.inf], np.float32)
    assert rounded(x, dtypes.f32, dtypes.tf32).tolist() == [1, 1 + 2**-9, 1, -1 - 2**-10, np.inf]


# ---- expressions: one lane and many lanes agree, and integers agree with C's rules ---------------------------


def evaluate(x: e.Expr, values: dict[str, object], lanes: int = 0):
    names = Names()
    run = Expressions(names, None).compile(x)
    frame: list = [None] * 40
    frame[INSTANCE] = Instance(Block({}, 0), (0, 32))
    frame[INSTANCE].lanes = lanes
    for name, value in values.items():
        frame[names.slot("scalar", name)] = value
    with np.errstate(all="ignore"):
        return run(frame)


def trunc_div(a: int, b: int) -> int:
    return int(Fraction(a, b))


EXACT = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "cdiv": lambda a, b: -(-a // b),
    "div": trunc_div,
    "mod": lambda a, b: a - b * trunc_div(a, b),
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
WIDE = [dtypes.s32, dtypes.u32, dtypes.s64, dtypes.u64]


@settings(deadline=None, max_examples=examples(400))
@given(st.data())
def test_integer_operators(data: st.DataObject) -> None:
    t = data.draw(st.sampled_from(WIDE))
    low, high = bounds(t)
    values = st.one_of(st.integers(low, high), st.integers(max(low, -5), 5))
    op = data.draw(st.sampled_from(sorted(EXACT)))
    pairs = data.draw(st.lists(st.tuples(values, values.filter(bool)), min_size=1, max_size=5))
    if op in ("div", "mod", "floordiv", "cdiv"):
        pairs = [(a, b) for a, b in pairs if not (a == low and b == -1)] or [(7, 2)]
    x = Binary(op, Var("a", t), Var("b", t))
    expected = [wrap(EXACT[op](a, b), t) for a, b in pairs]
    assert [evaluate(x, {"a": a, "b": b}) for a, b in pairs] == expected
    arrays = {n: np.array(v, t.numpy) for n, v in zip("ab", zip(*pairs, strict=True), strict=True)}
    assert evaluate(x, arrays, len(pairs)).tolist() == expected


@st.composite
def expressions(draw, depth: int = 3) -> e.Expr:
    t = draw(st.sampled_from([*WIDE, dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.boolean, dtypes.s8, dtypes.e4m3]))
    if depth == 0:
        return Var(f"{t.name}{draw(st.integers(0, 1))}", t)
    kind = draw(st.sampled_from(["var", "binary", "compare", "logic", "select", "cast", "unary", "call"]))
    sub = expressions(depth - 1)
    match kind:
        case "binary":
            return Binary(draw(st.sampled_from(["add", "sub", "mul", "min", "max"])), draw(sub), draw(sub))
        case "compare":
            return Binary(draw(st.sampled_from(["lt", "eq", "ge"])), draw(sub), draw(sub))
        case "logic":
            return Binary(draw(st.sampled_from(["land", "lor"])), draw(sub), draw(sub))
        case "select":
            return Select(draw(sub), draw(sub), draw(sub))
        case "cast":
            return Cast(draw(sub), t)
        case "unary":
            return Unary(draw(st.sampled_from(["neg", "lnot"])), draw(sub))
        case "call":
            name = draw(st.sampled_from(sorted(MATH.keys() - SEVERAL)))
            return e.Call(name, (Cast(draw(sub), draw(st.sampled_from([dtypes.f32, dtypes.f16]))),))
    return Var(f"{t.name}{draw(st.integers(0, 1))}", t)


@settings(deadline=None, max_examples=examples(300))
@given(expressions(), st.integers(0, 2**32))
def test_lanes_compute_what_each_would_alone(x: e.Expr, seed: int) -> None:
    """Also when some variables are the same in all lanes."""
    rng = np.random.default_rng(seed)
    lanes = 4
    arrays: dict[str, object] = {}
    for v in {v.name: v for v in e.walk(x) if isinstance(v, Var)}.values():
        t = v.dtype
        if t.is_float:
            values = load(store(rng.normal(0, 3, lanes), dtypes.f64, t), t)
        elif t.kind == "bool":
            values = rng.integers(0, 2, lanes).astype(bool)
        else:
            values = rng.integers(max(-100, bounds(t)[0]), 100, lanes).astype(t.numpy)
        arrays[v.name] = values
    uniform = {n for n in arrays if rng.integers(0, 3) == 0}

    def alone(value, lane: int):
        picked = value[lane]
        return picked.item() if value.dtype.kind in "iub" else picked

    for n in uniform:
        arrays[n] = np.repeat(arrays[n][:1], lanes)
    mixed = {n: alone(v, 0) if n in uniform else v for n, v in arrays.items()}
    together = np.broadcast_to(np.asarray(evaluate(x, mixed, lanes)), (lanes,))
    for lane in range(lanes):
        single = evaluate(x, {n: alone(v, lane) for n, v in arrays.items()})
        a, b = np.asarray(single), np.asarray(together[lane])
        assert a == b or (a != a and b != b), (x, single, together[lane])


@pytest.mark.parametrize(
    ("op", "a", "b", "expected"),
    [("shl", 1, 31, -(2**31)), ("shl", 1, 32, 0), ("shl", 1, -1, 0), ("shr", -8, 1, -4), ("shr", -8, 99, -1)],
)
def test_shifts(op: str, a: int, b: int, expected: int) -> None:
    x = Binary(op, Var("a", dtypes.s32), Var("b", dtypes.s32))
    assert evaluate(x, {"a": a, "b": b}) == expected
    assert evaluate(x, {"a": np.array([a], np.int32), "b": b}, 1).tolist() == [expected]


def test_f16_arithmetic_rounds_after_each_operation() -> None:
    big, one = Const(2048.0, dtypes.f16), Const(1.0, dtypes.f16)
    twice = Binary("add", Binary("add", big, one), one)
    assert evaluate(twice, {}) == 2048
    assert evaluate(Cast(Binary("add", Cast(big, dtypes.f32), Const(2.0, dtypes.f32)), dtypes.f16), {}) == 2050


def test_largest_finite_values() -> None:
    assert float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max) == 448
    assert float(store(np.array([1e9], np.float32), dtypes.f32, dtypes.e5m2)[0]) == 57344
