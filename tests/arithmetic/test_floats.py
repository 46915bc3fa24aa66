"""Float operations by definition, on the CPU reference and on the PTX machine, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numbers_at_edges import FLOATS, Array, drawn, edges, nearest, same

import tilemma as tm
from tests.sampling import examples
from tilemma import dtypes, parallel
from tilemma.arithmetic import floats
from tilemma.arithmetic.convert import carrier, load, store
from tilemma.dtypes import DType, promote
from tilemma.ir.expr import Binary, Call, Const, Var, binary
from tilemma.lang.scalars import Value
from tilemma.targets.ptx.lower.trigonometry import INVERSE_TWO_PI

# 8-bit floats count as themselves in arithmetic: there is no operation whose result has another type.
ARITHMETIC = [t for t in FLOATS if promote(t, t) == t]


@pytest.fixture(autouse=True)
def _values_at_the_edges() -> Iterator[None]:
    """Infinities and NaNs are meant."""
    with np.errstate(all="ignore"):
        yield


def _total(x: Fraction, t: DType, sign: float = 1.0) -> float:
    return nearest(x, t, sign)


def _finite(*xs: float) -> bool:
    return all(map(math.isfinite, xs))


def _ieee(op: Callable[[Any, Any], Any], a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(op(np.float64(a), np.float64(b)))


def _sum(a: float, b: float, t: DType) -> float:
    plain = _ieee(np.add, a, b)
    return _total(Fraction(a) + Fraction(b), t, plain) if _finite(a, b) else plain


def _product(a: float, b: float, t: DType) -> float:
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    return _total(Fraction(a) * Fraction(b), t, sign) if _finite(a, b) else _ieee(np.multiply, a, b)


def _quotient(a: float, b: float, t: DType) -> float:
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    return _total(Fraction(a) / Fraction(b), t, sign) if _finite(a, b) and b else _ieee(np.divide, a, b)


def _whole(a: float, b: float, t: DType, up: bool) -> float:
    plain = _ieee(np.divide, a, b)
    if not (_finite(a, b) and b):
        return float(np.ceil(plain) if up else np.floor(plain))
    exact = Fraction(a) / Fraction(b)
    sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    return _total(Fraction(math.ceil(exact) if up else math.floor(exact)), t, sign)


def _remainder(a: float, b: float, t: DType) -> float:
    if not (math.isfinite(a) and b == b and b):
        return math.nan
    if math.isinf(b):
        return a
    x, y = abs(Fraction(a)), abs(Fraction(b))
    return math.copysign(_total(x - x // y * y, t), a)


def _least(a: float, b: float, t: DType) -> float:
    if a != a or b != b:
        return b if a != a else a
    return min((a, math.copysign(1.0, a)), (b, math.copysign(1.0, b)))[0]


def _greatest(a: float, b: float, t: DType) -> float:
    return -_least(-a, -b, t)


DEFINED: dict[str, Callable[[float, float, DType], float]] = {
    "add": _sum,
    "sub": lambda a, b, t: _sum(a, -b, t),
    "mul": _product,
    "div": _quotient,
    "floordiv": lambda a, b, t: _whole(a, b, t, False),
    "cdiv": lambda a, b, t: _whole(a, b, t, True),
    "mod": _remainder,
    "min": _least,
    "max": _greatest,
}


@cache
def pairs(t: DType) -> tuple[Array, Array]:
    """Every edge with some others, quotients near integers and near ties, and random numbers."""
    rng = np.random.default_rng(5)
    some = edges(t)
    a, b = np.repeat(some, 6), rng.choice(some, 6 * some.size)
    # Multiples of a number and their neighbours.
    y = np.abs(drawn(t, 2, 300))
    with np.errstate(all="ignore"):
        x = (y.astype(np.float64) * rng.integers(1, 1 << rng.integers(2, 30), y.size)).astype(t.numpy)
        x = store(load(x, t), dtypes.f32 if t.bits <= 32 else t, t)
        step = np.array(rng.integers(-1, 2, y.size), f"i{t.bytes}") * (1 if t.name != "tf32" else 1 << 13)
        moved = (x.view(f"i{t.bytes}") + step).view(t.numpy)
    found = np.concatenate([a, x, moved, drawn(t, 3, 400)]), np.concatenate([b, y, -y, drawn(t, 4, 400)])
    keep = ~(np.isinf(load(found[0], t)) | np.isinf(load(found[1], t))) if t.bits == 8 else slice(None)
    return found[0][keep], found[1][keep]


@cache
def expected(op: str, t: DType) -> Array:
    a, b = (load(x, t).tolist() for x in pairs(t))
    with np.errstate(all="ignore"):
        found = np.array([DEFINED[op](float(x), float(y), t) for x, y in zip(a, b, strict=True)])
        return store(found, dtypes.f64, t)


def report(op: str, t: DType, got: Array) -> None:
    wrong = np.flatnonzero(~same(got, expected(op, t)))
    a, b = pairs(t)
    shown = [(a[i], b[i], got[i], expected(op, t)[i]) for i in wrong[:4]]
    assert not wrong.size, f"{op} on {t}: (a, b, got, defined) {shown}, {wrong.size} in all"


@pytest.mark.parametrize("t", ARITHMETIC, ids=str)
@pytest.mark.parametrize("op", floats.BINARY)
def test_operations(op: str, t: DType) -> None:
    a, b = (load(x, t) for x in pairs(t))
    with np.errstate(all="ignore"):
        report(op, t, store(np.asarray(floats.binary(op, t)(a, b)).astype(carrier(t)), t, t))
        scalars = [floats.binary(op, t)(x, y) for x, y in itertools.islice(zip(a, b, strict=True), 200)]
    kind = carrier(t)
    together = np.asarray(floats.binary(op, t)(a[:200], b[:200])).astype(kind)
    assert same(np.array(scalars, kind), together).all()


def combined(op: Any, x: Any, y: Any) -> Value:
    return Value(Binary(op, x.expr, y.expr))


@tm.kernel
def operate(x: tm.Global["T", "N"], y: tm.Global["T", "N"], out: tm.Global["T", "R", "N"], *, T="f32"):
    for b in parallel(tm.cdiv(x.shape[0], 32), level="block"):
        for t in parallel(32, level="thread"):
            k = b * 32 + t
            with tm.if_(k < x.shape[0]):
                for i, op in enumerate(floats.BINARY):
                    out[i, k] = combined(op, x[k], y[k])


def run(kernel: tm.Kernel, arch: str, *args: Any, **constants: Any) -> None:
    runner = kernel.on("cpu") if arch == "cpu" else kernel.on("machine", arch=arch)
    with np.errstate(all="ignore"):
        runner(*args, **constants)


@pytest.mark.parametrize("arch", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("t", ARITHMETIC, ids=str)
def test_operations_in_kernels(t: DType, arch: str) -> None:
    a, b = pairs(t)
    out = np.zeros((len(floats.BINARY), a.size), t.numpy)
    run(operate, arch, a, b, out, T=t.name)
    for i, op in enumerate(floats.BINARY):
        report(op, t, out[i])


# ---- the exact functions of the library ------------------------------------------------------------------


def _root(x: float, t: DType) -> float:
    if x <= 0 or not math.isfinite(x):
        return x if x == 0 or x == math.inf else math.nan
    exact, bits = Fraction(x), 700
    # Far more bits than decide a rounding; the last one set where the root goes on.
    scaled = exact * 4**bits
    root = math.isqrt(scaled.numerator // scaled.denominator)
    if root * root != scaled:
        root = 2 * root + 1
        bits += 1
    return _total(Fraction(root, 2**bits), t)


def _fused(a: float, b: float, c: float, t: DType) -> float:
    plain = _ieee(np.add, _ieee(np.multiply, a, b), c)
    if math.isinf(c) and _finite(a, b):
        return c
    if not _finite(a, b, c) or a == 0 or b == 0:
        return plain if not _finite(a, b, c) else _sum(_product(a, b, dtypes.f64), c, t)
    return _total(Fraction(a) * Fraction(b) + Fraction(c), t)


def _round(x: float, t: DType) -> float:
    if not math.isfinite(x):
        return x
    exact = abs(Fraction(x))
    return math.copysign(_total(Fraction(math.floor(exact + Fraction(1, 2))), t), x)


LIBRARY: dict[str, Callable[..., float]] = {
    "fabs": lambda x, t: abs(x),
    "ceil": lambda x, t: float(np.ceil(x)),
    "floor": lambda x, t: float(np.floor(x)),
    "round": _round,
    "sign": lambda x, t: x if x != x else 0.0 if x == 0 else math.copysign(1.0, x),
    "isfinite": lambda x, t: float(math.isfinite(x)),
    "sqrt": _root,
    "frcp_rn": lambda x, t: _quotient(1.0, x, t),
    "fmaf": _fused,
}
TERNARY = ("fmaf",)


def test_every_exact_function_is_tested() -> None:
    elsewhere = {"abs", "min", "max"}  # operations of their own, or another name
    assert {*LIBRARY, *elsewhere} == floats.EXACT_FUNCTIONS


@tm.kernel
def apply_library(
    x: tm.Global["T", "N"],
    y: tm.Global["T", "N"],
    z: tm.Global["T", "N"],
    out: tm.Global["T", "R", "N"],
    *,
    T="f32",
):
    for b in parallel(tm.cdiv(x.shape[0], 32), level="block"):
        for t in parallel(32, level="thread"):
            k = b * 32 + t
            with tm.if_(k < x.shape[0]):
                for i, name in enumerate(LIBRARY):
                    args = (x[k], y[k], z[k]) if name in TERNARY else (x[k],)
                    out[i, k] = Value(Call(name, tuple(a.expr for a in args)))


@pytest.mark.parametrize("arch", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("t", ARITHMETIC, ids=str)
def test_exact_functions(t: DType, arch: str) -> None:
    x, y = pairs(t)
    z = np.concatenate([drawn(t, 7, x.size // 2), np.random.default_rng(8).choice(edges(t), x.size - x.size // 2)])
    with np.errstate(all="ignore"):
        # Sums that cancel, and those that lie next to a tie of two numbers.
        z[::3] = store(-load(x, t).astype(np.float64) * load(y, t), dtypes.f64, t)[::3]
    if t.bits == 8:
        z[np.isinf(load(z, t))] = 1
    out = np.zeros((len(LIBRARY), x.size), t.numpy)
    run(apply_library, arch, x, y, z, out, T=t.name)
    for i, (name, f) in enumerate(LIBRARY.items()):
        args = [load(a, t).tolist() for a in ((x, y, z) if name in TERNARY else (x,))]
        with np.errstate(all="ignore"):
            wanted = store(np.array([f(*v, t) for v in zip(*args, strict=True)], np.float64), dtypes.f64, t)
        wrong = np.flatnonzero(~same(out[i], wanted))
        shown = [(x[k], y[k], z[k], out[i, k], wanted[k]) for k in wrong[:4]]
        assert not wrong.size, f"{name} on {t}: (x, y, z, got, defined) {shown}, {wrong.size} in all"


# ---- Python's operators ----------------------------------------------------------------------------------


@tm.kernel
def divide(x: tm.Global["T", "N"], y: tm.Global["T", "N"], out: tm.Global["T", 2, "N"], *, T="f32"):
    for k in parallel(x.shape[0], level="block"):
        out[0, k] = x[k] // y[k]
        out[1, k] = x[k] % y[k]


@settings(deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3).filter(bool)), min_size=1, max_size=8),
    st.sampled_from(["f32", "f64", "f16", "bf16"]),
)
@example([(1.0, 0.1), (0.9999999, 1.0), (-1e-20, 1.0), (6.0, -4.0), (-6.0, 4.0), (1e6, 0.1)], "f64")
def test_python_operators_round_down(numbers: list[tuple[float, float]], t: str) -> None:
    kind = dtypes.dtype(t)
    with np.errstate(all="ignore"):
        x, y = (np.array(v).astype(kind.numpy) for v in zip(*numbers, strict=True))
    y[(y == 0) | ~np.isfinite(y.astype(np.float64))] = 1
    x[~np.isfinite(x.astype(np.float64))] = 1
    out, again = np.zeros((2, x.size), kind.numpy), np.zeros((2, x.size), kind.numpy)
    run(divide, "cpu", x, y, out, T=t)
    run(divide, "sm_80", x, y, again, T=t)
    assert same(out, again).all()
    for k in range(x.size):
        a, b = float(x[k]), float(y[k])
        assert float(out[0, k]) == _whole(a, b, kind, False)
        rest = _remainder(a, b, kind)
        if rest and (rest < 0) != (b < 0):
            rest = _sum(rest, b, kind)
        assert float(out[1, k]) == rest


# ---- functions with special cases ------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["cpu", "sm_80"])
@pytest.mark.parametrize("t", [dtypes.f32, dtypes.f64], ids=str)
def test_pow_has_the_special_cases_of_c(t: DType, arch: str) -> None:
    """Python's math.pow is C's; it raises where C gives an infinity or NaN."""

    def defined(x: float, y: float) -> float:
        try:
            return math.pow(x, y)
        except ValueError:  # a pole, or a negative number to a broken power
            odd = y < 0 and y == math.floor(y) and y % 2 == 1
            return math.nan if x != 0 else math.copysign(math.inf, x) if odd else math.inf
        except OverflowError:
            return math.inf

    some = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 4.0, -4.0, math.inf, -math.inf, math.nan]
    x, y = (np.array(v, t.numpy) for v in zip(*itertools.product(some, some), strict=True))
    out = np.zeros_like(x)
    run(power, arch, x, y, out, T=t.name)
    wanted = np.array([defined(float(a), float(b)) for a, b in zip(x, y, strict=True)])
    special = ~np.isfinite(wanted) | (wanted == 0) | (np.abs(wanted) == 1)
    ok = np.where(special, same(out.astype(np.float64), wanted), np.abs(out - wanted) <= 2.0**-22 * np.abs(wanted))
    assert ok.all(), [(x[i], y[i], out[i], wanted[i]) for i in np.flatnonzero(~ok)[:5]]


@tm.kernel
def power(x: tm.Global["T", "N"], y: tm.Global["T", "N"], out: tm.Global["T", "N"], *, T="f32"):
    for k in parallel(x.shape[0], level="block"):
        out[k] = tm.math.pow(x[k], y[k])


# ---- large angles ----------------------------------------------------------------------------------------


@cache
def _pi(bits: int) -> int:
    """floor(pi * 2**bits), by Machin's formula."""

    def arctan_of_inverse(n: int) -> int:
        x = total = (1 << bits + 32) // n
        for k in itertools.count(3, 2):
            x //= -n * n
            if x in (0, -1):
                return total
            total += x // k
        raise AssertionError

    return 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)) >> 32


