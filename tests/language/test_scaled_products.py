"""Products that are scaled before they are added: `.scale` and `mma.scale`, in both languages, on every target."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree, croqtile_kernel, python_kernel

from tilemma.errors import CompileError
from tilemma.ir.checks import ScaleShape

CO = """
__co__ void f(global {t} [M, K] a, global {t} [N, K] b, global f32 [{span}] v, global {d} [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, 16)] : block {{
    shared {t} [{m}, {k}] a_s; shared {t} [16, {k}] b_s;
    mc = mma.fill.{d} 2.0f;
    foreach k in [cdiv(K, {k})] {{
      dma.copy a.subspan({m}, {k}).at(i, k) => a_s;
      dma.copy b.subspan(16, {k}).at(j, k) => b_s;
      parallel p by 1 : {level} {{
        ma = mma.load a_s; mb = mma.load b_s;
        {co}
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, 16).at(i, j);
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{t}", "M", "K"], b: tm.Global["{t}", "N", "K"], v: tm.Global["f32", {dims}],
      c: tm.Global["{d}", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, {m}), cdiv(N, 16), level="block"):
        a_s, b_s = shared("{t}", {m}, {k}), shared("{t}", 16, {k})
        mc = mma.fill(2.0, "{d}")
        for k in foreach(cdiv(K, {k})):
            dma.copy(a.subspan({m}, {k}).at(i, k), a_s)
            dma.copy(b.subspan(16, {k}).at(j, k), b_s)
            for p in parallel(1, level="{level}"):
                ma, mb = mma.load(a_s), mma.load(b_s)
                {python}
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, 16).at(i, j))
"""
ROWS = {"M, 1": ("({m}, 1).at(i, 0)", '"M", 1'), "1, M": ("(1, {m}).at(0, i)", '1, "M"')}
FUSED = ("mma.row.row.scale mc, ma, mb, {v}, 0.5f;", "mma.row.row.scale(mc, ma, mb, {v}, 0.5)")
LATER = (
    "mma.row.row mc, ma, mb;\n        mma.scale mc, {v}, 0.5f;",
    "mma.row.row(mc, ma, mb)\n                mma.scale(mc, {v}, 0.5)",
)
# Scaled in every second step; the last step's products are stored as they are.
SOMETIMES = (
    "mma.row.row mc, ma, mb;\n        if (k % 2 == 1) {{ mma.scale mc, {v}, 0.5f; }}",
    "mma.row.row(mc, ma, mb)\n                with if_(k % 2 == 1):\n                    mma.scale(mc, {v}, 0.5)",
)


@pytest.mark.parametrize(
    ("t", "d", "form", "span", "arch", "level"),
    [
        ("f8_e4m3", "f32", FUSED, "M, 1", "sm_90a", "group-4"),
        ("f16", "f32", LATER, "1, M", "sm_80", "group"),
        ("f16", "f32", SOMETIMES, "M, 1", "sm_90a", "group-4"),
        pytest.param("f8_e4m3", "f32", LATER, "M, 1", "sm_90a", "group-4", marks=pytest.mark.slow),
        pytest.param("bf16", "f32", FUSED, "1, M", "sm_90a", "group", marks=pytest.mark.slow),
        pytest.param("tf32", "f32", SOMETIMES, "M, 1", "sm_80", "group", marks=pytest.mark.slow),
        pytest.param("f16", "f16", FUSED, "M, 1", "sm_80", "group", marks=pytest.mark.slow),
    ],
)
def test_a_scaled_product(t: str, d: str, form: tuple[str, str], span: str, arch: str, level: str) -> None:
    from test_element_types import numbers

    from tilemma.dtypes import dtype

    m, k = (64 if level == "group-4" else 16), 32
    cut, dims = ROWS[span]
    v = "v.subspan" + cut.format(m=m)
    co, python = (x.format(v=v) for x in form)
    facts = {"t": t, "d": d, "m": m, "k": k, "level": level, "span": span, "dims": dims}
    rows, n, depth = m + 8, 24, 3 * k
    x, y = numbers(dtype(t), (rows, depth), 1), numbers(dtype(t), (n, depth), 2)
    scale = np.random.default_rng(3).integers(1, 5, rows).astype(np.float32)
    given = {
        "a": x,
        "b": y,
        "v": scale.reshape((rows, 1) if span == "M, 1" else (1, rows)),
        "c": np.zeros((rows, n), dtype(d).numpy),
    }
    found = agree(CO.format(co=co, **facts), PYTHON.format(python=python, **facts), given, (arch,))
    assert not isinstance(found, str), found
    wide = x.astype(np.float64), y.astype(np.float64)
    scaled = 2 * k if form is SOMETIMES else depth
    wanted = 2.0 + (wide[0][:, :scaled] @ wide[1][:, :scaled].T) * scale[:, None] * 0.5
    wanted += wide[0][:, scaled:] @ wide[1][:, scaled:].T
    np.testing.assert_array_equal(found["c"], wanted.astype(dtype(d).numpy))


@pytest.mark.parametrize(("form", "arch"), [(FUSED, "sm_80"), (LATER, "sm_90a")])
def test_a_scaled_product_of_integers(form: tuple[str, str], arch: str) -> None:
    """A sum in s32 is scaled in f32, not by a scale converted to an integer, and rounded before it is added."""
    co, python = (x.format(v="v.subspan(16, 1).at(i, 0)") for x in form)
    facts = {"t": "s8", "d": "s32", "m": 16, "k": 32, "level": "group", "span": "M, 1", "dims": '"M", 1'}
    r = np.random.default_rng(4)
    x, y = r.integers(-128, 128, (24, 96), np.int8), r.integers(-128, 128, (24, 96), np.int8)
    v = r.standard_normal((24, 1)).astype(np.float32)
    given = {"a": x, "b": y, "v": v, "c": np.zeros((24, 24), np.int32)}
    found = agree(CO.format(co=co, **facts), PYTHON.format(python=python, **facts), given, (arch,))
    assert not isinstance(found, str), found
    steps = [x[:, k : k + 32].astype(np.int32) @ y[:, k : k + 32].T.astype(np.int32) for k in (0, 32, 64)]
    np.testing.assert_array_equal(
        found["c"], 2 + sum(np.rint(p.astype(np.float32) * (v * np.float32(0.5))) for p in steps)
    )


@pytest.mark.parametrize("form", [FUSED, LATER])
def test_scales_of_a_sum_in_f64_are_multiplied_in_f64(form: tuple[str, str]) -> None:
    """The product of the two scales has more bits than f32 has."""
    rows = "v.subspan(16, 1).at(i, 0)"
    co, python = (
        x.format(v=rows).replace("0.5f", other).replace("0.5", other)
        for x, other in zip(form, ("1.00048828125f", "1.00048828125"), strict=True)
    )
    facts = {"t": "f64", "d": "f64", "m": 16, "k": 16, "level": "group", "span": "M, 1", "dims": '"M", 1'}
    r = np.random.default_rng(5)
    x, y = (r.integers(-9, 10, (24, 16)).astype(np.float64) for _ in "ab")
    v = (1 + r.integers(1, 1 << 12, (24, 1)) * 2.0**-23).astype(np.float32)
    given = {"a": x, "b": y, "v": v, "c": np.zeros((24, 24))}
    found = agree(CO.format(co=co, **facts), PYTHON.format(python=python, **facts), given, ("sm_90a",))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], 2 + (x @ y.T) * (v.astype(np.float64) * 1.00048828125))


@pytest.mark.parametrize("form", [FUSED, LATER])
def test_a_named_instruction_of_a_function_of_its_own_is_scaled(form: tuple[str, str]) -> None:
    """The exclusive or of bits; the reference executes it issue by issue."""
    name = "SM80_16x8x128_S32U1U1S32_TN_XORPOPC"
    v = "v.subspan(16, 1).at(i, 0)"
    co, python = (x.format(v=v) for x in form)
    co = f"[[atom({name})]] {co}"
    multiply, end, later = python.partition(")\n")
    at = multiply.rstrip(")") if later else python[:-1]
    python = f'{at}, atom="{name}"){end[1:]}{later}'
    facts = {"t": "b1", "d": "s32", "m": 16, "k": 128, "level": "group", "span": "M, 1", "dims": '"M", 1'}
    r = np.random.default_rng(6)
    x, y = r.integers(0, 2, (16, 256)).astype(bool), r.integers(0, 2, (16, 256)).astype(bool)
    scale = 2 * r.integers(1, 4, (16, 1)).astype(np.float32)
    given = {"a": x, "b": y, "v": scale, "c": np.zeros((16, 16), np.int32)}
    found = agree(CO.format(co=co, **facts), PYTHON.format(python=python, **facts), given, ("sm_80",))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], 2 + (x[:, None] != y[None]).sum(-1) * scale / 2)


@pytest.mark.parametrize("form", [FUSED, LATER])
def test_scales_that_are_not_one_for_each_row(form: tuple[str, str]) -> None:
    """Refused when compiled: the generated code would take the numbers of another row."""
    co, python = (x.format(v="v.subspan(4, 4).at(i, 0)") for x in form)
    facts = {"t": "f16", "d": "f32", "m": 16, "k": 16, "level": "group", "span": "M, 4", "dims": '"M", 4'}
    for kernel in (
        croqtile_kernel(CO.format(co=co, **facts)),
        python_kernel(PYTHON.format(python=python, **facts)),
    ):
        with pytest.raises(ScaleShape, match=r"\[4, 4\] for 16 rows"):
            kernel.compile("sm_80")


WIDE_CO = """
__co__ void f(global {t} [M, K] a, global {t} [N, K] b, global f32 [M, {blocks}] v, global f32 [{down}, {across}] w,
              global f32 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, {n})] : block {{
    shared {t} [{m}, {k}] a_s; shared {t} [{n}, {k}] b_s;
    mc = mma.fill.f32{fast_co} 1.0f;
    foreach k in [cdiv(K, {k})] {{
      dma.copy a.subspan({m}, {k}).at(i, k) => a_s;
      dma.copy b.subspan({n}, {k}).at(j, k) => b_s;
      parallel p by 1 : {level} {{
        {co}
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, {n}).at(i, j);
  }}
}}
"""
WIDE_PYTHON = """
@tm.kernel
def f(a: tm.Global["{t}", "M", "K"], b: tm.Global["{t}", "N", "K"], v: tm.Global["f32", "M", {blocks}],
      w: tm.Global["f32", {down}, {across}], c: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, {m}), cdiv(N, {n}), level="block"):
        a_s, b_s = shared("{t}", {m}, {k}), shared("{t}", {n}, {k})
        mc = mma.fill(1.0, "f32"{fast})
        for k in foreach(cdiv(K, {k})):
            dma.copy(a.subspan({m}, {k}).at(i, k), a_s)
            dma.copy(b.subspan({n}, {k}).at(j, k), b_s)
            for p in parallel(1, level="{level}"):
{python}
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, {n}).at(i, j))
"""
WHOLE = "ma = mma.load a_s; mb = mma.load b_s; {multiply};", "ma, mb = mma.load(a_s), mma.load(b_s)\n{multiply}"
STEPS = (
    "foreach q in {steps} {{ ma = mma.load a_s.chunkat(_, q); mb = mma.load b_s.chunkat(_, q); {multiply}; }}",
    "for q in foreach({steps}):\n    ma, mb = mma.load(a_s.chunkat(full, q)), mma.load(b_s.chunkat(full, q))\n"
    "    {multiply}",
)
PLAIN = "mma.row.row mc, ma, mb", "mma.row.row(mc, ma, mb)"


def _wide(form: tuple[str, str], multiply: tuple[str, str], **facts: object) -> tuple[str, str]:
    facts = {"blocks": 1, "down": 1, "across": 1, "fast": "", "fast_co": "", "m": 64, "n": 16, "steps": 1, **facts}
    co, python = (x.format(multiply=y.format(**facts), **facts) for x, y in zip(form, multiply, strict=True))
    lines = "\n".join(" " * 16 + x for x in python.split("\n"))
    return WIDE_CO.format(co=co, **facts), WIDE_PYTHON.format(python=lines, **facts)


def _given(t: str, rows: int, n: int, depth: int, blocks: int, down: int, across: int) -> dict[str, np.ndarray]:
    from test_element_types import numbers

    from tilemma.dtypes import dtype

    rng = np.random.default_rng(5)
    x, y = numbers(dtype(t), (rows, depth), 1), numbers(dtype(t), (n, depth), 2)
    v, w = (rng.integers(1, 4, s).astype(np.float32) for s in ((rows, blocks), (down, across)))
    return {"a": x, "b": y, "v": v, "w": w, "c": np.zeros((rows, n), np.float32)}


@pytest.mark.parametrize(
    ("t", "form", "k", "depth", "level", "arch", "promotions"),
    [
        # A product longer than 128, tiles of 64 in a loop of unknown length, products of 32 in an inner loop.
        ("f8_e4m3", WHOLE, 192, 192, "group-4", "sm_90a", 2),
        ("f8_e5m2", WHOLE, 64, 256, "group-4", "sm_90a", 1),
        ("f8_e4m3", STEPS, 128, 256, "group", "sm_89", 1),
        pytest.param("f8_e4m3", STEPS, 64, 448, "group-4", "sm_90a", 1, marks=pytest.mark.slow),
        ("f16", WHOLE, 256, 256, "group-4", "sm_90a", 0),
    ],
)
def test_sums_of_8_bit_floats_are_promoted(
    t: str, form: tuple[str, str], k: int, depth: int, level: str, arch: str, promotions: int
) -> None:
    """Exact sums agree everywhere; the plan names the promotion, and `fast` removes it, or has no effect."""
    co, python = _wide(form, PLAIN, t=t, k=k, steps=k // 32, level=level)
    given = _given(t, 72, 24, depth, 1, 1, 1)
    found = agree(co, python, given, (arch,))
    assert not isinstance(found, str), found
    wanted = 1 + given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    np.testing.assert_array_equal(found["c"], wanted.astype(np.float32))
    compiled = croqtile_kernel(co).compile(arch)
    assert ("promotion" in {d.pass_name for d in compiled.decisions}) == bool(promotions)
    fast = _wide(form, PLAIN, t=t, k=k, steps=k // 32, level=level, fast=", fast=True", fast_co=".fast")
    for kernel in (croqtile_kernel(fast[0]), python_kernel(fast[1])):
        notes = [d.text for d in kernel.compile(arch).decisions if d.pass_name == "promotion"]
        assert len(notes) == (not promotions) and all("`fast` has no effect" in note for note in notes)


BLOCKS = (
    "mma.row.row.scale mc, ma, mb, v.subspan({m}, {blocks}).at(i, 0), {w}",
    "mma.row.row.scale(mc, ma, mb, v.subspan({m}, {blocks}).at(i, 0), {w})",
)
LAST = (
    "mma.row.row mc, ma, mb; mma.scale mc, {v}, {w}",
    "mma.row.row(mc, ma, mb)\nmma.scale(mc, {v}, {w})",
)


@pytest.mark.parametrize(
    ("t", "arch", "level", "n", "down", "across", "w"),
    [
        ("f8_e4m3", "sm_90a", "group-4", 136, 2, 2, "w"),
        ("f16", "sm_80", "group", 16, 2, 1, "w"),
        pytest.param("bf16", "sm_80", "group", 24, 2, 24, "w", marks=pytest.mark.slow),
        ("f16", "sm_90a", "group-4", 16, 1, 1, "0.5"),
    ],
)
def test_scales_by_blocks_of_k(t: str, arch: str, level: str, n: int, down: int, across: int, w: str) -> None:
    m, k = (64 if level == "group-4" else 16), 192
    facts = {"t": t, "m": m, "n": n, "k": k, "level": level, "blocks": 2, "down": down, "across": across}
    co, python = _wide(WHOLE, BLOCKS, w=w, **facts)
    given = _given(t, m, n, k, 2, down, across)
    found = agree(co, python, given, (arch,))
    assert not isinstance(found, str), found
    x, y = (given[name].astype(np.float64) for name in "ab")
    columns = (
        np.full((2, n), 0.5) if w != "w" else given["w"] if across == n else np.repeat(given["w"], 128, 1)[:, :n]
    )
    wanted = 1 + sum(
        (x[:, s] @ y[:, s].T) * given["v"][:, q : q + 1] * columns[q] for q, s in enumerate(_halves(k))
    )
    np.testing.assert_array_equal(found["c"], wanted.astype(np.float32))


def _halves(k: int) -> tuple[slice, slice]:
    return slice(0, 128), slice(128, k)


@pytest.mark.parametrize("v", ["2.0", "v.subspan(64, 1).at(i, 0)"])
@pytest.mark.parametrize("w", ["w", "0.5"])
def test_scales_of_rows_and_columns_may_be_numbers(v: str, w: str) -> None:
    facts = {"t": "f16", "m": 64, "n": 24, "k": 64, "level": "group-4", "down": 1, "across": 24}
    co, python = _wide(WHOLE, tuple(x.format(v=v, w=w) for x in LAST), **facts)
    given = _given("f16", 64, 24, 128, 1, 1, 24)
    found = agree(co, python, given, ("sm_90a",))
    assert not isinstance(found, str), found
    rows = given["v"] if v.startswith("v") else 2.0
    columns = given["w"] if w == "w" else 0.5
    wanted = 1 + (given["a"].astype(np.float64) @ given["b"].astype(np.float64).T) * rows * columns
    np.testing.assert_array_equal(found["c"], wanted.astype(np.float32))


def test_promoted_sums_are_more_accurate() -> None:
    """On the machine, which adds as an H200: 2048 positive products in 13 bits, and promoted every 128."""
    from tilemma import testing
    from tilemma.dtypes import dtype

    k = 2048
    rng = np.random.default_rng(0)
    x, y = (rng.uniform(0.5, 2, (n, k)).astype(dtype("f8_e4m3").numpy) for n in (64, 16))
    exact = x.astype(np.float64) @ y.astype(np.float64).T
    bound = testing.error_bound(x, y.T, acc="f32", out="f32")
    errors = []
    for fast in ("", ", fast=True"):
        _, text = _wide(WHOLE, PLAIN, t="f8_e4m3", k=128, level="group-4", fast=fast)
        given = {"a": x, "b": y, "v": np.ones((64, 1), np.float32), "w": np.ones((1, 1), np.float32)}
        c = np.zeros((64, 16), np.float32)
        python_kernel(text).on("machine", arch="sm_90a")(**given, c=c)
        assert testing.share_of_bound(c - 1, exact, bound + 1e-3) <= 1
        errors.append(np.abs(c - 1 - exact).max())
    assert errors[0] < errors[1] / 4


PIPELINED = """
@tm.kernel(pipeline=tm.Pipeline(stages=3, persistent=False))
def f(a: tm.Global["f8_e4m3", "M", "K"], b: tm.Global["f8_e4m3", "N", "K"], c: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, 128), cdiv(N, 16), level="block"):
        a_s, b_s = shared("f8_e4m3", 128, {k}), shared("f8_e4m3", 16, {k})
        for x in parallel(2, level="group-4"):
            mc = mma.fill(1.0, "f32")
            for t in foreach(cdiv(K, {k})):
                dma.copy(a.subspan(128, {k}).at(i, t), a_s)
                dma.copy(b.subspan(16, {k}).at(j, t), b_s)
                mma.row.row(mc, mma.load(a_s.subspan(64, {k}).at(x, 0)), mma.load(b_s))
            mma.store(mc, c.subspan(64, 16).at(i * 2 + x, j))
