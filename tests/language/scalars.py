"""Scalars: parameters, arithmetic, mutable values, conversions, the math library."""

from __future__ import annotations

import numpy as np
from construct import construct, random, small, unwritten

import tilemma as tm
from tilemma import cdiv, compose, else_, foreach, if_, parallel, select, ubound, var, while_

f32, f16, s32 = np.float32, np.float16, np.int32
INTS = np.array([[7, 3, -7, 2, 0, 1, -(2**31) + 5, 100], [2, 5, 2, -3, 9, 1, 3, -7]], s32)
UNSIGNED = np.array([[7, 3, 2**32 - 7, 2, 0, 1], [2, 5, 2, 3, 9, 31]], np.uint32)


@construct(
    given={"a": random("f32", 5, 7), "b": random("f32", 5, 7, seed=1), "c": unwritten("f32", 5, 7)},
    expect=lambda a, b, c: {"c": a * b + a - b / f32(2)},
    co="""
    __co__ void elementwise(global f32 [M, N] a, global f32 [M, N] b, global f32 [M, N] c) {
      parallel {i, j} by [M, N] : block
        c.at(i, j) = a.at(i, j) * b.at(i, j) + a.at(i, j) - b.at(i, j) / 2.0f;
    }
    """,
)
def elementwise(a: tm.Global["f32", "M", "N"], b: tm.Global["f32", "M", "N"], c: tm.Global["f32", "M", "N"]):
    M, N = a.shape
    for i, j in parallel(M, N, level="block"):
        c[i, j] = a[i, j] * b[i, j] + a[i, j] - b[i, j] / 2.0