BITS = 700


def _sine(x: float) -> float:
    """sin of any finite number: reduced by exact multiples of pi / 2, then of a small angle."""
    turn = 2 * _pi(BITS)
    return math.copysign(1.0, x) * _sine_of(int(Fraction(abs(x)) * 2**BITS) % turn, turn)


def _cosine(x: float) -> float:
    turn = 2 * _pi(BITS)
    return _sine_of((int(Fraction(abs(x)) * 2**BITS) + turn // 4) % turn, turn)


def _sine_of(rest: int, turn: int) -> float:
    quarter, rest = divmod(rest * 2 + turn // 4, turn // 2)
    angle = float(Fraction(rest - turn // 4, 2 ** (BITS + 1)))
    return [math.sin, math.cos, lambda v: -math.sin(v), lambda v: -math.cos(v)][quarter % 4](angle)


def test_bits_of_the_inverse_turn() -> None:
    bits = 32 * len(INVERSE_TWO_PI)
    value = sum(word << bits - 32 * (i + 1) for i, word in enumerate(INVERSE_TWO_PI))
    assert value == (1 << BITS + bits) // (2 * _pi(BITS))


@tm.kernel
def circular(x: tm.Global["f32", "N"], out: tm.Global["f32", 3, "N"]):
    for b in parallel(tm.cdiv(x.shape[0], 32), level="block"):
        for t in parallel(32, level="thread"):
            k = b * 32 + t
            with tm.if_(k < x.shape[0]):
                out[0, k] = tm.math.sin(x[k])
                out[1, k] = tm.math.cos(x[k])
                out[2, k] = tm.math.tan(x[k])


@pytest.mark.parametrize("arch", ["cpu", "sm_80"])
def test_angles_of_any_size(arch: str) -> None:
    """Every binade, the numbers around 2**40 where the reduction changes, one near to a multiple of pi / 2."""
    rng = np.random.default_rng(11)
    patterns = rng.integers(0, 1 << 23, (255, 12)) | (np.arange(255)[:, None] << 23)
    x = patterns.astype(np.uint32).ravel().view(np.float32)
    # Jean-Michel Muller, Elementary Functions: 16367173 * 2**72 is the f32 nearest to a multiple of pi / 2.
    x = np.concatenate([x, np.float32([2.0**40, 2.0**127, 16367173.0 * 2.0**72, 1e18, 1e22, 3.4e38])])
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.float32([np.inf, np.nan])])
    x = np.concatenate([x, -x])
    out = np.zeros((3, x.size), np.float32)
    run(circular, arch, x, out)
    finite = np.isfinite(x)
    assert np.isnan(out[:, ~finite]).all()
    sines, cosines = (np.array([f(float(v)) for v in x[finite]]) for f in (_sine, _cosine))
    for got, wanted in zip(out[:, finite], (sines, cosines, sines / cosines), strict=True):
        error = np.abs(got - wanted) / np.maximum(np.abs(wanted), 1e-38)
        assert (error <= 2.0**-20).all(), [
            (x[finite][i], got[i], wanted[i]) for i in np.flatnonzero(error > 2.0**-20)[:4]
        ]


@settings(deadline=None, max_examples=examples(200))
@given(st.sampled_from([t for t in FLOATS if t.bits <= 32]), st.floats(width=64))
def test_what_is_rounded_stays(t: DType, x: float) -> None:
    """The rounding that these tests measure by agrees with itself."""
    if math.isfinite(x):
        y = nearest(Fraction(x), t, x)
        assert math.isinf(y) or nearest(Fraction(y), t, y) == y


# ---- folding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [False, True], ids=["on the right", "on the left"])
@pytest.mark.parametrize("n", [0, 1, -1, 2])
@pytest.mark.parametrize("op", floats.BINARY)
def test_an_integer_beside_a_float_is_dropped_only_where_that_changes_nothing(op: Any, n: int, left: bool) -> None:
    x, c = Var("x", dtypes.f32), Const(n)
    folded = binary(op, c, x) if left else binary(op, x, c)
    assert folded.type == dtypes.f32
    if folded != x:
        return
    values = load(edges(dtypes.f32), dtypes.f32)
    number = np.full_like(values, n)
    with np.errstate(all="ignore"):
        result = floats.binary(op, dtypes.f32)(*((number, values) if left else (values, number)))
    assert same(np.asarray(result, np.float32), values).all()
