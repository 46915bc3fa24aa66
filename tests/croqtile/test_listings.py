"""The tutorial's three kernels, character for character, as tile IR."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tilemma import croqtile
from tilemma.ir import tile as t
from tilemma.ir.printer import print_kernel
from tilemma.ir.types import BLOCK, GROUP, WARPGROUP, Contract
from tilemma.ir.walk import walk

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "co"

# SHA-256 of the listings of "Tensor Contraction: the mma Syntax" (Croqtile tutorial, chapter 4), each with a
# newline at its end.
LISTINGS = {
    "matmul_wmma": "9191ede0ed791090ec6092dd98b981771e87c12cdcbf749521198cc30868aa4b",
    "matmul_wgmma": "de469141b9bb8c77550037e31e8d82f8188957585dba2b73e95550b767ff71b4",
    "matmul_wgmma_2group": "83317825defa82728d89f211876771fb58c6036c68690595a83383e14f2afa3a",
}


@pytest.mark.parametrize("name", LISTINGS)
def test_the_examples_are_the_listings(name: str) -> None:
    text = (EXAMPLES / f"{name}.co").read_bytes()
    assert hashlib.sha256(text).hexdigest() == LISTINGS[name]


def kernel(name: str, **defines: object) -> t.Kernel:
    path = EXAMPLES / f"{name}.co"
    return croqtile.load(path.read_text(), str(path), defines).kernels[name]


def ops(k: t.Kernel, kind: type[t.Op]) -> list[t.Op]:
    return [op for op in walk(k.body) if isinstance(op, kind)]


def levels(k: t.Kernel) -> list[object]:
    return [op.level for op in walk(k.body) if isinstance(op, t.Parallel)]


def test_one_warp() -> None:
    k = kernel("matmul_wmma")
    assert levels(k) == [BLOCK, GROUP]
    # MMA_M, MMA_N and MMA_K are 16 at warp scope.
    assert [op.src.static_shape for op in ops(k, t.Load)] == [(16, 16), (16, 16)]
    assert [op.dtype for op in ops(k, t.Fill)] == [None]
    assert all(op.contract is Contract.ROW_ROW for op in ops(k, t.Mma))


def test_one_warpgroup() -> None:
    k = kernel("matmul_wgmma")
    assert levels(k) == [BLOCK, WARPGROUP]
    assert [op.src.static_shape for op in ops(k, t.Load)] == [(64, 16), (64, 16)]
    (fill,) = ops(k, t.Fill)
    assert fill.dtype is not None and fill.dtype.name == "f16"
    # `rhs.chunkat(block_n, iv_k)` takes its extents from the buffer.
    assert [op.src.static_shape for op in ops(k, t.Copy)] == [(64, 128), (64, 128), (64, 64)]


def test_two_warpgroups_as_text() -> None:
    assert print_kernel(kernel("matmul_wgmma_2group")) == (
        "kernel matmul_wgmma_2group(global f16 lhs[M, K], global f16 rhs[N, K], global f16 output[M, N]) {\n"
        "  parallel (block_m: cdiv(M, 128), block_n: cdiv(N, 64)) : block {\n"
        "    alloc shared f16 lhs_load_s[128, 128]\n"
        "    alloc shared f16 rhs_load_s[64, 128]\n"
        "    alloc shared f16 output_s[128, 64]\n"
        "    fragment %mc {dtype = f32}\n"
        "    fill %mc, 0.0 {dtype = f32}\n"
        "    for iv_k: cdiv(K, 128) = 0 to cdiv(K, 128) step 1 {\n"
        "      copy.dma lhs[block_m * 128 +: 128, iv_k * 128 +: 128] => lhs_load_s\n"
        "      copy.dma rhs[block_n * 64 +: 64, iv_k * 128 +: 128] => rhs_load_s\n"
        "      parallel (p1: 2) : group-4 {\n"
        "        for iv_warp: 8 = 0 to 8 step 1 {\n"
        "          fragment %ma\n"
        "          load %ma, lhs_load_s[p1 * 64 +: 64, iv_warp * 16 +: 16]\n"
        "          fragment %mb\n"
        "          load %mb, rhs_load_s[0 +: 64, iv_warp * 16 +: 16]\n"
        "          mma.row.row %mc, %ma, %mb\n"
        "        }\n"
        "      }\n"
        "    }\n"
        "    parallel (p1.1: 2) : group-4 {\n"
        "      store %mc, output_s[p1.1 * 64 +: 64, 0 +: 64]\n"
        "    }\n"
        "    copy.dma output_s => output[block_m * 128 +: 128, block_n * 64 +: 64]\n"
        "  }\n"
        "}\n"
    )


def test_definitions_from_outside_win() -> None:
    k = kernel("matmul_wgmma_2group", TILE_K=64)
    assert [op.src.static_shape for op in ops(k, t.Copy)][:2] == [(128, 64), (64, 64)]
    module = croqtile.load((EXAMPLES / "matmul_wgmma.co").read_text(), "x.co", {"TILE_K": 64})
    assert [n.text for n in module.notes] == ["`TILE_K` is 64 from outside; this line is not used"]


def test_a_build_may_redefine_the_file() -> None:
    path = EXAMPLES / "matmul_wgmma_2group.co"
    source = croqtile.load(path.read_text(), str(path)).sources["matmul_wgmma_2group"]
    assert source.constants == {
        "TILE_M": 128,
        "TILE_N": 128,
        "TILE_K": 128,
        "WARP_M": 64,
        "WARP_N": 64,
        "WARP_K": 16,
    }
    assert source.build({"TILE_K": 64}) == kernel("matmul_wgmma_2group", TILE_K=64)
    assert source.build() == kernel("matmul_wgmma_2group")


def test_every_operation_knows_its_place() -> None:
    k = kernel("matmul_wmma")
    assert all(op.span is not None and op.span.file.endswith("matmul_wmma.co") for op in walk(k.body))
    (mma,) = ops(k, t.Mma)
    assert mma.span is not None and (mma.span.line, mma.span.column, mma.span.end_column) == (18, 1, 24)
