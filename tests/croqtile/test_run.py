"""Kernels of the language run on the CPU reference, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilemma as tm

RNG = np.random.default_rng(7)


def run(tmp_path: Path, text: str, *args: Any, **constants: Any) -> Any:
    path = tmp_path / "k.co"
    path.write_text(text)
    return tm.load(path).only()(*args, **constants)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*shape: int) -> Any:
    return RNG.integers(-50, 50, shape).astype(np.int32)


def test_element_loops_and_scalars(tmp_path: Path) -> None:
    a, b, c = floats(13, 7), floats(7, 9), np.zeros((13, 9), np.float32)
    text = """
    __co__ void mm(f32 [M, K] a, f32 [K, N] b, f32 [M, N] c, f32 scale) {
      parallel {i, j} by [M, N] : block {
        f32 sum = 0.0f;
        foreach k in K { sum += a.at(i, k) * b.at(k, j); }
        c.at(i, j) = sum * scale;
      }
    }"""
    run(tmp_path, text, a, b, c, 2.0)
    np.testing.assert_allclose(c, 2 * (a @ b), rtol=1e-5, atol=1e-5)


def test_the_tutorial_s_scalar_matmul_returns_its_result(tmp_path: Path) -> None:
    a, b = ints(32, 64), ints(64, 48)
    text = """
    __co__ auto mm(s32 [M, K] lhs, s32 [K, N] rhs) {
      s32 [lhs.span(0), rhs.span(1)] output;
      parallel {px, py} by [cdiv(M, 16), cdiv(N, 16)] : block {
        parallel {qx, qy} by [16, 16] : thread {
          mutable s32 sum = 0;
          foreach k in K { sum += lhs.at(px # qx, k) * rhs.at(k, py # qy); }
          output.at(px # qx, py # qy) = sum;
        }
      }
      return output;
    }"""
    np.testing.assert_array_equal(run(tmp_path, text, a, b), a @ b)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("a.subspan(4, 8).at(1, 1)", lambda a: a[4:8, 8:16]),
        ("a.subspan(4, 8).step(2, 3).at(1, 1)", lambda a: a[2:6, 3:11]),
        ("a.subspan(4, 8 : 2, 1).at(0, 1)", lambda a: a[0:8:2, 8:16]),
        ("a.view(4, 8).from(3, 5)", lambda a: a[3:7, 5:13]),
        ("a.chunk(4, 2).at(3, 0)", lambda a: a[12:16, 0:8]),
        ("a.span_as([8, 32]).subspan(4, 8).at(1, 2)", lambda a: a.reshape(8, 32)[4:8, 16:24]),
        ("a.subspan(4, 8).at(3, 1).subspan(4, 8).at(0, 0)", lambda a: a[12:16, 8:16]),
    ],
)
def test_views(tmp_path: Path, view: str, expected: Any) -> None:
    a, c = floats(16, 16), np.zeros((4, 8), np.float32)
    text = f"""
    __co__ void f(f32 [16, 16] a, f32 [4, 8] c) {{
      parallel p by 1 : block {{ s = dma.copy {view} => shared; dma.copy s => c; }}
    }}"""
    run(tmp_path, text, a, c)
    np.testing.assert_array_equal(c, expected(a))


def test_ragged_copies_fill_with_zeros_and_drop(tmp_path: Path) -> None:
    a, c = floats(13, 10), np.full((13, 10), 9, np.float32)
    text = """
    #define T 8
    __co__ void f(f32 [M, N] a, f32 [M, N] c) {
      parallel {i, j} by [cdiv(M, T), cdiv(N, T)] : block {
        shared f32 [T, T] s;
        dma.copy a.subspan(T, T).at(i, j) => s;
        dma.copy s => c.subspan(T, T).at(i, j);
      }
    }"""
    run(tmp_path, text, a, c)
    np.testing.assert_array_equal(c, a)


def test_arrays_of_tiles(tmp_path: Path) -> None:
    a, c = floats(3, 4, 8), np.zeros((3, 4, 8), np.float32)
    text = """
    __co__ void f(f32 [3, 4, 8] a, f32 [3, 4, 8] c) {
      parallel p by 1 : block {
        shared f32 [4, 8] s[3];
        foreach i in 3 { dma.copy a.subspan(1, 4, 8).at(i, 0, 0).sqz() => s[i]; }
        foreach i in 3 { dma.copy s[2 - i] => c.subspan(1, 4, 8).at(i, 0, 0).sqz(); }
      }
    }"""
    run(tmp_path, text, a, c)
    np.testing.assert_array_equal(c, a[::-1])


def test_loops_with_jumps(tmp_path: Path) -> None:
    out = np.zeros(6, np.int32)
    text = """
    __co__ void f(s32 [6] out, int n) {
      parallel p by 1 : block {
        mutable int i = 0;  mutable int total = 0;
        while (true) { i++; if (i > n) break; if (i % 2 == 0) continue; total += i; }
        out.at(0) = total;
        with k in 8 { foreach k(1:-1:2) { out.at(1) += k; }  out.at(2) = k + #k * 10 + k(-1); }
        foreach {x, y} in [3, 4] { out.at(3) += x * 4 + y; }
        out.at(4) = n > 3 ? 1 : 2;
        if (n == 5 && !(n < 3)) { out.at(5) = n << 2 | 1; } else { out.at(5) = -1; }
      }
    }"""
    run(tmp_path, text, out, 5)
    # `|` binds tighter than `<<`: 5 << (2 | 1).
    assert out.tolist() == [9, 1 + 3 + 5, 87, 66, 1, 40]


def test_arithmetic_is_c_s(tmp_path: Path) -> None:
    out = np.zeros(6, np.int32)
    text = """
    __co__ void f(s32 [6] out, int n) {
      parallel p by 1 : block {
        out.at(0) = -n / 2;  out.at(1) = -n % 4;  out.at(2) = cdiv(n, 2);
        out.at(3) = ~n & 15;  out.at(4) = __alignup(n, 4);  out.at(5) = __max(n, 3) - __min(n, 3);
      }
    }"""
    run(tmp_path, text, out, 7)
    assert out.tolist() == [-3, -3, 4, 8, 8, 4]


def test_the_math_library(tmp_path: Path) -> None:
    a, c = np.abs(floats(4)) + 0.5, np.zeros((4, 4), np.float32)
    text = """
    __co__ void f(f32 [4] a, f32 [4, 4] c) {
      parallel p by 4 : block {
        c.at(p, 0) = __exp(a.at(p));  c.at(p, 1) = __rsqrt(a.at(p));
        c.at(p, 2) = __fmaf(a.at(p), 2.0, 1.0);  c.at(p, 3) = __tanh(a.at(p)) * 0.5;
      }
    }"""
    run(tmp_path, text, a, c)
    expected = np.stack([np.exp(a), 1 / np.sqrt(a), a * 2 + 1, np.tanh(a) / 2], axis=1)
    np.testing.assert_allclose(c, expected, rtol=1e-6)


def test_atomics(tmp_path: Path) -> None:
    total, seen = np.zeros(1, np.int32), np.zeros(64, np.int32)
    text = """
    __co__ void f(s32 [1] total, s32 [64] seen) {
      parallel p by 2 : block, q by 32 : thread {
        int old = __atomic_add(total.at(0), 1);
        seen.at(p # q) = old;
      }
    }"""
    run(tmp_path, text, total, seen)
    assert total[0] == 64 and sorted(seen) == list(range(64))


CONTRACTS = {"row.row": "mk,nk->mn", "row.col": "mk,kn->mn", "col.row": "km,nk->mn", "col.col": "km,kn->mn"}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_contracts(tmp_path: Path, contract: str) -> None:
    first, second = (x.upper() for x in CONTRACTS[contract].split("->")[0].split(","))
    sizes = {"M": 32, "N": 16, "K": 48}
    a, b = (RNG.integers(-4, 5, [sizes[d] for d in x]).astype(np.float16) for x in (first, second))
    c = np.zeros((32, 16), np.float32)
    shapes = [", ".join(str(sizes[d]) for d in x) for x in (first, second)]
    text = f"""
    __co__ void f(f16 [{shapes[0]}] a, f16 [{shapes[1]}] b, f32 [32, 16] c) {{
      parallel p by 1 : block {{
        a_s = dma.copy a => shared;  b_s = dma.copy b => shared;
        parallel w by 1 : group {{
          mc = mma.fill.f32 0.0f;
          ma = mma.load a_s;  mb = mma.load b_s;
          mma.{contract} mc, ma, mb;
          mma.store mc, c;
        }}
      }}
    }}"""
    run(tmp_path, text, a, b, c)
    np.testing.assert_array_equal(c, np.einsum(CONTRACTS[contract], a.astype(np.float64), b.astype(np.float64)))


def test_element_work_on_accumulators(tmp_path: Path) -> None:
    a, b = (RNG.integers(-4, 5, (16, 16)).astype(np.float16) for _ in range(2))
    bias, c = floats(16), np.zeros((16, 16), np.float32)
    text = """
    __co__ void f(f16 [16, 16] a, f16 [16, 16] b, f32 [16] bias, f32 [16, 16] c) {
      parallel p by 1 : block {
        a_s = dma.copy a => shared;  b_s = dma.copy b => shared;
        parallel w by 1 : group {
          mc = mma.fill.f32 0.0f;
          ma = mma.load a_s;  mb = mma.load b_s;
          mma.row.row mc, ma, mb;
          mc = mc * 0.5 + bias;
          apply {i, j} in mc.span { if (i < j) mc.at(i, j) = 0.0f; }
          mma.store mc, c;
        }
      }
    }"""
    run(tmp_path, text, a, b, bias, c)
    product = (a.astype(np.float64) @ b.astype(np.float64).T) * 0.5
    np.testing.assert_allclose(c, np.tril(product.astype(np.float32) + bias), rtol=1e-6)


def test_definitions_choose_the_element_type(tmp_path: Path) -> None:
    text = "#define T f32\n__co__ void f(T [M] a, T [M] c) { parallel p by M : block { c.at(p) = a.at(p) * 2; } }"
    for dtype, name in ((np.float32, "f32"), (np.int32, "s32")):
        a, c = np.arange(5).astype(dtype), np.zeros(5, dtype)
        run(tmp_path, text, a, c, T=name)
        np.testing.assert_array_equal(c, a * 2)


def test_several_launches_run_in_order(tmp_path: Path) -> None:
    a = np.arange(8, dtype=np.int32)
    text = """
    __co__ void f(s32 [8] a) {
      parallel p by 8 : block { a.at(p) = a.at(p) + 1; }
      parallel p by 4 : block { a.at(p) = a.at(p + 4); }
    }"""
    run(tmp_path, text, a)
    assert a.tolist() == [5, 6, 7, 8, 5, 6, 7, 8]