"""


@pytest.mark.parametrize("k", [64, *(pytest.param(k, marks=pytest.mark.slow) for k in (32, 128, 256))])
def test_sums_in_the_consumers_of_a_pipeline_are_promoted(k: int) -> None:
    """The accumulator exists in a role of the pipelined kernel only."""
    text = PIPELINED.format(k=k)
    given = _given("f8_e4m3", 130, 16, 416, 1, 1, 1)
    found = agree(None, text, {name: given[name] for name in "abc"}, ("sm_90a",))
    assert not isinstance(found, str), found
    wanted = 1 + given["a"].astype(np.float64) @ given["b"].astype(np.float64).T
    np.testing.assert_array_equal(found["c"], wanted.astype(np.float32))
    decisions = {d.pass_name for d in python_kernel(text).compile("sm_90a").decisions}
    assert {"promotion", "pipeline"} <= decisions, decisions


NIBBLES = """
@tm.kernel
def f(a: tm.Global["{a}", 16, "K"], b: tm.Global["{b}", 16, "K"], v: tm.Global["f32", 16, 3],
      w: tm.Global["f32", 3, 16], c: tm.Global["f32", 16, 16]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f32")
            ma = mma.load(a.subspan(16, 320).at(0, 0), dtype="f16")
            mb = mma.load(b.subspan(16, 320).at(0, 0), dtype="f16")
            mma.row.row.scale(mc, ma, mb, v, w)
            mma.store(mc, c)
"""


@pytest.mark.parametrize(("a", "b"), [("f16", "u4"), pytest.param("s4", "s4", marks=pytest.mark.slow)])
def test_blocks_of_k_count_elements_of_packed_operands(a: str, b: str) -> None:
    """320 columns of elements of which a byte holds two: three blocks."""
    from test_element_types import numbers

    from tilemma.dtypes import dtype

    x, y = numbers(dtype(a), (16, 314), 1), numbers(dtype(b), (16, 314), 2)
    rng = np.random.default_rng(0)
    v, w = (rng.integers(1, 4, s).astype(np.float32) for s in ((16, 3), (3, 16)))
    found = agree(None, NIBBLES.format(a=a, b=b), {"a": x, "b": y, "v": v, "w": w, "c": np.zeros((16, 16), np.float32)},
                  ("sm_80",))  # fmt: skip
    assert not isinstance(found, str), found
    parts = [slice(at, at + 128) for at in (0, 128, 256)]
    p, q = x.astype(np.float64), y.astype(np.float64)
    want = sum((p[:, s] @ q[:, s].T) * v[:, i : i + 1] * w[i] for i, s in enumerate(parts))
    np.testing.assert_array_equal(found["c"], want)


@pytest.mark.parametrize("k", [128, 256])
def test_an_integer_sum_over_more_than_a_block_of_k_is_rounded_once(k: int) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-5, 6, (16, k)).astype(np.int8) for _ in "ab")
    v = (rng.integers(1, 6, (16, 1)) / 4).astype(np.float32)
    wanted = np.rint(2 + (a.astype(int) @ b.astype(int).T) * (v / 2)).astype(np.int32)
    options = {"t": "s8", "d": "s32", "m": 16, "k": k, "level": "group", "span": "M, 1", "dims": '"M", 1'}
    rows, _ = ROWS["M, 1"]
    given = {"v": "v.subspan" + rows.format(m=16)}
    texts = (
        CO.format(**options, co=FUSED[0].format(**given)),
        PYTHON.format(**options, python=FUSED[1].format(**given)),
    )
    for kernel in (croqtile_kernel(texts[0]), python_kernel(texts[1])):
        for target in ({"target": "cpu"}, {"target": "machine", "arch": "sm_80"}):
            c = np.zeros((16, 16), np.int32)
            kernel.on(**target)(a=a, b=b, v=v, c=c)
            np.testing.assert_array_equal(c, wanted)


SCALED_F64 = (
    """
__co__ void f(global f64 [16, 16] a, global f64 [8, 16] b, global f64 [16, 8] c) {
  parallel p by 1 : block, g by 1 : group {
    mc = mma.fill.f64 0.0;
    mma.row.row.scale mc, a, b, SCALE, 0.3;
    mma.store mc, c;
  }
}
""",
    """
@tm.kernel
def f(a: tm.Global["f64", 16, 16], b: tm.Global["f64", 8, 16], c: tm.Global["f64", 16, 8]):
    for p in parallel(1, level="block"):
        for g in parallel(1, level="group"):
            mc = mma.fill(0.0, "f64")
            mma.row.row.scale(mc, mma.load(a), mma.load(b), SCALE, 0.3)
            mma.store(mc, c)
""",
)


def test_numbers_scale_a_sum_of_f64_without_a_rounding_to_f32() -> None:
    for n, make in enumerate((croqtile_kernel, python_kernel)):
        text = SCALED_F64[n].replace("SCALE", "0.1").replace("scale mc, a, b", "scale mc, x, y")
        text = text.replace(
            "    mma.row.row.scale mc, x", "    x = mma.load a; y = mma.load b;\n    mma.row.row.scale mc, x"
        )
        for target in ({"target": "cpu"}, {"target": "machine", "arch": "sm_80"}):
            c = np.zeros((16, 8))
            make(text).on(**target)(a=np.ones((16, 16)), b=np.ones((8, 16)), c=c)
            assert (c == 16 * (0.1 * 0.3)).all()


def test_a_number_beyond_the_type_of_the_scales_is_refused() -> None:
    for n, make in enumerate((croqtile_kernel, python_kernel)):
        text = (CO, PYTHON)[n].format(
            t="f16", d="f32", m=16, k=32, level="group", span="M, 1", dims='"M", 1',
            co="mma.row.row.scale mc, ma, mb, 1e300, 1.0;", python="mma.row.row.scale(mc, ma, mb, 1e300, 1.0)",
        )  # fmt: skip
        with pytest.raises(CompileError, match="no value of f32"):
            make(text).compile(arch="sm_80")
