"""The math library: each function is expanded inline into a few instructions.

Work is done in f32 (f64 for f64 arguments); 16- and 8-bit floats are widened first and rounded once at the
end.  Largest relative error in f32, over the whole range unless said otherwise:

====================================================== =====================================================
fabs ceil floor round sign isfinite min max fmaf       exact
sqrt frcp_rn                                           correctly rounded
exp exp2 exp2f sigmoid rsqrt                           2**-21 (ex2.approx and rsqrt.approx: 2**-22); sigmoid
                                                       is 0 below 2**-126
exp2_ftz                                               2**-21; 0 below 2**-126
expm1 tanh sinh cosh log log1p softplus                2**-20
log2                                                   2**-22
sin cos tan                                            2**-21; absolute near the zeros of cos
atan atan2 asin acos                                   2**-20 (acos absolute)
pow                                                    2**-23 (through f64)
erf                                                    2**-20
silu                                                   2**-20; 0 where sigmoid is
gelu                                                   absolute 2**-21 * max(1, |x|)
====================================================== =====================================================

In f64: fabs, ceil, floor, round, sign, isfinite, min, max, fmaf, sqrt, frcp_rn, rsqrt, exp, exp2, log, log2
and pow (2**-45); the others are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.ir.expr import Call, binary, const
from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.targets.ptx.lower.context import Lowering
from tilemma.targets.ptx.lower.convert import convert, promoted, register
from tilemma.targets.ptx.lower.expressions import evaluates, scalar
from tilemma.targets.ptx.lower.floating import Float
from tilemma.targets.ptx.lower.refusals import NotLowered
from tilemma.targets.ptx.lower.regions import Value
from tilemma.targets.ptx.lower.trigonometry import cosine, sine, tangent

_Function = Callable[..., Reg]


@evaluates(Call)
def call(lo: Lowering, x: Call) -> Value:
    """The call's value in its type's register.  Raises NotLowered for functions without code for the type."""
    e, t = lo.e, x.type
    name = {"exp2f": "exp2", "abs": "fabs"}.get(x.name, x.name)
    if t.is_integer or t.kind == "bool":
        return _integer(lo, x, name)
    if name == "fmaf" and t not in (dtypes.f32, dtypes.f64):
        return _narrow_fma(lo, x)
    work = t if t.bits == 64 else dtypes.f32
    f = Float(e, "f64" if t.bits == 64 else "f32")
    table = _COMMON | (_DOUBLE if t.bits == 64 else _SINGLE)
    if name not in table:
        raise NotLowered(
            e.span,
            what=f"`{x.name}` on {t}",
            arch=lo.arch,
            expected_what=f"one of {', '.join(sorted(table))}",
            remedy="convert the argument to f32 first" if t.bits == 64 else "write it with other functions",
        )
    args = [register(e, convert(e, scalar(lo, a), a.type, work, lo.arch), work) for a in x.args]
    return convert(e, table[name](f, *args), work, t, lo.arch)


def _narrow_fma(lo: Lowering, x: Call) -> Value:
    """A fused multiply-add rounded once: by an instruction of the type, or in f64 with rounding to odd."""
    e, t = lo.e, x.type
    if t.bits == 16:
        args = [register(e, promoted(e, scalar(lo, a), a.type, t, lo.arch), t) for a in x.args]
        return e.pure(f"fma.rn.{t.name}", "b16", *args, hint="fma")
    wide = [promoted(e, promoted(e, scalar(lo, a), a.type, t, lo.arch), t, dtypes.f64, lo.arch) for a in x.args]
    args = [register(e, a, dtypes.f64) for a in wide]
    d = Float(e, "f64")
    low, high = (d.op(f"fma.{way}", *args) for way in ("rm", "rp"))
    cut = d.op("fma.rz", *args)
    bits = e.pure("or.b64", "b64", e.pure("mov.b64", "b64", cut), Imm(1, "b64"))
    odd = d.where(d.test("neu", low, high), e.pure("mov.b64", "f64", bits), cut)
    return convert(e, odd, dtypes.f64, t, lo.arch)


def _integer(lo: Lowering, x: Call, name: str) -> Value:
    if name in ("min", "max"):
        return scalar(lo, binary(name, x.args[0], x.args[1]))  # type: ignore[arg-type]
    if name == "fabs":
        return scalar(lo, binary("max", x.args[0], binary("sub", const(0), x.args[0])))
    t: DType = x.type
    raise NotLowered(
        lo.e.span,
        what=f"`{x.name}` on {t}",
        arch=lo.arch,
        expected_what="a float: among integers only min, max and abs are defined",
        remedy="convert the argument to f32",
    )


# ---- any width -------------------------------------------------------------------------------------------


def _round(f: Float, x: Reg) -> Reg:
    """Halves away from zero, as C's round."""
    t = f.whole(x, "rzi")
    up = f.test("ge", f.abs(f.sub(x, t)), f.c(0.5))
    return f.copysign(f.where(up, f.add(t, f.copysign(f.c(1.0), x)), t), x)


