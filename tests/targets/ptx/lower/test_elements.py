"""Element work on the PTX machine against the CPU reference, kernel by kernel."""

from __future__ import annotations

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm

ARCHS = ("sm_80", "sm_90a")


def both(tmp_path: Path, source: str, *args, arch: str) -> tuple[list, list]:
    """The arguments after a run on the CPU reference, and after one on the machine."""
    file = tmp_path / "kernel.co"
    file.write_text(source)
    kernel = tm.load(str(file)).only()
    results = []
    for target, options in (("cpu", {}), ("machine", {"arch": arch})):
        given = [a.copy(order="K") if isinstance(a, np.ndarray) else a for a in args]
        kernel.on(target, **options)(*given)
        results.append(given)
    return results[0], results[1]


def same(tmp_path: Path, source: str, *args, arch: str) -> None:
    reference, got = both(tmp_path, source, *args, arch=arch)
    for x, y in zip(reference, got, strict=True):
        if isinstance(x, np.ndarray) and x.dtype.kind not in "iub":
            x, y = x.astype(np.float64), y.astype(np.float64)
            np.testing.assert_array_equal(np.signbit(x[x == 0]), np.signbit(y[x == 0]))
        np.testing.assert_array_equal(x, y)


def lanes(body: str, params: str) -> str:
    """One lane for each of M elements; ``i`` is its number."""
    return f"""
__co__ void f({params}) {{
  parallel b by cdiv(M, 32) : block, t by 32 : thread {{ int i = b # t; if (i < M) {{ {body} }} }}
}}"""


RNG = np.random.default_rng(7)
SINGLES = np.concatenate(
    [
        RNG.standard_normal(40) * 3,
        RNG.standard_normal(40) * 400,
        RNG.standard_normal(20) * 1e-3,
        [
            0.0,
            -0.0,
            448,
            464,
            480,
            1e6,
            -1e6,
            127.5,
            -128.5,
            65504,
            65520,
            1e-8,
            0.5,
            1.5,
            2.5,
            -0.5,
            np.inf,
            -np.inf,
        ],
    ]
).astype(np.float32)


@pytest.mark.parametrize("arch", ("sm_80", "sm_89"))
@pytest.mark.parametrize("name", ["f16", "bf16", "f8_e4m3", "f8_e5m2", "f64", "s8", "u8", "s16", "s32", "s64"])
def test_conversion_of_f32(tmp_path: Path, name: str, arch: str) -> None:
    source = lanes("c.at(i) = a.at(i);", f"global f32 [M] a, global {name} [M] c")
    same(tmp_path, source, SINGLES, np.zeros(SINGLES.size, tm.dtypes.dtype(name).numpy), arch=arch)


@pytest.mark.parametrize("arch", ("sm_80", "sm_89"))
@pytest.mark.parametrize("name", ["f16", "bf16", "f8_e4m3", "f8_e5m2", "f64", "s8", "u8", "u32", "s64"])
def test_conversion_to_f32(tmp_path: Path, name: str, arch: str) -> None:
    t = tm.dtypes.dtype(name).numpy
    values = (
        np.arange(256, dtype=np.uint8).view(t) if t.itemsize == 1 else (RNG.standard_normal(256) * 99).astype(t)
    )
    source = lanes("c.at(i) = a.at(i);", f"global {name} [M] a, global f32 [M] c")
    same(tmp_path, source, values, np.zeros(256, np.float32), arch=arch)


def test_integer_division_rounds_as_the_language_says(tmp_path: Path) -> None:
    x = RNG.integers(-50, 50, 70, dtype=np.int32)
    y = (RNG.integers(1, 9, 70) * RNG.choice([-1, 1], 70)).astype(np.int32)
    body = "c.at(0, i) = x.at(i) / y.at(i); c.at(1, i) = x.at(i) % y.at(i); c.at(2, i) = cdiv(x.at(i), y.at(i));"
    source = lanes(body, "global s32 [M] x, global s32 [M] y, global s32 [3, M] c")
    same(tmp_path, source, x, y, np.zeros((3, 70), np.int32), arch="sm_80")


