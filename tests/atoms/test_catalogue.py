"""Laws of every record, and the records against formulas and libraries that were written without them."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
from records import SAMPLE
from tensor_layouts import Layout, atoms_nv

from tilemma.atoms import Catalogue, MmaAtom, UnknownAtom, catalogue, contract
from tilemma.dtypes import dtype
from tilemma.machine.isa import forms

MMA = [a for a in SAMPLE if a.e is None]
COPIES = [c for c in catalogue.copies() if c.fragment is not None]


@pytest.mark.parametrize("atom", MMA, ids=lambda a: a.name)
def test_gather_multiply_scatter_is_a_matrix_product(atom: MmaAtom) -> None:
    m, n, k = atom.shape
    rng = np.random.default_rng(m * n * k)
    low = -4 if atom.a.dtype.kind == atom.b.dtype.kind in ("float", "int") else 0
    high = 1 if atom.a.dtype.bits == 1 else 4
    a, b, c = (rng.integers(low, high + 1, s).astype(np.float64) for s in ((m, k), (n, k), (m, n)))
    fa, fb = (o.gather(x) if o.in_registers else x for o, x in ((atom.a, a), (atom.b, b)))
    d = atom.d.scatter(contract(atom, fa, fb, atom.c.gather(c)))
    assert np.array_equal(d.astype(np.float64), a @ b.T + c)


def _same(ours: object, theirs: Layout) -> bool:
    size = len(theirs)
    return all(ours(i) == theirs(i) for i in range(size))


# The library's B of this one has elements twice and others never.
_WRONG_THERE = {"SM80_16x8x32_S32S4S4S32_TN"}
_SHARED = [a for a in MMA if hasattr(atoms_nv, a.name) and a.name not in _WRONG_THERE]
# Its records of m8n8k4 are those of one quad pair: ours have the four of a warp.
_PAIRS = [a for a in _SHARED if a.name.startswith("SM70_")]
_SHARED = [a for a in _SHARED if a not in _PAIRS]


@pytest.mark.parametrize("atom", _PAIRS, ids=lambda a: a.name)
def test_the_tensor_layouts_library_agrees_on_quad_pairs(atom: MmaAtom) -> None:
    theirs = getattr(atoms_nv, atom.name)
    for operand, layout in ((atom.a, theirs.a_layout), (atom.b, theirs.b_layout), (atom.c, theirs.c_layout)):
        for pair, there, value in itertools.product(range(4), range(8), range(operand.values)):
            lane = there % 4 + 4 * pair + 16 * (there // 4)
            row, col = operand.coordinates(lane, value)
            assert layout(there, value) == row % 8 + 8 * (col % 8), (pair, there, value)


@pytest.mark.parametrize("atom", _SHARED, ids=lambda a: a.name)
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


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
def test_every_form_of_the_manual_has_a_record(kind: str) -> None:
    """The machine's table of forms is written from the manual.  The records of m8n8k4 of f16 are those of its four
    products, and C has the type of D."""
    have = {
        (
            *a.shape,
            *(o.dtype.name for o in (a.a, a.b, a.c)),
            a.a.in_registers,
            ".xor" in a.ptx,
            ".satfinite" in a.ptx,
        )
        for a in catalogue.mma()
        if a.kind.startswith(kind) and a.e is None
    }
    for form in forms.forms(forms.FAMILIES[kind]):
        m, n, k = form.shape
        if (form.shape, form.a) == ((8, 8, 4), "f16"):
            assert {(16, 16, k, "f16", "f16", form.c, True, False, False)} <= have or form.c != form.d, form
            continue
        integer = form.a in ("s8", "u8", "s4", "u4")
        sources = (True, False) if kind == "wgmma" else (True,)
        xors = (False, True) if form.a == "b1" and kind == "mma" else (False,)
        for width in (n,) if n else forms.wgmma_widths(form.a):
            for in_registers, xor, sat in itertools.product(sources, xors, (False, True) if integer else (False,)):
                assert (m, width, k, form.a, form.b, form.c, in_registers, xor, sat) in have, form


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


@pytest.mark.parametrize("kind", ["mma.sync", "wgmma"])
def test_modules_hold_the_types_that_their_names_say(kind: str) -> None:
    """Asked for one type of A, the catalogue passes over modules that are called after others."""
    records = [a for a in catalogue.values() if isinstance(a, MmaAtom) and a.kind == kind]
    for t in {a.a.dtype for a in records}:
        assert {x.name for x in catalogue.mma(kind, a=t) if x.kind == kind} >= {
            x.name for x in records if x.a.dtype is t
        }
    assert {c.name for c in catalogue.copies()} == {
        c.name for c in catalogue.values() if isinstance(c, type(COPIES[0]))
    }


@pytest.mark.parametrize("kind", ["wgmma", "mma.sync", "wgmma.sp", "mma.sp", "fma"])
@pytest.mark.parametrize("types", [("f16", "f32"), ("f16", "f16"), ("e4m3", "f32"), ("s8", "s32"), ("f16", "f64")])
def test_a_query_does_not_depend_on_the_records_made_before(kind: str, types: tuple[str, str]) -> None:
    a, d = (dtype(t) for t in types)
    fresh, full = Catalogue(), Catalogue()
    assert len(full)
    wanted: dict[str, object] = {"a": a, "b": a, "d": d, "a_from": "shared"}
    assert [x.name for x in fresh.mma(kind, **wanted)] == [x.name for x in full.mma(kind, **wanted)]
