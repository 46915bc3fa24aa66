"""Fragments on the PTX machine against the CPU reference: contracts, loads, stores, work on accumulators."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tilemma as tm
from tests.sampling import pairwise

ARCHS = ("sm_80", "sm_90a")
RNG = np.random.default_rng(11)
M, N, K = 70, 37, 50


def normal(*shape: int, t: type = np.float16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(t)


def close(tmp_path: Path, source: str, *args, arch: str, unit: float) -> None:
    """Both runs agree within ``unit`` of the sum of absolute products."""
    file = tmp_path / "kernel.co"
    file.write_text(source)
    kernel = tm.load(str(file)).only()
    results = []
    for target, options in (("cpu", {}), ("machine", {"arch": arch})):
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        kernel.on(target, **options)(*given)
        results.append([g.astype(np.float64) for g in given if isinstance(g, np.ndarray)])
    for x, y in zip(*results, strict=True):
        assert np.abs(x - y).max() <= unit * 8 * K


def matmul(
    end: str, *, level: str = "group-4", out: str = "global f32 [M, N] c", init: str = "0.0f", acc: str = "f32"
) -> str:
    """64x32 tiles of a [M, K] and b [N, K]; ``end`` does something with the accumulator mc."""
    return f"""
__co__ void f(global f16 [M, K] a, global f16 [N, K] b, {out}) {{
  parallel {{bm, bn}} by [cdiv(M, 64), cdiv(N, 32)] : block {{
    shared f16 [64, 32] as;
    shared f16 [32, 32] bs;
    mc = mma.fill.{acc} {init};
    foreach k in [cdiv(K, 32)] {{
      dma.copy a.subspan(64, 32).at(bm, k) => as;
      dma.copy b.subspan(32, 32).at(bn, k) => bs;
      parallel p by 1 : {level} {{
        foreach kk in [2] {{
          ma = mma.load as.chunkat(_, kk);
          mb = mma.load bs.chunkat(_, kk);
          mma.row.row mc, ma, mb;
        }}
      }}
    }}
    {end}
  }}
}}"""


TO_GLOBAL = "mma.store mc, c.subspan(64, 32).at(bm, bn);"


CONTRACTS = ["row.row", "row.col", "col.row", "col.col"]
TYPES = [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")]


@pytest.mark.parametrize(
    ("contract", "operand", "acc", "level", "arch"), pairwise(CONTRACTS, TYPES, ["group", "group-4"], ARCHS)
)
def test_contracts(tmp_path: Path, contract: str, operand: str, acc: str, level: str, arch: str) -> None:
    first, second = contract.split(".")
    height, width = (32, 16) if level == "group" else (64, 32)
    rows, cols = (first == "row", second == "row")
    a_tile, b_tile = (f"{n}, 32" if straight else f"32, {n}" for n, straight in ((height, rows), (width, cols)))
    source = f"""
