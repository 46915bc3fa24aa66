"""Each scalar instruction against its definition in Python integers or float64."""

# PTX is easier to read with an instruction group on a line.
# ruff: noqa: E501
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import execute, ptx_for
from hypothesis import given, settings
from hypothesis import strategies as st

U32 = st.lists(
    st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 31, 32, 2**31, 2**32 - 1]), min_size=32, max_size=32
)
U64 = st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1]), min_size=32, max_size=32)


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def truncate(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER: dict[str, Callable[..., int]] = {
    "add.u32": lambda a, b: a + b,
    "sub.s32": lambda a, b: a - b,
    "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.hi.s32": lambda a, b: signed(a, 32) * signed(b, 32) >> 32,
    "min.s32": lambda a, b: min(signed(a, 32), signed(b, 32)),
    "max.u32": max,
    "div.s32": lambda a, b: truncate(signed(a, 32), signed(b, 32)),
    "div.u32": lambda a, b: a // b if b else -1,
    "rem.u32": lambda a, b: a % b if b else a,
    "rem.s32": lambda a, b: signed(a, 32) - signed(b, 32) * truncate(signed(a, 32), signed(b, 32)) if b else a,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << b if b < 32 else 0,
    "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: signed(a, 32) >> min(b, 31),
    "add.sat.s32": lambda a, b: max(-(2**31), min(2**31 - 1, signed(a, 32) + signed(b, 32))),
    "mul24.lo.u32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "bmsk.clamp.b32": lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32),
}


@pytest.mark.parametrize("op", INTEGER)
@settings(max_examples=5, deadline=None)
@given(a=U32, b=U32)
def test_integer_binary(op: str, a: list[int], b: list[int]) -> None:
    (out,) = execute(
        f"{op} %o0, %i0, %i1;", ["b32"], {"b32/a": np.array(a, np.uint32), "b32/b": np.array(b, np.uint32)}
    )
    assert out.tolist() == [INTEGER[op](x, y) & 0xFFFFFFFF for x, y in zip(a, b, strict=True)]


def bit_field(a: int, p: int, n: int) -> int:
    p, n = p & 255, n & 255
    return (a >> p) & ((1 << n) - 1)


TERNARY: dict[str, Callable[..., int]] = {
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "mad.hi.u32": lambda a, b, c: (a * b >> 32) + c,
    "bfe.u32": bit_field,
    "shf.l.wrap.b32": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "shf.r.clamp.b32": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "sad.u32": lambda a, b, c: c + abs(a - b),
    "prmt.b32": lambda a, b, c: sum(
        (
            ((b << 32 | a) >> 8 * (c >> 4 * i & 7) & 255)
            if not c >> 4 * i & 8
            else 255 * ((b << 32 | a) >> (8 * (c >> 4 * i & 7) + 7) & 1)
        )
        << 8 * i
        for i in range(4)
    ),
    "dp4a.u32.u32": lambda a, b, c: c + sum((a >> 8 * i & 255) * (b >> 8 * i & 255) for i in range(4)),
}


@pytest.mark.parametrize("op", TERNARY)
@settings(max_examples=5, deadline=None)
@given(a=U32, b=U32, c=U32)
def test_integer_ternary(op: str, a: list[int], b: list[int], c: list[int]) -> None:
    values = {f"b32/{n}": np.array(v, np.uint32) for n, v in zip("abc", (a, b, c), strict=True)}
    (out,) = execute(f"{op} %o0, %i0, %i1, %i2;", ["b32"], values)
    assert out.tolist() == [TERNARY[op](x, y, z) & 0xFFFFFFFF for x, y, z in zip(a, b, c, strict=True)]


UNARY: dict[str, Callable[[int], int]] = {
    "popc.b32": lambda a: a.bit_count(),
    "clz.b32": lambda a: 32 - a.bit_length(),
    "brev.b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "bfind.u32": lambda a: a.bit_length() - 1,
    "not.b32": lambda a: ~a,
    "neg.s32": lambda a: -a,
    "abs.s32": lambda a: abs(signed(a, 32)),
}


@pytest.mark.parametrize("op", UNARY)
@settings(max_examples=5, deadline=None)
@given(a=U32)
def test_integer_unary(op: str, a: list[int]) -> None:
    (out,) = execute(f"{op} %o0, %i0;", ["b32"], {"b32/a": np.array(a, np.uint32)})
    assert out.tolist() == [UNARY[op](x) & 0xFFFFFFFF for x in a]


WIDE: dict[str, Callable[..., int]] = {
    "mul.wide.u32": lambda a, b: a * b,
    "mul.wide.s32": lambda a, b: signed(a, 32) * signed(b, 32),
}


@pytest.mark.parametrize("op", WIDE)
@settings(max_examples=5, deadline=None)
@given(a=U32, b=U32)
def test_widening(op: str, a: list[int], b: list[int]) -> None:
    (out,) = execute(
        f"{op} %o0, %i0, %i1;", ["b64"], {"b32/a": np.array(a, np.uint32), "b32/b": np.array(b, np.uint32)}
    )
    assert out.tolist() == [WIDE[op](x, y) & (2**64 - 1) for x, y in zip(a, b, strict=True)]


@settings(max_examples=8, deadline=None)
@given(a=U64, b=U64)
def test_64_bit(a: list[int], b: list[int]) -> None:
    code = "add.s64 %o0, %i0, %i1; mul.lo.u64 %o1, %i0, %i1; mul.hi.u64 %o2, %i0, %i1; shr.s64 %o3, %i0, 7;"
    out = execute(code, ["b64"] * 4, {"b64/a": np.array(a, np.uint64), "b64/b": np.array(b, np.uint64)})
    mask = 2**64 - 1
    assert out[0].tolist() == [(x + y) & mask for x, y in zip(a, b, strict=True)]
    assert out[1].tolist() == [(x * y) & mask for x, y in zip(a, b, strict=True)]
    assert out[2].tolist() == [(x * y) >> 64 for x, y in zip(a, b, strict=True)]
    assert out[3].tolist() == [(signed(x, 64) >> 7) & mask for x in a]


@pytest.mark.parametrize("table", [0x00, 0x80, 0xFE, 0x96, 0xE8, 0xCA, 0x3C])
def test_lop3(table: int) -> None:
    rng = np.random.default_rng(table)
    a, b, c = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(3))
    (out,) = execute(f"lop3.b32 %o0, %i0, %i1, %i2, {table};", ["b32"], {"b32/a": a, "b32/b": b, "b32/c": c})
    want = [
        sum((table >> ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1)) & 1) << i for i in range(32))
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert out.tolist() == want


