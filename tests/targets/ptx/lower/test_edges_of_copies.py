"""Tiles that start before their array: elements outside are zero, for every way of copying."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm
from tilemma import cdiv, dma, machine, mma, parallel, shared
from tilemma.kernels import facts_of
from tilemma.modules import load_python

TILE = 32


@tm.kernel
def moved(a: tm.Global["f16", "M", "N"], b: tm.Global["f16", "M", "N"], *, ROWS=0, COLUMNS=0, BY="copy"):
    """``b`` gets ``a``'s tiles ROWS and COLUMNS before its own."""
    M, N = a.shape
    for m, n in parallel(cdiv(M, TILE), cdiv(N, TILE), level="block"):
        tile = a.subspan(TILE, TILE).at(m - ROWS, n - COLUMNS)
        if BY == "load":
            for p in parallel(1, level="group"):
                mc = mma.fill(0.0, "f16")
                one = shared("f16", TILE, TILE)
                for t in parallel(TILE, level="thread"):
                    for i in tm.foreach(TILE):
                        one[t, i] = tm.select(t == i, 1.0, 0.0)
                mma.row.row(mc, mma.load(tile), mma.load(one))
                mma.store(mc, b.subspan(TILE, TILE).at(m, n))
        else:
            s = shared("f16", TILE, TILE)
            dma.copy(tile, s)
            dma.copy(s, b.subspan(TILE, TILE).at(m, n))


@pytest.mark.parametrize("by", ["copy", "load"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 1), (1, 0), (1, 1), (0, 2), (0, -1)])
@pytest.mark.parametrize("n", [64, 67, 104])
def test_tiles_before_the_array_are_zero(n: int, rows: int, columns: int, by: str) -> None:
    whole = np.zeros((40 + 2 * TILE, 200), np.float16)
    inside = np.random.default_rng(0).integers(1, 9, (40, n))
    whole[TILE : TILE + 40, 2 * TILE : 2 * TILE + n] = inside
    expected = whole[TILE * (1 - rows) :, TILE * (2 - columns) :][:40, :n]
    arrays = {name: np.full((40, n + -n % 8), np.nan, np.float16)[:, :n] for name in "ab"}
    arrays["a"][...] = inside
    constants = {"ROWS": rows, "COLUMNS": columns, "BY": by}
    compiled = moved.compile("sm_80", facts=facts_of(arrays), **constants)
    machine.run(compiled.ptx, compiled.launches[0], arrays, strict=True)
    assert np.array_equal(arrays["b"], expected)
    reference = {**arrays, "b": np.zeros_like(arrays["b"])}
    moved(**reference, **constants)
    assert np.array_equal(reference["b"], expected)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (1, 0), (1, 2)])
@pytest.mark.parametrize(
    ("n", "pitch"), [(65, 65), (66, 66), (65, 66), (68, 68), (67, 68), (66, 68), (32, 34), (1, 2)]
)
def test_narrow_pieces(n: int, pitch: int, rows: int, columns: int, arch: str) -> None:
    """Of elements, and of two and four, the last of which an edge may cut."""
    whole = np.zeros((40 + 2 * TILE, 200), np.float16)
    inside = np.random.default_rng(0).integers(1, 9, (40, n))
    whole[TILE : TILE + 40, 2 * TILE : 2 * TILE + n] = inside
    expected = whole[TILE * (1 - rows) :, TILE * (2 - columns) :][:40, :n]
    # Beside the rows lie numbers that no copy may take.
    arrays = {name: np.full((40, pitch), np.nan, np.float16)[:, :n] for name in "ab"}
    arrays["a"][...] = inside
    compiled = moved.compile(arch, facts=facts_of(arrays), ROWS=rows, COLUMNS=columns)
    assert machine.run(compiled.ptx, compiled.launches[0], arrays, strict=True).ok
    assert np.array_equal(arrays["b"], expected)
    assert np.isnan(arrays["b"].base[:, n:]).all()


@pytest.mark.parametrize(("elements", "piece"), [(2, "b32"), (4, "v2.b32")])
def test_narrow_pieces_go_through_registers_together(elements: int, piece: str) -> None:
    arrays = {name: np.zeros((40, 64 + elements), np.float16) for name in "ab"}
    ptx = moved.compile("sm_90a", facts=facts_of(arrays)).ptx
    assert "cp.async" not in ptx
    runs = re.findall(rf"(?:ld\.global\.{re.escape(piece)} [^\n]*\n\s*)+", ptx)
    assert max(x.count("ld.global") for x in runs) == TILE * TILE // elements // 32


def test_elements_of_a_vector_over_the_edge_share_its_address() -> None:
    """Each had an address of its own, swizzle and all: a fiftieth of ptxas's time."""
    kernel = load_python(Path(__file__).parents[4] / "examples" / "py" / "double_buffer.py").only()
    arrays = {name: np.zeros((136, 136), np.float16)[:, :132] for name in ("lhs", "rhs", "output")}
    ptx = kernel.compile("sm_80", facts=facts_of(arrays)).ptx
    reads = re.findall(r"ld\.shared\.b16 %\w+, \[(%\w+)(?:\+(\d+))?\]", ptx)
    bases = {base for base, _ in reads}
    assert len(reads) == 8 * len(bases) > 0
    assert {(base, str(2 * i) if i else "") for base in bases for i in range(8)} == set(reads)
