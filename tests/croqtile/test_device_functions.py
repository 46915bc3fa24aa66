"""`__device__` functions: inlined, with C++'s meaning; refused by name where their text is outside the subset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tilemma import croqtile
from tilemma.errors import CompileError
from tilemma.front_end_cache import File, TextSource
from tilemma.kernels import Kernel

FUNCTIONS = """
#define LIMIT 3.0f
__device__ __forceinline__ float clamp_to(float x, float lo, float hi) { return fminf(fmaxf(x, lo), hi); }
__device__ float polynomial(const float* __restrict__ c, int n, float x) {
  float y = 0.0f;
  for (int i = 0; i < n; ++i) {
    y = y * x + c[i];
  }
  return y;
}
__co_device__ int steps(int n) {
  int count = 0;
  while (true) {
    if (n == 1) return count;
    if (n % 2 == 0) { n /= 2; } else { n = 3 * n + 1; }
    count++;
    if (count > 60) return -1;
  }
}
__device__ float sign(float x) {
  if (x > 0.0f) { return 1.0f; }
  if (x < 0.0f) return -1.0f;
  return 0.0f;
}
__device__ void add_to(float* y, int i, float v) { atomicAdd(&y[i], v); }
__device__ int bits(int a, int b) { return (a & 3 | b << 1) == 7 ? a & b : a ^ b + 1; }
__device__ int clashing(int x) { int i = x; i += 1; return (int)(i * 0.5f); }
template <int N> __device__ int generic(int x) { return x + N; }
__device__ float lane_of() { return threadIdx.x; }
__device__ float twice(float x) { return x + x; }
__device__ int twice(int x) { return x + x; }
__device__ int endless(int n) { int m = n; return endless(m); }
__device__ float table[4];
"""
KERNEL = """
__co__ void f(global f32 [64] x, global f32 [4] c, global f32 [64] y, global s32 [64] n, global f32 [2] sums) {
  parallel p by 2 : block, t by 32 : thread {
    i = p # t;
    float v = call polynomial(c, 4, x.at(i));
    y.at(i) = clamp_to(v, -LIMIT, LIMIT) + sign(x.at(i));
    n.at(i) = steps(i + 1) * 1000 + bits(i, 3) * 10 + clashing(t);
    call add_to(sums, p, 1.0f);
    if (sign(x.at(i)) > 0.5f) add_to(sums.data, 0, 0.0f);
  }
}
"""


def test_calls_mean_what_they_mean_in_c() -> None:
    source = croqtile.load(FUNCTIONS + KERNEL, "functions.co")
    assert set(source.sources) == {"f"}
    kernel = Kernel(TextSource(File(FUNCTIONS + KERNEL, "functions.co", {}), "f"))
    rng = np.random.default_rng(0)
    x, c = rng.standard_normal(64).astype(np.float32), np.array([1, 2, -1, 0.5], np.float32)
    for target, options in (("cpu", {}), ("machine", {"arch": "sm_80"})):
        y, n, sums = np.zeros(64, np.float32), np.zeros(64, np.int32), np.zeros(2, np.float32)
        kernel.on(target, **options)(x, c, y, n, sums)
        wanted = np.clip(((x + 2) * x - 1) * x + np.float32(0.5), -3, 3) + np.sign(x)
        np.testing.assert_allclose(y, wanted, rtol=1e-5)
        numbers = [steps(i + 1) * 1000 + bits(i, 3) * 10 + (i % 32 + 1) // 2 for i in range(64)]
        assert n.tolist() == numbers
        assert sums.tolist() == [32, 32]


def steps(n: int) -> int:
    for count in range(61):
        if n == 1:
            return count
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return -1


def bits(a: int, b: int) -> int:
    return a & b if (a & 3) | (b << 1) == 7 else a ^ (b + 1)


WARPS = """
#define FULL 0xffffffff
template <typename T> __device__ __forceinline__ T across(T x, int lanes, int width) {
  return __shfl_xor_sync(uint32_t(-1), x, lanes, width);
}
template <class T> __device__ T total(T x) {
  for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL, x, d);
  return x;
}
__device__ float highest(float x) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_down_sync(0xffffffffu, x, d));
  return __shfl_sync(-1, x, 0);
}
__device__ unsigned positive(float x) { return __ballot_sync(FULL, x > 0.0f); }
__co__ void f(global f32 [64] x, global f32 [4, 64] y, global s32 [64] n) {
  parallel t by 64 : thread {
    f32 own = x.at(t);
    f32 other = call across(own, 1, 32);
    s32 here = t;
    y.at(0, t) = other;
    y.at(1, t) = total(own);
    y.at(2, t) = highest(own);
    y.at(3, t) = positive(own);
    n.at(t) = total(here) + across(here, 2, 32);
  }
}
"""


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_80"})])
def test_exchanges_between_lanes(target: str, options: dict[str, str]) -> None:
    kernel = Kernel(TextSource(File(WARPS, "warps.co", {}), "f"))
    x = np.random.default_rng(1).integers(-9, 10, 64).astype(np.float32)
    y, n, lanes = np.zeros((4, 64), np.float32), np.zeros(64, np.int32), np.arange(64)
    kernel.on(target, **options)(x, y, n)
    warps = x.reshape(2, 32)
    np.testing.assert_array_equal(y[0], x[lanes ^ 1])
    np.testing.assert_array_equal(y[1], np.repeat(warps.sum(1), 32))
    np.testing.assert_array_equal(y[2], np.repeat(warps.max(1), 32))
    votes = [sum(1 << i for i in range(32) if w[i] > 0) for w in warps]
    np.testing.assert_array_equal(y[3], np.repeat(np.array(votes, np.float32), 32))
    np.testing.assert_array_equal(n, np.repeat(lanes.reshape(2, 32).sum(1), 32) + (lanes ^ 2))


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("return __shfl_xor_sync(0xff, x, 1);", "some lanes"),
        ("return __shfl_xor_sync(-1, x, 1, 16);", "groups of lanes"),
        ("return __shfl_xor_sync(-1, x);", "`__shfl_xor_sync` of 2 values"),
    ],
)
def test_exchanges_of_a_part_of_a_warp_are_refused(body: str, part: str) -> None:
    text = f"template <typename T> __device__ T g(T x) {{ {body} }}\n"
    text += "__co__ void f(global f32 [32] x) { parallel t by 32 : thread { x.at(t) = g(x.at(t)); } }"
    with pytest.raises(CompileError, match=part):
        croqtile.load(text, "parts.co").sources["f"].build()


@pytest.mark.parametrize(
    "statement, code, part",
    [
        ("x.at(t) = lane_of();", "device-function", "`lane_of` is called here"),
        ("x.at(t) = twice(2.0f);", "device-function-overloaded", "`twice` is called here"),
        ("x.at(t) = endless(2);", "not-built-yet", "calls itself"),
        ("x.at(t) = sign();", "wrong-arity", "`sign`"),
        ("x.at(t) = generic(2);", "device-function", "`generic` is called here"),
        ("x.at(t) = add_to(x, 0, 1.0f);", "wrong-value", "no result"),
        ("x.at(t) = polynomial(t, 1, 1.0f);", "not-a-tile", "`polynomial`"),
        ("x.at(t) = t > 3 ? steps(3) : 0;", "side-effect", "`steps`"),
        ("x.at(t) = clamp_to(t, x, 1.0f);", "wrong-value", "`clamp_to`"),
        ("call missing(t);", "not-built-yet", "`call missing`"),
    ],
)
def test_refused_in_the_kernel_that_calls(statement: str, code: str, part: str) -> None:
    text = (
        FUNCTIONS + KERNEL + f"__co__ void g(global f32 [32] x) {{ parallel t by 32 : thread {{ {statement} }} }}"
    )
    sources = croqtile.load(text, "functions.co").sources
    sources["f"].build()
    with pytest.raises(CompileError) as refusal:
        sources["g"].build()
    assert refusal.value.code == code and part in str(refusal.value), refusal.value.render()
    assert refusal.value.span is not None
    # A call inside a function is refused there, as is text that a function cannot have.
    inside = "calls itself" in part or "called here" in part
    assert (refusal.value.span.line == text.count("\n") + 1) != inside


TYPED = """
template <typename T> __device__ T third(T x) {
  T a = 1, b = T(2.9f), c = (T)x;
  a = a / 3;
  c += static_cast<T>(0.7f);
  return a + b + c;
}
template <typename T> __device__ T twice(T x) { return third(x) + third(x); }
__co__ void f(global f32 [32] x, global s32 [32] n) {
  parallel t by 32 : thread {
    x.at(t) = twice(x.at(t));
    n.at(t) = twice(n.at(t));
  }
}
"""


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_80"})])
def test_variables_and_casts_have_the_type_that_a_template_gets(target: str, options: dict[str, str]) -> None:
    kernel = Kernel(TextSource(File(TYPED, "typed.co", {}), "f"))
    x, n = np.arange(32, dtype=np.float32), np.arange(32, dtype=np.int32)
    kernel.on(target, **options)(x, n)
    np.testing.assert_allclose(x, 2 * (1 / 3 + 2.9 + np.arange(32) + 0.7), rtol=1e-6)
    np.testing.assert_array_equal(n, 2 * (0 + 2 + np.arange(32)))


ADDRESSES = """
template <typename T, typename C> __device__ T grow(T* a, C b) { return atomicAdd(a, b); }
__device__ void put(float* p, float v) { *p = v; }
__co__ void f(global f32 [4, 5] x, global s32 [4] n, global s32 [32] old) {
  parallel t by 32 : thread {
    shared f32 [2, 3] s;
    s32 before = call grow(&n.at(t % 4), 1);
    old.at(t) = before;
    put(&s.subspan(1, 3).at(t % 2, 0).at(0, t % 3), 2.0f);
    if (t < 6) grow(&(x.subspan(2, 5).at(1, 0).at(1, t % 5)), s.at(t % 2, t % 3));
  }
}
"""


@pytest.mark.parametrize(("target", "options"), [("cpu", {}), ("machine", {"arch": "sm_80"})])
def test_one_element_is_passed_by_its_address(target: str, options: dict[str, str]) -> None:
    kernel = Kernel(TextSource(File(ADDRESSES, "addresses.co", {}), "f"))
    x, n, old = np.zeros((4, 5), np.float32), np.zeros(4, np.int32), np.zeros(32, np.int32)
    kernel.on(target, **options)(x, n, old)
    assert x.tolist() == [[0] * 5] * 3 + [[4, 2, 2, 2, 2]]
    assert n.tolist() == [8] * 4
    assert sorted(old.tolist()) == sorted([*range(8)] * 4)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("grow(&n, 1);", "not-built-yet"),
        ("grow(&t, 1);", "not-built-yet"),
        ("grow(n.at(0), 1);", "not-a-tile"),
        ("put(&n.at(0), 1.0f);", "not-built-yet"),
        ("grow(&n.at(0, 1), 1);", "wrong-rank"),
    ],
)
def test_wrong_addresses(call: str, code: str) -> None:
    text = ADDRESSES.replace("s32 before = call grow(&n.at(t % 4), 1);", f"s32 before = 0; {call}")
    with pytest.raises(CompileError) as refusal:
        Kernel(TextSource(File(text, "addresses.co", {}), "f")).compile("sm_80")
    assert refusal.value.code == code, refusal.value.render()


REFUSED = {
    "float f(int x) { return 1 }": "`}`",
    "float* f(int x) { return x; }": "a result that is a pointer",
    "float f(void x) { return 1; }": "a parameter of type `void`",
    "float f(auto x) { return 1; }": "a parameter of type `auto`",
    "float f(vector x) { return 1; }": "the type `vector`",
    "float f(int& x) { return 1; }": "a reference, or a pointer to a pointer",
    "float f(int** x) { return 1; }": "a reference, or a pointer to a pointer",
    "float f(int x) { if constexpr (x) return 1; }": "`constexpr`",
    "float f(int x) { for (int i = 0; i < x; i++) { if (x) continue; } return 1; }": "`continue` in a `for`",
    "float f(int x) { for (; x; x++) { if (x) { x = 1; } else continue; } return 1; }": "`continue` in a `for`",
    "float f(int x) { if (x) return; return 1; }": "a `return` that does not fit the function's type",
    "float f(int x) { x + 1; return 1; }": "an expression without an effect",
    "float f(int x) { float* p; return 1; }": "a variable that is a pointer",
    "float f(int x) { void y; return 1; }": "a variable that is a pointer",
    "float f(int x) { int y[3]; return 1; }": "an array",
    "float f(int* x) { return (int*)x; }": "a cast of a pointer",
    "float f(int x) { return *x; }": "an address",
    "float f(int* x) { return *(x - 1); }": "an address",
    "float f(int x) { atomicAdd(&x, 1); return 1; }": "an address",
    "float f(int x) { return x[0]; }": "a subscript of anything but a pointer",
    "float f(int x) { return x * ; }": "`;`",
    "float f(int x) { return max(x); }": "`max` of 1 value",
    "float f(int x) { return a::b; }": "`::`",
    "float f(int x) { return g(x; }": "`;`",
    "float f(int x) { return static_cast(x); }": "`(`",
}


@pytest.mark.parametrize("text", REFUSED)
def test_outside_of_the_subset(text: str) -> None:
    """The refusal says what, and stands at it in the function."""
    whole = f"__device__ {text}\n__co__ void g(global f32 [2] y, global s32 [4] n) {{ y.at(0) = f(1); }}"
    with pytest.raises(CompileError) as refusal:
        croqtile.load(whole, "outside.co").sources["g"].build()
    assert REFUSED[text] in str(refusal.value), refusal.value.render()
    places = [refusal.value.span, *(n.span for n in refusal.value.notes)]
    assert any(x is not None and x.line == 1 for x in places), refusal.value.render()


ACCEPTED = """
__device__ unsigned char low(unsigned int x) { return (unsigned char)(x); }
__device__ unsigned wide(unsigned x) { unsigned int y = x; return y; }
__device__ long long big(int x) { long long y = 1LL; long int z = 2; return y + z + x; }
__device__ unsigned long long huge(int x) { return (unsigned long long)x + 0x10ULL; }
__device__ int first(const int* __restrict__ p) {
  return *p + __ldg(p + 1) * 10 + *(p + 2) * 100 + p[3] * 1000;
}
__device__ int nothing(void) { ; return +5; }
__device__ int jumps(int n) {
  int count = 0, other = 7;
  while (true) { n = n - 1; if (n < 0) break; if (n % 2) { continue; } else { ++count; } --other; }
  for (;;) { { count += 10; } if (count > 30) break; }
  return count * 100 + other;
}
__device__ int chosen(int x) { return x > 1 ? x > 2 ? 3 : 2 : !x && true || false ? 1 : ~x; }
__device__ float casts(float x) { return static_cast<int>(x) + int(x) + (float)(x) - (1.5f - INFINITY > 0.0f); }
__device__ int last(int a, int b) { a -= b; a *= 3; a /= 2; a %= 5; return max(a, b) * 10 + min(a, b); }
"""


def test_the_subset() -> None:
    body = """