__co__ void f(global {operand} [{"M, K" if rows else "K, M"}] a, global {operand} [{"N, K" if cols else "K, N"}] b,
              global f32 [M, N] c) {{
  parallel {{bm, bn}} by [cdiv(M, {height}), cdiv(N, {width})] : block {{
    shared {operand} [{a_tile}] as;
    shared {operand} [{b_tile}] bs;
    shared f32 [{height}, {width}] cs;
    mc = mma.fill.{acc} 0.0f;
    foreach k in [cdiv(K, 32)] {{
      dma.copy a.subspan({a_tile}).at({"bm, k" if rows else "k, bm"}) => as;
      dma.copy b.subspan({b_tile}).at({"bn, k" if cols else "k, bn"}) => bs;
      parallel p by 1 : {level} {{
        foreach kk in [2] {{
          ma = mma.load as.chunkat({"_, kk" if rows else "kk, _"});
          mb = mma.load bs.chunkat({"_, kk" if cols else "kk, _"});
          mma.{contract} mc, ma, mb;
        }}
      }}
    }}
    mma.store mc, cs;
    dma.copy cs => c.subspan({height}, {width}).at(bm, bn);
  }}
}}"""
    t = ml_dtypes.bfloat16 if operand == "bf16" else np.float16
    a, b = normal(*((M, K) if rows else (K, M)), t=t), normal(*((N, K) if cols else (K, N)), t=t)
    unit = 2.0**-22 if acc == "f32" else 2.0**-11
    close(tmp_path, source, a, b, np.zeros((M, N), np.float32), arch=arch, unit=unit)


WAYS = ["direct", "staged", "transposed", "transposed-staged"]


@pytest.mark.parametrize(
    ("way", "out", "level", "arch"),
    pairwise(WAYS, ["f16", "bf16", "f32", "f64", "s32"], ["group", "group-4"], ARCHS),
)
def test_stores_convert(tmp_path: Path, way: str, out: str, level: str, arch: str) -> None:
    turned = way.startswith("transposed")
    dims, tile, at = ("N, M", "32, 64", "bn, bm") if turned else ("M, N", "64, 32", "bm, bn")
    store = "mma.store.transp" if turned else "mma.store"
    end = f"{store} mc, c.subspan({tile}).at({at});"
    if way.endswith("staged"):
        end = f"shared {out} [{tile}] cs; {store} mc, cs; dma.copy cs => c.subspan({tile}).at({at});"
    source = matmul(end, level=level, out=f"global {out} [{dims}] c", init="1.5f")
    c = np.zeros((N, M) if turned else (M, N), tm.dtypes.dtype(out).numpy)
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "s32": 0.01}.get(out, 2.0**-22)
    close(tmp_path, source, normal(M, K), normal(N, K), c, arch=arch, unit=unit)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("acc", "unit"), [("f32", 2.0**-20), ("f16", 2.0**-9)])
def test_apply_knows_rows_and_columns(tmp_path: Path, acc: str, unit: float, arch: str) -> None:
    end = f"""
    apply {{i, j}} in mc.span {{
      if (i % 3 == 0) {{ mc.at(i, j) = __max(mc.at(i, j), 0.0f) * 2.0f + i - j; }}
      mc.at(i, j) = mc.at(i, j) * 0.5f;
    }}
    {TO_GLOBAL}"""
    source = matmul(end, acc=acc)
    close(tmp_path, source, normal(M, K), normal(N, K), np.zeros((M, N), np.float32), arch=arch, unit=unit)


@pytest.mark.parametrize("arch", ARCHS)
def test_arrays_of_accumulators(tmp_path: Path, arch: str) -> None:
    source = """
__co__ void f(global f16 [M, K] a, global f16 [N, K] b, global f32 [M, N] c) {
  parallel {bm, bn} by [cdiv(M, 32), cdiv(N, 32)] : block {
    shared f16 [32, 32] as;
    shared f16 [32, 32] bs;
    parallel p by 1 : group {
      frag.f32 mc[2][2] {0.0};
      foreach k in [cdiv(K, 32)] {
        dma.copy a.subspan(32, 32).at(bm, k) => as;
        dma.copy b.subspan(32, 32).at(bn, k) => bs;
        foreach kk in [2] foreach i in [2] foreach j in [2] {
          ma = mma.load as.chunkat(i, kk);
          mb = mma.load bs.chunkat(j, kk);
          mma.row.row mc[i][j], ma, mb;
        }
      }
      foreach i in [2] foreach j in [2] mma.store mc[i][j], c.subspan(16, 16).at(bm # i, bn # j);
    }
  }
}"""
    c = np.zeros((M, N), np.float32)
    close(tmp_path, source, normal(M, K), normal(N, K), c, arch=arch, unit=2.0**-22)


@pytest.mark.parametrize("arch", ARCHS)
def test_operands_and_accumulators_from_global_memory(tmp_path: Path, arch: str) -> None:
    source = """
__co__ void f(global f16 [M, K] a, global f16 [K, N] b, global f32 [M, N] c) {
  parallel {bm, bn} by [cdiv(M, 32), cdiv(N, 32)] : block {
    parallel p by 1 : group {
      mc = mma.load c.subspan(32, 32).at(bm, bn);
      foreach k in [cdiv(K, 16)] {
        ma = mma.load a.subspan(32, 16).at(bm, k);
        mb = mma.load b.subspan(16, 32).at(k, bn);
        mma.row.col mc, ma, mb;
      }
      mma.store mc, c.subspan(32, 32).at(bm, bn);
    }
  }
}"""
    close(tmp_path, source, normal(M, K), normal(K, N), normal(M, N, t=np.float32), arch=arch, unit=2.0**-22)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("warps", [2, 8])
def test_groups_of_other_sizes(tmp_path: Path, warps: int, arch: str) -> None:
    source = matmul(TO_GLOBAL, level=f"group-{warps}")
    close(tmp_path, source, normal(M, K), normal(N, K), np.zeros((M, N), np.float32), arch=arch, unit=2.0**-22)
