"""The numeric semantics of conversions, scalar operations and matrix products, with the ISA's rounding.

Sources: PTX ISA, "Floating Point Instructions", "Half Precision Floating Point Instructions", ``cvt`` and its
tables, ``mma``, ``wgmma.mma_async``; the formats are those of IEEE 754 and OCP's FP8.

Everything is vectorised over NumPy arrays of any shape.  Values travel in their own type (``dtypes``; tf32
as float32).  All arithmetic is done in float64, whose 53 bits hold the sum, product, quotient and square root
of two f16, bf16 or f32 values closely enough that rounding once more is the same as rounding once; where
that fails (fused multiply-add, directed rounding) the float64 result is first rounded to odd, which keeps
the information that the last rounding needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...dtypes import dtype

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Rounding = Literal["rn", "rz", "rm", "rp", "rna"]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format: bits of precision, exponents of the normal numbers, largest value.

    ``nan`` is the canonical NaN that results are given (PTX ISA: 0x7fff for f16 and bf16, 0x7fffffff for
    f32); None where the payload of an operand is kept.
    """

    precision: int
    emin: int
    largest: float
    nan: int | None
    has_inf: bool = True


FORMATS: dict[str, Format] = {
    "f64": Format(53, -1022, float(np.finfo(np.float64).max), None),
    "f32": Format(24, -126, float(np.finfo(np.float32).max), 0x7FFFFFFF),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127, 0x7FFFFFFF),
    "f16": Format(11, -14, 65504.0, 0x7FFF),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127, 0x7FFF),
    "f8_e5m2": Format(3, -14, 57344.0, 0x7F),
    "f8_e4m3": Format(4, -6, 448.0, 0x7F, has_inf=False),
    "f6_e2m3": Format(4, 0, 7.5, None, has_inf=False),
    "f6_e3m2": Format(3, -2, 28.0, None, has_inf=False),
    "f4_e2m1": Format(2, 0, 6.0, None, has_inf=False),
}

_INTEGRAL: dict[str, Callable[[Any], Any]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    # Exact: the argument has at most 53 bits and adding a half to a magnitude below 2**52 loses none.
    "rna": lambda x: np.where(np.abs(x) < 2.0**52, np.copysign(np.floor(np.abs(x) + 0.5), x), x),
}


def round_to(x: Doubles, fmt: str, rounding: Rounding = "rn", *, satfinite: bool = False) -> Doubles:
    """``x`` rounded to the values of a format, still as float64; NaN and infinities pass.

    Overflow gives infinity or the largest number as the rounding mode says; formats without infinity, and
    all with ``satfinite``, give the largest number.
    """
    f = FORMATS[fmt]
    if fmt == "f64":
        return x
    with np.errstate(all="ignore"):
        _, exponent = np.frexp(x)
        # The unit in the last place: that of the value's binade, or of the subnormals.
        unit = np.maximum(exponent - f.precision, f.emin - f.precision + 1)
        y: Doubles = np.ldexp(_INTEGRAL[rounding](np.ldexp(x, -unit)), unit)
    y = np.where(np.isfinite(x), np.copysign(y, x), x)
    over = np.abs(y) > f.largest
    if not over.any():
        return y
    if satfinite or not f.has_inf:
        limit: Any = f.largest
    else:
        to_inf = {"rn": True, "rna": True, "rz": False, "rm": x < 0, "rp": x > 0}[rounding] | np.isinf(x)
        limit = np.where(to_inf, np.inf, f.largest)
    return np.where(over, np.copysign(limit, x), y)


def _wide(x: Array) -> Doubles:
    """As float64, without NumPy's warning that a signalling NaN became a quiet one."""
    with np.errstate(all="ignore"):
        return x.astype(np.float64)


def _store(y: Array, fmt: str) -> Array:
    """Doubles that are values of ``fmt`` in its own NumPy type, NaN canonical."""
    t, f = dtype(fmt), FORMATS[dtype(fmt).name]
    with np.errstate(all="ignore"):
        out = y.astype(t.numpy)
    nan = np.isnan(y)
    if f.nan is not None and nan.any():
        bits = out.view(f"u{t.bytes}").copy()
        bits[nan] = f.nan
        out = bits.view(t.numpy)
    return out