__co__ void f(global s32 [4] p, global s64 [8] y, global f32 [1] z) {
  parallel t by 1 : thread {
    y.at(0) = low(p.at(3) * 50); y.at(1) = wide(7); y.at(2) = big(4); y.at(3) = huge(5);
    y.at(4) = first(p) + nothing();
    y.at(5) = jumps(5); y.at(6) = chosen(0) * 1000 + chosen(1) * 100 + chosen(2) * 10 + chosen(3);
    y.at(7) = last(9, 2); z.at(0) = casts(2.5f);
  }
}
"""
    kernel = Kernel(TextSource(File(ACCEPTED + body, "subset.co", {}), "f"))
    for target, options in (("cpu", {}), ("machine", {"arch": "sm_80"})):
        p, y, z = np.array([1, 2, 3, 4], np.int32), np.zeros(8, np.int64), np.zeros(1, np.float32)
        kernel.on(target, **options)(p, y, z)
        wanted = [200, 7, 7, 21, 4326, 3304, 1000 - 200 + 20 + 3, 20]
        assert y.tolist() == wanted, (target, y)
        assert z.tolist() == [6.5]


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("float z = 0.f; return a * 2.f + z + .5f + 1.;", lambda a: a * 2 + 1.5),
        (
            "size_t z = (size_t)(a * 4.f); unsigned short w = 65536 + z; signed char c = w; return c;",
            lambda a: a * 4 // 1,
        ),
        ("return __half2float(__float2half(a)) + __bfloat162float(__float2bfloat16(a));", lambda a: 2 * a),
        ("return log2f(a) + erff(a - a) + expm1f(a - a) + abs(-a);", lambda a: np.log2(a) + a),
    ],
    ids=["literals", "integers", "conversions", "functions"],
)
def test_what_cuda_code_often_has(body: str, want: Any) -> None:
    text = f"""
    __device__ float f(float a) {{ {body} }}
    __co__ void k(global f32 [8] x, global f32 [8] y) {{ parallel t by 8 : thread {{ y.at(t) = f(x.at(t)); }} }}
    """
    x, y = np.arange(1, 9, dtype=np.float32), np.zeros(8, np.float32)
    for target in ("cpu", "machine"):
        tm.loads(text).on(target)(x, y)
        np.testing.assert_allclose(y, want(x.astype(np.float64)), rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "what"),
    [("switch (1) { }", "`switch`"), ("do { } while (0);", "`do`"), ("P p; return 0;", "the type `P`")],
)
def test_what_the_subset_has_not_is_named(body: str, what: str) -> None:
    text = f"__device__ int f(int i) {{ {body} }}\n__co__ void k(global f32 [8] y) {{ y.at(0) = f(1); }}"
    with pytest.raises(CompileError, match=f"{what} in a device function"):
        tm.loads(text).only().traced()