def test_bits_shifts_comparisons_and_choice(tmp_path: Path) -> None:
    x, y = (RNG.integers(-1000, 1000, 70, dtype=np.int32) for _ in range(2))
    body = (
        "c.at(0, i) = (x.at(i) << 3) ^ (x.at(i) >> 2); c.at(1, i) = x.at(i) & y.at(i) | 5;"
        "c.at(2, i) = x.at(i) > y.at(i) ? x.at(i) : y.at(i) - 1;"
        "c.at(3, i) = x.at(i) == y.at(i) || x.at(i) < 3 ? 1 : 0;"
    )
    source = lanes(body, "global s32 [M] x, global s32 [M] y, global s32 [4, M] c")
    same(tmp_path, source, x, y, np.zeros((4, 70), np.int32), arch="sm_80")


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_each_operation_on_halves_rounds_by_itself(tmp_path: Path, name: str) -> None:
    t = tm.dtypes.dtype(name).numpy
    x, y = (RNG.standard_normal(70).astype(t) for _ in range(2))
    sums = "c.at(0, i) = x.at(i) * y.at(i) + x.at(i); c.at(2, i) = -x.at(i) - y.at(i);"
    body = sums + "c.at(1, i) = x.at(i) / y.at(i);"
    source = lanes(body, f"global {name} [M] x, global {name} [M] y, global {name} [3, M] c")
    same(tmp_path, source, x, y, np.zeros((3, 70), t), arch="sm_80")


def test_zeros_keep_their_signs(tmp_path: Path) -> None:
    body = "c.at(0, i) = 0.0f; c.at(1, i) = -0.0f; c.at(2, i) = x.at(i) * 0.0f; c.at(3, i) = x.at(i) * -0.0f;"
    source = lanes(body, "global f32 [M] x, global f32 [4, M] c")
    same(tmp_path, source, RNG.standard_normal(70).astype(np.float32), np.ones((4, 70), np.float32), arch="sm_80")


def test_products_and_sums_are_not_fused(tmp_path: Path) -> None:
    x, y, z = (RNG.standard_normal(70).astype(np.float32) for _ in range(3))
    source = lanes("c.at(i) = x.at(i) * y.at(i) + z.at(i);", ", ".join(f"global f32 [M] {n}" for n in "xyzc"))
    same(tmp_path, source, x, y, z, np.zeros(70, np.float32), arch="sm_80")


def test_while_break_and_continue(tmp_path: Path) -> None:
    body = """
      mutable int x = a.at(i); mutable int n = 0; mutable int skipped = 0;
      while (x > 1) { if (x % 2 == 0) { x = x / 2; } else { x = 3 * x + 1; } n = n + 1; if (n > 100) break; }
      foreach k in [a.at(i) % 7] { if (k == 3) continue; skipped = skipped + k; }
      c.at(i) = n * 100 + skipped;"""
    source = lanes(body, "global s32 [M] a, global s32 [M] c")
    same(tmp_path, source, np.arange(1, 71, dtype=np.int32), np.zeros(70, np.int32), arch="sm_80")


def test_bools_and_scalar_parameters(tmp_path: Path) -> None:
    source = lanes(
        "c.at(i) = flip ? !a.at(i) : (a.at(i) && i < n);", "global bool [M] a, global bool [M] c, int n, bool flip"
    )
    flags = RNG.integers(0, 2, 70).astype(bool)
    for flip in (False, True):
        same(tmp_path, source, flags, np.zeros(70, bool), 33, flip, arch="sm_80")


def test_scalar_parameters_of_other_types(tmp_path: Path) -> None:
    source = lanes("c.at(i) = a.at(i) * alpha + beta;", "global f32 [M] a, global f32 [M] c, f32 alpha, f64 beta")
    same(tmp_path, source, SINGLES[:64], np.zeros(64, np.float32), 0.1, 0.2, arch="sm_80")


def test_shared_memory_runs_both_ways(tmp_path: Path) -> None:
    source = """
__co__ void f(global f32 [M] a, global f32 [M] c) {
  parallel bm by cdiv(M, 64) : block {
    shared f32 [64] s;
    dma.copy a.subspan(64).at(bm) => s;
    parallel t by 64 : thread { int i = 63 - t; if (bm # t < M) c.at(bm # t) = s.at(i) * 2.0f + 1.0f; }
  }
}"""
    same(tmp_path, source, SINGLES, np.zeros_like(SINGLES), arch="sm_80")


