"""What refusals of sparse multiplies and of named instructions advise."""

from __future__ import annotations

import pytest
from differential import croqtile_kernel

from tilemma.errors import CompileError

SPARSE = """
__co__ void f(global {t} [16, {half}] a, global u16 [16, {words}] e, global {t} [8, {k}] b, global {d} [16, 8] c) {{
  parallel g by 1 : block, w by 1 : group {{
    mc = mma.fill.{d} 0.0f;
    ma = mma.load a; me = mma.load e; mb = mma.load b;
    mma.row.row.sp mc, ma, mb, me;
    mma.store mc, c;
  }}
}}
"""
NAMED = """
__co__ void f(global f16 [64, 16] a, global f16 [8, 16] b, global f32 [64, 8] c) {
  parallel g by 1 : block {
    shared f16 [64, 16] s;
    dma.copy a => s;
    parallel w by 1 : group-4 {
      mc = mma.fill.f32 0.0f;
      ma = mma.load s; mb = mma.load b;
      [[atom(SM90_64x8x16_F32F16F16_SS)]] mma.row.row mc, ma, mb;
      mma.store mc, c;
    }
  }
}
"""


def refusal(source: str, arch: str) -> str:
    with pytest.raises(CompileError) as e:
        croqtile_kernel(source).compile(arch)
    return str(e.value)


@pytest.mark.parametrize(
    ("t", "d", "k", "says"),
    [
        ("b1", "s32", 256, "b1 has no sparse form"),
        ("f32", "f32", 32, "f32 has no sparse form"),
        ("f64", "f64", 32, "f64 has no sparse form"),
        ("f8_e4m3", "f16", 64, "accumulate in f32"),
    ],
)
def test_a_sparse_multiply_that_no_instruction_does(t: str, d: str, k: int, says: str) -> None:
    text = refusal(SPARSE.format(t=t, d=d, k=k, half=k // 2, words=k // 16), "sm_90a")
    assert f"fix: {says}" in text or f"`.sp`: {says}" in text, text


@pytest.mark.parametrize(("arch", "says"), [("sm_80", "compile for sm_90a"), ("sm_90a", "B from shared memory")])
def test_a_named_instruction_that_cannot_be_taken(arch: str, says: str) -> None:
    text = refusal(NAMED, arch)
    assert says in text.partition("fix: ")[2].partition("candidates")[0], text
    assert "is wgmma, not" not in text, text
