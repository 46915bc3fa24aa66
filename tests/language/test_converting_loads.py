"""`mma.load` that converts: arrays of one type multiplied as another, in both languages, on every target."""

from __future__ import annotations

import numpy as np
import pytest
from differential import agree, croqtile_kernel

from tilemma import testing
from tilemma.arithmetic.convert import load, store
from tilemma.dtypes import dtype
from tilemma.errors import CompileError

CO = """
__co__ void f(global {a} [M, K] a, global {b} [N, K] b, global f32 [M, N] c) {{
  parallel {{i, j}} by [cdiv(M, {m}), cdiv(N, 16)] : block {{
    shared {a} [{m}, 32] a_s; shared {b} [16, 32] b_s;
    mc = mma.fill.f32 0.0f;
    foreach k in [cdiv(K, 32)] {{
      dma.copy a.subspan({m}, 32).at(i, k) => a_s;
      dma.copy b.subspan(16, 32).at(j, k) => b_s;
      parallel p by 1 : {level} {{
        ma = mma.load.{t} a_s;
        mb = mma.load.{t} b_s;
        mma.row.row mc, ma, mb;
      }}
    }}
    parallel p by 1 : {level} mma.store mc, c.subspan({m}, 16).at(i, j);
  }}
}}
"""
PYTHON = """
@tm.kernel
def f(a: tm.Global["{a}", "M", "K"], b: tm.Global["{b}", "N", "K"], c: tm.Global["f32", "M", "N"]):
    (M, K), N = a.shape, b.shape[0]
    for i, j in parallel(cdiv(M, {m}), cdiv(N, 16), level="block"):
        a_s, b_s = shared("{a}", {m}, 32), shared("{b}", 16, 32)
        mc = mma.fill(0.0, "f32")
        for k in foreach(cdiv(K, 32)):
            dma.copy(a.subspan({m}, 32).at(i, k), a_s)
            dma.copy(b.subspan(16, 32).at(j, k), b_s)
            for p in parallel(1, level="{level}"):
                ma = mma.load(a_s, dtype="{t}")
                mb = mma.load(b_s, dtype="{t}")
                mma.row.row(mc, ma, mb)
        for p in parallel(1, level="{level}"):
            mma.store(mc, c.subspan({m}, 16).at(i, j))
"""


@pytest.mark.parametrize(
    ("a", "b", "t", "arch", "level", "atom"),
    [
        # 8-bit weights as A of a 16-bit wgmma, through registers.
        ("s8", "f16", "f16", "sm_90a", "group-4", "_RS"),
        ("f8_e4m3", "bf16", "bf16", "sm_90a", "group-4", "_RS"),
        ("f32", "f32", "tf32", "sm_80", "group", "TF32"),
        ("f32", "f32", "bf16", "sm_90a", "group-4", "SM80_16x8x16_F32BF16"),
        pytest.param("f32", "f16", "f16", "sm_80", "group", "SM80_16x8x16_F32F16", marks=pytest.mark.slow),
    ],
)
def test_operands_are_converted(a: str, b: str, t: str, arch: str, level: str, atom: str) -> None:
    facts = {"a": a, "b": b, "t": t, "m": 64 if level == "group-4" else 16, "level": level}
    co, python = CO.format(**facts), PYTHON.format(**facts)
    rng = np.random.default_rng(1)
    if a == "s8":
        x = rng.integers(-100, 100, (72, 40)).astype(np.int8)
    else:
        x = testing.random_array((72, 40), a, 1)
    y = testing.random_array((24, 40), b, 2)
    if t == "tf32" or b == "bf16":  # values of few bits
        x, y = (store(np.round(v.astype(np.float32) * 4) / 4, dtype("f32"), dtype(k)) for v, k in ((x, a), (y, b)))
    found = agree(co, python, {"a": x, "b": y, "c": np.zeros((72, 24), np.float32)}, ())
    assert not isinstance(found, str), found
    wide = [
        load(store(load(v, dtype(k)), dtype(k), dtype(t)) if k != t else v, dtype(t)).astype(np.float64)
        for v, k in ((x, a), (y, b))
    ]
    exact = wide[0] @ wide[1].T
    machine = np.zeros((72, 24), np.float32)
    kernel = croqtile_kernel(co)
    kernel.on("machine", arch=arch)(a=x, b=y, c=machine)
    bound = testing.error_bound(wide[0], wide[1].T, acc="f32", out="f32", operands=t)
    assert testing.share_of_bound(machine, exact, bound) <= 1
    np.testing.assert_allclose(found["c"], exact, rtol=1e-5, atol=1e-4)
    assert atom in str(kernel.compile(arch).explain())


DECLARED = """
__co__ void f(global f32 [16, 16] a, global f16 [8, 16] b, global f32 [16, 8] c) {
  parallel g by 1 : block {
    a_s = dma.copy a => shared;
    b_s = dma.copy b => shared;
    parallel p by 1 : group {
      mc = mma.fill.f32 0.0f;
      frag f16 [16, 16] ma;
      mma.load a_s, ma;
      mb = mma.load b_s;
      mma.row.row mc, ma, mb;
      mma.store mc, c;
    }
  }
}
"""


@pytest.mark.parametrize("arch", ["cpu", "sm_80"])
def test_a_declared_tile_keeps_its_type(arch: str) -> None:
    kernel = croqtile_kernel(DECLARED)
    a = testing.random_array((16, 16), "f32", 1, "small_integers")
    b = testing.random_array((8, 16), "f16", 2, "small_integers")
    c = np.zeros((16, 8), np.float32)
    (kernel.on("cpu") if arch == "cpu" else kernel.on("machine", arch=arch))(a, b, c)
    np.testing.assert_array_equal(c, a @ b.T.astype(np.float32))
    with pytest.raises(CompileError, match="f16, with which the register tile is declared"):
        croqtile_kernel(DECLARED.replace("mma.load a_s", "mma.load.bf16 a_s")).build()


def test_a_load_takes_every_name_of_a_type() -> None:
    text = """
__co__ void f(global f32 [16, 16] a, global f32 [8, 16] b, global f32 [16, 8] c) {
  parallel b0 by 1 : block, w by 1 : group {
    mc = mma.fill.f32 0.0f;
    ma = mma.load.half a;
    mb = mma.load.f16 b;
    mma.row.row mc, ma, mb;
    mma.store mc, c;
  }
}
"""
    assert (
        croqtile_kernel(text).compile("sm_80").ptx
        == croqtile_kernel(text.replace(".half", ".f16 ")).compile("sm_80").ptx
    )
