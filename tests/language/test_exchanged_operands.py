"""Tiles whose rows no instruction divides: the transpose of the product is computed, with the operands exchanged."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree, croqtile_kernel, python_kernel
from test_element_types import numbers

from tilemma.dtypes import dtype
from tilemma.errors import CompileError

CO = """
__co__ void f(global {t} [{left}] a, global {t} [{right}] b, global f32 [{m}, {n}] x, global f32 [{n}] row,
              global f32 [{m}, 1] column, int rows, int columns, global {out} [{dims}] c) {{
  parallel g by 1 : block {{
    shared {t} [{left}] s; shared {t} [{right}] u;
    dma.copy a => s; dma.copy b => u;
    parallel p by 1 : {level} {{
      {co}
    }}
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{t}", {left}], b: tm.Global["{t}", {right}], x: tm.Global["f32", {m}, {n}],
      row: tm.Global["f32", {n}], column: tm.Global["f32", {m}, 1], rows: tm.Int, columns: tm.Int,
      c: tm.Global["{out}", {dims}]):
    for g in parallel(1, level="block"):
        s, u = shared("{t}", {left}), shared("{t}", {right})
        dma.copy(a, s)
        dma.copy(b, u)
        for p in parallel(1, level="{level}"):
            {python}
"""
LOADS = ("ma = mma.load s; mb = mma.load u;", "ma, mb = mma.load(s), mma.load(u)")
PLAIN = (
    ("mc = mma.fill.{d} {zero};", LOADS[0], "mma.{contract} mc, ma, mb;", "mma.store mc, c;"),
    ('mc = mma.fill({zero}, "{d}")', LOADS[1], "mma.{contract}(mc, ma, mb)", "mma.store(mc, c)"),
)
# What depends on rows and columns: a loaded accumulator, a row, a column, indices, a masked store.
EPILOGUE = (
    (
        "mc = mma.load x;", LOADS[0], "mma.{contract} mc, -ma, mb;", "mc = mc * 2.0f + row;", "mc += column;",
        "apply {{i, j}} in mc.span {{ if (i > j) mc.at(i, j) = mc.at(i, j) + x.at(i, j) - i * 3; }}",
        "mma.store.mask mc, c, rows, columns;",
    ),
    (
        "mc = mma.load(x)", LOADS[1], "mma.{contract}(mc, -ma, mb)", "mc.set(mc * 2.0 + row)", "mc += column",
        "for i, j in apply(mc):", "    with if_(i > j):", "        mc[i, j] = mc[i, j] + x[i, j] - i * 3",
        "mma.store(mc, c, rows=rows, columns=columns)",
    ),
)  # fmt: skip
# Filled from a column, two tiles in one loop over elements, a store of the transpose.
TWO = (
    (
        "mc = mma.fill.f32 column; md = mma.fill.f32 1.0f;", LOADS[0], "mma.{contract} mc, ma, mb;",
        "mma.{contract} md, ma, mb;",
        "apply {{i, j}} in mc.span {{ mc.at(i, j) = mc.at(i, j) * md.at(i, j) + j; }}",
        "mma.store.transp mc, c;",
    ),
    (
        'mc, md = mma.fill(column, "f32"), mma.fill(1.0, "f32")', LOADS[1], "mma.{contract}(mc, ma, mb)",
        "mma.{contract}(md, ma, mb)", "for i, j in apply(mc):", "    mc[i, j] = mc[i, j] * md[i, j] + j",
        "mma.store(mc, c, transp=True)",
    ),
)  # fmt: skip
# (lines, type, accumulator, stored type, M, N, K, contract, level, target)
CASES = [
    (PLAIN, "f16", "f32", "f32", 8, 32, 16, "row.row", "group", "sm_75"),
    (PLAIN, "f16", "f16", "f32", 8, 16, 32, "col.col", "group", "sm_75"),
    (PLAIN, "bf16", "f32", "bf16", 24, 48, 16, "row.col", "group", "sm_80"),
    (PLAIN, "tf32", "f32", "f32", 8, 32, 8, "col.row", "group", "sm_80"),
    (PLAIN, "f8_e4m3", "f32", "f16", 8, 32, 256, "row.row", "group", "sm_89"),
    (PLAIN, "f8_e5m2", "f16", "f32", 40, 16, 32, "row.row", "group", "sm_89"),
    (PLAIN, "f16", "f32", "f16", 24, 128, 64, "row.row", "group-4", "sm_90a"),
    (PLAIN, "bf16", "f32", "f32", 8, 64, 32, "col.col", "group-4", "sm_90a"),
    (EPILOGUE, "f16", "f32", "f32", 8, 32, 16, "row.row", "group", "sm_80"),
    (EPILOGUE, "bf16", "f32", "f16", 40, 64, 16, "row.col", "group-4", "sm_90a"),
    (TWO, "f16", "f32", "f32", 24, 16, 16, "row.row", "group", "sm_75"),
    (TWO, "tf32", "f32", "bf16", 8, 64, 16, "row.row", "group-4", "sm_90a"),
]


def programs(case: tuple) -> tuple[str, str]:
    lines, t, d, out, m, n, k, contract, level, _ = case
    a_turned, b_turned = (x == "col" for x in contract.split("."))
    facts = {
        "left": f"{k}, {m}" if a_turned else f"{m}, {k}",
        "right": f"{k}, {n}" if b_turned else f"{n}, {k}",
        "dims": f"{n}, {m}" if lines is TWO else f"{m}, {n}",
        "t": t,
        "d": d,
        "out": out,
        "m": m,
        "n": n,
        "level": level,
        "contract": contract,
        "zero": "0.0",
    }
    co, python = ([line.format(**facts) for line in part] for part in lines)
    return (
        CO.format(**facts, co="\n      ".join(co).replace(" 0.0;", " 0.0f;")),
        PYTHON.format(**facts, python="\n            ".join(python)),
    )


def wanted(case: tuple, given: dict) -> np.ndarray:
    lines, _, _, out, m, n, _, contract, _, _ = case
    a, b, x, row, column = (given[name].astype(np.float64) for name in ("a", "b", "x", "row", "column"))
    product = (a.T if contract.startswith("col") else a) @ (b if contract.endswith("col") else b.T)
    i, j = np.arange(m)[:, None], np.arange(n)[None, :]
    result = product
    if lines is EPILOGUE:
        result = (x - product) * 2 + row + column
        result = np.where(i > j, result + x - 3 * i, result)
        kept = (i < given["rows"]) & (j < given["columns"])
        result = np.where(kept, result, given["c"].astype(np.float64))
    if lines is TWO:
        result = ((column + product) * (1 + product) + j).T
    return result.astype(dtype(out).numpy)


def arrays(case: tuple) -> dict:
    _, t, _, out, m, n, k, contract, _, _ = case
    a, b = ((k, m) if contract.startswith("col") else (m, k)), ((k, n) if contract.endswith("col") else (n, k))
    rng = np.random.default_rng(3)
    return {
        "a": numbers(dtype(t), a, 1),
        "b": numbers(dtype(t), b, 2),
        **{
            s: rng.integers(-3, 4, e).astype(np.float32)
            for s, e in (("x", (m, n)), ("row", n), ("column", (m, 1)))
        },
        "rows": m - 3,
        "columns": n - 5,
        "c": numbers(dtype(out), (n, m) if case[0] is TWO else (m, n), 4),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[1]} {c[2]} {c[4]}x{c[5]}x{c[6]} {c[7]} {c[9]}")
def test_the_product_is_right(case: tuple) -> None:
    arch, (co, python), given = case[-1], programs(case), arrays(case)
    found = agree(co, python, given, (arch,))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], wanted(case, given))
    for kernel in (croqtile_kernel(co), python_kernel(python)):
        compiled = kernel.compile(arch)
        assert any("operands exchanged" in d.text for d in compiled.decisions)
        assert compiled.cubin


# A sum of rows needs whole rows in the lanes of a quad, a sparse A stays A, a named instruction is as it is.
KEPT = {
    "row sums": ('m = mma.frag("f32", 8)', "mma.row.row(mc, ma, mb)", "mma.reduce_sum(m, mc)"),
    "named": ('mma.row.row(mc, ma, mb, atom="SM80_16x8x16_F32F16F16F32_TN")',),
    "odd": ("mma.row.row(mc, ma, mb)",),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_cannot_be_exchanged_is_refused_as_before(name: str) -> None:
    n = 12 if name == "odd" else 32
    body = ('mc = mma.fill(0.0, "f32")', LOADS[1], *KEPT[name], "mma.store(mc, c)")
    facts = {"t": "f16", "left": "8, 16", "right": f"{n}, 16", "m": 8, "n": n, "dims": f"8, {n}", "out": "f32"}
    kernel = python_kernel(PYTHON.format(**facts, level="group", python="\n            ".join(body)))
    with pytest.raises(CompileError) as caught:
        kernel.compile("sm_80")
    assert caught.value.code in ("no-instruction", "atom-mismatch"), caught.value