def floats(rng: np.random.Generator, dtype: Any) -> Any:
    x = rng.standard_normal(32) * 2.0 ** rng.integers(-8, 8, 32)
    x[:4] = [0.0, -0.0, np.inf, 1.0]
    return x.astype(dtype)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "min", "max"])
@pytest.mark.parametrize(("kind", "dtype"), [("f32", np.float32), ("f64", np.float64), ("f16", np.float16)])
def test_float_binary(op: str, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    a, b = floats(rng, dtype), floats(rng, dtype)
    b[2] = 1
    rounding = ".rn" if kind == "f64" and op in ("add", "sub", "mul") else ""
    (out,) = execute(f"{op}{rounding}.{kind} %o0, %i0, %i1;", [kind], {f"{kind}/a": a, f"{kind}/b": b})
    exact = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.fmin, "max": np.fmax}[op]
    want = exact(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    same = out.view(dtype)[1:] == want[1:]
    assert same.all()


def test_fma_rounds_once() -> None:
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24: rounded before the subtraction, the last term is lost.
    a = np.full(32, 1 + 2.0**-12, np.float32)
    c = np.full(32, -(1 + 2.0**-11), np.float32)
    (out,) = execute("fma.rn.f32 %o0, %i0, %i0, %i1;", ["f32"], {"f32/a": a, "f32/c": c})
    assert (out.view(np.float32) == np.float32(2.0**-24)).all()


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_packed_arithmetic(kind: str) -> None:
    dtype = np.float16 if kind == "f16x2" else ml_dtypes.bfloat16
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal(64).astype(dtype) for _ in range(3))
    words = {f"{kind}/{n}": v.view(np.uint32) for n, v in zip("abc", (a, b, c), strict=True)}
    (out,) = execute(f"fma.rn.{kind} %o0, %i0, %i1, %i2;", [kind], words)
    want = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(dtype)
    assert (out.view(dtype) == want).all()


@pytest.mark.parametrize("op", ["rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"])
def test_approximate_functions(op: str) -> None:
    x = np.linspace(0.1, 3.0, 32).astype(np.float32)
    (out,) = execute(f"{op}.approx.f32 %o0, %i0;", ["f32"], {"f32/x": x})
    functions: dict[str, Callable[[float], float]] = {
        "rcp": lambda v: 1 / v, "sqrt": math.sqrt, "rsqrt": lambda v: v**-0.5, "ex2": lambda v: 2**v,
        "lg2": math.log2, "sin": math.sin, "cos": math.cos, "tanh": math.tanh,
    }  # fmt: skip
    assert np.allclose(out.view(np.float32), [functions[op](float(v)) for v in x], rtol=1e-6, atol=1e-7)