def test_levels_inside_levels(tmp_path: Path) -> None:
    source = """
__co__ void f(global f32 [M] a, global f32 [M] c) {
  parallel b by cdiv(M, 192) : block {
    shared f32 [4] s;
    s.at(3) = 10.0f;
    parallel g by 3 : group-2 { s.at(g) = 1.0f * g; parallel t by 64 : thread {
      int i = b * 192 + g # t; if (i < M) { c.at(i) = a.at(i) * s.at(g) + s.at(3); } } }
    parallel g by 2 : group { parallel t by 32 : thread {
      int i = b * 192 + g # t; if (i < M) { c.at(i) = c.at(i) + 1.0f; } } }
  }
}"""
    a = RNG.standard_normal(300).astype(np.float32)
    same(tmp_path, source, a, np.zeros_like(a), arch="sm_80")


@pytest.mark.parametrize("op", ["add", "sub", "min", "max", "and", "or", "xor"])
def test_atomics_in_shared_memory(tmp_path: Path, op: str) -> None:
    """Sixty-four lanes on eight elements: the order differs, the sum does not."""
    source = f"""
__co__ void f(global s32 [M] a, global s32 [8] c) {{
  parallel b by 1 : block {{
    shared s32 [8] s;
    parallel t by 64 : thread {{ if (t < 8) {{ s.at(t) = 5; }} }}
    parallel t by 64 : thread {{ __atomic_{op}(s.at(t % 8), a.at(t)); }}
    parallel t by 64 : thread {{ if (t < 8) {{ c.at(t) = s.at(t); }} }}
  }}
}}"""
    same(tmp_path, source, np.arange(64, dtype=np.int32), np.zeros(8, np.int32), arch="sm_80")


def test_atomics_give_the_old_value(tmp_path: Path) -> None:
    body = (
        "int x = __atomic_cas(c.at(i), a.at(i), 7); int y = __atomic_exch(d.at(i), x); c.at(i) = c.at(i) + x + y;"
    )
    source = lanes(body, "global s32 [M] a, global s32 [M] c, global s32 [M] d")
    a = np.arange(64, dtype=np.int32)
    same(tmp_path, source, a, 2 * a, 3 * a, arch="sm_80")


def test_atomic_add_of_floats(tmp_path: Path) -> None:
    source = lanes("__atomic_add(c.at(i % 2), a.at(i));", "global f32 [M] a, global f32 [2] c")
    same(tmp_path, source, np.arange(128, dtype=np.float32), np.zeros(2, np.float32), arch="sm_90a")


def test_several_launches_see_each_other(tmp_path: Path) -> None:
    launch = "parallel b by cdiv(M, 32) : block, t by 32 : thread {{ if (b # t < M) {{ c.at(b # t) = {}; }} }}"
    source = (
        "__co__ void f(global f32 [M] a, global f32 [M] c) {"
        + launch.format("a.at(b # t) + 1.0f")
        + launch.format("c.at(b # t) * 2.0f")
        + "}"
    )
    same(tmp_path, source, SINGLES, np.zeros_like(SINGLES), arch="sm_80")


# ---- copies ----------------------------------------------------------------------------------------------