def flush(x: Array, name: str = "f32") -> Array:
    """``.ftz``: subnormal numbers as zeros of their sign."""
    tiny = 2.0 ** FORMATS[name].emin
    small = np.abs(_wide(x)) < tiny
    return np.where(small, np.copysign(np.zeros_like(x), x), x) if small.any() else x


def convert(
    x: Array,
    src: str,
    dst: str,
    rounding: str | None = None,
    *,
    sat: bool = False,
    satfinite: bool = False,
    ftz: bool = False,
    relu: bool = False,
) -> Array:
    """``cvt.{rounding}{.ftz}{.sat}{.satfinite}{.relu}.dst.src``, element by element.

    ``x`` has the NumPy type of ``src`` (integers: any integer type whose values fit).  ``rounding`` is one of
    rn, rz, rm, rp, rna, or with the suffix ``i`` to an integral value; None where the conversion is exact or
    between integers.  The result has the NumPy type of ``dst``.  Float to integer clamps to the range, NaN
    becomes 0, except to or from 64 bits, where it becomes the top bit alone (PTX ISA, cvt).
    """
    source, target = dtype(src), dtype(dst)
    if (source.name, target.name) in _PLAIN and rounding in (None, "rn") and not (sat or satfinite or ftz or relu):
        with np.errstate(all="ignore"):
            return _canonical(x.astype(target.numpy), target.name)
    if source.is_integer and target.is_integer:
        return _int_to_int(x, target.name, sat)
    if source.is_integer:
        return _int_to_float(x, target.name, rounding or "rn", sat)
    if ftz and source.name == "f32":
        x = flush(x)
    if target.is_integer:
        return _float_to_int(x, source.name, target.name, rounding or "rzi")
    mode: Any = rounding or "rn"
    if mode.endswith("i"):
        y = np.copysign(_INTEGRAL[mode[:2]](_wide(x)), _wide(x))
    else:
        y = round_to(_wide(x), target.name, mode, satfinite=satfinite)
    if relu:
        y = np.where(y > 0, y, np.where(np.isnan(y), y, 0.0))
    return _finish(y, target.name, sat=sat, ftz=ftz)


# Pairs for which ``astype`` rounds to nearest even, once.
_PLAIN = {(s, d) for s in ("f32", "f16", "bf16") for d in ("f64", "f32", "f16", "bf16")} | {
    ("f64", "f64"),
    ("f64", "f32"),
    ("f64", "f16"),
}


def _finish(y: Doubles, fmt: str, *, sat: bool, ftz: bool) -> Array:
    if sat:
        # NaN saturates to +0.0.
        y = np.where(np.isnan(y), 0.0, np.clip(y, 0.0, 1.0)) + 0.0
    out = _store(y, fmt)
    return flush(out) if ftz and fmt == "f32" else out


