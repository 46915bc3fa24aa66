"""Conversions and arithmetic: exhaustive where 16 bits allow, against exact fractions elsewhere."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tilemma.dtypes import dtype
from tilemma.machine.isa.approx import MAX_ERROR, divide, special
from tilemma.machine.isa.numerics import FORMATS, arith, convert, flush, mma, round_to

MODES = ("rn", "rz", "rm", "rp", "rna")
ALL16 = np.arange(1 << 16, dtype=np.uint16)
F16, BF16 = ALL16.view(np.float16), ALL16.view(ml_dtypes.bfloat16)
F8 = {n: np.arange(256, dtype=np.uint8).view(dtype(n).numpy) for n in ("f8_e4m3", "f8_e5m2")}
SOURCES = {"f16": F16, "bf16": BF16, **F8}


def some_floats(kind, count=4000, seed=0):
    """Random bit patterns of a type, and the numbers around every power of two."""
    rng = np.random.default_rng(seed)
    t = dtype(kind)
    word = np.dtype(f"u{t.bytes}").type
    bits = rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True)
    x = bits.view(t.numpy)
    normal = (rng.standard_normal(count) * 10.0 ** rng.integers(-8, 8, count)).astype(t.numpy)
    return np.concatenate([x, normal])


def values_of(fmt):
    """All finite values of a format of at most 16 bits, sorted, as exact doubles."""
    t = dtype(fmt)
    bits = np.arange(1 << t.bits, dtype=f"u{t.bytes}")
    with np.errstate(all="ignore"):
        x = bits.view(t.numpy).astype(np.float64)
    return np.unique(x[np.isfinite(x)])


def nearest_by_search(x, fmt, mode):
    """The rounding of finite ``x`` found among all values of the format, by definition of each mode."""
    values = values_of(fmt)
    largest = values[-1]
    high = np.searchsorted(values, x)
    if high < len(values) and values[high] == x:
        return x
    down = values[high - 1] if high else -np.inf
    up = values[high] if high < len(values) else np.inf
    if mode in ("rz", "rm", "rp"):
        take_up = {"rz": x < 0, "rm": False, "rp": True}[mode]
        return up if take_up else down
    # Beyond the largest value the next candidate is where the following binade's step would put it.
    step = largest - values[-2]
    up_value = largest + step if up == np.inf else up
    down_value = -largest - step if down == -np.inf else down
    a, b = Fraction(x) - Fraction(down_value), Fraction(up_value) - Fraction(x)
    if a != b:
        return down if a < b else up
    if mode == "rna":
        return up if x > 0 else down
    even = (
        int(np.array([down_value], np.float64).astype(dtype(fmt).numpy).view(f"u{dtype(fmt).bytes}")[0]) % 2 == 0
    )
    if down == -np.inf or up == np.inf:
        return down if x < 0 else up  # the largest value is odd in every format with infinities
    return down if even else up


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", ["f16", "bf16", "f8_e5m2"])
def test_rounding_is_the_search_among_all_values(fmt, mode):
    rng = np.random.default_rng(3)
    values = values_of(fmt)
    points = rng.choice(values, 300)
    between = points + rng.choice([0.0, 0.25, 0.5, 0.75], 300) * (np.abs(points) * 2.0**-7 + 2.0**-30)
    middles = (values[:-1] + values[1:])[rng.integers(0, len(values) - 1, 300)] / 2
    over = np.array([values[-1] * f for f in (1.0, 1.001, 1.02, 1.1, 1.3, 2)])
    x = np.concatenate([between, middles, over, -over, [1e-30, -1e-30]])
    got = round_to(x, fmt, mode)
    for value, y in zip(x, got, strict=True):
        assert y == nearest_by_search(value, fmt, mode), (value, fmt, mode)


@pytest.mark.parametrize("src", list(SOURCES))
@pytest.mark.parametrize("dst", ["f64", "f32", "f16", "bf16"])
def test_small_floats_convert_as_numpy_does(src, dst):
    """Exhaustive: every source of 8 or 16 bits; NaN becomes the canonical NaN."""
    x = SOURCES[src]
    with np.errstate(all="ignore"):
        expected = x.astype(np.float64).astype(np.float32).astype(dtype(dst).numpy)
    got = convert(x, src, dst, "rn")
    assert got.dtype == dtype(dst).numpy
    nan = np.isnan(expected)
    word = f"u{dtype(dst).bytes}"
    assert (got.view(word)[~nan] == expected.view(word)[~nan]).all()
    assert np.isnan(got[nan]).all()
    if dst != "f64":
        assert (got.view(word)[nan] == FORMATS[dst].nan).all()


@pytest.mark.parametrize("src", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("dst", ["f8_e4m3", "f8_e5m2"])
def test_fp8_saturates_to_finite(src, dst):
    x = some_floats("f32") if src == "f32" else SOURCES[src]
    got = convert(x, src, dst, "rn", satfinite=True)
    largest = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}[dst]
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
    nan = np.isnan(wide)
    assert (got[nan].view(np.uint8) == 0x7F).all()
    with np.errstate(all="ignore"):
        expected = np.clip(wide, -largest, largest).astype(np.float32).astype(dtype(dst).numpy)
    # float32 holds f16 and bf16 exactly, so ml_dtypes rounds once there; f32 itself is exact too.
    assert (got[~nan].view(np.uint8) == expected[~nan].view(np.uint8)).all()


@pytest.mark.parametrize("dst", ["f16", "bf16"])
def test_fast_and_general_paths_agree(dst):
    x = some_floats("f32", 20000)
    fast = convert(x, "f32", dst, "rn")
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
    general = round_to(wide, dst, "rn")
    same = (fast.astype(np.float64) == general) | np.isnan(general)
    assert same.all()
    assert (np.signbit(fast) == np.signbit(general))[~np.isnan(general)].all()


def test_double_to_bf16_rounds_once():
    # 1 + 2**-8 is halfway between two bf16; a double a little above it must go up, through f32 it would not.
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert convert(x, "f64", "bf16", "rn")[0] == 1 + 2.0**-7
    assert convert(x.astype(np.float32), "f32", "bf16", "rn")[0] == 1.0


def test_tf32_rounds_to_ten_bits():
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 3.0e38, np.nan, np.inf, 2.0**-140], np.float32)
    assert list(convert(x[:3], "f32", "tf32", "rna")) == [1 + 2.0**-10, 1 + 4 * 2.0**-11, -1 - 2.0**-10]
    assert list(convert(x[:3], "f32", "tf32", "rn")) == [1.0, 1 + 4 * 2.0**-11, -1.0]
    assert list(convert(x[:3], "f32", "tf32", "rz")) == [1.0, 1 + 2 * 2.0**-11, -1.0]
    everything = some_floats("f32")
    for mode in ("rn", "rz", "rna"):
        bits = convert(everything, "f32", "tf32", mode).view(np.uint32)
        finite = np.isfinite(everything)
        assert (bits[finite] & 0x1FFF == 0).all()
    assert convert(np.array([3.4028e38], np.float32), "f32", "tf32", "rna", satfinite=True)[0] == np.float32(
        FORMATS["tf32"].largest
    )


@pytest.mark.parametrize("dst", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("mode,whole", [("rni", round), ("rzi", int), ("rmi", np.floor), ("rpi", np.ceil)])
def test_float_to_integer_clamps(dst, mode, whole):
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype(dst).numpy)
    x = np.concatenate([rng.standard_normal(50) * 100, [0.5, 1.5, -0.5, -1.5, 2.5, 127.5, 1e30, -1e30, np.inf]])
    got = convert(x.astype(np.float32), "f32", dst, mode)
    for value, y in zip(x.astype(np.float32), got, strict=True):
        wanted = info.max if np.isinf(value) else int(whole(float(value)))
        assert int(y) == min(max(wanted, info.min), info.max), (value, dst)
    nan = np.array([np.nan])
    # PTX ISA, cvt: zero unless a 64-bit type takes part, then the top bit alone.
    top = info.min if info.min < 0 else 1 << info.bits - 1
    assert int(convert(nan.astype(np.float32), "f32", dst, mode)[0]) == (top if info.bits == 64 else 0)
    assert int(convert(nan, "f64", dst, mode)[0]) == top


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=8), st.sampled_from(MODES[:4]))
@example([(1 << 53) + 1, (1 << 62) + (1 << 38), (1 << 62) + (1 << 38) + 1, -(1 << 63)], "rn")
def test_wide_integers_round_once(numbers, mode):
    x = np.array(numbers, np.int64)
    for dst in ("f32", "f16", "bf16", "f64"):
        got = convert(x, "s64", dst, mode)
        for value, y in zip(numbers, got, strict=True):
            y = float(y)
            if not np.isfinite(y) or abs(value) > FORMATS[dst].largest:
                assert abs(value) > 65504 and abs(y) >= FORMATS[dst].largest
                continue
            error = Fraction(y) - value
            # Half a unit in the last place of the result's binade (its lower one at a power of two).
            p = FORMATS[dst].precision
            unit = Fraction(2) ** (max(abs(value), 1).bit_length() - p)
            limit = unit / 2 if mode == "rn" else unit
            assert abs(error) <= limit, (value, y, dst, mode)
            if mode == "rz":
                assert abs(y) <= abs(value)
            if mode == "rm":
                assert y <= value
            if mode == "rp":
                assert y >= value
            if abs(error) == unit / 2 and mode == "rn":
                assert int(Fraction(y) / unit) % 2 == 0


def test_unsigned_and_narrow_integers():
    assert convert(np.array([(1 << 64) - 1], np.uint64), "u64", "f32", "rz")[0] == np.float32(2.0**64 - 2.0**40)
    assert convert(np.array([(1 << 64) - 1], np.uint64), "u64", "f64", "rn")[0] == 2.0**64
    assert list(convert(np.array([300, -300]), "s32", "s8", sat=True)) == [127, -128]
    assert list(convert(np.array([300, -1]), "s32", "u8")) == [44, 255]
    assert list(convert(np.array([-5, 5]), "s32", "u32", sat=True)) == [0, 5]
    assert list(convert(np.array([3, -3]), "s32", "f16", "rn")) == [3.0, -3.0]


def test_modifiers():
    x = np.array([-2.0, -0.0, 0.3, 1.5, np.nan, 2.0**-130], np.float32)
    sat = convert(x, "f32", "f32", "rn", sat=True)
    assert list(sat[:5]) == [0, 0, np.float32(0.3), 1, 0] and not np.signbit(sat).any()
    assert convert(x, "f32", "f32", ftz=True)[5] == 0
    relu = convert(x, "f32", "f16", "rn", relu=True)
    assert list(relu[:4]) == [0, 0, np.float16(0.3), 1.5] and np.isnan(relu[4])
    assert convert(np.array([1e6], np.float32), "f32", "f16", "rn", satfinite=True)[0] == 65504
    assert list(convert(np.array([2.5, -0.5, 1.5], np.float32), "f32", "f32", "rni")) == [2, 0, 2]
    assert np.signbit(convert(np.array([-0.25], np.float32), "f32", "f32", "rni"))[0]
    flushed = flush(np.array([-(2.0**-127), 2.0**-126], np.float32))
    assert flushed[0] == 0 and np.signbit(flushed[0]) and flushed[1] == np.float32(2.0**-126)


def exact_result(op, xs):
    a = [Fraction(float(x)) for x in xs]
    return {"add": lambda: a[0] + a[1], "sub": lambda: a[0] - a[1], "mul": lambda: a[0] * a[1]}.get(
        op, lambda: a[0] * a[1] + a[2]
    )()


def is_rounding_of(y, exact, fmt, mode):
    """Whether y is the rounding of a fraction: by the distance to its neighbours."""
    f = FORMATS[fmt]
    y = float(y)
    if abs(exact) > Fraction(f.largest) and abs(y) >= f.largest:
        to_inf = {"rn": None, "rz": False, "rm": exact < 0, "rp": exact > 0}[mode]
        return (y > 0) == (exact > 0) and to_inf in (None, np.isinf(y))
    if not np.isfinite(y):
        return False
    magnitude = abs(Fraction(y))
    e = max((int(np.frexp(y)[1]) - f.precision) if y else -10000, f.emin - f.precision + 1)
    unit = Fraction(2) ** e
    error = Fraction(y) - exact
    if mode == "rn":
        lower = unit / 2 if magnitude == unit * 2 ** (f.precision - 1) and e > f.emin - f.precision + 1 else unit
        toward_zero = abs(exact) < magnitude
        half = (lower if toward_zero else unit) / 2
        return abs(error) < half or (abs(error) == half and (magnitude / unit) % 2 == 0)
    if error == 0:
        return True
    below = {"rm": error < 0, "rp": error > 0, "rz": abs(Fraction(y)) < abs(exact)}[mode]
    return below and abs(error) < unit


# Half precision has no other mode than rn.
MODES_OF = [("f16", "rn"), ("bf16", "rn")] + [(f, m) for f in ("f32", "f64") for m in ("rn", "rz", "rm", "rp")]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("fmt,mode", MODES_OF)
def test_arithmetic_rounds_once(op, fmt, mode):
    count = 3 if op == "fma" else 2
    rng = np.random.default_rng(7)
    scale = {"f16": 6, "bf16": 100, "f32": 100, "f64": 900}[fmt]
    xs = [
        (rng.standard_normal(400) * 2.0 ** rng.integers(-scale, scale, 400).astype(float)).astype(dtype(fmt).numpy)
        for _ in range(count)
    ]
    # Cancellation and near-ties: the third operand close to minus the product, or tiny.
    if op == "fma":
        with np.errstate(all="ignore"):
            xs[2][:150] = -(xs[0][:150] * xs[1][:150])
            xs[2][150:250] = (xs[0][150:250] * xs[1][150:250]) * xs[2].dtype.type(2.0**-40)
    keep = np.logical_and.reduce([np.isfinite(x.astype(float)) for x in xs])
    xs = [x[keep] for x in xs]
    got = arith(op, fmt, *xs, rounding=mode)
    assert got.dtype == dtype(fmt).numpy
    for i, y in enumerate(got):
        exact = exact_result(op, [x[i] for x in xs])
        assert is_rounding_of(y, exact, fmt, mode), (op, fmt, mode, [x[i] for x in xs], y)


def test_fma_breaks_ties_by_what_a_double_cannot_hold():
    # The product is a tie of bf16 (1 + 2**-8), and the addend is beyond the reach of a double's 53 bits.
    one, tiny = ml_dtypes.bfloat16(1), ml_dtypes.bfloat16(2.0**-100)
    a, b = ml_dtypes.bfloat16(1 + 2.0**-7), ml_dtypes.bfloat16(1 + 2.0**-1)  # product 1.51171875 = tie
    product = float(a) * float(b)
    below = convert(np.array([product]), "f64", "bf16", "rz")[0]
    above = convert(np.array([product]), "f64", "bf16", "rp")[0]
    assert 2 * product == float(below) + float(above)
    x = np.array([a, a]), np.array([b, b]), np.array([tiny, -tiny])
    assert list(arith("fma", "bf16", *x)) == [above, below]


def test_division_and_roots_round_once():
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(300).astype(np.float32) for _ in range(2))
    for mode in ("rn", "rz", "rm", "rp"):
        for y, p, q in zip(arith("div", "f32", a, b, rounding=mode), a, b, strict=True):
            assert is_rounding_of(y, Fraction(float(p)) / Fraction(float(q)), "f32", mode)
        for y, q in zip(arith("rcp", "f32", b, rounding=mode), b, strict=True):
            assert is_rounding_of(y, 1 / Fraction(float(q)), "f32", mode)
        for y, q in zip(arith("sqrt", "f32", np.abs(a), rounding=mode), np.abs(a), strict=True):
            y, q = Fraction(float(y)), Fraction(float(q))
            assert {"rz": y * y <= q, "rm": y * y <= q, "rp": y * y >= q, "rn": True}[mode]
            assert abs(float(y * y - q)) <= float(q) * 2.0**-22


def test_specials_of_arithmetic():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    x = np.array([inf, inf, nan, 1, 0], np.float32)
    y = np.array([-inf, 1, 1, nan, -0.0], np.float32)
    for name in ("f32", "f16", "bf16"):
        t = dtype(name).numpy
        got = arith("add", name, x.astype(t), y.astype(t))
        bits = got.view(f"u{dtype(name).bytes}")
        assert [int(b) == FORMATS[name].nan for b in bits] == [True, False, True, True, False]
        assert got[1] == inf
    z = np.array([1, 1, 1, 1, 1], np.float32)
    assert [bool(v) for v in np.isnan(arith("fma", "f32", x, z, y))] == [True, False, True, True, False]
    assert arith("fma", "f64", np.array([1e300]), np.array([1e300]), np.array([-np.inf]))[0] == -np.inf
    assert arith("add", "f16", np.array([60000], np.float16), np.array([60000], np.float16))[0] == np.inf
    assert (
        arith("mul", "f32", np.array([2.0**-100], np.float32), np.array([2.0**-40], np.float32), ftz=True)[0] == 0
    )


def test_min_max_neg_abs():
    a = np.array([1, np.nan, np.nan, -0.0, 0.0, -3], np.float16)
    b = np.array([2, 5, np.nan, 0.0, -0.0, -4], np.float16)
    low, high = arith("min", "f16", a, b), arith("max", "f16", a, b)
    assert list(low[[0, 1, 5]]) == [1, 5, -4] and list(high[[0, 1, 5]]) == [2, 5, -3]
    assert np.signbit(low[3:5]).all() and not np.signbit(high[3:5]).any()
    assert low[2:3].view(np.uint16)[0] == 0x7FFF
    assert np.isnan(arith("min", "f16", a, b, nan=True))[1]
    assert (arith("neg", "f16", F16).view(np.uint16) == ALL16 ^ 0x8000).all()
    assert (arith("abs", "bf16", BF16).view(np.uint16) == ALL16 & 0x7FFF).all()


def test_mma_rounds_the_exact_sum():
    rng = np.random.default_rng(11)
    a = rng.standard_normal((5, 16, 16)).astype(np.float16)
    b = rng.standard_normal((5, 16, 8)).astype(np.float16)
    c = rng.standard_normal((5, 16, 8)).astype(np.float32)
    for d_type in ("f32", "f16"):
        acc = c.astype(dtype(d_type).numpy)
        got = mma(a, b, acc, "f16", "f16", d_type)
        expected = a.astype(float) @ b.astype(float) + acc.astype(float)
        assert (got == expected.astype(got.dtype)).all()
    one = mma(a[0], b[0], c[0], "f16", "f16", "f32")
    assert (mma(a, b, c, "f16", "f16", "f32")[0] == one).all()


def test_mma_integers_wrap_or_saturate():
    a, b = np.full((8, 16), 127), np.full((16, 8), 127)
    top = np.full((8, 8), (1 << 31) - 1, np.int32)
    wrapped = mma(a, b, top, "s8", "s8", "s32")
    assert wrapped.dtype == np.int32 and (wrapped == 16 * 127 * 127 - (1 << 31) - 1 + 0).all()
    assert (mma(a, b, top, "s8", "s8", "s32", satfinite=True) == (1 << 31) - 1).all()
    low = np.full((8, 8), -(1 << 31), np.int32)
    assert (mma(a, -b, low, "s8", "s8", "s32", satfinite=True) == -(1 << 31)).all()


def test_mma_counts_bits():
    rng = np.random.default_rng(13)
    a, b = rng.integers(0, 2, (8, 128)), rng.integers(0, 2, (128, 8))
    c = rng.integers(-9, 9, (8, 8)).astype(np.int32)
    for bitop, f in (("xor", np.bitwise_xor), ("and", np.bitwise_and)):
        expected = f(a[:, :, None], b[None]).sum(1) + c
        assert (mma(a, b, c, "b1", "b1", "s32", bitop=bitop) == expected).all()


@pytest.mark.parametrize("op,name", [k for k in MAX_ERROR if k[0] != "div"])
def test_approximations_stay_within_the_stated_error(op, name):
    rng = np.random.default_rng(15)
    positive = op in ("sqrt", "rsqrt", "lg2")
    x = rng.uniform(0.5 if positive else -6, 6, 2000).astype(dtype(name).numpy)
    wide = x.astype(np.float64)
    exact = {
        "rcp": lambda v: 1 / v,
        "rsqrt": lambda v: v**-0.5,
        "lg2": lambda v: np.log(v) / np.log(2),
        "ex2": lambda v: 2.0**v,
    }.get(op, getattr(np, op, None))(wide)
    got = special(op, x, name).astype(np.float64)
    kind, bound = MAX_ERROR[op, name]
    ulp = 2.0 ** (np.frexp(exact)[1] - FORMATS[name].precision)
    error = np.abs(got - exact) / {"relative": np.abs(exact), "absolute": 1, "ulp": ulp}[kind]
    assert (error[exact != 0] <= bound).all()


def test_special_values_of_approximations():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 2.0**-140], np.float32)
    same = lambda op, want, **k: np.testing.assert_array_equal(special(op, x, **k)[: len(want)], want)  # noqa: E731
    nan, inf = np.nan, np.inf
    same("rcp", [inf, -inf, 0, -0.0, nan, -1])
    same("sqrt", [0, -0.0, inf, nan, nan, nan])
    same("rsqrt", [inf, -inf, 0, nan, nan, nan])
    same("lg2", [-inf, -inf, inf, nan, nan, nan])
    same("ex2", [1, 1, inf, 0, nan, 0.5])
    same("sin", [0, -0.0, nan, nan, nan])
    same("cos", [1, 1, nan, nan, nan])
    same("tanh", [0, -0.0, 1, -1, nan])
    assert special("rcp", x, ftz=True)[6] == np.inf and np.isinf(special("rcp", x)[6])
    assert special("sqrt", x, ftz=True)[6] == 0 and special("sqrt", x)[6] == np.float32(2.0**-70)
    assert special("lg2", x, ftz=True)[6] == -np.inf
    assert (special("sqrt", x).view(np.uint32)[3:6] == 0x7FFFFFFF).all()


def test_approximate_division():
    a, b = np.array([1, np.inf, 3], np.float32), np.array([2.0**127, 2.0**127, 2], np.float32)
    assert list(divide(a, b)[[0, 2]]) == [0, 1.5] and np.isnan(divide(a, b)[1])
    assert divide(a, b, full=True)[0] == np.float32(2.0**-127)
