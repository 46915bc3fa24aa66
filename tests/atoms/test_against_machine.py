"""The catalogue against the PTX machine, whose maps are written a second time from the manual's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from records import SAMPLE

from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.layouts import SWIZZLES, shared_layout
from tilemma.machine.isa import descriptors, forms, fragments, sparse

# The machine executes the CUDA cores' records as fma and mad; those of sm_120a are executed in
# tests/machine/test_records_of_kinds.py.
_OURS = [a for a in SAMPLE if a.arch != "sm_120a"]
_MATRIX = [a for a in _OURS if a.kind != "fma" and not a.name.startswith("SM70_")]
_PAIRS = [a for a in catalogue.mma() if a.name.startswith("SM70_")]


@pytest.mark.parametrize("atom", _MATRIX, ids=lambda a: a.name)
def test_fragments(atom: MmaAtom) -> None:
    _m, n, k = atom.shape
    for letter, operand in atom.operands.items():
        if not operand.in_registers or letter == "E":
            continue
        depth = operand.shape[1] if letter == "A" else k
        if atom.asynchronous:
            rows, cols = fragments.wgmma_fragment(n, depth, "A" if letter == "A" else "D", operand.dtype.name)
        else:
            rows, cols = fragments.mma_fragment(
                (_m, n, operand.shape[1] if letter == "A" else atom.shape[2]), letter, operand.dtype.name
            )
            # The manual's B is K x N, CuTe's is N x K.
            rows, cols = (cols, rows) if letter == "B" else (rows, cols)
        assert np.array_equal(operand.coordinates_table, rows + operand.shape[0] * cols), letter
        assert operand.pack == fragments.elements_per_register(operand.dtype.name)


@pytest.mark.parametrize("atom", _PAIRS, ids=lambda a: a.name)
def test_fragments_of_quad_pairs(atom: MmaAtom) -> None:
    """Quad pair q has the product of rows 8 * (q % 2) and columns 8 * (q // 2)."""
    a_layout, b_layout = atom.ptx.split(".m8n8k4.")[1].split(".")[:2]
    pair = fragments.quad_pair()[:, None]
    for letter, operand in atom.operands.items():
        layout = {"A": a_layout, "B": b_layout}.get(letter)
        rows, cols = fragments.mma_fragment((8, 8, 4), letter, operand.dtype.name, layout)
        if letter == "B":
            rows, cols = cols + 8 * (pair // 2), rows
        else:
            rows, cols = rows + 8 * (pair % 2), cols + (0 if letter == "A" else 8 * (pair // 2))
        assert np.array_equal(operand.coordinates_table, rows + operand.shape[0] * cols), letter
    for arch in ("sm_75", "sm_80", "sm_90a", "sm_120"):
        legal = forms.legal_mma(
            (8, 8, 4), "f16", "f16", atom.c.dtype.name, atom.d.dtype.name, arch, ptx=atom.ptx_version
        )
        assert atom.runs_on(arch) == bool(legal)


@pytest.mark.parametrize("atom", [c for c in catalogue.copies() if c.fragment], ids=lambda a: a.name)
def test_matrix_copies(atom: CopyAtom) -> None:
    theirs = (fragments.ldmatrix_map if atom.kind == "ldmatrix" else fragments.stmatrix_map)(
        atom.matrices, atom.trans
    )
    for row in range(atom.rows):
        assert atom.lane_of_row(row) == theirs.address_lane[row // 8, row % 8]
    stacked = theirs.rows + 8 * np.arange(atom.matrices)[None, :, None] + atom.rows * theirs.cols
    assert np.array_equal(atom.fragment.coordinates_table, stacked.reshape(32, -1))


@pytest.mark.parametrize("atom", _MATRIX, ids=lambda a: a.name)
def test_the_manual_has_exactly_these_forms(atom: MmaAtom) -> None:
    _m, n, k = atom.shape
    a, b, c, d = (o.dtype.name for o in (atom.a, atom.b, atom.c, atom.d))
    bitop = next((x for x in ("and", "xor") if f".{x}.popc" in atom.ptx), None)
    saturates = ".satfinite" in atom.ptx
    for arch in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"):
        chosen_sparse = {"sparse": atom.e is not None, "selector": 0 if atom.e is not None else None}
        if not atom.asynchronous:
            chosen_sparse |= {"ordered": "ordered_metadata" in atom.ptx}
            legal = forms.legal_mma(
                atom.shape,
                a,
                b,
                c,
                d,
                arch,
                ptx=atom.ptx_version,
                bitop=bitop,
                satfinite=saturates,
                **chosen_sparse,
            )
        else:
            chosen = {i.name: i.default for i in atom.immediates if i.name not in ("scale_d", "selector")}
            legal = forms.legal_wgmma(
                n, k, a, b, d, arch, a_in_registers=atom.a.in_registers, ptx=atom.ptx_version, bitop=bitop,
                satfinite=saturates, **chosen_sparse, **chosen,
            )  # fmt: skip
        # CuTe has m16n8k8 of f16 for sm_75 and, under another name, for sm_80.
        assert atom.runs_on(arch) == bool(legal) or (arch == "sm_75" and k == 8), arch


@pytest.mark.parametrize("atom", [a for a in _OURS if a.e is not None], ids=lambda a: a.name)
def test_metadata(atom: MmaAtom) -> None:
    """Every selector that the record takes names lanes that hold the words."""
    (selectors,) = (i.legal for i in atom.immediates if i.name == "selector")
    rows, chunks = atom.e.shape
    for selector in selectors:
        lane, shift = sparse.metadata_map(atom.shape[2], atom.a.dtype.name, selector)
        for row in range(rows):
            for chunk in range(chunks):
                held = int(lane[row % 16, chunk]) + 32 * (row // 16), int(shift[row % 16, chunk]) // 4
                assert atom.e.coordinates(*held) == (row, chunk)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("rows", [8, 24, 64, 136, 256])
def test_descriptors(rows: int, major: str, swizzle: int) -> None:
    span = max(swizzle, 16) // 2
    row0, k0 = (8, 16) if major == "K" else (span, 16)
    shape = (rows + row0, max(span, 32)) if major == "K" else (-(-(rows + row0) // span) * span, 32)
    tile = shared_layout("f16", *shape, major, swizzle)
    found = tile.descriptor(row0, k0, rows, 16)
    theirs = descriptors.decode(found.encode())
    assert (theirs.start, theirs.lbo, theirs.sbo) == (found.start, found.lbo, found.sbo)
    assert (theirs.swizzle, theirs.base_offset, theirs.reserved) == (swizzle, 0, 0)
    assert descriptors.problems(theirs, rows, 16, 16, major) == []
    addresses = descriptors.operand_addresses(theirs, rows, 16, 16, major)
    assert np.array_equal(addresses, tile.offsets()[row0 : row0 + rows, k0 : k0 + 16])