def _bounds(name: str) -> tuple[int, int]:
    t = dtype(name)
    signed = t.kind == "int"
    return (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if signed else (0, (1 << t.bits) - 1)


def _int_to_int(x: Array, dst: str, sat: bool) -> Array:
    low, high = _bounds(dst)
    if sat:
        info = np.iinfo(x.dtype)
        x = np.clip(x, max(low, info.min), min(high, info.max))
    return x.astype(dtype(dst).numpy)


def _int_to_float(x: Array, dst: str, mode: str, sat: bool) -> Array:
    with np.errstate(all="ignore"):
        y = x.astype(np.float64)
        if x.dtype.itemsize == 8:
            y = _wide_int(x, dst, mode)
    return _finish(round_to(y, dst, mode), dst, sat=sat, ftz=False)  # type: ignore[arg-type]


def _wide_int(x: Array, dst: str, mode: str) -> Doubles:
    """64-bit integers as doubles: rounded as asked for f64, to odd otherwise."""
    negative = x < 0
    signs: Doubles = np.where(negative, -1.0, 1.0)
    magnitude = np.where(negative, -x, x).astype(np.uint64)
    low = (magnitude & np.uint64(0x7FF)).astype(np.int64)
    wide = magnitude >= np.uint64(1 << 53)
    if dst != "f64":
        odd = (magnitude & ~np.uint64(0x7FF)) | np.where(low != 0, np.uint64(0x800), np.uint64(0))
        return np.where(wide, odd, magnitude).astype(np.float64) * signs
    nearest = magnitude.astype(np.float64) * signs
    if mode == "rn":
        return nearest
    exact = [int(v) for v in x.ravel()]
    error = np.array([v - int(r) for v, r in zip(exact, nearest.ravel(), strict=True)], dtype=object)
    sign = np.array([(e > 0) - (e < 0) for e in error], dtype=np.float64).reshape(x.shape)
    out: Doubles = _directed(nearest, sign, mode)
    return out


def _float_to_int(x: Array, src: str, dst: str, mode: str) -> Array:
    low, high = _bounds(dst)
    y = _INTEGRAL[mode[:2]](_wide(x))
    nan = np.isnan(y)
    # float(high) of a 64-bit type rounds up to a power of two: compare before casting.
    with np.errstate(all="ignore"):
        inside = np.where(nan | (y < low) | (y >= float(high)), 0.0, y)
        out = inside.astype(np.int64 if low < 0 or high < 1 << 63 else np.uint64).astype(dtype(dst).numpy)
    out = np.where(y < low, dtype(dst).numpy.type(low), out)
    out = np.where(y >= float(high), dtype(dst).numpy.type(high), out)
    wide = src == "f64" or dtype(dst).bits == 64
    indefinite = (low if low < 0 else 1 << dtype(dst).bits - 1) if wide else 0
    return np.where(nan, dtype(dst).numpy.type(indefinite), out)


def _two_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Knuth: s + e = a + b exactly, s nearest."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def _split(a: Doubles) -> tuple[Doubles, Doubles]:
    c = 134217729.0 * a
    high = c - (c - a)
    return high, a - high


def _two_product(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Dekker: p + e = a * b exactly, p nearest, barring overflow and underflow."""
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def _directed(nearest: Any, error: Any, mode: str) -> Any:
    """The nearest double, moved in the direction of the error's sign where the directed mode requires it."""
    up = np.nextafter(nearest, np.inf)
    down = np.nextafter(nearest, -np.inf)
    if mode == "rz":
        grew = (nearest < 0) & (error > 0), (nearest > 0) & (error < 0)
        return np.where(grew[0], up, np.where(grew[1], down, nearest))
    if mode == "rm":
        return np.where(error < 0, down, nearest)
    return np.where(error > 0, up, nearest)


def _to_odd(s: Doubles, e: Doubles) -> Doubles:
    """s + e as a double rounded to odd: exact, or the neighbour whose last bit is 1."""
    inexact = np.isfinite(s) & np.isfinite(e) & (e != 0)
    if not inexact.any():
        return s
    even = (s.view(np.uint64) & np.uint64(1)) == 0
    toward = np.nextafter(s, np.where(e > 0, np.inf, -np.inf))
    return np.where(inexact & even, toward, s)


def _exact(op: str, xs: list[Doubles], narrow: bool) -> tuple[Doubles, Doubles]:
    """The nearest double of an operation on doubles, and (the sign of) its error.

    ``narrow``: the operands have at most 24 bits, so that their product is a double.
    """
    a = xs[0]
    b = xs[1] if len(xs) > 1 else a
    if narrow and op in ("mul", "fma"):
        product = a * b
        return (product, np.zeros_like(product)) if op == "mul" else _two_sum(product, xs[2])
    if op in ("add", "sub"):
        return _two_sum(a, b if op == "add" else -b)
    if op == "mul":
        return _two_product(a, b)
    if op in ("div", "rcp"):
        n, d = (a, b) if op == "div" else (np.ones_like(a), a)
        q = n / d
        p, e = _two_product(q, d)
        return q, ((n - p) - e) * np.sign(d)
    if op == "sqrt":
        r = np.sqrt(a)
        p, e = _two_product(r, r)
        return r, (a - p) - e
    assert op == "fma", op
    # Boldo and Melquiond, "Emulation of FMA and correctly rounded sums": sum of three with one odd rounding.
    uh, ul = _two_product(a, b)
    th, tl = _two_sum(xs[2], ul)
    vh, vl = _two_sum(uh, th)
    z = _to_odd(*_two_sum(tl, vl))
    s, e = _two_sum(vh, z)
    # Where an operand is not finite the error terms are NaN, and where the product is zero they lose its sign; the
    # plain expression is right there.
    finite = np.isfinite(s) & np.isfinite(e) & (a != 0) & (b != 0)
    plain = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(xs[2]), xs[2], a * b + xs[2])
    return np.where(finite, s, plain), np.where(finite, e, 0.0)


def _far(op: str, xs: list[Doubles], y: Doubles, rounding: str) -> Doubles:
    """``y`` with the f64 lanes done in exact fractions whose error terms a double might not hold."""
    exponents = [np.abs(np.frexp(x)[1]) for x in xs]
    far = (np.maximum.reduce(exponents) > 300) & np.logical_and.reduce([np.isfinite(x) for x in xs])
    if op in ("div", "rcp"):
        far &= xs[-1] != 0
    if op == "sqrt" or not far.any():
        return y
    y = y.copy()
    for i in zip(*np.nonzero(far), strict=True):
        v = [Fraction(x[i]) for x in xs]
        exact = {
            "add": lambda v: v[0] + v[1],
            "sub": lambda v: v[0] - v[1],
            "mul": lambda v: v[0] * v[1],
            "div": lambda v: v[0] / v[1],
            "rcp": lambda v: 1 / v[0],
            "fma": lambda v: v[0] * v[1] + v[2],
        }[op](v)
        if exact:
            y[i] = _round_fraction(exact, rounding)
    return y


def _round_fraction(exact: Fraction, rounding: str) -> float:
    """A fraction other than zero as a double."""
    sign = 1.0 if exact > 0 else -1.0
    try:
        nearest = np.copysign(float(exact), sign)
    except OverflowError:
        finite = {"rn": False, "rz": True, "rm": exact > 0, "rp": exact < 0}[rounding]
        return sign * (FORMATS["f64"].largest if finite else np.inf)
    if rounding == "rn":
        return float(nearest)
    miss = exact - Fraction(nearest)
    return float(_directed(nearest, np.float64((miss > 0) - (miss < 0)), rounding))


def arith(
    op: str,
    name: str,
    *operands: Array,
    rounding: str = "rn",
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
    nan: bool = False,
) -> Array:
    """``op{.rounding}{.ftz}{.sat}{.relu}{.NaN}.name`` on floats, with a single rounding.

    ``op`` is add, sub, mul, fma, div, rcp, sqrt, min, max, neg or abs; ``name`` f16, bf16, f32 or f64.  Packed
    types (f16x2, bf16x2) are arrays with both halves.  ``min`` and ``max`` give the operand that is a number
    unless ``nan``; -0 is less than +0.
    """
    t = dtype(name)
    xs = [flush(x, "f32") if ftz and name == "f32" else flush(x, name) if ftz else x for x in operands]
    if op == "neg":
        return _flip_sign(xs[0], t.bytes, xor=True)
    if op == "abs":
        return _flip_sign(xs[0], t.bytes, xor=False)
    if op in ("min", "max"):
        return _min_max(op, name, xs[0], xs[1], nan)
    with np.errstate(all="ignore"):
        if rounding == "rn" and name in ("f32", "f64") and op in _NATIVE and not (sat or relu):
            y: Array = _NATIVE[op](*xs)
            out = _canonical(y, name)
        else:
            nearest, error = _exact(op, [x.astype(np.float64) for x in xs], name != "f64")
            error = np.where(np.isfinite(error), error, 0.0)
            if name == "f64":
                y = nearest if rounding == "rn" else _directed(nearest, error, rounding)
                y = _far(op, xs, y, rounding)
            else:
                y = _to_odd(nearest, error)
                if rounding != "rn" or name == "bf16":  # NumPy rounds doubles to f16 and f32 itself, once.
                    y = round_to(y, name, rounding)  # type: ignore[arg-type]
            if relu:
                y = np.where(y > 0, y, np.where(np.isnan(y), y, 0.0))
            out = _finish(y, name, sat=sat, ftz=False)
    return flush(out, name) if ftz else out


_NATIVE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda x: np.ones_like(x) / x,
}


