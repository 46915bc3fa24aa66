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
from tilemma.ir.tile import DeclareFragment, Load, Mma
from tilemma.ir.types import Level
from tilemma.passes import FRONT_PASSES
from tilemma.targets.ptx.passes.atom_refusals import NoInstruction
from tilemma.targets.ptx.passes.choose_atoms import ChooseAtoms


def chosen(kernel, arch, log=None):
    for p in (*FRONT_PASSES, ChooseAtoms(arch)):
        kernel = p.run(kernel, [] if log is None else log)
    return kernel


def atom_of(kernel, arch):
    (m,) = find(chosen(kernel, arch), Mma)
    return m.atom


@pytest.mark.parametrize(
    ("make", "arch", "kind", "accumulator"),
    [
        (listing1, "sm_80", "mma.sync", dtypes.f16),
        (listing1, "sm_90a", "mma.sync", dtypes.f16),  # a single warp
        (listing2, "sm_90a", "wgmma", dtypes.f16),
        (listing2, "sm_90", "mma.sync", dtypes.f16),  # wgmma needs sm_90a
        (listing3, "sm_90a", "wgmma", dtypes.f32),
        (listing3, "sm_80", "mma.sync", dtypes.f32),
        (lambda: listing3(dtype=dtypes.bf16), "sm_90a", "wgmma", dtypes.f32),
        *((lambda n=n: listing3(wn=n), "sm_90a", "wgmma", dtypes.f32) for n in (72, 192, 256)),
    ],
)
def test_instructions(make, arch, kind, accumulator):
    """wgmma for warpgroups on sm_90a, as wide as the tile; the types are those of the program."""
    kernel = chosen(make(), arch)
    (m,) = find(kernel, Mma)
    atom, plans = catalogue[m.atom], {f.name: f.plan for f in find(kernel, DeclareFragment)}
    assert (atom.kind, atom.c.dtype) == (kind, accumulator)
    if kind == "wgmma":
        assert atom.shape[1] == plans["mc"].shape[1]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("level", [GROUP, WARPGROUP, Level("group", 2), Level("group", 8)])
def test_atoms_and_units_cover_the_tile(arch, contract, level):
    a = (64, 128) if contract.a_transposed else (128, 64)
    b = (64, 96) if contract.b_transposed else (96, 64)
    kernel = chosen(one_multiply(contract, a=a, b=b, level=level), arch)
    (m,) = find(kernel, Mma)
    atom = catalogue[m.atom]
    assert atom.kind == ("wgmma" if arch == "sm_90a" and level.warps % 4 == 0 else "mma.sync")
    plans = {f.name: f.plan for f in find(kernel, DeclareFragment)}
    units = level.threads // atom.threads
    for plan in plans.values():
        assert plan.level == level and plan.grid[0] * plan.grid[1] == units
    acc, pa, pb = plans["mc"], plans["ma"], plans["mb"]
    assert (acc.shape, pa.shape, pb.shape) == ((128, 96), (128, 64), (96, 64))
    for axis in range(3):
        extent = (128, 96, 64)[axis]
        share = acc.grid[axis] if axis < 2 else 1
        assert m.tiles[axis] * atom.shape[axis] * share == extent
    tm, tn, tk = m.tiles
    assert (acc.repeat, pa.repeat, pb.repeat) == ((tm, tn), (tm, tk), (tn, tk))


@pytest.mark.parametrize("contract", Contract)
def test_ldmatrix_turns_what_is_stored_the_other_way(contract):
    kernel = chosen(one_multiply(contract, level=GROUP), "sm_80")
    plans = {load.fragment.name: load.plan for load in find(kernel, Load)}
    assert plans["ma"].atom.endswith("_T" if contract.a_transposed else "_N")
    assert plans["mb"].atom.endswith("_T" if contract.b_transposed else "_N")
    assert all(p.method == "ldmatrix" and p.atom in catalogue for p in plans.values())


def test_an_odd_number_of_matrices_is_loaded_one_by_one():
    kernel = chosen(one_multiply(a=(16, 8), b=(8, 8), level=GROUP), "sm_80")
    (m,) = find(kernel, Mma)
    assert catalogue[m.atom].shape == (16, 8, 8)
    plans = {load.fragment.name: load.plan.atom for load in find(kernel, Load)}
    assert plans == {"ma": "SM75_U32x2_LDSM_N", "mb": "SM75_U32x1_LDSM_N"}


def test_a_source_that_changes_goes_through_registers():
    """A written between load and multiply: from registers; B: another instruction, and explain says why."""

    def kernel(which):
        b = Builder("k")
        src = b.array_param("src", dtypes.f16, ["M", "K"])
        with b.parallel(["i"], [1], BLOCK):
            l_s = Tile.whole(b.alloc("l_s", Space.SHARED, dtypes.f16, [64, 64]))
            r_s = Tile.whole(b.alloc("r_s", Space.SHARED, dtypes.f16, [64, 64]))
            mc = b.fill("mc", 0.0, dtypes.f32)
            with b.parallel(["p"], [1], WARPGROUP):
                ma, mb = b.load("ma", l_s), b.load("mb", r_s)
            b.copy(src.subspan([64, 64], [1, 1]), {"a": l_s, "b": r_s}[which])
            with b.parallel(["p"], [1], WARPGROUP):
                b.mma(Contract.ROW_ROW, mc, ma, mb)
        return b.finish()

    read = catalogue[atom_of(kernel("a"), "sm_90a")]
    assert read.kind == "wgmma" and read.a.layout is not None  # in registers
    log = []
    (m,) = find(chosen(kernel("b"), "sm_90a", log), Mma)
    assert catalogue[m.atom].kind == "mma.sync"
    assert any("not wgmma" in d.text and "written" in d.text for d in log)


@pytest.mark.parametrize(("arch", "level"), [("sm_80", GROUP), ("sm_90a", WARPGROUP), ("sm_90a", GROUP)])
def test_operands_named_directly(arch, level):
    kernel = chosen(one_multiply(direct=True, level=level), arch)
    (m,) = find(kernel, Mma)
    wide = catalogue[m.atom].kind == "wgmma"
    assert len(find(kernel, Load)) == (0 if wide else 2)


def test_operands_in_global_memory():
    b = Builder("k")
    src = b.array_param("src", dtypes.f16, ["M", "K"])
    with b.parallel(["i"], [1], BLOCK), b.parallel(["p"], [1], WARPGROUP):
        mc = b.fill("mc", 0.0, dtypes.f32)
        tile = src.subspan([64, 64], [0, 0])
        b.mma(Contract.ROW_ROW, mc, b.load("ma", tile), b.load("mb", tile))
    kernel = chosen(b.finish(), "sm_90a")
    assert {load.plan.method for load in find(kernel, Load)} == {"global"}
    assert catalogue[find(kernel, Mma)[0].atom].kind == "mma.sync"


@pytest.mark.parametrize(
    "wanted",
    [
        {"dtype": dtypes.s16, "acc": dtypes.s32},
        {"a": (60, 64)},
        {"a": (64, 20), "b": (64, 20)},
        {"level": Level("group", 3)},
    ],
)
def test_refusals_name_every_family(wanted):
    with pytest.raises(NoInstruction) as caught:
        chosen(one_multiply(**wanted), "sm_90a")
    refused = {r.candidate for r in caught.value.refusals}
    assert any(r.startswith("SM90") for r in refused) and any(r.startswith(("SM80", "1x")) for r in refused)
    assert all(r.rule for r in caught.value.refusals)
