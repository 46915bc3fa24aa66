"""sin, cos and tan of f32 with range reduction by multiples of pi / 2 (Payne-Hanek for large arguments)."""

from __future__ import annotations

import math

from tilemma.ir.lane import Imm, Reg, Vec
from tilemma.targets.ptx.lower.emitter import Emitter
from tilemma.targets.ptx.lower.floating import Float

_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 5)]
_COS = [(-1) ** k / math.factorial(2 * k) for k in range(6)]
# From this magnitude on, the f64 quotient by pi / 2 has too few fraction bits.
_FAR = 2.0**40
# The first 224 bits of 1 / (2 pi), of which an argument below 2**128 reads 96 that its exponent chooses.
INVERSE_TWO_PI = (0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA)


def _circular(f: Float, x: Reg) -> tuple[Reg, Reg, Reg]:
    """(sin r, cos r, quadrant) of x = quadrant * pi / 2 + r, |r| <= pi / 4."""
    e = f.e
    rest, quadrant = e.cse_control_flow(("reduced", x), (x,), lambda: _reduced(e, x))
    r = e.pure("cvt.rn.f32.f64", "f32", rest)
    z = f.mul(r, r)
    return f.fma(f.mul(z, r), f.series(z, _SIN), r), f.series(z, _COS), quadrant


def _reduced(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """(the remainder in f64, the quadrant); a rarely taken branch reduces large arguments."""
    d, f = Float(e, "f64"), Float(e, "f32")
    wide = e.pure("cvt.f64.f32", "f64", x)
    k = d.whole(d.mul(wide, d.c(2.0 / math.pi)), "rni")
    back = d.neg(k)
    # pi / 2 in two parts (Cody and Waite).
    near = d.fma(back, d.c(float.fromhex("0x1.1a62633145c07p-54")), d.fma(back, d.c(math.pi / 2), wide))
    quotient = e.pure("cvt.u32.u64", "s32", e.pure("cvt.rni.s64.f64", "s64", k))
    rest, quadrant = e.reg("rest", "f64", mutable=True), e.reg("quadrant", "s32", mutable=True)
    e.do("mov.f64", (rest,), (near,))
    e.do("and.b32", (quadrant,), (quotient, Imm(3)))
    size = f.abs(x)
    far = e.pure("and.pred", "pred", f.test("ge", size, f.c(_FAR)), f.test("lt", size, f.c(math.inf)), hint="far")
    with e.branch(far, cold=True):
        far_rest, far_quadrant = _reduced_far(e, x)
        e.do("mov.f64", (rest,), (far_rest,))
        e.do("and.b32", (quadrant,), (far_quadrant, Imm(3)))
    return rest, quadrant


def _reduced_far(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """The same for 2**23 <= |x|, an integer times 2**n, by exact multiplication (Payne and Hanek).

    The fraction of x / (2 pi) is that of the integer times the bits of 1 / (2 pi) from the n-th on, of which 96
    are used.  64 bits of the product are kept: no f32 is nearer than 2**-29 to a multiple of pi / 2.
    """
    bits = e.pure("mov.b32", "b32", x)
    exponent = e.pure("and.b32", "b32", e.pure("shr.u32", "b32", bits, Imm(23)), Imm(0xFF, "b32"))
    n = e.pure("sub.s32", "s32", exponent, Imm(127 + 23))
    fraction = e.pure("and.b32", "b32", bits, Imm(0x7FFFFF, "b32"))
    whole = e.pure("or.b32", "b32", fraction, Imm(0x800000, "b32"))
    past = [e.pure("setp.ge.s32", "pred", n, Imm(32 * k), hint="past") for k in (1, 2, 3)]
    words = []
    for i in range(4):
        word: Reg | Imm = Imm(INVERSE_TWO_PI[i], "b32")
        for k, p in enumerate(past, 1):
            word = e.pure("selp.b32", "b32", Imm(INVERSE_TWO_PI[i + k], "b32"), word, p)
        words.append(word)
    # The shift counts modulo 32.
    high, middle, low = (
        e.pure("shf.l.wrap.b32", "b32", words[i + 1], words[i], n, hint="window") for i in range(3)
    )
    least = e.pure("mul.wide.u32", "u64", low, whole)
    second = e.pure("mul.wide.u32", "u64", middle, whole)
    carried = e.pure("add.u64", "u64", second, e.pure("shr.u64", "u64", least, Imm(32)))
    top = e.pure("cvt.u32.u64", "b32", e.pure("shr.u64", "u64", carried, Imm(32)))
    upper = e.pure("mad.lo.u32", "b32", high, whole, top)
    revolution = e.pure("mov.b64", "s64", Vec((e.pure("cvt.u32.u64", "b32", carried), upper)), hint="turn")
    # The nearest quarter, and the remainder, in units of 2**-64 of 2 pi.
    raised = e.pure("add.s64", "s64", revolution, Imm(1 << 61, "s64"))
    quarter = e.pure("shr.u64", "s64", raised, Imm(62))
    left = e.pure("sub.s64", "s64", revolution, e.pure("shl.b64", "s64", quarter, Imm(62)))
    d = Float(e, "f64")
    rest = d.mul(e.pure("cvt.rn.f64.s64", "f64", left), d.c(math.pi * 2.0**-63))
    quadrant = e.pure("cvt.u32.u64", "s32", quarter)
    negative = e.pure("setp.lt.s32", "pred", bits, Imm(0), hint="negative")
    return d.where(negative, d.neg(rest), rest), e.pure(
        "selp.b32", "s32", e.pure("neg.s32", "s32", quadrant), quadrant, negative
    )


def _with_sign_of_quadrant(f: Float, value: Reg, quadrant: Reg) -> Reg:
    """``value``, negated in quadrants 2 and 3."""
    e = f.e
    flip = e.pure("shl.b32", "s32", e.pure("and.b32", "s32", quadrant, Imm(2)), Imm(30))
    return e.pure("mov.b32", "f32", e.pure("xor.b32", "b32", e.pure("mov.b32", "b32", value), flip))


def _odd(f: Float, quadrant: Reg) -> Reg:
    e = f.e
    return e.pure("setp.ne.s32", "pred", e.pure("and.b32", "s32", quadrant, Imm(1)), Imm(0), hint="p")


def sine(f: Float, x: Reg) -> Reg:
    """sin x in f32."""
    s, c, quadrant = _circular(f, x)
    return _with_sign_of_quadrant(f, f.where(_odd(f, quadrant), c, s), quadrant)


def cosine(f: Float, x: Reg) -> Reg:
    """cos x in f32."""
    s, c, quadrant = _circular(f, x)
    after = f.e.pure("add.s32", "s32", quadrant, Imm(1))
    return _with_sign_of_quadrant(f, f.where(_odd(f, quadrant), s, c), after)


def tangent(f: Float, x: Reg) -> Reg:
    """tan x in f32."""
    s, c, quadrant = _circular(f, x)
    return f.where(_odd(f, quadrant), f.neg(f.div(c, s)), f.div(s, c))