def staged(t: str, tile: tuple[int, ...], blocks: str, index: str, span: str = "subspan") -> str:
    """Copy an array to another through a shared tile."""
    dims = ", ".join("ABCD"[: len(tile)])
    extents = ", ".join(map(str, tile))
    return f"""
__co__ void f(global {t} [{dims}] a, global {t} [{dims}] c) {{
  parallel {{{index}}} by [{blocks}] : block {{
    shared {t} [{extents}] s;
    dma.copy a.{span}({extents}).at({index}) => s;
    dma.copy s => c.subspan({extents}).at({index});
  }}
}}"""


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("cols", [64, 72, 77, 130])
@pytest.mark.parametrize("name", ["u8", "f16", "f32", "f64"])
def test_copies_of_any_width(tmp_path: Path, name: str, cols: int, arch: str) -> None:
    t = tm.dtypes.dtype(name).numpy
    a = RNG.integers(0, 100, (13, cols)).astype(t)
    source = staged(name, (8, 64), "cdiv(A, 8), cdiv(B, 64)", "i, j")
    same(tmp_path, source, a, np.zeros_like(a), arch=arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_copies_with_odd_extents_and_many_chunks(tmp_path: Path, arch: str) -> None:
    for shape, tile in (((50, 48), (24, 40)), ((140, 131), (128, 128)), ((140, 136), (128, 128))):
        a = RNG.standard_normal(shape).astype(np.float16)
        source = staged("f16", tile, f"cdiv(A, {tile[0]}), cdiv(B, {tile[1]})", "i, j")
        same(tmp_path, source, a, np.zeros_like(a), arch=arch)


def test_copies_of_three_dimensions(tmp_path: Path) -> None:
    a = RNG.standard_normal((3, 7, 13)).astype(np.float32)
    source = staged("f32", (1, 4, 8), "A, cdiv(B, 4), cdiv(C, 8)", "i, j, k")
    same(tmp_path, source, a, np.zeros_like(a), arch="sm_80")


def test_copies_of_a_remainder(tmp_path: Path) -> None:
    a = RNG.standard_normal((13, 37)).astype(np.float32)
    source = staged("f32", (8, 16), "cdiv(A, 8), cdiv(B, 16)", "i, j", span="modspan")
    same(tmp_path, source, a, np.zeros_like(a), arch="sm_80")


def test_copies_with_other_strides(tmp_path: Path) -> None:
    a = np.asfortranarray(RNG.standard_normal((50, 37)).astype(ml_dtypes.bfloat16))
    source = staged("bf16", (16, 16), "cdiv(A, 16), cdiv(B, 16)", "i, j")
    same(tmp_path, source, a, np.zeros((50, 37), a.dtype), arch="sm_80")
    same(tmp_path, source, a, np.zeros((50, 37), a.dtype, order="F"), arch="sm_80")


def test_slots_and_reshaped_views(tmp_path: Path) -> None:
    source = """
__co__ void f(global f16 [M, 32] a, global f16 [M, 32] c) {
  parallel b by cdiv(M, 64) : block {
    shared f16 [16, 32] s[4];
    parallel w by 4 : group {
      dma.copy a.subspan(16, 32).at(b # w, 0) => s[w];
      parallel t by 32 : thread { s[w].span_as([512]).at(t) = s[w].span_as([512]).at(t) + 1.0f; }
      dma.copy s[w] => c.subspan(16, 32).at(b # w, 0);
    }
  }
}"""
    a = RNG.standard_normal((70, 32)).astype(np.float16)
    same(tmp_path, source, a, np.zeros_like(a), arch="sm_80")


def test_views_with_steps_and_offsets(tmp_path: Path) -> None:
    source = """
__co__ void f(global f32 [M, N] a, global f32 [M, N] c, global f32 [64] d) {
  parallel b by 1 : block {
    shared f32 [16, 16] s;
    shared f32 [16, 16] other;
    dma.copy a.subspan(16, 16).step(4, 8).at(1, 2) => s;
    parallel t by 64 : thread { d.at(t) = s.subspan(8, 8).at(1, 0).at(t / 8, t % 8); }
    dma.copy a.view(16, 16).from(3, 5) => other;
    dma.copy other.subspan(8, 16).at(1, 0) => c.view(8, 16).from(2, 7);
    dma.copy s.chunkat(_, 0) => c.view(16, 16).from(20, 20);
  }
}"""
    a = RNG.standard_normal((40, 40)).astype(np.float32)
    same(tmp_path, source, a, np.zeros_like(a), np.zeros(64, np.float32), arch="sm_80")


# ---- what is not taken is not read -----------------------------------------------------------------------


def test_the_other_side_of_a_choice_reads_nothing(tmp_path: Path) -> None:
    """Lanes 32 to 63 have no element of s: reading one is a hazard on the machine."""
    source = """
__co__ void f(global f32 [M] a, global f32 [M] c) {
  parallel b by cdiv(M, 64) : block {
    shared f32 [32] s;
    dma.copy a.subspan(32).at(b) => s;
    parallel t by 64 : thread {
      int i = b # t;
      if (i < M) {
        c.at(i) = t < 32 ? s.at(t) : 1.0f;
        if (t < 32 && s.at(t) > 0.0f) c.at(i) = 5.0f;
        if (t >= 32 || s.at(t) < -1.0f) c.at(i) = 6.0f;
      }
    }
  }
}"""
    a = RNG.standard_normal(70).astype(np.float32)
    same(tmp_path, source, a, np.zeros_like(a), arch="sm_80")


# ---- integers --------------------------------------------------------------------------------------------

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def limits(name: str) -> np.ndarray:
    """Values of an integer type around the limits of every other."""
    t = tm.dtypes.dtype(name).numpy
    low, high = np.iinfo(t).min, np.iinfo(t).max
    edges = [
        x + d for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (-1, 1) for x in [s * 2**n] for d in (-1, 0, 1)
    ]
    return np.array([x for x in [0, 1, -1, *edges] if low <= x <= high], t)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_saturate_when_stored(tmp_path: Path, name: str) -> None:
    """One array of each integer type, all written from one source."""
    others = [n for n in INTEGERS if n != name]
    values = limits(name)
    params = ", ".join([f"global {name} [M] a", *(f"global {n} [M] {n}_" for n in others)])
    source = lanes(" ".join(f"{n}_.at(i) = a.at(i);" for n in others), params)
    file = tmp_path / "kernel.co"
    file.write_text(source)
    out = [np.zeros(values.size, tm.dtypes.dtype(n).numpy) for n in others]
    tm.load(str(file)).only().on("machine", arch="sm_80")(values, *out)
    for n, got in zip(others, out, strict=True):
        info = np.iinfo(got.dtype)
        assert got.tolist() == [min(max(int(v), info.min), info.max) for v in values], n


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_floats_saturate_as_integers_and_nan_is_zero(tmp_path: Path, name: str) -> None:
    t = tm.dtypes.dtype(name).numpy
    edges = [0.5, 1.5, 2.5, -0.5, -1.5, 300, -300, 1e5, -1e5, 1e10, -1e10, 1e20, -1e20, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        values = np.concatenate([RNG.standard_normal(30) * 100, edges]).astype(t)
    params = ", ".join([f"global {name} [M] a", *(f"global {n} [M] {n}_" for n in INTEGERS)])
    source = lanes(" ".join(f"{n}_.at(i) = a.at(i);" for n in INTEGERS), params)
    same(tmp_path, source, values, *(np.zeros(46, tm.dtypes.dtype(n).numpy) for n in INTEGERS), arch="sm_80")


@pytest.mark.parametrize("name", ["u32", "s64", "u64"])
def test_arithmetic_of_wide_and_unsigned_integers(tmp_path: Path, name: str) -> None:
    t = tm.dtypes.dtype(name).numpy
    info = np.iinfo(t)
    x = RNG.integers(info.min // 4, info.max, 70, dtype=t)
    y = np.concatenate([RNG.integers(1, 9, 35, dtype=t), RNG.integers(1, info.max, 35, dtype=t)])
    body = (
        "c.at(0, i) = x.at(i) / y.at(i); c.at(1, i) = x.at(i) % y.at(i); c.at(2, i) = cdiv(x.at(i), y.at(i));"
        "c.at(3, i) = (x.at(i) >> 3) ^ (x.at(i) << 5);"
        "c.at(4, i) = x.at(i) > y.at(i) ? x.at(i) - y.at(i) : y.at(i) * 3;"
    )
    source = lanes(body, f"global {name} [M] x, global {name} [M] y, global {name} [5, M] c")
    same(tmp_path, source, x, y, np.zeros((5, 70), t), arch="sm_80")


# ---- a lane's own buffers --------------------------------------------------------------------------------

LOCAL = """
      local f32 [8] x;
      foreach j in [8] x.at(j) = a.at(i) * j;
      mutable f32 sum = 0.0f;
      foreach j in [8] sum = sum + x.at(7 - j);
      c.at(i) = sum + x.at({index});"""


@pytest.mark.parametrize("index", ["i % 8", "3"])
def test_local_buffers(tmp_path: Path, index: str) -> None:
    source = lanes(LOCAL.format(index=index), "global f32 [M] a, global f32 [M] c")
    same(tmp_path, source, SINGLES[:100], np.zeros(100, np.float32), arch="sm_80")


def test_known_subscripts_of_local_buffers_are_registers(tmp_path: Path) -> None:
    file = tmp_path / "kernel.co"
    file.write_text(lanes(LOCAL.format(index="3"), "global f32 [M] a, global f32 [M] c"))
    compiled = tm.load(str(file)).only().compile(arch="sm_80")
    try:
        cubin = compiled.assembled()
    except tm.ToolError:
        pytest.skip("no ptxas")
    assert cubin.stack_bytes == 0


def test_prints_and_assertions_assemble(tmp_path: Path) -> None:
    body = 'assert(i < 100, "100% too far"); println("lane ", i, " of ", M, ": ", a.at(i), " ", a.at(i) > 0.0f);'
    file = tmp_path / "kernel.co"
    file.write_text(lanes(body, "global f32 [M] a"))
    compiled = tm.load(str(file)).only().compile(arch="sm_90a")
    texts = [
        bytes(map(int, data.split(","))).decode() for data in re.findall(r"\{(\d+(?:, \d+)*)\};", compiled.ptx)
    ]
    assert "lane %d of %d: %.9g %d\n\0" in texts
    assert any(t.endswith("assertion failed: 100%% too far\n\0") and "kernel.co:3:" in t for t in texts)
    assert "trap;" in compiled.ptx
    try:
        assert compiled.assembled().problems == ()
    except tm.ToolError:
        pytest.skip("no ptxas")


@pytest.mark.parametrize(
    ("dtype", "text"),
    [("s8", "%d"), ("u8", "%u"), ("s16", "%d"), ("u16", "%u"), ("s32", "%d"), ("u32", "%u"), ("s64", "%lld"),
     ("u64", "%llu"), ("f16", "%.9g"), ("bf16", "%.9g"), ("f32", "%.9g"), ("f64", "%.9g")],
)  # fmt: skip
def test_types_that_are_printed(dtype: str, text: str, tmp_path: Path) -> None:
    """Values of up to 32 bits as int, wider ones as long long, all floats as double."""
    file = tmp_path / "kernel.co"
    file.write_text(lanes("println(a.at(i));", f"global {dtype} [M] a"))
    ptx = tm.load(str(file)).only().compile(arch="sm_90a").ptx
    texts = [bytes(map(int, data.split(","))).decode() for data in re.findall(r"\{(\d+(?:, \d+)*)\};", ptx)]
    assert texts == [f"{text}\n\0"]


@pytest.mark.parametrize(
    "dtype", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f16", "bf16", "f32", "f64"]
)
def test_elements_as_conditions(dtype: str, tmp_path: Path) -> None:
    """Any number but 0 holds, also the smallest one, one whose lower half is 0, and NaN."""
    t = tm.dtypes.dtype(dtype)
    wide = [2.0**-14, -0.0, np.nan, np.inf] if t.is_float else [2 ** (t.bits - 1 - (t.kind == "int"))]
    x = np.zeros(8, t.numpy)
    x[: len(wide) + 2] = np.array([0, 1, *wide], t.numpy)
    arrays = f"global {dtype} [8] a, global s32 [8] c"
    text = f"__co__ void k({arrays}) {{ parallel i by 8 : thread {{ if (a.at(i)) c.at(i) = 1; }} }}"
    found = np.zeros(8, np.int32)
    file = tmp_path / "kernel.co"
    file.write_text(text)
    tm.load(str(file)).only().on("machine", arch="sm_90a")(x, found)
    assert found.tolist() == [int(bool(v)) for v in x.astype(np.float64 if t.is_float else x.dtype)]


def test_a_loop_too_long_to_write_out_stays_a_loop(tmp_path: Path) -> None:
    body = "mutable int s = 0; foreach j in [1000000] : unroll { s = s + j; } a.at(i) = s;"
    file = tmp_path / "kernel.co"
    file.write_text(lanes(body, "global s32 [M] a"))
    assert tm.load(str(file)).only().compile(arch="sm_80").ptx.count("\n") < 200


@pytest.mark.parametrize("step", [1, 3])
def test_loops_of_run_time_length_are_unrolled_in_groups(step: int, tmp_path: Path) -> None:
    body = f"mutable int s = 0; with j in [n] {{ foreach j(0::{step}) : unroll(4) s = 3 * s + j; }} a.at(i) = s;"
    file = tmp_path / "kernel.co"
    file.write_text(lanes(body, "global s32 [M] a, s32 n"))
    kernel = tm.load(str(file)).only()
    for n in (0, 1, 4, 5, 11, 12, 13, 24):
        found, want = np.zeros(32, np.int32), 0
        kernel.on("machine", arch="sm_80")(found, n)
        for j in range(0, n, step):
            want = (3 * want + j) % 2**32
        assert (found.view(np.uint32) == want).all(), n
    # Four copies in the loop over groups, one in the loop over the rest.
    assert len(re.findall(r"mul\.lo\.s32 %\w+, %s, 3", kernel.compile("sm_80").ptx)) == 5