CONVERSIONS = [
    ("cvt.rn.f16.f32", "f16", "f32", np.float32, lambda x: x.astype(np.float16).view(np.uint16)),
    ("cvt.rn.bf16.f32", "bf16", "f32", np.float32, lambda x: x.astype(ml_dtypes.bfloat16).view(np.uint16)),
    ("cvt.f32.f16", "f32", "f16", np.float16, lambda x: x.astype(np.float32).view(np.uint32)),
    ("cvt.f64.f32", "f64", "f32", np.float32, lambda x: x.astype(np.float64).view(np.uint64)),
    ("cvt.rzi.s32.f32", "b32", "f32", np.float32, lambda x: np.trunc(x).astype(np.int32).view(np.uint32)),
    ("cvt.rni.s32.f32", "b32", "f32", np.float32, lambda x: np.rint(x).astype(np.int32).view(np.uint32)),
    ("cvt.rn.f32.s32", "f32", "b32", np.int32, lambda x: x.astype(np.float32).view(np.uint32)),
    ("cvt.s64.s32", "b64", "b32", np.int32, lambda x: x.astype(np.int64).view(np.uint64)),
    ("cvt.u64.u32", "b64", "b32", np.int32, lambda x: x.view(np.uint32).astype(np.uint64)),
    ("cvt.s32.s8", "b32", "b32", np.int32, lambda x: x.astype(np.int8).astype(np.int32).view(np.uint32)),
    ("cvt.u16.u32", "b16", "b32", np.int32, lambda x: x.astype(np.uint16)),
]


@pytest.mark.parametrize(("op", "out", "source", "dtype", "want"), CONVERSIONS, ids=[c[0] for c in CONVERSIONS])
def test_conversion(op: str, out: str, source: str, dtype: Any, want: Any) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(32) * 1000).astype(dtype)
    (got,) = execute(f"{op} %o0, %i0;", [out], {f"{source}/x": x})
    assert got.tolist() == want(x).tolist()


def test_pack_two_values() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal(32).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    code = "cvt.rn.f16x2.f32 %o0, %i0, %i1; cvt.rn.bf16x2.f32 %o1, %i0, %i1; cvt.rn.satfinite.e4m3x2.f32 %o2, %i0, %i1;"
    f16, bf16, fp8 = execute(code, ["f16x2", "bf16x2", "e4m3x2"], {"f32/a": a, "f32/b": b})
    both = np.stack([b, a], axis=1)
    assert (f16.view(np.float16).reshape(32, 2) == both.astype(np.float16)).all()
    assert (bf16.view(ml_dtypes.bfloat16).reshape(32, 2) == both.astype(ml_dtypes.bfloat16)).all()
    assert (fp8.view(ml_dtypes.float8_e4m3fn).reshape(32, 2) == both.astype(ml_dtypes.float8_e4m3fn)).all()


def test_predicates() -> None:
    a, b = np.arange(32, dtype=np.int32), np.full(32, 16, np.int32)
    code = """setp.lt.s32 %q0, %i0, %i1; setp.ge.and.s32 %q1|%q2, %i0, 8, %q0; not.pred %q3, %q0; xor.pred %q4, %q1, %q3;
    selp.b32 %o0, 1, 0, %q1; selp.b32 %o1, 1, 0, %q2; selp.b32 %o2, 1, 0, %q4; mov.b32 %o3, 7; @!%q0 mov.b32 %o3, 9;"""
    one, two, three, four = execute(code, ["b32"] * 4, {"b32/a": a, "b32/b": b})
    assert one.tolist() == [int(8 <= i < 16) for i in range(32)]
    assert two.tolist() == [int(i < 8) for i in range(32)]
    assert three.tolist() == [int((8 <= i < 16) != (i >= 16)) for i in range(32)]
    assert four.tolist() == [7] * 16 + [9] * 16


def test_floating_comparison_with_nan() -> None:
    a = np.array([1.0, np.nan] * 16, np.float32)
    code = "setp.ne.f32 %q0, %i0, 0f00000000; setp.neu.f32 %q1, %i0, 0f00000000; setp.nan.f32 %q2, %i0, %i0;"
    code += "selp.b32 %o0, 1, 0, %q0; selp.b32 %o1, 1, 0, %q1; selp.b32 %o2, 1, 0, %q2;"
    ordered, unordered, nan = execute(code, ["b32"] * 3, {"f32/a": a})
    assert (ordered[0], unordered[0], nan[0]) == (1, 1, 0)
    assert (ordered[1], unordered[1], nan[1]) == (0, 1, 1)


def test_pack_and_unpack_moves() -> None:
    a, b = np.arange(32, dtype=np.uint32), np.arange(32, dtype=np.uint32) * 3
    code = "mov.b64 %o0, {%i0, %i1}; mov.b64 {%t0, %t1}, %o0; sub.u32 %o1, %t1, %t0; mov.b32 {%h0, %h1}, 0x12345678; mov.b32 %o2, {%h1, %h0};"
    pair, difference, swapped = execute(code, ["b64", "b32", "b32"], {"b32/a": a, "b32/b": b})
    assert pair.tolist() == [int(x) | int(y) << 32 for x, y in zip(a, b, strict=True)]
    assert difference.tolist() == (b - a).tolist()
    assert set(swapped.tolist()) == {0x56781234}