def _sign(f: Float, x: Reg) -> Reg:
    signed = f.copysign(f.c(1.0), x)
    return f.where(f.test("neu", x, f.c(0.0)), f.where(f.test("nan", x, x), x, signed), f.c(0.0))


def _isfinite(f: Float, x: Reg) -> Reg:
    return f.where(f.test("lt", f.abs(x), f.c(math.inf)), f.c(1.0), f.c(0.0))


_COMMON: dict[str, _Function] = {
    "fabs": lambda f, x: f.abs(x),
    "ceil": lambda f, x: f.whole(x, "rpi"),
    "floor": lambda f, x: f.whole(x, "rmi"),
    "round": _round,
    "sign": _sign,
    "isfinite": _isfinite,
    "min": lambda f, a, b: f.op("min", a, b),
    "max": lambda f, a, b: f.op("max", a, b),
    "fmaf": lambda f, a, b, c: f.fma(a, b, c),
    "sqrt": lambda f, x: f.sqrt(x),
    "frcp_rn": lambda f, x: f.op("rcp.rn", x),
}


# ---- f32 -------------------------------------------------------------------------------------------------

_LOG2E = math.log2(math.e)
_LN2 = math.log(2.0)


def _single(x: float) -> float:
    import struct

    return float(struct.unpack("<f", struct.pack("<f", x))[0])


_LOG2E_HI = _single(_LOG2E)
_LN2_HI = float.fromhex("0x1.62e400p-1")  # 16 bits, so that products with exponents are exact


def _exp(f: Float, x: Reg) -> Reg:
    """2**(x log2 e), corrected by the rounding error of the product x log2 e."""
    t = f.mul(x, f.c(_LOG2E_HI))
    lost = f.fma(x, f.c(_LOG2E - _LOG2E_HI), f.fma(x, f.c(_LOG2E_HI), f.neg(t)))
    power = f.op("ex2.approx", t)
    better = f.fma(power, f.mul(lost, f.c(_LN2)), power)
    return f.where(f.test("lt", f.abs(t), f.c(128.0)), better, power)


_EXPM1 = [1.0 / math.factorial(k + 2) for k in range(7)]


def _expm1(f: Float, x: Reg) -> Reg:
    small = f.fma(f.mul(x, x), f.series(x, _EXPM1), x)
    return f.where(f.test("lt", f.abs(x), f.c(0.5)), small, f.sub(_exp(f, x), f.c(1.0)))


_LOG = [2.0 / k for k in (3, 5, 7, 9, 11)]


def _log(f: Float, x: Reg) -> Reg:
    """x = 2**k m with m near 1; log m by the series of artanh, in the arrangement that keeps f exact."""
    e = f.e
    tiny = f.test("lt", x, f.c(2.0**-126))
    scaled = f.where(tiny, f.mul(x, f.c(2.0**23)), x)
    bits = e.pure("mov.b32", "s32", scaled)
    k = e.pure("shr.s32", "s32", e.pure("sub.s32", "s32", bits, Imm(0x3F3504F3)), Imm(23))
    m = e.pure("mov.b32", "f32", e.pure("sub.s32", "s32", bits, e.pure("shl.b32", "s32", k, Imm(23))))
    exponent = f.add(e.pure("cvt.rn.f32.s32", "f32", k), f.where(tiny, f.c(-23.0), f.c(0.0)))
    d = f.sub(m, f.c(1.0))
    s = f.div(d, f.add(d, f.c(2.0)))
    z = f.mul(s, s)
    half = f.mul(f.mul(d, f.c(0.5)), d)
    rest = f.mul(s, f.fma(z, f.series(z, _LOG), half))
    low = f.fma(exponent, f.c(_LN2 - _LN2_HI), rest)
    value = f.fma(exponent, f.c(_LN2_HI), f.sub(d, f.sub(half, low)))
    ordinary = e.pure("and.pred", "pred", f.test("gt", x, f.c(0.0)), f.test("lt", x, f.c(math.inf)), hint="p")
    return f.where(ordinary, value, f.op("lg2.approx", x))


