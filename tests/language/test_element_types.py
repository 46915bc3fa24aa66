"""Products of every element type that has an instruction: in both languages, on the CPU reference and on the machine
of each architecture that has it.  All agree with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree

from tilemma.atoms import catalogue
from tilemma.dtypes import DType, s32

TYPES = list(dict.fromkeys((f.a, f.b, f.d) for kind in ("mma.sync", "fma") for f in catalogue.families(kind)))
# What CI runs of the other half is under `slow`.
_FEW = {"tf32 tf32 f32", "f64 f64 f64", "f8_e4m3 f8_e5m2 f32", "f8_e5m2 f8_e5m2 f16", "u8 s8 s32", "f32 f32 f32"}
# Floats of fewer bits, one in each byte: sm_120a alone multiplies them.
_NARROW = {"f6_e3m2", "f6_e2m3", "f4_e2m1"}
CONTRACTS = ("row.row", "col.row", "row.col", "col.col")

CO = """
__co__ void f(global {a} [{first}] a, global {b} [{second}] b, global {d} [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, 16)] : block {{
    shared {a} [{first_tile}] a_s;
    shared {b} [{second_tile}] b_s;
    mc = mma.fill.{d} 0.0f;
    foreach t in [cdiv(K, {k})] {{
      dma.copy a.subspan({first_tile}).at({first_at}) => a_s;
      dma.copy b.subspan({second_tile}).at({second_at}) => b_s;
      parallel p by 1 : {level} {{
        ma = mma.load a_s; mb = mma.load b_s;
        mma.{contract} mc, ma, mb;
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, 16).at(i, j);
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{a}", {first_dims}], b: tm.Global["{b}", {second_dims}], c: tm.Global["{d}", "M", "N"]):
    M, N = c.shape
    K = a.shape[{k_axis}]
    for i, j in parallel(cdiv(M, {m}), cdiv(N, 16), level="block"):
        a_s, b_s = shared("{a}", {first_tile}), shared("{b}", {second_tile})
        mc = mma.fill(0.0, "{d}")
        for t in foreach(cdiv(K, {k})):
            dma.copy(a.subspan({first_tile}).at({first_at}), a_s)
            dma.copy(b.subspan({second_tile}).at({second_at}), b_s)
            for p in parallel(1, level="{level}"):
                ma, mb = mma.load(a_s), mma.load(b_s)
                mma.{contract}(mc, ma, mb)
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, 16).at(i, j))
"""


def programs(a: DType, b: DType, d: DType, contract: str, level: str, k: int) -> tuple[str, str]:
    m = 64 if level == "group-4" else 16
    a_turned, b_turned = (part == "col" for part in contract.split("."))
    facts = {
        "first": "K, M" if a_turned else "M, K",
        "second": "K, N" if b_turned else "N, K",
        "first_dims": '"K", "M"' if a_turned else '"M", "K"',
        "second_dims": '"K", "N"' if b_turned else '"N", "K"',
        "first_tile": f"{k}, {m}" if a_turned else f"{m}, {k}",
        "second_tile": f"{k}, 16" if b_turned else f"16, {k}",
        "first_at": "t, i" if a_turned else "i, t",
        "second_at": "t, j" if b_turned else "j, t",
        "k_axis": 0 if a_turned else 1,
    }
    given = {"a": a, "b": b, "d": d, "contract": contract, "level": level, "k": k, "m": m}
    return CO.format(**facts, **given), PYTHON.format(**facts, **given)


def numbers(t: DType, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Small integers of both signs where the type has them: every product and sum is exact."""
    if t is s32:
        return np.random.default_rng(seed).integers(-(2**31), 2**31, shape).astype(np.int32)
    low, high = {"float": (-4, 4), "int": (-8, 7), "uint": (0, 15), "bits": (0, 1)}[t.kind]
    if t.bits == 8 and t.is_integer:
        low, high = (-128, 127) if t.kind == "int" else (0, 255)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(np.float64).astype(t.numpy)


def check(a: DType, b: DType, d: DType, contract: str, arch: str, level: str, ragged: int = 3) -> None:
    """A product whose M, N and K are no multiples of the tile."""
    k = max(16, 512 // a.bits)
    m, n, depth = (72 if level == "group-4" else 24), 24, k + ragged * max(1, 8 // a.bits)
    a_turned, b_turned = (part == "col" for part in contract.split("."))
    x, y = numbers(a, (m, depth), 1), numbers(b, (n, depth), 2)
    wide = np.int64 if a is s32 else np.float64
    wanted = (x.astype(wide) @ y.astype(wide).T).astype(d.numpy)
    given = {
        "a": np.ascontiguousarray(x.T) if a_turned else x,
        "b": np.ascontiguousarray(y.T) if b_turned else y,
        "c": np.zeros((m, n), d.numpy),
    }
    found = agree(*programs(a, b, d, contract, level, k), given, (arch,))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], wanted)


def cases() -> list[object]:
    found = []
    for i, (a, b, d) in enumerate(TYPES):
        lowest = "sm_89" if a.bits == 8 and a.is_float else "sm_80"
        places = (lowest, "group"), ("sm_90a", "group-4"), ("sm_90a", "group")
        if {str(a), str(b)} & _NARROW:
            places = (("sm_120a", "group"),)
        few = " ".join(map(str, (a, b, d))) in _FEW
        for j, (arch, level) in enumerate(places):
            for n, contract in enumerate(CONTRACTS):
                if a.bits < 8:
                    continue
                fast = few and j < 2 and n == (i + j) % 4
                marks = () if fast else (pytest.mark.slow,)
                name = f"{a}-{b}-{d}-{contract}-{arch}-{level}"
                found.append(pytest.param(a, b, d, contract, arch, level, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("a", "b", "d", "contract", "arch", "level"), cases())
def test_a_product(a: DType, b: DType, d: DType, contract: str, arch: str, level: str) -> None:
    check(a, b, d, contract, arch, level)
