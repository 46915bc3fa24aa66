"""Laws of every record, and the records against formulas and libraries that were written without them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from tensor_layouts import Layout, atoms_nv

from tilemma.atoms import MmaAtom, UnknownAtom, catalogue, contract
from tilemma.dtypes import dtype

MMA = list(catalogue.mma())
COPIES = [c for c in catalogue.copies() if c.fragment is not None]


@pytest.mark.parametrize("atom", MMA, ids=lambda a: a.name)
def test_gather_multiply_scatter_is_a_matrix_product(atom: MmaAtom) -> None:
    m, n, k = atom.shape
    rng = np.random.default_rng(m * n * k)
    a, b, c = (rng.integers(-4, 5, s).astype(np.float64) for s in ((m, k), (n, k), (m, n)))
    fa, fb = (o.gather(x) if o.in_registers else x for o, x in ((atom.a, a), (atom.b, b)))
    d = atom.d.scatter(contract(atom, fa, fb, atom.c.gather(c)))
    assert np.array_equal(d.astype(np.float64), a @ b.T + c)


@pytest.mark.parametrize("atom", MMA, ids=lambda a: a.name)
def test_fragments_follow_the_formulas_of_the_isa(atom: MmaAtom) -> None:
    for lane in (0, 1, 5, 31, atom.threads - 1):
        warp, low = divmod(lane, 32)
        for value in {0, 1, 2, 3, atom.c.values - 1}:
            row = 16 * warp + low // 4 + 8 * (value // 2 % 2)
            assert atom.c.coordinates(lane, value) == (row, 2 * (low % 4) + value % 2 + 8 * (value // 4))
        for value in range(atom.a.values):
            row = 16 * warp + low // 4 + 8 * (value // 2 % 2)
            assert atom.a.coordinates(lane, value) == (row, 2 * (low % 4) + value % 2 + 8 * (value // 4))
        for value in range(atom.b.values):
            assert atom.b.coordinates(lane, value) == (low // 4, 2 * (low % 4) + value % 2 + 8 * (value // 2))


def _same(ours: object, theirs: Layout) -> bool:
    size = len(theirs)
    return all(ours(i) == theirs(i) for i in range(size))  # type: ignore[operator]


@pytest.mark.parametrize("atom", [a for a in MMA if hasattr(atoms_nv, a.name)], ids=lambda a: a.name)
def test_the_tensor_layouts_library_agrees(atom: MmaAtom) -> None:
    theirs = getattr(atoms_nv, atom.name)
    assert theirs.shape_mnk == atom.shape
    for operand, layout in ((atom.a, theirs.a_layout), (atom.b, theirs.b_layout), (atom.c, theirs.c_layout)):
        if operand.in_registers:
            assert _same(operand.layout, layout)


@pytest.mark.parametrize("copy", COPIES, ids=lambda c: c.name)
def test_the_tensor_layouts_library_agrees_on_matrix_copies(copy: object) -> None:
    theirs = getattr(atoms_nv, copy.name)
    bits = theirs.dst_layout_bits if copy.kind == "ldmatrix" else theirs.src_layout_bits
    fragment = copy.fragment
    for lane in range(32):
        for value in range(fragment.values):
            row, col = fragment.coordinates(lane, value)
            # The library counts bits, rows of 128 bits one after the other, 16 bits an element.
            assert bits(lane, 16 * value) == 128 * row + 16 * col


def test_a_wrong_record_cannot_be_made() -> None:
    atom = catalogue["SM80_16x8x16_F32F16F16F32_TN"]
    with pytest.raises(AssertionError):
        dataclasses.replace(atom.a, layout=Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 64))))
    with pytest.raises(AssertionError):
        dataclasses.replace(atom.a, registers=2)
    with pytest.raises(AssertionError):
        dataclasses.replace(atom, b=atom.a)
    with pytest.raises(AssertionError):
        dataclasses.replace(atom, d=dataclasses.replace(atom.d, dtype=dtype("s32")))
    with pytest.raises(AssertionError):
        dataclasses.replace(atom, ptx="mma {d}, {a}, {b};")


def test_the_catalogue_has_every_form_that_is_promised() -> None:
    names = set(catalogue)
    for k in (8, 16):
        for letters in ("F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32"):
            assert f"SM80_16x8x{k}_{letters}_TN" in names
    for n in range(8, 257, 8):
        for letters in ("F16F16F16", "F32F16F16", "F32BF16BF16"):
            assert {f"SM90_64x{n}x16_{letters}_{s}S" for s in "SR"} <= names


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownAtom) as e:
        catalogue["sm80_16x8x16_f32f16f16f32"]
    assert "SM80_16x8x16_F32F16F16F32_TN" in e.value.remedy
    assert "no such thing" not in catalogue
    assert catalogue.get("no such thing") is None


def test_the_package_attribute_is_the_catalogue_however_it_was_imported() -> None:
    import tilemma
    import tilemma.atoms

    assert tilemma.atoms["SM75_U32x4_LDSM_N"] is catalogue["SM75_U32x4_LDSM_N"]
    assert set(tilemma.atoms) == set(catalogue) and len(tilemma.atoms) == len(catalogue)
    assert "SM75_U32x4_LDSM_N" in tilemma.atoms
    assert dict(tilemma.atoms.items()) == dict(catalogue)
    with pytest.raises(AttributeError):
        _ = tilemma.atoms.nothing


def test_records_are_made_by_need() -> None:
    """Looking for multiplies of one kind, or a record by its name, does not make all of wgmma's."""
    code = (
        "import sys; from tilemma.atoms import catalogue\n"
        "assert list(catalogue.mma('mma.sync')) and next(iter(catalogue.copies()))\n"
        "assert 'SM80_16x8x16_F32F16F16F32_TN' in catalogue and catalogue['SM75_U32x4_LDSM_N'].matrices == 4\n"
        "assert 'tilemma.atoms.wgmma' not in sys.modules\n"
        "assert 'SM90_64x8x16_F32F16F16_SS' in catalogue and len(list(catalogue.mma('wgmma'))) > 100\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