def _log1p(f: Float, x: Reg) -> Reg:
    u = f.add(x, f.c(1.0))
    log = _log(f, u)
    lost = f.div(f.sub(x, f.sub(u, f.c(1.0))), u)
    ordinary = f.e.pure("and.pred", "pred", f.test("gt", u, f.c(0.0)), f.test("lt", u, f.c(math.inf)), hint="p")
    return f.where(ordinary, f.add(log, lost), log)


def _tanh(f: Float, x: Reg) -> Reg:
    t = _expm1(f, f.mul(f.op("min.NaN", f.abs(x), f.c(10.0)), f.c(2.0)))
    return f.copysign(f.div(t, f.add(t, f.c(2.0))), x)


def _sigmoid(f: Float, x: Reg) -> Reg:
    """1 / (1 + 2**(-x log2 e)), corrected as `_exp`.

    The reciprocal is good to 2**-23; that of `rcp.rn` takes ten instructions and a branch.
    """
    t = f.mul(x, f.c(-_LOG2E_HI))
    lost = f.fma(x, f.c(_LOG2E_HI - _LOG2E), f.fma(x, f.c(-_LOG2E_HI), f.neg(t)))
    factor = f.where(f.test("lt", f.abs(t), f.c(128.0)), f.fma(lost, f.c(_LN2), f.c(1.0)), f.c(1.0))
    return f.op("rcp.approx.ftz", f.fma(f.op("ex2.approx.ftz", t), factor, f.c(1.0)))


def _large(f: Float, a: Reg) -> tuple[Reg, Reg]:
    """(whether e**a / 2 is taken as the square of e**(a / 2), its value)."""
    w = _exp(f, f.mul(a, f.c(0.5)))
    return f.test("gt", a, f.c(80.0)), f.mul(f.mul(w, f.c(0.5)), w)


def _sinh(f: Float, x: Reg) -> Reg:
    a = f.abs(x)
    t = _expm1(f, a)
    value = f.mul(f.add(t, f.div(t, f.add(t, f.c(1.0)))), f.c(0.5))
    big, square = _large(f, a)
    return f.copysign(f.where(big, square, value), x)


def _cosh(f: Float, x: Reg) -> Reg:
    a = f.abs(x)
    t = _exp(f, a)
    big, square = _large(f, a)
    return f.where(big, square, f.mul(f.add(t, f.op("rcp.rn", t)), f.c(0.5)))


def _softplus(f: Float, x: Reg) -> Reg:
    return f.add(f.op("max.NaN", x, f.c(0.0)), _log1p(f, _exp(f, f.neg(f.abs(x)))))


# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: |error| <= 1.5e-7.
_ERF = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429]


# Terms of erf(x) / x in powers of x**2: below 1/2, eight of them are good to 2**-30.
_ERF_BELOW_HALF = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(8)]


def _erfc_positive(f: Float, a: Reg) -> Reg:
    """1 - erf(a) for a >= 0."""
    t = f.op("rcp.rn", f.fma(a, f.c(0.3275911), f.c(1.0)))
    return f.mul(f.mul(t, f.series(t, _ERF)), _exp(f, f.neg(f.mul(a, a))))


def _erf(f: Float, x: Reg) -> Reg:
    a = f.abs(x)
    small = f.mul(a, f.series(f.mul(a, a), _ERF_BELOW_HALF))
    value = f.where(f.test("lt", a, f.c(0.5)), small, f.sub(f.c(1.0), _erfc_positive(f, a)))
    return f.copysign(value, x)


