"""Croqtile's prepacked metadata inside a kernel, in both languages, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import croqtile_kernel, python_kernel

import tilemma as tm
from tilemma.errors import CompileError

CO = """
__co__ void f(global {t} [M, H] a, global {words} [R, W] e, global {t} [N, K] b, global f32 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, {n})] : block {{
    shared {t} [{m}, {k} / 2] a_s; shared {t} [{n}, {k}] b_s; shared {words} [{rows}, {columns}] e_s;
    mc = mma.fill.f32 0.0f;
    foreach k in [cdiv(K, {k})] {{
      dma.copy a.subspan({m}, {k} / 2).at(i, k) => a_s;
      dma.copy b.subspan({n}, {k}).at(j, k) => b_s;
      dma.copy e.subspan({rows}, {columns}).at(i, k) => e_s;
      parallel p by 1 : {level} {{
        ma = mma.load a_s; mb = mma.load b_s;
        me = mma.load.{order} {source};
        mma.row.row{sp} mc, ma, mb{meta};
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, {n}).at(i, j);
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{t}", "M", "H"], e: tm.Global["{words}", "R", "W"], b: tm.Global["{t}", "N", "K"],
      c: tm.Global["f32", "M", "N"]):
    for i, j in parallel(cdiv(a.shape[0], {m}), cdiv(b.shape[0], {n}), level="block"):
        a_s, b_s = shared("{t}", {m}, {k} // 2), shared("{t}", {n}, {k})
        e_s = shared("{words}", {rows}, {columns})
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(b.shape[1], {k})):
            dma.copy(a.subspan({m}, {k} // 2).at(i, k), a_s)
            dma.copy(b.subspan({n}, {k}).at(j, k), b_s)
            dma.copy(e.subspan({rows}, {columns}).at(i, k), e_s)
            for p in parallel(1, level="{level}"):
                ma, mb = mma.load(a_s), mma.load(b_s)
                me = mma.load({source}, order="{order}")
                mma.row.row{sp}(mc, ma, mb{meta})
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, {n}).at(i, j))
"""
GLOBAL = "e.subspan({rows}, {columns}).at(i, k)"
# Type, order, tile of M, N, K, level, target, and whether the words are read from shared memory.
CASES = [
    ("f16", "prepack", (16, 8, 32), "group", "sm_80", True),
    ("f16", "prepack", (64, 16, 64), "group-4", "sm_90a", False),
    ("bf16", "prepack", (32, 16, 64), "group-2", "sm_80", False),
    ("bf16", "prepack_v2", (64, 16, 128), "group-4", "sm_90a", True),
    ("f16", "prepack_v2", (32, 8, 64), "group", "sm_86", False),
    ("f8_e4m3", "prepack_v2_fp8", (16, 8, 64), "group", "sm_89", True),
    ("f8_e5m2", "prepack_v2_fp8", (64, 8, 64), "group-4", "sm_90a", False),
    # Sums of 8-bit floats are promoted every 128 of K: the multiply becomes several.
    ("f8_e4m3", "prepack_v2_fp8", (64, 16, 256), "group-4", "sm_90a", True),
]


def texts(
    t: str,
    order: str,
    tile: tuple[int, int, int],
    level: str,
    staged: bool,
    words: str = "u32",
    sparse: bool = True,
    extents: tuple[int, int] | None = None,
) -> tuple[str, str]:
    m, n, k = tile
    rows, columns = extents or ((m, k // 32) if order == "prepack" else (m // 16, k // 2))
    source = "e_s" if staged else GLOBAL.format(rows=rows, columns=columns)
    given = {"t": t, "order": order, "m": m, "n": n, "k": k, "level": level, "words": words, "source": source}
    given |= {"rows": rows, "columns": columns, "sp": ".sp" * sparse, "meta": ", me" * sparse}
    return CO.format(**given), PYTHON.format(**given)


def operands(t: str, order: str, tile: tuple[int, int, int]) -> tuple[dict[str, Any], Any]:
    """Arguments for two tiles of M and one and a half of K; the product."""
    rng, (m, n, k) = np.random.default_rng(5), tile
    depth = 3 * k // 2 if k % 64 == 0 and (t[1] != "8" or k % 128 == 0) else 2 * k
    kind = tm.dtypes.dtype(t).numpy
    a = tm.sparse.prune(rng.integers(-3, 4, (2 * m, depth)).astype(np.float32).astype(kind))
    b = rng.integers(-3, 4, (n, depth)).astype(np.float32).astype(kind)
    stored = tm.sparse.compress(a)
    words = tm.sparse.prepack(stored.metadata, order)
    if order != "prepack":
        words = words.reshape(2 * m // 16, -1)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    return {"a": stored.values, "e": words, "b": b, "c": np.full((2 * m, n), np.nan, np.float32)}, wanted


@pytest.mark.parametrize(("t", "order", "tile", "level", "arch", "staged"), CASES)
def test_prepacked_metadata_is_that_of_the_matrix(
    t: str, order: str, tile: tuple[int, int, int], level: str, arch: str, staged: bool
) -> None:
    co, python = texts(t, order, tile, level, staged)
    given, wanted = operands(t, order, tile)
    for kernel in (croqtile_kernel(co), python_kernel(python)):
        for target in ("cpu", "machine"):
            arguments = {**given, "c": given["c"].copy()}
            kernel.on(target, **({"arch": arch} if target == "machine" else {}))(**arguments)
            np.testing.assert_array_equal(arguments["c"], wanted)


def test_a_lane_of_wgmma_reads_each_of_its_words_once() -> None:
    """Words of 16-bit parts are stored as lanes hold them: one load, without shifts."""
    _, python = texts("f16", "prepack_v2", (64, 8, 32), "group-4", False)
    lines = python_kernel(python).compile(arch="sm_90a").ptx.splitlines()
    at = next(i for i, line in enumerate(lines) if "wgmma.mma_async.sp" in line)
    assert sum("ld.global.b32" in line for line in lines[:at]) == 1


WRONG = [
    ({"words": "u16"}, "a tile of u16", "u32 [M/16, 16 * W]"),
    ({"extents": (16, 2)}, "a tile of u32 [16, 2]", "u32 [M/16, 16 * W]"),
    ({"order": "prepack", "extents": (8, 4)}, "a tile of u32 [8, 4]", "M a multiple of 16"),
    ({"t": "f8_e4m3"}, "metadata of an A of f8_e4m3", "f16 or bf16"),
    ({"order": "prepack_v2_fp8"}, "metadata of an A of f16", "f8_e4m3 or f8_e5m2"),
    ({"sparse": False}, "no multiply takes it as metadata", "a sparse A"),
]


@pytest.mark.parametrize(("change", "found", "wanted"), WRONG)
def test_other_words_are_refused_in_both_languages(change: dict[str, Any], found: str, wanted: str) -> None:
    given = {"t": "f16", "order": "prepack_v2", "tile": (32, 8, 64), "level": "group", "staged": False, **change}
    for kernel in (croqtile_kernel, python_kernel):
        text = texts(**given)[0 if kernel is croqtile_kernel else 1]
        with pytest.raises(CompileError) as caught:
            kernel(text).compile(arch="sm_89")
        assert caught.value.code == "prepacked-metadata"
        assert found in str(caught.value) and wanted in str(caught.value)


# A wrong program, its advice, and the program after it.
FOLLOWED: dict[str, list[tuple[dict[str, Any], str, dict[str, Any]]]] = {
    "prepacked-metadata": [
        ({"extents": (16, 2)}, "cut a tile of these extents", {"extents": (2, 32)}),
        ({"order": "prepack_v2_fp8"}, "write `prepack_v2`", {"order": "prepack_v2"}),
        ({"t": "f8_e4m3"}, "write `prepack_v2_fp8`", {"t": "f8_e4m3", "order": "prepack_v2_fp8"}),
    ]
}


@pytest.mark.parametrize(("change", "advice", "correction"), FOLLOWED["prepacked-metadata"])
def test_the_advice_leads_to_a_program(change: dict[str, Any], advice: str, correction: dict[str, Any]) -> None:
    given = {"t": "f16", "order": "prepack_v2", "tile": (32, 8, 64), "level": "group", "staged": False}
    for n, kernel in enumerate((croqtile_kernel, python_kernel)):
        with pytest.raises(CompileError, match=advice):
            kernel(texts(**{**given, **change})[n]).compile(arch="sm_89")
        kernel(texts(**{**given, **correction})[n]).compile(arch="sm_89")


@pytest.mark.parametrize(("order", "got"), [("'prepack_v3'", "'prepack_v3'"), ("16", "a Python int")])
def test_an_unknown_order_is_refused_with_all_names(order: str, got: str) -> None:
    _, python = texts("f16", "§", (32, 8, 64), "group", False)
    with pytest.raises(CompileError, match=got) as caught:
        python_kernel(python.replace('"§"', order)).compile(arch="sm_80")
    assert caught.value.code == "wrong-value" and "'prepack_v2_fp8'" in str(caught.value)
    co, _ = texts("f16", "prepack_v3", (32, 8, 64), "group", False)
    with pytest.raises(CompileError, match="prepack_v2_fp8"):
        croqtile_kernel(co).compile(arch="sm_80")