SHUFFLES = {
    "shfl.sync.bfly.b32 %o0, %i0, 5, 31, 0xffffffff;": [i ^ 5 for i in range(32)],
    "shfl.sync.up.b32 %o0, %i0, 3, 0, 0xffffffff;": [max(i - 3, 0) if i >= 3 else i for i in range(32)],
    "shfl.sync.down.b32 %o0, %i0, 4, 31, 0xffffffff;": [i + 4 if i + 4 < 32 else i for i in range(32)],
    "shfl.sync.idx.b32 %o0, %i0, 7, 31, 0xffffffff;": [7] * 32,
    # Segments of 8 lanes: c = (32 - 8) << 8 | 31.
    "shfl.sync.idx.b32 %o0, %i0, 2, 0x181f, 0xffffffff;": [i // 8 * 8 + 2 for i in range(32)],
}


@pytest.mark.parametrize("code", SHUFFLES)
def test_shuffle(code: str) -> None:
    (out,) = execute(code, ["b32"], {"b32/a": np.arange(32, dtype=np.uint32)})
    assert out.tolist() == SHUFFLES[code]


def test_votes_and_reductions() -> None:
    a = np.arange(32, dtype=np.uint32)
    code = """setp.lt.u32 %q0, %i0, 5; vote.sync.ballot.b32 %o0, %q0, 0xffffffff; vote.sync.any.pred %q1, %q0, 0xffffffff;
    vote.sync.all.pred %q2, %q0, 0xffffffff; selp.b32 %o1, 1, 0, %q1; selp.b32 %o2, 1, 0, %q2;
    redux.sync.add.s32 %o3, %i0, 0xffffffff; and.b32 %t0, %i0, 3; match.any.sync.b32 %o4, %t0, 0xffffffff;"""
    ballot, some, every, total, match = execute(code, ["b32"] * 5, {"b32/a": a})
    assert set(ballot.tolist()) == {31} and set(some.tolist()) == {1} and set(every.tolist()) == {0}
    assert set(total.tolist()) == {31 * 16}
    assert match.tolist() == [0x11111111 << (i % 4) for i in range(32)]


def test_one_lane_is_elected() -> None:
    leaders = set()
    for seed in range(6):
        code = "elect.sync %t0|%q0, 0xffffffff; selp.b32 %o0, 1, 0, %q0; elect.sync %t0|%q1, 0xffffffff; selp.b32 %o1, 1, 0, %q1;"
        once, again = execute(code, ["b32", "b32"], {"b32/a": np.zeros(32, np.uint32)}, seed=seed)
        assert once.sum() == 1 and (once == again).all()
        leaders.add(int(once.argmax()))
    assert len(leaders) > 1, "the ISA does not say that it is lane 0"


def test_divergence_reconverges() -> None:
    code = """mov.b32 %o0, 0; and.b32 %t0, %i0, 3; mov.b32 %t1, 0;
LOOP: add.u32 %o0, %o0, %t1; add.u32 %t1, %t1, 1; setp.le.u32 %q0, %t1, %t0; @%q0 bra LOOP;
  setp.eq.u32 %q1, %t0, 2; @%q1 bra TWO; add.u32 %o0, %o0, 100; bra MEET; TWO: add.u32 %o0, %o0, 1000; MEET:
  vote.sync.ballot.b32 %o1, 1, 0xffffffff;"""
    out, ballot = execute(code, ["b32", "b32"], {"b32/a": np.arange(32, dtype=np.uint32)})
    assert out.tolist() == [sum(range(i % 4 + 1)) + (1000 if i % 4 == 2 else 100) for i in range(32)]
    assert set(ballot.tolist()) == {0xFFFFFFFF}


def test_exit_of_some_lanes() -> None:
    code = "mov.b32 %o0, 1; setp.ge.u32 %q0, %i0, 20; @%q0 exit;"
    (out,) = execute(code, ["b32"], {"b32/a": np.arange(32, dtype=np.uint32)})
    assert out.tolist() == [1] * 20 + [0] * 12


def test_the_snippets_are_valid_ptx(assembles: Callable[[str, str], None]) -> None:
    lines = [f"{op} %o0, %i0, %i1;" for op in INTEGER] + [f"{op} %o0, %i0, %i1, %i2;" for op in TERNARY]
    lines += [f"{op} %o0, %i0;" for op in UNARY] + list(SHUFFLES)
    assembles(ptx_for("\n".join(lines), ["b32"], ["b32"] * 3, "sm_90a", "8.6"), "sm_90a")
