"""Products of 8-, 6- and 4-bit floats on sm_120a: tiles of a group, one lane's registers, and scales of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from differential import croqtile_kernel, python_kernel

import tilemma as tm
from tests.toolchain import tool
from tilemma.errors import CompileError

LETTERS = {"f8_e4m3": "E4M3", "f8_e5m2": "E5M2", "f6_e3m2": "E3M2", "f6_e2m3": "E2M3", "f4_e2m1": "E2M1"}
PAIRS = [
    ("f8_e4m3", "f4_e2m1"), ("f4_e2m1", "f6_e3m2"), ("f6_e2m3", "f8_e5m2"), ("f4_e2m1", "f4_e2m1"),
    ("f8_e4m3", "f8_e4m3"),
]  # fmt: skip
CO_LANE = """
__co__ void f(global {a} [16, {ka}] a, global {b} [{k}, 8] b, global u32 [16, 2] e, global u8 [16, 1] sa,
              global u8 [8, 1] sb, global f32 [16, 8] c) {{
  parallel p by 1 : block, t by 32 : thread {{
    x = load_matrix_a<16, 8, {k}>(a, 0, 0, atom = {atom});
    y = load_matrix_b<16, 8, {k}>(b, 0, 0, atom = {atom});
    d = load_matrix_c<16, 8, {k}>(c, 0, 0, atom = {atom});
    {loads}
    [[atom({atom})]] mma.row.col{sp}.scale d, x, y{me}, u, v;
    store_matrix_d<16, 8, {k}>(c, d, 0, 0, atom = {atom});
  }}
}}
"""
PYTHON_LANE = """
@tm.kernel
def f(a: tm.Global["{a}", 16, {ka}], b: tm.Global["{b}", {k}, 8], e: tm.Global["u32", 16, 2],
      sa: tm.Global["u8", 16, 1], sb: tm.Global["u8", 8, 1], c: tm.Global["f32", 16, 8]):
    for p in parallel(1, level="block"):
        for t in parallel(32, level="thread"):
            x = tm.load_matrix_a[16, 8, {k}](a, 0, 0, atom="{atom}")
            y = tm.load_matrix_b[16, 8, {k}](b, 0, 0, atom="{atom}")
            d = tm.load_matrix_c[16, 8, {k}](c, 0, 0, atom="{atom}")
            {loads}
            mma.row.col{sp}.scale(d, x, y{me}, u, v, atom="{atom}")
            tm.store_matrix_d[16, 8, {k}](c, d, 0, 0, atom="{atom}")
"""


def lane_texts(a: str, b: str, sparse: bool) -> tuple[str, str]:
    k = 64 if sparse else 32
    atom = f"SM120{'_SPARSE' * sparse}_16x8x{k}_F32{LETTERS[a]}{LETTERS[b]}F32_TN_MXF8F6F4"
    letters = [("u", "load_matrix_sfa", "sa"), ("v", "load_matrix_sfb", "sb")]
    letters += [("m", "load_matrix_e", "e")] * sparse
    co = [f"{n} = {x}<16, 8, {k}>({y}, 0, 0, atom = {atom});" for n, x, y in letters]
    python = [f'{n} = tm.{x}[16, 8, {k}]({y}, 0, 0, atom="{atom}")' for n, x, y in letters]
    given: dict[str, Any] = {
        "a": a,
        "b": b,
        "k": k,
        "ka": 32,
        "atom": atom,
        "sp": ".sp" * sparse,
        "me": ", m" * sparse,
    }
    return (
        CO_LANE.format(**given, loads="\n    ".join(co)),
        PYTHON_LANE.format(**given, loads="\n            ".join(python)),
    )


def elements(t: str, shape: tuple[int, int], rng: Any) -> Any:
    return rng.integers(-3, 4, shape).astype(np.float32).astype(tm.dtypes.dtype(t).numpy)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_scales_of_blocks_by_one_lane_s_registers(a: str, b: str, sparse: bool) -> None:
    rng, k = np.random.default_rng(3), 64 if sparse else 32
    x, y = elements(a, (16, 32), rng), elements(b, (k, 8), rng)
    whole, e = x.astype(np.float64), np.zeros((16, 2), np.uint32)
    if sparse:
        dense = tm.sparse.prune(elements(a, (16, 64), rng))
        stored = tm.sparse.compress(dense)
        x, e, whole = stored.values, stored.metadata, dense.astype(np.float64)
    sa, sb = (rng.integers(124, 131, (n, 1)).astype(np.uint8) for n in (16, 8))
    c = rng.integers(-4, 5, (16, 8)).astype(np.float32)
    factors = np.ldexp(1.0, sa.astype(int) + sb.T.astype(int) - 254)
    wanted = (whole @ y.astype(np.float64)) * factors + c
    for kernel in (croqtile_kernel(lane_texts(a, b, sparse)[0]), python_kernel(lane_texts(a, b, sparse)[1])):
        for target in ({"target": "cpu"}, {"target": "machine", "arch": "sm_120a"}):
            found = c.copy()
            kernel.on(**target)(a=x, b=y, e=e, sa=sa, sb=sb, c=found)
            np.testing.assert_array_equal(found, wanted.astype(np.float32))


CO_TILE = """
__co__ void f(global {a} [32, 64] a, global {b} [16, 64] b, global {d} [32, 16] c) {{
  parallel p by 1 : block {{
    shared {a} [32, 64] a_s; shared {b} [16, 64] b_s;
    dma.copy a => a_s; dma.copy b => b_s;
    parallel g by 2 : group {{
      mc = mma.fill.{d} 0.0f;
      ma = mma.load a_s.subspan(16, 64).at(g, 0);
      mb = mma.load b_s;
      mma.row.row mc, {sign}ma, mb;
      mma.store mc, c.subspan(16, 16).at(g, 0);
    }}
  }}
}}
"""
PYTHON_TILE = """
@tm.kernel
def f(a: tm.Global["{a}", 32, 64], b: tm.Global["{b}", 16, 64], c: tm.Global["{d}", 32, 16]):
    for p in parallel(1, level="block"):
        a_s, b_s = shared("{a}", 32, 64), shared("{b}", 16, 64)
        dma.copy(a, a_s)
        dma.copy(b, b_s)
        for g in parallel(2, level="group"):
            mc = mma.fill(0.0, "{d}")
            ma, mb = mma.load(a_s.subspan(16, 64).at(g, 0)), mma.load(b_s)
            mma.row.row(mc, {sign}ma, mb)
            mma.store(mc, c.subspan(16, 16).at(g, 0))