def integer_results(a, b, c):
    quotient = (np.abs(a.astype(np.int64)) // np.abs(b)) * np.sign(a) * np.sign(b)
    rows = [
        a + b, a - b, a * b, a & b, a | b, a ^ b, ~a, -a, np.minimum(a, b), np.maximum(a, b), a << 3, a >> 2, a // b,
        a % b, quotient, a - quotient * b, -(-a.astype(np.int64) // b),
    ]  # fmt: skip
    return {"c": np.stack(rows).astype(s32)}


@construct(
    given={"a": INTS[0], "b": INTS[1], "c": unwritten("s32", 17, 8)},
    expect=integer_results,
    co="""
    __co__ void integers(global s32 [N] a, global s32 [N] b, global s32 [17, N] c) {
      parallel i by N : block {
        c.at(0, i) = a.at(i) + b.at(i);
        c.at(1, i) = a.at(i) - b.at(i);
        c.at(2, i) = a.at(i) * b.at(i);
        c.at(3, i) = a.at(i) & b.at(i);
        c.at(4, i) = a.at(i) | b.at(i);
        c.at(5, i) = a.at(i) ^ b.at(i);
        c.at(6, i) = ~a.at(i);
        c.at(7, i) = -a.at(i);
        c.at(8, i) = __min(a.at(i), b.at(i));
        c.at(9, i) = __max(a.at(i), b.at(i));
        c.at(10, i) = a.at(i) << 3;
        c.at(11, i) = a.at(i) >> 2;
        c.at(12, i) = __aligndown(a.at(i), b.at(i)) / b.at(i);
        c.at(13, i) = a.at(i) - __aligndown(a.at(i), b.at(i));
        c.at(14, i) = a.at(i) / b.at(i);
        c.at(15, i) = a.at(i) % b.at(i);
        c.at(16, i) = cdiv(a.at(i), b.at(i));
      }
    }
    """,
)
def integers(a: tm.Global["s32", "N"], b: tm.Global["s32", "N"], c: tm.Global["s32", 17, "N"]):
    (N,) = a.shape
    for i in parallel(N, level="block"):
        x, y = a[i], b[i]
        rows = [
            x + y,
            x - y,
            x * y,
            x & y,
            x | y,
            x ^ y,
            ~x,
            -x,
            tm.math.min(x, y),
            tm.math.max(x, y),
            x << 3,
            x >> 2,
        ]
        toward_zero = select((x < 0) == (y < 0), abs(x) // abs(y), -(abs(x) // abs(y)))
        rows += [x // y, x % y, toward_zero, x - toward_zero * y, cdiv(x, y)]
        for row, e in enumerate(rows):
            c[row, i] = e


@construct(
    given={"a": UNSIGNED[0], "b": UNSIGNED[1], "c": unwritten("u32", 9, 6)},
    expect=lambda a, b, c: {
        "c": np.stack([a + b, a - b, a * b, a // b, a % b, a << b, a >> b, np.minimum(a, b), a + (a < b)]).astype(
            "u4"
        )
    },
    co="""
    __co__ void unsigned(global u32 [N] a, global u32 [N] b, global u32 [9, N] c) {
      parallel i by N : block {
        c.at(0, i) = a.at(i) + b.at(i);
        c.at(1, i) = a.at(i) - b.at(i);
        c.at(2, i) = a.at(i) * b.at(i);
        c.at(3, i) = a.at(i) / b.at(i);
        c.at(4, i) = a.at(i) % b.at(i);
        c.at(5, i) = a.at(i) << b.at(i);
        c.at(6, i) = a.at(i) >> b.at(i);
        c.at(7, i) = __min(a.at(i), b.at(i));
        c.at(8, i) = a.at(i) + (a.at(i) < b.at(i) ? 1u : 0u);
      }
    }
    """,
)
def unsigned(a: tm.Global["u32", "N"], b: tm.Global["u32", "N"], c: tm.Global["u32", 9, "N"]):
    (N,) = a.shape
    for i in parallel(N, level="block"):
        x, y = a[i], b[i]
        rows = [x + y, x - y, x * y, x // y, x % y, x << y, x >> y, tm.math.min(x, y), x + (x < y)]
        for row, e in enumerate(rows):
            c[row, i] = e


@construct(
    given={"a": np.array([1.5, -2.5, 0.0, 3.0], f32), "b": np.array([1.0, 4.0, -1.0, -0.75], f32),
           "c": unwritten("f32", 6, 4)},
    expect=lambda a, b, c: {"c": np.stack([a // b, a % b, np.abs(a), -a, a ** 3, np.where(a > b, a, b)])},
    co="""
    __co__ void floats(global f32 [N] a, global f32 [N] b, global f32 [6, N] c) {
      parallel i by N : block {
        f32 x = a.at(i);
        f32 y = b.at(i);
        c.at(0, i) = __floor(x / y);
        c.at(1, i) = x - __floor(x / y) * y;
        c.at(2, i) = __fabs(x);
        c.at(3, i) = -x;
        c.at(4, i) = x * x * x;
        c.at(5, i) = x > y ? x : y;
      }
    }
    """,
)  # fmt: skip
def floats(a: tm.Global["f32", "N"], b: tm.Global["f32", "N"], c: tm.Global["f32", 6, "N"]):
    (N,) = a.shape
    for i in parallel(N, level="block"):
        x, y = a[i], b[i]
        for row, e in enumerate([x // y, x % y, abs(x), -x, x**3, select(x > y, x, y)]):
            c[row, i] = e


@construct(
    given={"a": INTS[0], "b": INTS[1], "c": unwritten("s32", 9, 8)},
    expect=lambda a, b, c: {
        "c": np.stack(
            [a == b, a != b, a < b, a <= b, a > b, a >= b, (a > 0) & (b > 0), (a > 0) | (b > 2), ~(a > 0)]
        ).astype(s32)
    },
    co="""
    __co__ void conditions(global s32 [N] a, global s32 [N] b, global s32 [9, N] c) {
      parallel i by N : block {
        c.at(0, i) = a.at(i) == b.at(i) ? 1 : 0;
        c.at(1, i) = a.at(i) != b.at(i) ? 1 : 0;
        c.at(2, i) = a.at(i) < b.at(i) ? 1 : 0;
        c.at(3, i) = a.at(i) <= b.at(i) ? 1 : 0;
        c.at(4, i) = a.at(i) > b.at(i) ? 1 : 0;
        c.at(5, i) = a.at(i) >= b.at(i) ? 1 : 0;
        c.at(6, i) = a.at(i) > 0 && b.at(i) > 0 ? 1 : 0;
        c.at(7, i) = a.at(i) > 0 || b.at(i) > 2 ? 1 : 0;
        c.at(8, i) = !(a.at(i) > 0) ? 1 : 0;
      }
    }
    """,
)
def conditions(a: tm.Global["s32", "N"], b: tm.Global["s32", "N"], c: tm.Global["s32", 9, "N"]):
    (N,) = a.shape
    for i in parallel(N, level="block"):
        x, y = a[i], b[i]
        rows = [x == y, x != y, x < y, x <= y, x > y, x >= y, (x > 0) & (y > 0), (x > 0) | (y > 2), ~(x > 0)]
        for row, e in enumerate(rows):
            c[row, i] = select(e, 1, 0)


@construct(
    given={"out": unwritten("f64", 6), "n": -3, "big": 2**40, "x": 0.1, "y": 0.1, "b": True, "h": 0.1},
    expect=lambda out, n, big, x, y, b, h: {
        "out": np.array([n, big + 1, np.float64(f32(x)), y, 2.0 if b else 3.0, np.float64(f16(h))])
    },
    co="""
    __co__ void parameters(global f64 [6] out, int n, s64 big, f32 x, f64 y, bool b, f16 h) {
      parallel p by 1 : block {
        out.at(0) = n;
        out.at(1) = big + 1;
        out.at(2) = x;
        out.at(3) = y;
        out.at(4) = b ? 2.0 : 3.0;
        out.at(5) = h;
      }
    }
    """,
)
def parameters(
    out: tm.Global["f64", 6], n: tm.Int, big: tm.Int64, x: tm.Float, y: tm.Double, b: tm.Bool, h: tm.Scalar["f16"]
):
    for p in parallel(1, level="block"):
        out[0], out[1], out[2], out[3] = n, big + 1, x, y
        out[4] = select(b, 2.0, 3.0)
        out[5] = h


@construct(
    given={"out": unwritten("s64", 8), "a": 250, "b": -3, "c": 65535, "d": -129 + 2, "e": 2**32 - 1, "f": 2**63},
    expect=lambda out, a, b, c, d, e, f: {"out": np.array([a, b, c, d, e, f // 2 - 1, a + 10, d - 1])},
    co="""
    __co__ void scalar_types(global s64 [8] out, u8 a, s16 b, u16 c, s8 d, u32 e, u64 f) {
      parallel p by 1 : block {
        out.at(0) = a;
        out.at(1) = b;
        out.at(2) = c;
        out.at(3) = d;
        out.at(4) = e;
        out.at(5) = f / 2 - 1;
        out.at(6) = __to<s32>(a) + 10;
        out.at(7) = __to<s32>(d) - 1;
      }
    }
    """,
)
def scalar_types(
    out: tm.Global["s64", 8], a: tm.Scalar["u8"], b: tm.Scalar["s16"], c: tm.Scalar["u16"], d: tm.Scalar["s8"],
    e: tm.Scalar["u32"], f: tm.Scalar["u64"],
):  # fmt: skip
    for p in parallel(1, level="block"):
        for i, v in enumerate([a, b, c, d, e, f // 2 - 1, a.astype("s32") + 10, d.astype("s32") - 1]):
            out[i] = v


@construct(
    given={"out": unwritten("s32", 4), "n": 10},
    expect=lambda out, n: {"out": np.array([45, 10, 3628800, 5], s32)},
    co="""
    __co__ void mutable_scalars(global s32 [4] out, int n) {
      parallel p by 1 : block {
        mutable int total = 0;
        mutable int count = 0;
        mutable int product = 1;
        foreach i in n {
          total = total + i;
          count += 1;
          product *= i + 1;
        }
        mutable int x = 4;
        x++;
        out.at(0) = total;
        out.at(1) = count;
        out.at(2) = product;
        out.at(3) = x;
      }
    }
    """,
)
def mutable_scalars(out: tm.Global["s32", 4], n: tm.Int):
    for p in parallel(1, level="block"):
        total, count, product = var(0), var(0), var(1)
        for i in foreach(n):
            total.set(total + i)
            count += 1
            product *= i + 1
        x = var(4)
        x += 1
        for i, v in enumerate([total, count, product, x]):
            out[i] = v


@construct(
    given={"s": np.array([1, 2, 3, 4], s32), "out": unwritten("s32", 6)},
    expect=lambda s, out: {"s": np.array([2, 1, 4, 4], s32), "out": np.array([1, 1, 2, 10, 3, 30], s32)},
)
def names_keep_their_values(s: tm.Global["s32", 4], out: tm.Global["s32", 6]):
    """A Python name holds the value read where it was bound, whatever is written afterwards."""
    for p in parallel(1, level="block"):
        t = s[0]
        s[0] = s[1]
        s[1] = t
        out[0] = t
        x = var(1)
        y, z = x + 0, x + 1
        x.set(10)
        out[1], out[2], out[3] = y, z, x
        third = s[2]
        for i in foreach(3):
            out[4] = third
            s[2] = s[3]
        with while_(lambda: x < third * 10):
            x += 1
        out[5] = x


@construct(
    given={"a": np.array([5, 0, 3, 9], s32), "out": unwritten("s32", 4)},
    expect=lambda a, out: {"out": np.array([120, 1, 6, 362880], s32)},
    co="""
    __co__ void factorials(global s32 [N] a, global s32 [N] out) {
      parallel p by N : block {
        mutable int n = a.at(p);
        mutable int f = 1;
        while (n > 1) {
          f = f * n;
          n -= 1;
        }
        out.at(p) = f;
      }
    }
    """,
)
def factorials(a: tm.Global["s32", "N"], out: tm.Global["s32", "N"]):
    for p in parallel(a.shape[0], level="block"):
        n, f = var(a[p]), var(1)
        with while_(lambda: n > 1):
            f *= n
            n -= 1
        out[p] = f


@construct(
    given={"out": unwritten("s32", 3, 4), "N": 0} | {"out": unwritten("s32", 3, 4)},
    expect=lambda out, **_: {"out": np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], s32)},
    co="""
    __co__ void composed(global s32 [3, 4] out, int N) {
      parallel i by 3 : block
        foreach j in 4 {
          if (#(i # j) == 12)
            out.at(i, j) = i # j;
          else
            out.at(i, j) = i(-1) # j(-1);
        }
    }
    """,
)
def composed(out: tm.Global["s32", 3, 4], N: tm.Int):
    for i in parallel(3, level="block"):
        for j in foreach(4):
            both = compose(i, j)
            with if_(ubound(both) == 12):
                out[i, j] = both
            with else_():
                out[i, j] = both.last


HALVES = random("f16", 64)


@construct(
    given={
        "x": np.array([0.5, -1.5, 2.5, 70000.0, 1e-8, 300.0, -300.0, 0.1], f32),
        "halves": unwritten("f16", 8), "brains": unwritten("bf16", 8), "bytes": unwritten("s8", 8),
        "unsigned": unwritten("u8", 8), "fine": unwritten("f8_e4m3", 8), "coarse": unwritten("f8_e5m2", 8),
        "ints": unwritten("s32", 8), "doubles": unwritten("f64", 8),
    },
    expect=lambda x, **out: conversions_of(x, out),
    co="""
    __co__ void conversions(global f32 [N] x, global f16 [N] halves, global bf16 [N] brains, global s8 [N] bytes,
                            global u8 [N] unsigned, global f8_e4m3 [N] fine, global f8_e5m2 [N] coarse,
                            global s32 [N] ints, global f64 [N] doubles) {
      parallel i by N : block {
        halves.at(i) = x.at(i);
        brains.at(i) = x.at(i);
        bytes.at(i) = x.at(i);
        unsigned.at(i) = x.at(i);
        fine.at(i) = x.at(i);
        coarse.at(i) = x.at(i);
        ints.at(i) = x.at(i);
        doubles.at(i) = x.at(i);
      }
    }
    """,
)  # fmt: skip
def conversions(
    x: tm.Global["f32", "N"], halves: tm.Global["f16", "N"], brains: tm.Global["bf16", "N"], bytes: tm.Global["s8", "N"],
    unsigned: tm.Global["u8", "N"], fine: tm.Global["f8_e4m3", "N"], coarse: tm.Global["f8_e5m2", "N"],
    ints: tm.Global["s32", "N"], doubles: tm.Global["f64", "N"],
):  # fmt: skip
    """Stores convert: floats to nearest even, f16 to infinity beyond its range, fp8 and integers saturate."""
    for i in parallel(x.shape[0], level="block"):
        for out in (halves, brains, bytes, unsigned, fine, coarse, ints, doubles):
            out[i] = x[i]


def conversions_of(x, out):
    wanted = {}
    for name, array in out.items():
        kind = array.dtype
        if kind.kind in "iu":
            info = np.iinfo(kind)
            wanted[name] = np.clip(np.rint(x.astype(np.float64)), info.min, info.max).astype(kind)
            continue
        largest = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(kind.name)
        with np.errstate(over="ignore"):
            wanted[name] = (x if largest is None else np.clip(x, -largest, largest)).astype(kind)
    return wanted


POINTS = np.array([0.25, 0.75, -0.5, 1.0, 0.0, -1.0, 0.99, 0.1], f32)
WIDE = np.array([0.25, 7.5, -0.5, 1.0, 0.0, -12.0, 50.0, 0.1], f32)
MATH = {
    "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh,
    "exp": np.exp, "exp2": np.exp2, "exp2_ftz": np.exp2, "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "rcp": lambda x: 1 / x,
    "isfinite": np.isfinite, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sign": np.sign, "sin": np.sin, "sinh": np.sinh,
    "softplus": lambda x: np.log1p(np.exp(x)), "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "abs": np.abs, "erf": np.vectorize(__import__("math").erf), "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2))),
}  # fmt: skip
POSITIVE = ("log", "log2", "rsqrt", "sqrt", "rcp", "log1p")


def math_results(x, out):
    x = x.astype(np.float64)
    positive = np.abs(x) + 0.125
    return {"out": np.stack([f(positive if n in POSITIVE else x) for n, f in MATH.items()]).astype(f32)}


@construct(
    given={"x": POINTS, "out": unwritten("f32", len(MATH), 8)},
    expect=math_results,
    tolerance=1e-5,
    co="""
    __co__ void library(global f32 [N] x, global f32 [R, N] out) {
      parallel i by N : block {
"""
    + "".join(
        f"        out.at({row}, i) = __{ {'exp2': 'exp2f', 'rcp': 'frcp_rn'}.get(n, n) }("
        + ("__fabs(x.at(i)) + 0.125f" if n in POSITIVE else "x.at(i)")
        + ");\n"
        for row, n in enumerate(MATH)
    )
    + """
      }
    }
    """,
)
def library(x: tm.Global["f32", "N"], out: tm.Global["f32", "R", "N"]):
    for i in parallel(x.shape[0], level="block"):
        for row, name in enumerate(MATH):
            argument = abs(x[i]) + 0.125 if name in POSITIVE else x[i]
            out[row, i] = getattr(tm.math, name)(argument)


@construct(
    given={"x": WIDE, "y": np.abs(POINTS) + f32(0.5), "out": unwritten("f32", 7, 8)},
    expect=lambda x, y, out: {
        "out": np.stack([np.arctan2(x, y), np.abs(x) ** y, x * y + f32(1), np.minimum(x, y), np.maximum(x, f32(0)),
                         np.tanh(x), np.minimum(np.maximum(x, f32(-2)), y)]).astype(f32)
    },
    tolerance=1e-6,
    co="""
    __co__ void library2(global f32 [N] x, global f32 [N] y, global f32 [7, N] out) {
      parallel i by N : block {
        out.at(0, i) = __atan2(x.at(i), y.at(i));
        out.at(1, i) = __pow(__fabs(x.at(i)), y.at(i));
        out.at(2, i) = __fmaf(x.at(i), y.at(i), 1.0f);
        out.at(3, i) = __min(x.at(i), y.at(i));
        out.at(4, i) = __max(x.at(i), 0.0f);
        out.at(5, i) = __tanh(x.at(i));
        out.at(6, i) = __clamp(x.at(i), -2.0f, y.at(i));
      }
    }
    """,
)  # fmt: skip
def library2(x: tm.Global["f32", "N"], y: tm.Global["f32", "N"], out: tm.Global["f32", 7, "N"]):
    m = tm.math
    for i in parallel(x.shape[0], level="block"):
        rows = [m.atan2(x[i], y[i]), m.pow(abs(x[i]), y[i]), m.fma(x[i], y[i], 1.0), m.min(x[i], y[i]),
                m.max(x[i], 0.0), m.tanh(x[i]), m.clamp(x[i], -2.0, y[i])]  # fmt: skip
        for row, e in enumerate(rows):
            out[row, i] = e


@construct(
    given={"a": small("f16", 6), "b": small("bf16", 6), "c": small("s8", 6), "out": unwritten("f32", 3, 6)},
    expect=lambda a, b, c, out: {
        "out": np.stack([a.astype(f32) + b.astype(f32), a.astype(f32) * c, c.astype(f32) / f32(2)])
    },
    co="""
    __co__ void mixed(global f16 [N] a, global bf16 [N] b, global s8 [N] c, global f32 [3, N] out) {
      parallel i by N : block {
        out.at(0, i) = a.at(i) + b.at(i);
        out.at(1, i) = __to<f32>(a.at(i)) * c.at(i);
        out.at(2, i) = c.at(i) / 2.0f;
      }
    }
    """,
)
def mixed(
    a: tm.Global["f16", "N"], b: tm.Global["bf16", "N"], c: tm.Global["s8", "N"], out: tm.Global["f32", 3, "N"]
):
    for i in parallel(a.shape[0], level="block"):
        out[0, i] = a[i] + b[i]
        out[1, i] = a[i].astype("f32") * c[i]
        out[2, i] = c[i] / 2.0