def _canonical(y: Array, name: str) -> Array:
    f = FORMATS[name]
    nan = np.isnan(y)
    if f.nan is None or not nan.any():
        return y
    bits = y.view(f"u{y.dtype.itemsize}").copy()
    bits[nan] = f.nan
    return bits.view(y.dtype)


def _flip_sign(x: Array, size: int, *, xor: bool) -> Array:
    u = np.dtype(f"u{size}").type
    sign = u(1 << 8 * size - 1)
    bits = np.ascontiguousarray(x).view(u)
    out: Array = (bits ^ sign if xor else bits & ~sign).view(x.dtype)
    return out


def _min_max(op: str, name: str, a: Array, b: Array, nan: bool) -> Array:
    if name in ("f32", "f64"):
        quick: Array = _EXTREMA[op, nan](a, b)
        # Zeros have an order by their sign here, and NaN is the canonical one.
        if not ((quick == 0) | (quick != quick)).any():
            return quick
    x, y = _wide(a), _wide(b)
    less = (x < y) | ((x == y) & np.signbit(x) & ~np.signbit(y))
    first = less if op == "min" else ~less
    out = np.where(first, x, y)
    xn, yn = np.isnan(x), np.isnan(y)
    out = np.where(xn | yn, np.nan, out) if nan else np.where(xn, y, np.where(yn, x, out))
    return _store(out, name)