"""


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize(("a", "b"), PAIRS[:4])
def test_tiles_of_a_group(a: str, b: str, d: str, sign: str) -> None:
    rng = np.random.default_rng(4)
    x, y = elements(a, (32, 64), rng), elements(b, (16, 64), rng)
    wanted = (x.astype(np.float64) @ y.astype(np.float64).T) * (-1 if sign else 1)
    for kernel in (
        croqtile_kernel(CO_TILE.format(a=a, b=b, d=d, sign=sign)),
        python_kernel(PYTHON_TILE.format(a=a, b=b, d=d, sign=sign)),
    ):
        for target in ({"target": "cpu"}, {"target": "machine", "arch": "sm_120a"}):
            c = np.zeros((32, 16), tm.dtypes.dtype(d).numpy)
            kernel.on(**target)(a=x, b=y, c=c)
            np.testing.assert_array_equal(c, wanted.astype(c.dtype))


@pytest.mark.parametrize(
    "text", [lane_texts("f4_e2m1", "f6_e3m2", True)[1], lane_texts("f8_e4m3", "f4_e2m1", False)[1]]
)
def test_ptxas_takes_the_code(text: str) -> None:
    tool("ptxas")
    assert python_kernel(text).compile(arch="sm_120a").cubin


# What a program asks, the code, and a part of the message.
WRONG = [
    (("_MXF8F6F4", "_F8F6F4"), "atom-mismatch", "has no scales of blocks"),
    (
        ("16x8x32_F32E4M3E4M3F32_TN_MXF8F6F4", "16x8x64_F32E2M1E2M1F32_TN_MXF4"),
        "atom-mismatch",
        "two elements of e2m1",
    ),
    (('sa: tm.Global["u8"', 'sa: tm.Global["u16"'), "wrong-value", "codes of ue8m0 as u8"),
    ((".scale(d, x, y, u, v,", "(d, x, y,"), "atom-mismatch", "has scales of blocks"),
    ((".scale(d, x, y, u, v,", ".scale(d, x, y, x, v,"), "wrong-value", "one u32 of each lane"),
    ((".scale(d, x, y, u, v,", ".scale(d, x, y, 0.5, v,"), "not-a-tile", "a Python float"),
]


@pytest.mark.parametrize(("change", "code", "message"), WRONG)
def test_wrong_scales_are_refused(change: tuple[str, str], code: str, message: str) -> None:
    text = lane_texts("f8_e4m3", "f8_e4m3", False)[1]
    assert change[0] in text
    with pytest.raises(CompileError) as caught:
        python_kernel(text.replace(*change)).compile(arch="sm_120a")
    assert caught.value.code == code and message in str(caught.value)


def test_other_targets_and_register_tiles_are_refused() -> None:
    lane, tile = (
        lane_texts("f8_e4m3", "f4_e2m1", False)[1],
        PYTHON_TILE.format(a="f4_e2m1", b="f4_e2m1", d="f32", sign=""),
    )
    for text, arch, code in (
        (lane, "sm_120", "atom-mismatch"),
        (tile, "sm_90a", "no-instruction"),
        (
            tile.replace("ma, mb)\n            mma.store", 'ma, mb, atom="SM120_16x8x32_F32E2M1E2M1F32_TN_MXF8F6F4")\n'
                         "            mma.store"),
            "sm_120a",
            "atom-mismatch",
        ),
    ):  # fmt: skip
        with pytest.raises(CompileError) as caught:
            python_kernel(text).compile(arch=arch)
        assert caught.value.code == code
