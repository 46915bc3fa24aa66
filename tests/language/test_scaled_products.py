"""Products that are scaled before they are added: `.scale` and `mma.scale`, in both languages, on every target."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree, croqtile_kernel, python_kernel

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


@pytest.mark.parametrize("form", [FUSED, LATER])
def test_scales_that_are_not_one_for_each_row(form: tuple[str, str]) -> None:
    """Refused when compiled: the generated code would take the numbers of another row."""
    co, python = (x.format(v="v.subspan(4, 4).at(i, 0)") for x in form)
    facts = {"t": "f16", "d": "f32", "m": 16, "k": 16, "level": "group", "span": "M, 4", "dims": '"M", 4'}
    for kernel in (
        croqtile_kernel(CO.format(co=co, **facts)),
        python_kernel(PYTHON.format(python=python, **facts)),
    ):
        with pytest.raises(ScaleShape, match=r"\[4, 4\] for an accumulator of 16 rows"):
            kernel.compile("sm_80")
