from __future__ import annotations

import pytest
from pass_kernels import (
    BLOCK,
    GROUP,
    WARPGROUP,
    Builder,
    Contract,
    Space,
    Tile,
    dtypes,
    find,
    listing1,
    listing2,
    listing3,
    one_multiply,
)

from tilemma.atoms import catalogue
from tilemma.ir.expr import value_of
from tilemma.ir.tile import Alloc, Mma
from tilemma.layouts import bank_conflicts, shared_layout
from tilemma.passes import FRONT_PASSES
from tilemma.passes.check_buffers import SwizzleConflict
from tilemma.targets.ptx.passes.assign_layouts import AssignLayouts, SwizzleRefused
from tilemma.targets.ptx.passes.choose_atoms import ChooseAtoms


def laid_out(kernel, arch):
    for p in (*FRONT_PASSES, ChooseAtoms(arch), AssignLayouts()):
        kernel = p.run(kernel, [])
    return kernel


def plans(kernel):
    return {a.buffer.name: a.layout for a in find(kernel, Alloc)}


def swizzle(plan):
    return 0 if plan.swizzle_atom == 16 else plan.swizzle_atom


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("k", [16, 32, 48, 64, 128])
@pytest.mark.parametrize("n", [8, 24, 64, 96, 128, 256])
def test_wgmma_finds_its_operands_in_the_chosen_layout(contract, k, n):
    """The layouts package computes each descriptor back from where the layout puts the elements."""
    a = (k, 64) if contract.a_transposed else (64, k)
    b = (k, n) if contract.b_transposed else (n, k)
    kernel = laid_out(one_multiply(contract, a=a, b=b), "sm_90a")
    (m,) = find(kernel, Mma)
    atom = catalogue[m.atom]
    assert atom.kind == "wgmma"
    found = plans(kernel)
    for name, rows, whole, transposed, shape in (
        ("lhs_s", 64, 64, contract.a_transposed, a),
        ("rhs_s", atom.shape[1], n, contract.b_transposed, b),
    ):
        plan = found[name]
        layout = shared_layout("f16", whole, k, "MN" if transposed else "K", swizzle(plan))
        assert (layout.size_bytes, layout.alignment) == (plan.size, plan.alignment)
        assert layout.atom_column_bytes == plan.rows * plan.swizzle_atom and plan.size == 2 * shape[0] * shape[1]
        for row in range(0, whole, rows):
            for step in range(0, k, 16):
                layout.descriptor(row, step, rows, 16)


@pytest.mark.parametrize("columns", [8, 16, 32, 64, 96, 128])
def test_ldmatrix_is_free_of_conflicts(columns):
    kernel = laid_out(one_multiply(a=(64, columns), b=(64, columns), level=GROUP), "sm_80")
    plan = plans(kernel)["lhs_s"]
    layout = shared_layout("f16", 64, columns, "K", swizzle(plan))
    for row in range(0, 64, 8):
        for col in range(0, columns, 8):
            addresses = [layout.offset(row + i, col) for i in range(8)]
            assert bank_conflicts(addresses, 16).conflicts == 0


@pytest.mark.parametrize("make", [listing1, listing2, listing3])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_staged_stores_are_free_of_conflicts(make, arch):
    kernel = laid_out(make(), arch)
    alloc = next(a for a in find(kernel, Alloc) if a.buffer.name == "output_s")
    rows, columns = (value_of(e) for e in alloc.buffer.shape)
    layout = shared_layout("f16", rows, columns, "K", swizzle(alloc.layout))
    addresses = [layout.offset(lane // 4, lane % 4 * 2) for lane in range(32)]
    assert bank_conflicts(addresses, 4).conflicts == 0


def test_a_staged_f32_tile_is_padded():
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        out = Tile.whole(b.alloc("out", Space.SHARED, dtypes.f32, [64, 64]))
        with b.parallel(["p"], [1], WARPGROUP):
            mc = b.fill("mc", 0.0, dtypes.f32)
            tile = src.subspan([64, 64], [0, 0])
            b.mma(Contract.ROW_ROW, mc, b.load("ma", tile), b.load("mb", tile))
            b.store(mc, out)
    plan = plans(laid_out(b.finish(), "sm_80"))["out"]
    addresses = [lane // 4 * plan.pitch + lane % 4 * 8 for lane in range(32)]
    assert plan.swizzle_atom == 0 and bank_conflicts(addresses, 8).conflicts == 0


def test_a_view_that_starts_inside_a_wide_swizzle_atom_narrows_it():
    """B[K, N] cut along N in steps of 96 bytes: 32 bytes is the widest swizzle that steps of 48 allow."""
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        l_s = Tile.whole(b.alloc("l_s", Space.SHARED, dtypes.f16, [64, 16]))
        r_s = Tile.whole(b.alloc("r_s", Space.SHARED, dtypes.f16, [16, 192]))
        with b.parallel(["p"], [4], WARPGROUP) as (p,):
            mc = b.fill("mc", 0.0, dtypes.f32)
            mb = b.load("mb", r_s.subspan([16, 48], [0, p]))
            b.mma(Contract.ROW_COL, mc, b.load("ma", l_s), mb)
            b.store(mc, src.subspan([64, 48], [0, p]))
    kernel = laid_out(b.finish(), "sm_90a")
    assert find(kernel, Mma)[0].atom == "SM90_64x48x16_F32F16F16_SS"
    assert plans(kernel)["r_s"].swizzle_atom == 32 and plans(kernel)["l_s"].swizzle_atom == 32


@pytest.mark.parametrize("asked", [128, 64, 32])
def test_an_asked_for_swizzle_is_given(asked):
    assert plans(laid_out(one_multiply(swizzle=asked), "sm_90a"))["lhs_s"].swizzle_atom == asked


def test_no_swizzle_when_none_is_wanted():
    assert plans(laid_out(one_multiply(swizzle=0), "sm_90a"))["lhs_s"].swizzle_atom == 16
    assert plans(laid_out(one_multiply(swizzle=0, level=GROUP), "sm_80"))["lhs_s"].swizzle_atom == 0


def test_a_swizzle_wider_than_the_rows_has_the_width_of_the_rows():
    for depth in (16, 32):
        kernel = laid_out(one_multiply(a=(64, depth), b=(64, depth), swizzle=128), "sm_90a")
        assert plans(kernel)["lhs_s"].swizzle_atom == 2 * depth


def test_a_swizzle_that_does_not_divide_the_rows_is_refused():
    with pytest.raises(SwizzleRefused) as caught:
        laid_out(one_multiply(a=(64, 48), b=(64, 48), swizzle=128), "sm_90a")
    assert "swiz<32>" in caught.value.remedy


def test_writer_and_reader_must_agree():
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK):
        s = Tile.whole(b.alloc("s", Space.SHARED, dtypes.f16, [64, 64]))
        b.copy(src.subspan([64, 64], [0, 0]), s, swizzle=128)
        with b.parallel(["p"], [1], WARPGROUP):
            mc = b.fill("mc", 0.0, dtypes.f32)
            ma, mb = b.load("ma", s, swizzle=64), b.load("mb", s)
            b.mma(Contract.ROW_ROW, mc, ma, mb)
    with pytest.raises(SwizzleConflict):
        laid_out(b.finish(), "sm_90a")