def _gelu(f: Float, x: Reg) -> Reg:
    z = f.mul(x, f.c(math.sqrt(0.5)))
    erfc = _erfc_positive(f, f.abs(z))
    below, above = f.mul(x, f.mul(erfc, f.c(0.5))), f.mul(x, f.fma(erfc, f.c(-0.5), f.c(1.0)))
    return f.where(f.test("lt", x, f.c(0.0)), below, above)


_ATAN = [(-1) ** k / (2 * k + 1) for k in range(1, 10)]


def _atan_unit(f: Float, t: Reg) -> Reg:
    """atan of 0 <= t <= 1, by (t - 1) / (t + 1) above tan(pi / 8)."""
    upper = f.test("gt", t, f.c(math.sqrt(2.0) - 1.0))
    u = f.where(upper, f.div(f.sub(t, f.c(1.0)), f.add(t, f.c(1.0))), t)
    z = f.mul(u, u)
    small = f.fma(f.mul(z, u), f.series(z, _ATAN), u)
    return f.where(upper, f.add(small, f.c(math.pi / 4)), small)


def _atan2(f: Float, y: Reg, x: Reg) -> Reg:
    ax, ay = f.abs(x), f.abs(y)
    high, low = f.op("max.NaN", ax, ay), f.op("min.NaN", ax, ay)
    t = f.where(f.test("eq", low, high), f.c(1.0), f.div(low, high))
    r = _atan_unit(f, f.where(f.test("eq", high, f.c(0.0)), f.c(0.0), t))
    r = f.where(f.test("gt", ay, ax), f.sub(f.c(math.pi / 2), r), r)
    left = f.test("lt", f.copysign(f.c(1.0), x), f.c(0.0))
    r = f.where(left, f.sub(f.c(math.pi), r), r)
    return f.copysign(f.where(f.test("nan", x, y), f.c(math.nan), r), y)


def _atan(f: Float, x: Reg) -> Reg:
    return _atan2(f, x, register(f.e, f.c(1.0), dtypes.f32))


def _complement(f: Float, x: Reg) -> Reg:
    return f.sqrt(f.mul(f.sub(f.c(1.0), x), f.add(x, f.c(1.0))))


def _asin(f: Float, x: Reg) -> Reg:
    return _atan2(f, x, _complement(f, x))


def _acos(f: Float, x: Reg) -> Reg:
    return _atan2(f, _complement(f, x), x)


def _pow(f: Float, x: Reg, y: Reg) -> Reg:
    e = f.e
    d = Float(e, "f64")
    wide = _pow_double(d, e.pure("cvt.f64.f32", "f64", x), e.pure("cvt.f64.f32", "f64", y))
    return e.pure("cvt.rn.f32.f64", "f32", wide)


_SINGLE: dict[str, _Function] = {
    "exp": _exp,
    "exp2": lambda f, x: f.op("ex2.approx", x),
    # Without .ftz the hardware's ex2 takes three more instructions, for results below 2**-126.
    "exp2_ftz": lambda f, x: f.op("ex2.approx.ftz", x),
    "expm1": _expm1,
    "log": _log,
    "log2": lambda f, x: f.mul(_log(f, x), f.c(_LOG2E)),
    "log1p": _log1p,
    "rsqrt": lambda f, x: f.op("rsqrt.approx", x),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "erf": _erf,
    "gelu": _gelu,
    "silu": lambda f, x: f.mul(x, _sigmoid(f, x)),
    "tanh": _tanh,
    "sinh": _sinh,
    "cosh": _cosh,
    "sin": sine,
    "cos": cosine,
    "tan": tangent,
    "atan": _atan,
    "atan2": _atan2,
    "asin": _asin,
    "acos": _acos,
    "pow": _pow,
}


# ---- f64 -------------------------------------------------------------------------------------------------

_LN2_HI64 = float.fromhex("0x1.62e42fee00000p-1")
_EXP64 = [1.0 / math.factorial(k) for k in range(13)]
_LOG64 = [2.0 / k for k in range(3, 22, 2)]