_EXTREMA: dict[tuple[str, bool], Any] = {
    ("min", False): np.fmin, ("max", False): np.fmax, ("min", True): np.minimum, ("max", True): np.maximum,
}  # fmt: skip


def product(
    a: Array,
    b: Array,
    c: Array,
    a_type: str,
    b_type: str,
    d_type: str,
    *,
    satfinite: bool = False,
    bitop: Literal["xor", "and"] | None = None,
    rounding: str = "rn",
) -> Array:
    """``a @ b + c`` as a matrix instruction computes it: [..., m, k] by [..., k, n] onto [..., m, n].

    Operands are as ``fragments.unpack`` gives them; the result has the NumPy type of ``d_type``.

    Floating point: every product of two elements is exact, the sum over k and ``c`` is taken in float64 and
    rounded once to ``d_type``.  The ISA leaves order and intermediate rounding of the sum open: `sums` has the
    rules of the tensor cores, this is for the other instructions.  Integers wrap to 32 bits or, with
    ``satfinite``, clamp.  b1 counts the bits of ``a ^ b`` or ``a & b``.  Products of f64 are a chain of fused
    multiply-adds along k, each with ``rounding``.
    """
    if dtype(d_type).name == "f64":
        total = c
        for k in range(a.shape[-1]):
            column, row = np.broadcast_arrays(a[..., :, k, None], b[..., None, k, :])
            total = arith("fma", "f64", column, row, total, rounding=rounding)
        return total
    product = a.astype(np.float64, copy=False) @ b.astype(np.float64, copy=False)
    target = dtype(d_type)
    if target.is_float:
        product += c
        return _canonical(product.astype(target.numpy, copy=False), target.name)
    if bitop == "xor":
        ones = a.astype(np.int64).sum(-1)[..., :, None] + b.astype(np.int64).sum(-2)[..., None, :]
        counts = ones - 2 * product.astype(np.int64)
    else:
        counts = product.astype(np.int64)
    total = counts + c.astype(np.int64)
    return _int_to_int(total, d_type, satfinite)


def mma(a: Array, b: Array, c: Array, a_type: str, b_type: str, d_type: str, **options: Any) -> Array:
    """As `product`, without NumPy's floating-point warnings."""
    with np.errstate(all="ignore"):
        return product(a, b, c, a_type, b_type, d_type, **options)
