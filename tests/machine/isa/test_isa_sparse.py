"""Sparse A: the position and meaning of the metadata, and products against the dense ones."""

from __future__ import annotations

import numpy as np
import pytest

from tilemma.dtypes import dtype
from tilemma.machine.isa import forms
from tilemma.machine.isa.fragments import mma_fragment, wgmma_fragment
from tilemma.machine.isa.numerics import mma
from tilemma.machine.isa.sparse import (
    compress,
    expand,
    metadata_fields,
    metadata_map,
    metadata_problems,
    pattern,
    sparse_fragment,
    sparse_mma,
    stored_columns,
)

MMA_SP = [
    (f.shape, f.a, selector)
    for family in forms.MMA_SPARSE
    for f in forms.forms((family,))
    for selector in family.selectors[f.shape]
]
MMA_SP = list(dict.fromkeys(MMA_SP))
WGMMA_SP = list(
    dict.fromkeys(
        (f.shape[2], f.a, selector)
        for family in forms.WGMMA_SPARSE
        for f in forms.forms((family,))
        for selector in family.selectors[f.shape]
    )
)


def word_of(name, k, selector, row, column):
    """Lane of the quad and lowest bit of the field for a column, as the manual's figures put it.

    16-bit types and tf32: a word holds 16 (8) columns of rows g and g + 8, low and high half; k32 (k16) has a
    second word for the next columns.  8-bit and 4-bit types: a word holds 32 (64) columns of one row; row
    g + 8 is in the next lane, the next columns two lanes on.
    """
    g, half = row % 8, row // 8
    bits = dtype(name).bits
    if bits in (16, 32):
        columns, width = (16, 4) if bits == 16 else (8, 2)
        pair = k > columns
        lane = 4 * g + (2 * selector + column // columns if pair else selector)
        return lane, 16 * half + 4 * (column % columns // width)
    columns, width = (32, 4) if bits == 8 else (64, 8)
    lane = 4 * g + (0 if k > columns else 2 * selector) + half + 2 * (column // columns)
    return lane, 4 * (column % columns // width)


@pytest.mark.parametrize("shape,name,selector", MMA_SP)
def test_metadata_lies_where_the_figures_say(shape, name, selector):
    k = shape[2]
    lane, shift = metadata_map(k, name, selector)
    width = pattern(name).width
    assert lane.shape == (16, k // width)
    for row in range(16):
        for chunk in range(k // width):
            assert (lane[row, chunk], shift[row, chunk]) == word_of(name, k, selector, row, chunk * width)
    # Every four-bit field of the words in use once, and the selector names the lanes.
    assert len(set(zip(lane.ravel(), shift.ravel(), strict=True))) == lane.size
    words = lane.size * 4 // 32 // 8
    used = sorted(set((lane % 4).ravel()))
    assert used == {1: [selector], 2: [2 * selector, 2 * selector + 1], 4: [0, 1, 2, 3]}[words]


@pytest.mark.parametrize("shape,name,selector", MMA_SP)
def test_a_register_and_its_metadata_speak_of_the_same_elements(shape, name, selector):
    """The manual: value i of a lane comes from a run of columns given by the lane and i alone."""
    rows, cols = sparse_fragment(shape, name)
    per = 32 // dtype(name).bits
    span = 2 * per  # columns of A that one register of one lane covers
    for lane in (0, 3, 17, 31):
        for i in range(rows.shape[1]):
            register = i // per
            assert rows[lane, i] == lane // 4 + 8 * (register % 2)
            first = lane % 4 * span + 4 * span * (register // 2)
            assert first <= 2 * cols[lane, i] < first + span


def sparse_matrix(rng, rows, k, name):
    p = pattern(name)
    t = dtype(name)
    out = np.zeros((rows, k // p.width, p.width // p.run, p.run), np.int64)
    for r in range(rows):
        for c in range(k // p.width):
            kept = rng.choice(p.width // p.run, p.stored // p.run, replace=False)
            out[r, c, kept] = rng.integers(1, 7, (len(kept), p.run))
    a = out.reshape(rows, k)
    return a.astype(t.numpy) if t.is_float else a


@pytest.mark.parametrize("shape,name,selector", MMA_SP)
def test_sparse_product_is_the_dense_product(shape, name, selector):
    rng = np.random.default_rng(21)
    m, n, k = shape
    a = sparse_matrix(rng, m, k, name)
    b = rng.integers(-3, 4, (k, n)) if dtype(name).kind != "uint" else rng.integers(0, 7, (k, n))
    b = b.astype(dtype(name).numpy) if dtype(name).is_float else b
    acc = "f32" if dtype(name).is_float else "s32"
    c = rng.integers(-9, 9, (m, n)).astype(dtype(acc).numpy)
    stored, metadata = compress(a, name, selector)
    assert stored.shape == (m, k // 2)
    # Through the lanes of the compressed fragment, as the instruction reads it.
    lanes = stored[sparse_fragment(shape, name)]
    held = np.zeros_like(stored)
    held[sparse_fragment(shape, name)] = lanes
    fields = metadata_fields(metadata, k, name, selector)
    assert metadata_problems(fields, name) == [] == metadata_problems(fields, name, ordered=True)
    columns = stored_columns(fields, name)
    assert (expand(held, columns, k) == a).all()
    got = sparse_mma(held, columns, b, c, name, name, acc)
    assert (got == mma(a, b, c, name, name, acc)).all()
    assert got.astype(np.int64).tolist() == (a.astype(np.int64) @ b.astype(np.int64) + c.astype(np.int64)).tolist()


@pytest.mark.parametrize("k,name,selector", WGMMA_SP)
def test_each_warp_of_a_warpgroup_describes_its_16_rows(k, name, selector):
    rng = np.random.default_rng(23)
    a = sparse_matrix(rng, 64, k, name)
    stored, metadata = compress(a, name, selector, lanes=128)
    fields = metadata_fields(metadata, k, name, selector)
    assert (expand(stored, stored_columns(fields, name), k) == a).all()
    for warp in range(4):
        rows = slice(16 * warp, 16 * warp + 16)
        part, registers = compress(a[rows], name, selector)
        assert (registers == metadata[32 * warp : 32 * warp + 32]).all() and (part == stored[rows]).all()
    # A in registers: 4 of them, the fragment of half the k.
    assert wgmma_fragment(8, k // 2, "A", name)[0].shape[1] * dtype(name).bits == 128


def test_other_lanes_hold_nothing():
    rng = np.random.default_rng(25)
    _, metadata = compress(sparse_matrix(rng, 16, 32, "f16"), "f16", 1)
    quads = metadata.reshape(8, 4)
    assert (quads[:, :2] == 0).all() and (quads[:, 2:] != 0).all()


def test_tf32_and_pairs_by_hand():
    fields = np.array([[0b0100, 0b1110]])
    assert stored_columns(fields, "tf32").tolist() == [[0, 3]]
    assert stored_columns(np.array([[0b1101]]), "f16").tolist() == [[1, 3]]
    assert stored_columns(np.array([[0b1101, 0b0100]]), "s4").tolist() == [[2, 3, 6, 7, 8, 9, 10, 11]]


def test_undefined_metadata_is_reported():
    fields = np.array([[0b0000, 0b0101, 0b1010, 0b1111, 0b0100, 0b0001]])
    assert [c for _, c, _ in metadata_problems(fields, "f16")] == [0, 1, 2, 3]
    assert [c for _, c, _ in metadata_problems(fields, "f16", ordered=True)] == [0, 1, 2, 3, 5]
    assert [c for _, c, _ in metadata_problems(np.array([[0b0100, 0b1110, 0b0001]]), "tf32")] == [2]
    assert "0b0101 of row 0, chunk 1" in metadata_problems(fields, "s8")[1][2]


def test_too_many_non_zeros_are_refused():
    with pytest.raises(ValueError, match="more than 2 non-zeros in 4 columns"):
        compress(np.ones((16, 32)), "f16", 0)


def test_unselected_elements_of_b_do_no_harm():
    a, columns = np.ones((16, 8), np.float16), np.tile(np.arange(8) // 2 * 4 + np.arange(8) % 2, (16, 1))
    b, c = np.ones((16, 8), np.float16), np.zeros((16, 8), np.float32)
    b[2], b[3] = np.inf, np.nan
    assert (sparse_mma(a, columns, b, c, "f16", "f16", "f32") == 8).all()
    b[1] = np.inf
    assert (sparse_mma(a, columns, b, c, "f16", "f16", "f32") == np.inf).all()


def test_the_compressed_fragment_is_the_dense_one_of_half_the_k():
    got, want = sparse_fragment((16, 8, 32), "f16"), mma_fragment((16, 8, 16), "A", "f16")
    assert all((x == y).all() for x, y in zip(got, want, strict=True))