def _exp_double(f: Float, x: Reg) -> Reg:
    """2**n times the series of e**r, |r| <= log(2) / 2; the power in two factors, which cannot overflow."""
    e = f.e
    bounded = f.op("max", f.op("min", x, f.c(800.0)), f.c(-800.0))
    n = f.whole(f.mul(bounded, f.c(_LOG2E)), "rni")
    r = f.fma(n, f.c(_LN2_HI64 - _LN2), f.fma(n, f.c(-_LN2_HI64), bounded))
    value = f.series(r, _EXP64)
    whole = e.pure("cvt.rni.s32.f64", "s32", n)
    first = e.pure("shr.s32", "s32", whole, Imm(1))
    for k in (first, e.pure("sub.s32", "s32", whole, first)):
        biased = e.pure("shl.b32", "s32", e.pure("add.s32", "s32", k, Imm(1023)), Imm(20))
        value = f.mul(value, e.pure("mov.b64", "f64", Vec((Imm(0, "b32"), biased))))
    return f.where(f.test("nan", x, x), x, value)


def _log_double(f: Float, x: Reg) -> Reg:
    e = f.e
    tiny = f.test("lt", x, f.c(2.0**-1022))
    scaled = f.where(tiny, f.mul(x, f.c(2.0**54)), x)
    bits = e.pure("mov.b64", "s64", scaled)
    over = e.pure("sub.s64", "s64", bits, Imm(0x3FE6A09E667F3BCD, "s64"))
    k = e.pure("shr.s64", "s64", over, Imm(52))
    m = e.pure("mov.b64", "f64", e.pure("sub.s64", "s64", bits, e.pure("shl.b64", "s64", k, Imm(52))))
    exponent = f.add(e.pure("cvt.rn.f64.s64", "f64", k), f.where(tiny, f.c(-54.0), f.c(0.0)))
    d = f.sub(m, f.c(1.0))
    s = f.div(d, f.add(d, f.c(2.0)))
    z = f.mul(s, s)
    half = f.mul(f.mul(d, f.c(0.5)), d)
    rest = f.mul(s, f.fma(z, f.series(z, _LOG64), half))
    low = f.fma(exponent, f.c(_LN2 - _LN2_HI64), rest)
    value = f.fma(exponent, f.c(_LN2_HI64), f.sub(d, f.sub(half, low)))
    value = f.where(f.test("eq", x, f.c(0.0)), f.c(-math.inf), value)
    value = f.where(f.test("lt", x, f.c(0.0)), f.c(math.nan), value)
    infinite = f.where(f.test("eq", x, f.c(-math.inf)), f.c(math.nan), x)
    return f.where(f.test("lt", f.abs(x), f.c(math.inf)), value, infinite)


def _pow_double(f: Float, x: Reg, y: Reg) -> Reg:
    """C's pow: 1 for y = 0 and for x = 1; negative x take integers y only."""
    e = f.e
    a = f.abs(x)
    value = _exp_double(f, f.mul(y, _log_double(f, a)))
    value = f.where(f.test("eq", a, f.c(1.0)), f.c(1.0), value)
    integer = f.test("eq", f.whole(y, "rzi"), y)
    half = f.mul(y, f.c(0.5))
    odd = e.pure("and.pred", "pred", integer, f.test("neu", f.whole(half, "rzi"), half), hint="p")
    negative = f.test("lt", f.copysign(f.c(1.0), x), f.c(0.0))
    value = f.where(e.pure("and.pred", "pred", negative, odd, hint="p"), f.neg(value), value)
    bad = e.pure("and.pred", "pred", f.test("lt", x, f.c(0.0)), e.pure("not.pred", "pred", integer), hint="p")
    finite = f.test("lt", a, f.c(math.inf))
    value = f.where(e.pure("and.pred", "pred", bad, finite, hint="p"), f.c(math.nan), value)
    value = f.where(f.test("nan", x, y), f.c(math.nan), value)
    value = f.where(f.test("eq", x, f.c(1.0)), f.c(1.0), value)
    return f.where(f.test("eq", y, f.c(0.0)), f.c(1.0), value)


_DOUBLE: dict[str, _Function] = {
    "exp": _exp_double,
    "exp2": lambda f, x: _exp_double(f, f.mul(x, f.c(_LN2))),
    "log": _log_double,
    "log2": lambda f, x: f.mul(_log_double(f, x), f.c(_LOG2E)),
    "rsqrt": lambda f, x: f.op("rcp.rn", f.sqrt(x)),
    "pow": _pow_double,
}
